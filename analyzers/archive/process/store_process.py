"""Own the DuckDB file in a process of its own: it stores, and forks a child for each query.

    analyzer --requests, one at a time--> this process --fork--> query child --answer--> analyzer
             <--------- replies ---------      |
                                               +--> archive file and its WAL

One thread does all of it, so each fork finds DuckDB between two transactions. The process ends when the
analyzer does, and may be killed at any time: what is committed stays, and what is not is sent again
(`store_client`).

The file is checkpointed only while no query child lives (see `query_process`). While the WAL is small they
are waited for; above HOLD_BYTES new queries wait for the checkpoint; above KILL_BYTES running ones are
ended.
"""

import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.opening import HeldError
from analyzers.archive.process.store_channel import (
    Ask,
    Call,
    Cancel,
    Close,
    Next,
    Open,
    Pages,
    Request,
    receive,
    send,
    unpacked,
)
from analyzers.archive.sandbox import query_process
from zeus_stream.errors import ZeusStreamError
from zeus_stream.own_cost import collect_seldom

_log = logging.getLogger(__name__)

HELD_S = 30.0
"""For another process that has the file open. It may be the store of an analyzer that was killed, in the
middle of a commit, or a command that reads: both end by themselves."""
LOOK_S = 0.05
"""Between two tries to open it then."""
CHECKPOINT_BYTES = 16 << 20
"""A checkpoint stops the commits for about 0.1 s; of a WAL of 256 MB it was 1 to 2 s."""
HOLD_BYTES = 64 << 20
KILL_BYTES = 256 << 20


class StoreProcess:
    """The file, the queries that run over it, and those that wait."""

    def __init__(self, archive: DuckdbFile) -> None:
        self._archive = archive
        self._path = archive.path
        self._waiting: deque[tuple[Ask, int]] = deque()
        self._running: dict[int, tuple[int, int]] = {}
        """By pidfd: pid, and the query's number."""
        self._pages: Iterator[Any] = iter(())
        self._failed: ZeusStreamError | None = None
        """Of the last checkpoint."""

    @property
    def running(self) -> tuple[int, ...]:
        """Descriptors that become readable when a query child has ended."""
        return tuple(self._running)

    def answer(self, request: Request, descriptors: list[int]) -> tuple[bool, Any] | None:
        """Carry a request out; return whether it was done, and its value or its error. None: no reply."""
        match request:
            case Ask():
                self._waiting.append((request, descriptors[0]))
                self.take_turn()
                return None
            case Cancel(number):
                self._cancel(number)
                return None
            case _:
                pass  # it is replied to
        if (failed := self._failed) is not None:
            self._failed = None
            return False, failed
        try:
            return True, self._call(request)
        except ZeusStreamError as wrong:
            return False, wrong

    def tidy(self) -> None:
        """Checkpoint if it is due, after a reply: nobody waits. A failure is answered at the next request."""
        try:
            self._checkpoint()
        except ZeusStreamError as wrong:
            self._failed = wrong

    def _call(self, request: Request) -> Any:
        match request:
            case Pages(since):
                self._pages = self._archive.replay(since)
                return None
            case Next():
                return next(self._pages, None)
            case Call("put", (received, rows, interpreted), options):
                return self._archive.put(list(map(unpacked, received)), rows, interpreted, **dict(options))
            case Call(method, arguments, options):
                member = getattr(self._archive, method)
                return member(*arguments, **dict(options)) if callable(member) else member
            case _:
                raise TypeError(request)

    def _cancel(self, number: int) -> None:
        for ask, out in list(self._waiting):
            if ask.number == number:
                self._waiting.remove((ask, out))
                os.close(out)
        for pidfd, (_, asked) in self._running.items():
            if asked == number:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def reap(self, pidfd: int) -> None:
        """Forget a query child that has ended."""
        pid, _ = self._running.pop(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        query_process.remove_scratch(self._path, pid)

    def take_turn(self) -> None:
        """Start the queries that wait, unless a checkpoint must come first."""
        with suppress(ZeusStreamError):  # a checkpoint that fails is tried and answered at the next request
            self._checkpoint()
        while self._waiting and self._archive.wal_bytes() < HOLD_BYTES:
            ask, out = self._waiting.popleft()
            pid = self._archive.file.fork_query(ask.question, out)
            os.close(out)
            self._running[os.pidfd_open(pid)] = (pid, ask.number)

    def _checkpoint(self) -> None:
        """Checkpoint if it is time and nobody reads. Raises StorageError."""
        size = self._archive.wal_bytes()
        if size >= CHECKPOINT_BYTES and not self._running:
            self._archive.flush()
        elif size >= KILL_BYTES:
            for pidfd in self._running:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def end_queries(self) -> None:
        """End the queries that run."""
        for pidfd in self.running:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self.reap(pidfd)


def _opened(channel: socket.socket, request: Open) -> DuckdbFile:
    """Open the file once no other process has it. Raises StorageError, or EOFError: the analyzer ended."""
    until_s, warned = time.monotonic() + HELD_S, False
    while True:
        try:
            return DuckdbFile.open(request.path, request.settings, again=request.again, checkpoints=False)
        except HeldError as held:
            if time.monotonic() > until_s:
                raise
            if not warned:
                _log.warning("%s Waiting for it, at most %g s.", held, HELD_S)
                warned = True
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            if selector.select(LOOK_S):
                raise EOFError  # nothing else is sent before the reply


def serve(channel: socket.socket) -> None:
    """Open the file that the first request names, then answer until the analyzer goes."""
    request, _ = receive(channel)
    try:
        archive = _opened(channel, request)
    except ZeusStreamError as wrong:
        send(channel, (False, wrong))
        return
    for file in (request.path, Path(f"{request.path}.wal")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)  # an earlier version made it for all to read
    send(channel, (True, None))
    store = StoreProcess(archive)
    try:
        while True:
            with selectors.DefaultSelector() as selector:
                for descriptor in (channel.fileno(), *store.running):
                    selector.register(descriptor, selectors.EVENT_READ)
                ready = [key.fd for key, _ in selector.select()]
            for pidfd in ready:
                if pidfd != channel.fileno():
                    store.reap(pidfd)
                    store.take_turn()
            if channel.fileno() in ready:
                request, descriptors = receive(channel)
                if isinstance(request, Close):
                    break
                reply = store.answer(request, descriptors)
                if reply is not None:
                    send(channel, reply)
                    store.tidy()
    finally:
        store.end_queries()
    archive.close()
    send(channel, (True, None))


def main() -> None:
    """Serve the analyzer at the descriptor in the arguments, a stream socket.

    When the analyzer goes without a word, the file is left as it is: the next to open it reads its WAL.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    collect_seldom()
    os.umask(0o077)  # archive, WAL and what queries keep on disk are for this user alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the analyzer's
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so is the end of a service; it ends us by its own end
    try:
        serve(channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # while the traceback keeps the archive: DuckDB's own end would checkpoint
    os._exit(0)


if __name__ == "__main__":
    main()
