"""``zeus-stream top`` in a terminal of its own."""

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.environment import PATIENCE_S, ZEUS_STREAM, environment
from tests.waiting import until


class Terminal:
    """The screen in a terminal of 160 columns and 45 rows."""

    def __init__(self, directory: Path) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 160, 0, 0))
        self._seen = ""
        self.process = subprocess.Popen(
            [sys.executable, *ZEUS_STREAM, "top"],
            env=environment(directory, TERM="xterm-256color"), stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)

    def until(self, *words: str) -> None:
        """Wait until all of these were drawn, since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(word in self._seen for word in words):
            assert time.monotonic() < deadline, f"{words} not in {self._seen[-3000:]}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    drawn = os.read(self._master, 1 << 16).decode(errors="replace")
                except OSError:  # the other end is closed
                    pytest.fail(f"the screen ended: {self._seen[-3000:]}")
                self._seen += re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", drawn)
        self._seen = ""

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def ended(self) -> int:
        """Return the exit code of the screen."""
        until(lambda: self._drained() and self.process.poll() is not None)
        return self.process.wait()

    def _drained(self) -> bool:
        """Read what is drawn, so that it does not wait for the terminal."""
        try:
            while select.select([self._master], [], [], 0)[0]:
                os.read(self._master, 1 << 16)
        except OSError:
            return True  # the other end is closed
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def top(directory: Path) -> Iterator[Terminal]:
    """Run the screen until the end of the block."""
    terminal = Terminal(directory)
    try:
        yield terminal
    finally:
        terminal.close()
