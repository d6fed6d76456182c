"""The command `web` as a process: its token, its address, and its end with streams open."""

import http.client
import signal
import socket
import stat
import time
from contextlib import ExitStack, suppress

import pytest

from tests.zeus_stream.conftest import Cli

pytestmark = pytest.mark.sweep
PATIENCE_S = 120


def test_ctrl_c_ends_a_server_that_has_open_streams(zeus: Cli) -> None:
    process = zeus.start("web", "--listen", "127.0.0.1:0")
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        host, port, token = _parts(address)
        for name in ("web.token", "web.address"):
            assert stat.S_IMODE((zeus.directory / name).stat().st_mode) == 0o600
        assert zeus("web", "--url").stdout.strip() == address
        stream = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        stream.request("GET", "/api/events", headers={"Authorization": f"Bearer {token}"})
        answer = stream.getresponse()
        assert answer.readline() == b"retry: 2000\n"
        assert answer.readline() == b"\n"
        assert answer.readline() == b"event: trouble\n", "no analyzer runs: the stream says so"
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert time.monotonic() - begin < PATIENCE_S / 2
        stream.close()
        assert not (zeus.directory / "web.address").exists()
    finally:
        process.kill()
        process.communicate()


def _parts(address: str) -> tuple[str, int, str]:
    begin, _, token = address.partition("/?token=")
    host, _, port = begin.removeprefix("http://").partition(":")
    return host, int(port), token


def test_a_unix_socket_is_for_its_user_and_group(zeus: Cli) -> None:
    path = zeus.directory / "page"
    process = zeus.start("web", "--no-token", "--listen", f"unix:{path}")
    try:
        assert process.stderr is not None
        assert process.stderr.readline().split()[-1] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(path))
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: gpus.example\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in client.recv(1000)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0:0"), "in clear"),
        (("--no-token",), "without a token"),
        (("--listen", "unix:/nowhere/page"), "could not listen"),
    ],
)
def test_a_wrong_address_is_a_sentence(zeus: Cli, options: tuple[str, ...], says: str) -> None:
    done = zeus("web", *options)
    assert done.returncode == 1
    assert done.stderr.startswith("zeus-stream: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_hundreds_of_idle_connections_without_a_token_do_not_keep_the_owner_out(zeus: Cli) -> None:
    """The page answered 503 to its owner, as long as 500 connections were open."""
    process = zeus.start("web", "--listen", "127.0.0.1:0")
    try:
        assert process.stderr is not None
        host, port, token = _parts(process.stderr.readline().split()[-1])
        with ExitStack() as held:
            owner, late = (http.client.HTTPConnection(host, port, timeout=PATIENCE_S) for _ in range(2))
            held.callback(owner.close)
            held.callback(late.close)
            headers = {"Authorization": f"Bearer {token}"}

            def ask() -> int:
                owner.request("GET", "/-/settings-of-nothing", headers=headers)
                answer = owner.getresponse()
                answer.read()
                return answer.status

            assert ask() == 404
            idle = [held.enter_context(socket.create_connection((host, port))) for _ in range(600)]
            for each in idle[:300]:
                with suppress(OSError):
                    each.sendall(b"GET / HTTP/1.1\r\n")  # and no more of its head
            assert ask() == 404
            late.request("GET", "/-/healthy")
            assert late.getresponse().status == 200
    finally:
        process.kill()
        process.communicate()
