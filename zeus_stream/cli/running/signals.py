"""Signals for a command: passed on once, whether they were sent to this process or to its process group."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

GROUP_S = 0.02
"""The kernel has sent a signal to every member of a process group within this time."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Left(KeyboardInterrupt):
    """A signal ended a wait that somebody does not want to wait for."""


class Signals:
    """A handler of SIGINT, SIGTERM and SIGHUP: passes them to the command, or notes the first of them."""

    def __init__(self) -> None:
        self.told: int | None = None
        """The first signal that was not passed on."""
        self.passed: int | None = None
        """The first signal that the command received while it ran."""
        self.leaves = False
        """Whether somebody did not want to wait: nothing is waited for any more but the restored limits."""
        self._leavable = False
        self._arrived: list[int] = []
        """Signals that are not handled yet. The first is in hand, the others wait."""
        self._command: subprocess.Popen[bytes] | None = None
        self._witness = Witness()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def passed_to(self, command: "subprocess.Popen[bytes]") -> Iterator[None]:
        self._command = command
        self._witness.start()
        if self.told is not None:
            command.send_signal(self.told)
            self.told = None
        try:
            yield
        finally:
            self._command = None
            self._witness.stop()

    @contextmanager
    def leavable(self) -> Iterator[None]:
        """Let a Ctrl-C end the block: it raises `Left`. While the command runs, only a second one does."""
        self._leavable = True
        try:
            yield
        finally:
            self._leavable = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.append(number)
        if len(self._arrived) > 1:
            return
        try:
            while self._arrived:
                self._pass_on(self._arrived[0])
                del self._arrived[0]
        finally:
            self._arrived.clear()

    def _pass_on(self, number: int) -> None:
        again = self._command is None or self.passed is not None
        if self._command is None:
            self.told = self.told or number
        else:
            if not self._witness.received(number):
                self._command.send_signal(number)
            self.passed = self.passed or number
        if again and number == signal.SIGINT and self._leavable:
            self.leaves = True
            raise Left


class Witness:
    """A process that shows whether a signal went to the whole process group, and so to the command as well.

    It blocks the signals, so that the kernel lists them as pending. A terminal sends Ctrl-C to the group,
    as do batch systems; `kill` sends a signal to one process.
    """

    def __init__(self) -> None:
        self._pid, self._pipe = 0, -1

    def start(self) -> None:
        source, self._pipe = os.pipe()
        files = [(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        self._pid = os.posix_spawnp("cat", ["cat"], {}, file_actions=files, setsigmask=SIGNALS)
        os.close(source)

    def stop(self) -> None:
        os.close(self._pipe)  # if this process is killed, it ends at the end of its input
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def received(self, number: int) -> bool:
        """Tell whether it received this signal, and forget it."""
        time.sleep(GROUP_S)
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii", errors="replace")
        pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
        if not int(pending, 16) >> (number - 1) & 1:
            return False
        self.stop()
        self.start()
        return True
