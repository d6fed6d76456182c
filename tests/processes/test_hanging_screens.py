"""A screen that hangs or dies is noticed by nobody: `top` in a terminal, and a browser that reads no more."""

import http.client
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.environment import PATIENCE_S, ZEUS_STREAM, running
from tests.processes.pipeline import Setup, pipeline
from tests.processes.terminal import top
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


@contextmanager
def browser(setup: Setup, host: str, token: str) -> Iterator["subprocess.Popen[str]"]:
    with running(setup.directory, "-c", BROWSER, host, token) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        yield process
        process.kill()


def test_steps_and_other_viewers_go_on_while_screens_hang_and_after_they_were_killed(zeus_dir: Path) -> None:
    with ExitStack() as held:
        setup = held.enter_context(pipeline(zeus_dir))
        until(lambda: setup.sql(STEPS) and setup.sql(STEPS)[0]["last"] > 3)
        web = held.enter_context(running(zeus_dir, *ZEUS_STREAM, "web", "--listen", "127.0.0.1:0"))
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

        def measured() -> int:
            """Return the last step that is measured. A busy analyzer may answer late."""
            return int(until(lambda: setup.sql(STEPS))[0]["last"])

        def steps(more: int) -> None:
            """Wait until so many more steps are measured."""
            last = measured()
            until(lambda: measured() >= last + more)

        looks(1)
        with top(zeus_dir) as screen, browser(setup, host, token) as page:
            screen.until("help")
            for process in (screen.process, page):
                process.send_signal(signal.SIGSTOP)
            looks(3)
            steps(20)
            assert screen.process.poll() is None
        looks(2)
        steps(20)
        assert web.poll() is None
        assert set(setup.running) == {"collector", "analyzer", "publisher 0"}
        assert until(lambda: setup.sql("SELECT count(*) AS n FROM gaps")) == [{"n": 0}]
        for name in ("collector", "analyzer"):
            assert os.waitpid(setup.pid(name), os.WNOHANG) == (0, 0)
            assert "Traceback" not in setup.output(name)
