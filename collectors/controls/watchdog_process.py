"""Keeps a watchdog (`collectors.controls.watchdog`) beside the collector: without one nothing is changed."""

import logging
import os
import subprocess

import anyio
from anyio.to_thread import run_sync

from collectors import processes
from collectors.controls.watchdog import READY
from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import Places
from zeus_stream.service_packages import python_child

READY_S = 10.0
"""A watchdog that is not ready by then is given up."""
GONE_S = 2.0
EVERY_NS = 1_000_000_000
"""At most one watchdog is started in this time."""
LOOK_S = 1.0
"""Between two looks whether the watchdog was stopped."""
_log = logging.getLogger(__name__)


class WatchdogProcess:
    """One watchdog at a time, replaced when it dies. `close` ends it: it restores what is left."""

    def __init__(self, device: str, where: Places, set_command: str = "") -> None:
        self._arguments = (device, str(where.run), str(where.records), set_command)
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        """The end whose closing the watchdog waits for."""
        self._started_ns = 0
        self.trouble: str | None = "watchdog: is not ready: it has not been started. Ask again."
        """Why no watchdog stands; None: one does."""

    @property
    def pid(self) -> int | None:
        """Process id of the watchdog, if one was started."""
        return None if self._watchdog is None else self._watchdog.pid

    async def start(self) -> None:
        """Start a watchdog, and return when it is ready or `trouble` says why it is not."""
        self._started_ns = monotonic_ns()
        try:
            watchdog = self._watchdog = self._spawn()
        except OSError as wrong:
            self._complain(f"could not be started: {wrong.strerror}")
            return
        assert watchdog.stdout is not None
        word = None
        with watchdog.stdout as words, anyio.move_on_after(READY_S):
            await anyio.wait_readable(words)
            word = os.read(words.fileno(), len(READY))
        if word == READY:
            self.trouble = None
        else:
            why = "ended while it started" if word is not None else f"was not ready within {READY_S:g} s"
            self._complain(f"process {watchdog.pid} {why}")
            watchdog.kill()

    async def keep(self) -> None:
        """Replace a watchdog that has died, and try again when it cannot be replaced."""
        while True:
            if self._watchdog is not None:
                await self._watch(self._watchdog)
            await self.close()
            await anyio.sleep(max(0, self._started_ns + EVERY_NS - monotonic_ns()) / 1e9)
            await self.start()
            if self.trouble is None:
                _log.warning("watchdog: process %s has taken its place.", self.pid)

    async def _watch(self, watchdog: "subprocess.Popen[bytes]") -> None:
        """Return when the watchdog can restore nothing any more: it has died, or somebody has stopped it."""
        while True:
            with anyio.move_on_after(LOOK_S):
                await processes.ended(watchdog.pid, None)
                if self.trouble is None:
                    self._complain(f"process {watchdog.pid} has died ({watchdog.wait()})")
                return
            if processes.is_stopped(watchdog.pid):
                self._complain(f"process {watchdog.pid} is stopped, and was killed")
                watchdog.kill()
                return

    async def close(self) -> None:
        """Let the watchdog go. It ends at once, unless something is left to restore."""
        watchdog, pipe = self._watchdog, self._pipe
        self._watchdog = self._pipe = None
        if pipe is not None:
            os.close(pipe)
        if watchdog is not None:
            try:
                await run_sync(watchdog.wait, GONE_S)
            except subprocess.TimeoutExpired:
                _log.warning("watchdog: process %s goes on: something is left to restore.", watchdog.pid)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        theirs, self._pipe = os.pipe()  # neither is inherited, but as the watchdog's stdin
        try:
            return subprocess.Popen(  # noqa: S603  (this interpreter, this package)
                python_child("collectors.controls.watchdog", *self._arguments),
                stdin=theirs,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    def _complain(self, why: str) -> None:
        self.trouble = f"watchdog: {why}. Until another one is ready, no limit and no clock is changed."
        _log.warning("%s", self.trouble)
