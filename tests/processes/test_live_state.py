"""The live state of real services, and the screen in a real terminal: while a training runs, and after the
analyzer was killed.
"""

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.directories import QUICK_FILE
from tests.environment import environment
from tests.processes.pipeline import PATIENCE_S, Setup
from tests.waiting import until
from zeus_stream.errors import UnreachableError
from zeus_stream.paths import places
from zeus_stream.protocol.snapshots import RunNow, Snapshot
from zeus_stream.transport.client import ask_now

QUICK = (
    "--search", "exhaustive", "--stride-w", "75", "--warmup-steps", "1", "--profile-steps", "5",
    *QUICK_FILE, "--select", "energy",
)  # fmt: skip


TOP = (sys.executable, "-m", "zeus_stream", "top")


def once(directory: Path) -> str:
    """Return one screen as text."""
    done = subprocess.run(
        [*TOP, "--once"], env=environment(directory), capture_output=True, check=True, text=True
    )
    return done.stdout


class Terminal:
    """The screen in a terminal of 160 columns and 45 rows."""

    def __init__(self, directory: Path) -> None:
        self._environment = environment(directory, TERM="xterm-256color", COLUMNS="160", LINES="45")
        self._process: subprocess.Popen[bytes] | None = None
        self._master = -1
        self._seen = ""

    def start(self) -> None:
        """Start it."""
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self._process = subprocess.Popen(TOP, env=self._environment, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)

    def until(self, *words: str) -> None:
        """Wait until all of these were drawn, since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self._seen for word in words):
            assert time.monotonic() < deadline, f"{words} not in {self._seen[-3000:]}"
            if select.select([self._master], [], [], 0.2)[0]:
                drawn = os.read(self._master, 1 << 16).decode(errors="replace")
                self._seen += re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", drawn)
        self._seen = ""

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._master, key.encode())

    def ended(self) -> int:
        """Return the exit code of the screen."""
        assert self._process is not None
        until(lambda: self._drained() and self._process is not None and self._process.poll() is not None)
        return self._process.wait()

    def _drained(self) -> bool:
        """Read what is drawn, so that it does not wait for the terminal."""
        try:
            while select.select([self._master], [], [], 0)[0]:
                os.read(self._master, 1 << 16)
        except OSError:
            return True  # the other end is closed
        return True

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._master >= 0:
            os.close(self._master)


def test_the_live_state_follows_a_training_and_is_back_after_the_analyzer_was_killed(zeus_dir: Path) -> None:
    where = places({"ZEUS_STREAM_DIR": str(zeus_dir)})
    setup = Setup(zeus_dir, gpus=2, analyze=QUICK)

    def now(process: str = "analyzer") -> Snapshot | None:
        try:
            return ask_now(where, process=process)
        except UnreachableError:
            return None

    def chosen() -> RunNow | None:
        runs = [run for state in (now(),) if state for run in state.runs if run.step_j is not None]
        return next((run for run in runs if run.search and run.search.phase == "chosen"), None)

    screen = Terminal(zeus_dir)
    try:
        setup.start("collector")
        until(setup.has_found_gpus)
        assert "collector only" in once(zeus_dir)
        alone = until(lambda: now("collector"))
        assert [(gpu.index, gpu.run) for gpu in alone.gpus] == [(0, None), (1, None)]
        with pytest.raises(UnreachableError, match="zeus-stream analyze"):
            ask_now(where, timeout_s=0.2)
        setup.start("analyzer")
        setup.start("publisher 0")
        run = until(chosen)
        assert run.search is not None
        assert (run.run, run.ranks, len(run.gpus)) == ("run-1", 1, 1)
        assert run.search.trials
        assert f"{run.job} " in once(zeus_dir)
        screen.start()
        screen.until("1 open run", "saved", "chosen", "60 s")
        setup.kill("analyzer")
        screen.until("did not answer")
        assert now() is None
        assert until(lambda: now("collector")).runs[0].run == "run-1"
        setup.start("analyzer")
        again = until(chosen)
        assert (again.run, again.gpus) == (run.run, run.gpus)
        state = until(lambda: next((one for one in (now(),) if one and one.totals.gpus_there == 2), None))
        assert state.totals.hosts_connected == 1
        screen.press("\r")
        screen.until("Power limits", "of a step's energy")
        screen.press("q")
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
        setup.close()
