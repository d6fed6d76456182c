"""The command `web` as a process: its token, its address, and its end with streams open."""

import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from tests.zeus_stream.conftest import Cli
from zeus_stream.screens.web.access.web_connections import MOST_BYTES, MOST_S, MOST_UNKNOWN

pytestmark = pytest.mark.sweep
PATIENCE_S = 120
MANY = """
import encodings.idna, os, socket, sys, time
os.setgroups([])
os.setuid(65_534)
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print(".", end="", flush=True)
time.sleep(600)
"""
"""Holds connections, as many as its second argument says."""


@contextmanager
def serving(zeus: Cli, *options: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Run the page; give its process, and the address that it prints after what it says of the setup."""
    process = zeus.start("web", *options)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while not lines[-1].startswith("web: open "):
            assert lines[-1], "it has ended"
            lines.append(process.stderr.readline())
        assert lines[0].startswith("web: no analyzer runs: ")
        yield process, lines[-1].split()[-1]
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_a_server_that_has_open_streams(zeus: Cli) -> None:
    with serving(zeus, "--listen", "127.0.0.1:0") as (process, address):
        host, port, token = _parts(address)
        assert host == "127.0.0.1"
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


def _parts(address: str) -> tuple[str, int, str]:
    begin, _, token = address.partition("/?token=")
    host, _, port = begin.removeprefix("http://").partition(":")
    return host, int(port), token


def test_a_unix_socket_is_for_its_user_and_group(zeus: Cli) -> None:
    path = zeus.directory / "page"
    with serving(zeus, "--no-token", "--listen", f"unix:{path}") as (process, address):
        assert address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(path))
            client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: gpus.example\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in client.recv(1000)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not path.exists()


def answer_to(address: str, *parts: bytes) -> tuple[bytes, float]:
    """Send parts over one connection; return all that comes until the server closes it, and the seconds."""
    host, port, _ = _parts(address)
    began, found = time.monotonic(), b""
    with socket.create_connection((host, port), timeout=PATIENCE_S) as client, suppress(ConnectionError):
        for part in parts:
            client.sendall(part)
        while data := client.recv(65_536):
            found += data
    return found, time.monotonic() - began


def test_a_connection_without_a_token_has_bounds_on_its_time_and_its_bytes(zeus: Cli) -> None:
    """It could take any time for its head, and send any number of bytes."""
    with serving(zeus, "--listen", "127.0.0.1:0") as (_process, address):
        assert answer_to(address, b"GET / HTTP/1.1\r\nHost: loc")[1] >= MOST_S / 2
        begin = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"
        body, seconds = answer_to(address, begin, *([b"x" * 100_000] * 100))
        assert body.startswith(b"HTTP/1.1 401") or not body
        assert seconds < PATIENCE_S / 2
        two = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        for second in (b"Content-Length: 7\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"):
            refused, _ = answer_to(address, two + second)
            assert refused.startswith(b"HTTP/1.1 400"), refused
            assert refused.count(b"HTTP/1.1") == 1
        _, port, token = _parts(address)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as granted:
            headers = {"Authorization": f"Bearer {token}"}
            granted.request("GET", "/nowhere", headers=headers)
            assert granted.getresponse().read()
            granted.request("GET", "/nowhere", headers=headers | {"Cookie": "x" * (MOST_BYTES - 10_000)})
            assert granted.getresponse().status == 404


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_connections_of_another_user_take_no_place_of_ours(zeus: Cli) -> None:
    """Each of their connections closed the oldest, also ours."""
    with serving(zeus, "--listen", "127.0.0.1:0") as (_process, address):
        host, port, token = _parts(address)
        with socket.create_connection((host, port), timeout=PATIENCE_S) as ours:
            command = [sys.executable, "-c", MANY, str(port), str(3 * MOST_UNKNOWN)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as flood:
                try:
                    assert flood.stdout is not None
                    assert flood.stdout.read(1) == b"."
                    ours.sendall(f"GET /nowhere?token={token} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    assert ours.recv(100).startswith(b"HTTP/1.1 303")
                finally:
                    flood.kill()


def test_hundreds_of_idle_connections_without_a_token_do_not_keep_the_owner_out(zeus: Cli) -> None:
    """The page answered 503 to its owner, as long as 500 connections were open."""
    with serving(zeus, "--listen", "127.0.0.1:0") as (_process, address):
        host, port, token = _parts(address)
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
