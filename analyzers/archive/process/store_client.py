"""The archive as the analyzer sees it: the same methods, carried out by the process that owns the file.

A store process that ends, for whatever reason, is replaced, and what it was asked is asked again: every
request may be carried out twice (frames and gaps that are stored are skipped; rows replace those of the
same key).
"""

import logging
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from threading import Lock
from typing import Any, Self

from analyzers.archive.process.child_process import ChildProcess, start_store
from analyzers.archive.process.command_file import CommandFile
from analyzers.archive.process.store_channel import Call, EndQuery, OpenStore, Request, StartQuery, packed
from analyzers.archive.sandbox.bounded_queries import Question
from analyzers.archive.store import Page, Received
from analyzers.results.memory import Memory
from analyzers.results.rows import CheckpointRow, Derived
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

_log = logging.getLogger(__name__)

RESTARTS, RESTARTS_S = 10, 60.0
"""Store processes that are started within this time, at most; then the analyzer ends."""
LINGER_S = 30.0
"""For the file to be closed, with a checkpoint, before its process is killed."""


class StoreClient:
    """A `Store` that another process has open. For any thread; one request at a time."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """For `open`."""
        self._path = path
        self._settings = settings
        self._lock = Lock()
        self._channel: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started: deque[float] = deque(maxlen=RESTARTS)
        self._asked = 0
        self.commands: CommandFile | None = None
        """Rows that commands wait for and that are not stored yet."""
        self.replaced = 0
        """Store processes that ended by themselves."""

    @classmethod
    def open(cls, path: Path, settings: Settings, started: ChildProcess | None = None) -> Self:
        """Open the archive in a process, which may run already. Raises StorageError as `DuckdbFile.open`."""
        client = cls(path, settings)
        client._start(again=False, started=started)
        client.archive_id, client.starts = client._call("archive_id"), client._call("starts")
        try:
            client.commands = commands = CommandFile(path, client.archive_id)
            if left := commands.read():
                client.put([], left, replaying=True)
            commands.clear(commands.end)
        except StorageError:
            client.close()
            raise
        return client

    archive_id: str
    starts: int

    @property
    def pid(self) -> int:
        """The process that has the file open now."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        with self._lock:
            if self._channel is None or self._process is None:
                return
            if self.commands is not None:
                self.commands.close()
            try:
                self._channel.send(None)
                self._channel.recv()
            except (EOFError, OSError):
                pass  # it has ended by itself: what is committed stays
            self._end()

    # ---- what is stored -----------------------------------------------------------------------------

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        what = (list(map(packed, received)), rows, dict(interpreted or {}))
        # Asked twice, rows replace those of the first time.
        self._request(Call("put", (*what, replaying)), Call("put", (*what, True)))

    def prune(self, settings: Settings, wall_ns: int, code: str | None = None) -> dict[str, int]:
        removed: dict[str, int] = self._call("prune", settings, wall_ns, code)
        return removed

    # ---- what it gives back -------------------------------------------------------------------------

    def position(self, host: str) -> tuple[str, int] | tuple[None, None]:
        value: tuple[str, int] | tuple[None, None] = self._call("position", host)
        return value

    def memory(self, since: Mapping[str, int] | None = None, sessions: Sequence[str] = ()) -> Memory:
        value: Memory = self._call("memory", since, sessions)
        return value

    def checkpoint(self, name: str) -> CheckpointRow | None:
        value: CheckpointRow | None = self._call("checkpoint", name)
        return value

    def replay(self, since: Mapping[str, int] | None = None) -> Iterator[Page]:
        seen: dict[str, int] = {}
        replaced = self.replaced
        begin = Call("begin_replay", (since,))
        self._request(begin)
        while (page := self._request(Call("next_page"), begin)) is not None or replaced != self.replaced:
            # A store that was replaced begins again, with all that was not seen yet, and more.
            replaced = self.replaced
            fresh = [part for part in page or () if part[0].offset > seen.get(part[0].log_id, -1)]
            seen |= {frame.log_id: frame.offset for frame, _ in fresh}
            if fresh:
                yield fresh

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe, as it is at the next free moment; return what ends it."""
        with self._lock:
            self._asked += 1
            number = self._asked
            self._send_unanswered(StartQuery(number, question), out)
        return partial(self._cancel, number)

    def _cancel(self, number: int) -> None:
        with self._lock:
            self._send_unanswered(EndQuery(number))

    # ---- the process --------------------------------------------------------------------------------

    def _call(self, method: str, *arguments: object) -> Any:
        return self._request(Call(method, arguments))

    def _request(self, request: Request, repeated: Request | None = None) -> Any:
        """Return the store's reply. ``repeated``: what to ask one that took the place of another."""
        with self._lock:
            while True:
                if self._channel is None:
                    raise StorageError(f"{self._path}: could not be used: it is closed. Open it again.")
                try:
                    self._channel.send(request)
                    done, value = self._channel.recv()
                except (EOFError, OSError) as wrong:
                    self._replace(wrong)
                    request = repeated or request
                    continue
                if not done:
                    raise value
                return value

    def _send_unanswered(self, request: Request, pipe: int | None = None) -> None:
        """Send what has no reply. It is lost with a store that ends later, as is the query of it."""
        while self._channel is not None and self._process is not None:
            try:
                if self._process.poll() is not None:  # a child of it may still hold the channel
                    raise BrokenPipeError
                self._channel.send(request)
                if pipe is not None:
                    send_handle(self._channel, pipe, None)
            except OSError as wrong:
                self._replace(wrong)
            else:
                return

    def _replace(self, why: BaseException) -> None:
        """Start another store in place of one that has ended. Raises StorageError."""
        ended = self._end()
        self.replaced += 1
        if len(self._started) == RESTARTS and time.monotonic() - self._started[0] < RESTARTS_S:
            raise StorageError(
                f"{self._path}: could not be used: {RESTARTS} processes that opened it ended within"
                f" {RESTARTS_S:g} s, the last with {ended}. Look for its last words above, and at the memory."
            ) from why
        _log.warning(
            "%s: the process that had it open ended with %s. Another takes its place; nothing that was"
            " received is lost, queries under way are.", self._path, ended,
        )  # fmt: skip
        self._start(again=True)

    def _start(self, *, again: bool, started: ChildProcess | None = None) -> None:
        self._started.append(time.monotonic())
        self._process, ours = started or start_store()
        self._channel = channel = Connection(ours.detach())
        try:
            channel.send(OpenStore(self._path, self._settings, again))
            done, value = channel.recv()
        except (EOFError, OSError) as wrong:
            raise StorageError(
                f"{self._path}: could not be opened: the process that should open it ended with"
                f" {self._end()}. Look for its last words above."
            ) from wrong
        if not done:
            self._end()
            raise value

    def _end(self) -> str:
        """Make sure that the store process is gone; return how it ended, in words."""
        assert self._process is not None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        try:
            code = self._process.wait(timeout=LINGER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"
