"""A screen that hangs or dies is noticed by nobody: `top` in a terminal, and a browser that reads no more."""

import http.client
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import ioctl

import pytest

from tests.directories import short_directory
from tests.environment import environment
from tests.processes.pipeline import PATIENCE_S, Setup
from tests.waiting import until

pytestmark = pytest.mark.sweep
BROWSER = """
import http.client, socket, sys
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("GET", "/api/events?html", headers={"Authorization": f"Bearer {sys.argv[2]}"})
answer = connection.getresponse()
while line := answer.readline():
    if line.startswith(b"event: now"):
        print("now", flush=True)
"""
STEPS = "SELECT coalesce(max(step), 0) AS last FROM steps WHERE energy_j IS NOT NULL"


@pytest.fixture
def setup() -> Iterator[Setup]:
    with short_directory() as directory:
        made = Setup(directory)
        try:
            for process in ("collector", "analyzer", "publisher 0"):
                made.start(process)
                if process == "collector":
                    until(made.has_found_gpus)
            until(lambda: made.sql(STEPS) and made.sql(STEPS)[0]["last"] > 3)
            yield made
        finally:
            made.close()


@contextmanager
def top(setup: Setup) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``top`` in a terminal of its own, until its screen is whole."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "zeus_stream", "top"],
        env=environment(setup.directory, TERM="xterm-256color"), stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    try:
        end_s = time.monotonic() + PATIENCE_S
        while b"\x1b[?2004h" not in seen or b"help" not in seen:  # Textual takes keys, and has drawn
            assert time.monotonic() < end_s, seen[-500:]
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 1 << 16)
        yield process
    finally:
        process.kill()
        process.wait()
        os.close(master)


@contextmanager
def browser(setup: Setup, host: str, token: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", BROWSER, host, token], env=environment(setup.directory), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_steps_and_other_viewers_go_on_while_screens_hang_and_after_they_were_killed(setup: Setup) -> None:
    with ExitStack() as held:
        web = subprocess.Popen(
            [sys.executable, "-m", "zeus_stream", "web", "--listen", "127.0.0.1:0"],
            env=environment(setup.directory), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        held.callback(web.communicate)
        held.callback(web.kill)
        assert web.stderr is not None
        said = next(line for line in web.stderr if "http://" in line)
        host, _, token = said.split()[-1].removeprefix("http://").partition("/?token=")
        other = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        held.callback(other.close)
        other.request("GET", "/api/events?html", headers={"Authorization": f"Bearer {token}"})
        stream = other.getresponse()

        def looks(count: int) -> None:
            """Wait for so many looks of the viewer that reads on."""
            while count:
                line = stream.readline()
                assert line, "its stream goes on"
                assert not line.startswith(b"event: trouble"), stream.readline()
                count -= line.startswith(b"event: now")

        def steps(more: int) -> None:
            """Wait until so many more steps are measured."""
            last = setup.sql(STEPS)[0]["last"]
            until(lambda: setup.sql(STEPS) and setup.sql(STEPS)[0]["last"] >= last + more)

        looks(1)
        with top(setup) as screen, browser(setup, host, token) as page:
            for process in (screen, page):
                process.send_signal(signal.SIGSTOP)
            looks(3)
            steps(20)
            assert screen.poll() is None
        looks(2)
        steps(20)
        assert web.poll() is None
        assert set(setup.running) == {"collector", "analyzer", "publisher 0"}
        assert setup.sql("SELECT count(*) AS n FROM gaps") == [{"n": 0}]
        for name in ("collector", "analyzer"):
            assert os.waitpid(setup.pid(name), os.WNOHANG) == (0, 0)
            assert "Traceback" not in setup.output(name)
