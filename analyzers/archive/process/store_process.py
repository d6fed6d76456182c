"""Own the DuckDB file in a process of its own: it stores, and forks a child for each query.

    analyzer --requests, one at a time--> this process --fork--> query child --answer--> analyzer
             <--------- replies ---------      |
                                               +--> archive file and its WAL

One thread does all of it, so each fork finds DuckDB between two transactions. The process ends when the
analyzer does, and may be killed at any time: what is committed stays, and what is not is sent again
(`store_client`).

The file is checkpointed only while no query child lives (see `confined_query`). While the WAL is small they
are waited for; above HOLD_BYTES new queries wait for the checkpoint; above KILL_BYTES running ones are
ended.
"""

import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.opening import HeldError
from analyzers.archive.process.store_channel import Call, EndQuery, OpenStore, Request, StartQuery, unpacked
from analyzers.archive.sandbox import confined_query
from zeus_stream.errors import ZeusStreamError
from zeus_stream.own_cost import share_one_heap

_log = logging.getLogger(__name__)

HELD_S = 30.0
"""For another process that has the file open. It may be the store of an analyzer that was killed, in the
middle of a commit, or a command that reads: both end by themselves."""
LOOK_S = 0.05
"""Between two tries to open it then."""
CHECKPOINT_BYTES = 16 << 20
"""A checkpoint stops the commits for about 0.1 s; of a WAL of 256 MB it was 1 to 2 s."""
KEEP_S = 10.0
"""Between two times at which runs that ended are kept: 60 ms of processor time, and 0.3 more a run. A churn
of four runs a second took a tenth of a core for it at each commit."""
HOLD_BYTES = 64 << 20
KILL_BYTES = 256 << 20


class StoreProcess:
    """The file, the queries that run over it, and those that wait."""

    def __init__(self, archive: DuckdbFile) -> None:
        self.archive = archive
        archive.writer.ended = set()  # a run of a million steps takes a second
        self._path = archive.path
        self._waiting: deque[tuple[StartQuery, int]] = deque()
        self.running: dict[int, tuple[int, int]] = {}
        """By pidfd, which becomes readable when the query's child has ended: its pid, and number."""
        self._pages: Iterator[Any] = iter(())
        self._failed: ZeusStreamError | None = None
        """Of the last checkpoint."""
        self._keep_s = 0.0
        """When (CLOCK_MONOTONIC) runs that ended are kept next."""

    def ask(self, request: StartQuery, out: int) -> None:
        self._waiting.append((request, out))
        self.take_turn()

    def call(self, request: Call) -> tuple[bool, Any]:
        """Carry a request out; return whether it was done, and its value or its error."""
        if (failed := self._failed) is not None:
            self._failed = None
            return False, failed
        try:
            return True, self._call(request)
        except ZeusStreamError as wrong:
            return False, wrong

    def tidy(self) -> None:
        """Keep runs that ended, and checkpoint, as it is due, after a reply. A failure is the next answer."""
        if time.monotonic() >= self._keep_s:
            self._keep_s = time.monotonic() + KEEP_S
            self.archive.keep_ended()
        try:
            self._checkpoint()
        except ZeusStreamError as wrong:
            self._failed = wrong

    def _call(self, request: Call) -> Any:
        match request:
            case Call("put", (received, rows, interpreted, replaying)):
                return self.archive.put(list(map(unpacked, received)), rows, interpreted, replaying=replaying)
            case Call("begin_replay", (since,)):
                self._pages = self.archive.replay(since)
                return None
            case Call("next_page"):
                return next(self._pages, None)
            case Call(method, arguments):
                member = getattr(self.archive, method)
                return member(*arguments) if callable(member) else member

    def cancel(self, number: int) -> None:
        for ask, out in list(self._waiting):
            if ask.number == number:
                self._waiting.remove((ask, out))
                os.close(out)
        for pidfd, (_, asked) in self.running.items():
            if asked == number:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def reap(self, pidfd: int) -> None:
        pid, _ = self.running.pop(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        confined_query.remove_scratch(self._path, pid)

    def take_turn(self) -> None:
        """Start the queries that wait, unless a checkpoint must come first."""
        with suppress(ZeusStreamError):  # a checkpoint that fails is tried and answered at the next request
            self._checkpoint()
        while self._waiting and self.archive.wal_bytes() < HOLD_BYTES:
            ask, out = self._waiting.popleft()
            pid = self.archive.file.fork_query(ask.question, out)
            os.close(out)
            self.running[os.pidfd_open(pid)] = (pid, ask.number)

    def _checkpoint(self) -> None:
        """Checkpoint if it is time and nobody reads. Raises StorageError."""
        size = self.archive.wal_bytes()
        if size >= CHECKPOINT_BYTES and not self.running:
            self.archive.flush()
        elif size >= KILL_BYTES:
            for pidfd in self.running:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def end_queries(self) -> None:
        for pidfd in tuple(self.running):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            self.reap(pidfd)


def _opened(channel: Connection, request: OpenStore) -> DuckdbFile:
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
        if channel.poll(LOOK_S):
            raise EOFError  # nothing else is sent before the reply


def serve(channel: Connection) -> None:
    request: OpenStore = channel.recv()
    try:
        archive = _opened(channel, request)
    except ZeusStreamError as wrong:
        channel.send((False, wrong))
        return
    channel.send((True, None))
    store = StoreProcess(archive)
    try:
        while True:
            for ready in wait([channel, *store.running]):
                if isinstance(ready, int):
                    store.reap(ready)
                    store.take_turn()
                elif not _answered(store, channel, channel.recv()):
                    return
    finally:
        store.end_queries()


def _answered(store: StoreProcess, channel: Connection, request: Request) -> bool:
    """Carry a request out. Return False after the last one."""
    match request:
        case None:
            store.end_queries()
            store.archive.keep_ended()
            store.archive.close()
            channel.send((True, None))
            return False
        case StartQuery():
            store.ask(request, recv_handle(channel))
        case EndQuery(number):
            store.cancel(number)
        case Call():
            channel.send(store.call(request))
            store.tidy()
        case _:
            raise TypeError(request)
    return True


def main() -> None:
    """Serve the analyzer at the descriptor in the arguments, a stream socket, until it goes."""
    channel = Connection(int(sys.argv[1]))
    share_one_heap()
    os.umask(0o077)  # archive, WAL and what queries keep on disk are for this user alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the analyzer's
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so is the end of a service; it ends us by its own end
    try:
        serve(channel)
    except (EOFError, OSError):  # also in the middle of a message
        os._exit(0)  # while the traceback keeps the archive: DuckDB's own end would checkpoint
    os._exit(0)


if __name__ == "__main__":
    main()
