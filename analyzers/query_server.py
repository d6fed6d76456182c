"""The analyzer's query socket: SQL, status, the live state, and jobs that are forgotten."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast, get_args

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.archive.sandbox import bounded_queries
from analyzers.archive.sandbox.bounded_queries import CANCELLED
from analyzers.archive.sandbox.query_places import GUESTS, Asker, QueryPlaces
from analyzers.results_server import ResultsServer
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError, RefusedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import (
    AskResults,
    AskStatus,
    Cancel,
    ForgetJob,
    Forgotten,
    No,
    Query,
    QueryDone,
    Reply,
    Status,
)
from zeus_stream.protocol.snapshots import AskNow
from zeus_stream.transport import sockets
from zeus_stream.transport.access import Gate
from zeus_stream.transport.channel import PeerConnection

_log = logging.getLogger(__name__)
LOOK_S = 0.25
"""Between two looks at whether the senders of queries are still there."""
Key: TypeAlias = tuple[bytes, bytes]
"""Sender and correlation."""
Taken: TypeAlias = Query | Cancel | AskStatus | AskNow | AskResults | ForgetJob

MAX_UNREAD_BYTES = 512 * 1024 * 1024
"""Answers on their way to clients; one more is withheld."""
MAX_QUERIES = 32
"""Queries under way or waiting; one more is refused. So many more may be of users who have none."""


class Open(Struct, frozen=True):
    """A query that is not answered yet."""

    asker: Asker
    waiting: anyio.CancelScope
    """Of its wait for a thread."""
    connection: PeerConnection | None
    """Of its sender; None: it was closed at once."""


class QueryServer:
    """The query socket. SQL runs in threads; status is answered at once."""

    def __init__(
        self,
        queries: bounded_queries.Queries,
        status: Callable[[Gate], Status],
        forget: Callable[[str], Awaitable[int | None]],
        now: Callable[[AskNow, int], bytes],
        counters: Counter[str],
        commit: Callable[[], Awaitable[None]],
        results: ResultsServer,
        *,
        readers: int = bounded_queries.THREADS,
        only_sql: str | None = None,
    ) -> None:
        """Begin with no query.

        Args:
            queries: answer SQL.
            status: returns the status of the analyzer.
            forget: lets a job begin again; returns the number of tries that count no more, None if there is
                no such job.
            now: returns the answer to a question for the live state, as it is sent.
            counters: of the analyzer.
            commit: stores what waits, so that an answer has all that was received.
            results: answers who follows the stored results.
            readers: queries answered at once.
            only_sql: the refusal of all but SQL and status; None: everything is answered.
        """
        self._queries = queries
        self._status = status
        self._forget_job = forget
        self._now = now
        self._counters = counters
        self._commit = commit
        self.results = results
        self._only_sql = only_sql
        self._places = QueryPlaces(readers)
        self._threads = anyio.CapacityLimiter(readers + GUESTS)
        self.under_way = 0
        self._open: dict[Key, Open] = {}
        """Queries that are under way or wait."""
        self._asked = anyio.Event()

    def status_rows(self) -> list[tuple[str, str, str]]:
        """Return rows of the status."""
        return [("queries", "under way", str(self.under_way)), *self.results.status()]

    async def run(self, channel: sockets.Listener, gate: Gate) -> None:
        """Answer the query socket until cancelled."""
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(self._end_abandoned)
                while True:
                    for message in await channel.receive():
                        self._take(message, channel, gate, tasks)
            finally:
                self._queries.stop()

    def _take(
        self, message: sockets.Received, channel: sockets.Listener, gate: Gate, tasks: TaskGroup
    ) -> None:
        def reply(answer: Reply, *parts: bytes) -> None:
            if parts and channel.unread_bytes + sum(map(len, parts)) > MAX_UNREAD_BYTES:
                self._counters["answers withheld"] += 1
                answer, parts = _WITHHELD, ()
            if not channel.send(message.sender, correlation, codec.encode(answer), *parts):
                self._counters["replies to nobody"] += 1

        try:
            correlation, payload = message.parts
        except ValueError:
            self._counters["malformed requests"] += 1
            return
        try:
            request = cast("Taken", codec.decode(payload, *get_args(Taken)))
        except MalformedError as wrong:
            self._counters["malformed requests"] += 1
            reply(_no(wrong))
            return
        if self._only_sql is not None and isinstance(request, AskNow | AskResults | ForgetJob):
            reply(No(self._only_sql))
            return
        match request:
            case AskStatus():
                reply(self._status(gate))
            case AskNow():
                self._reply_now(request, message.sender, correlation, channel)
            case AskResults():
                tasks.start_soon(self.results.answer, request, reply)
            case ForgetJob(job):
                objection = gate.objection(message, "command")
                if objection is not None:
                    reply(No(objection))
                else:
                    tasks.start_soon(self._forget, job, reply)
            case Query() if self._full(_asker(message)):
                reply(No(f"query: could not be answered: {MAX_QUERIES} are under way. Ask again later."))
            case Cancel(other):
                self._cancel((message.sender, other))
            case Query():
                self.under_way += 1
                key = message.sender, correlation
                opened = self._open[key] = Open(_asker(message), anyio.CancelScope(), message.connection)
                self._asked.set()
                tasks.start_soon(self._query, request, key, opened, reply)

    def _reply_now(self, asked: AskNow, sender: bytes, correlation: bytes, channel: sockets.Listener) -> None:
        """Answer a question for the live state."""
        if not channel.send(sender, correlation, self._now(asked, monotonic_ns())):
            self._counters["replies to nobody"] += 1

    def _full(self, asker: Asker) -> bool:
        """Return whether a query is one too many."""
        if self.under_way < MAX_QUERIES:
            return False
        of_user = any(each.asker.user == asker.user for each in self._open.values())
        return of_user or self.under_way >= 2 * MAX_QUERIES

    def _cancel(self, key: Key) -> None:
        """End a query, whether it is under way or waits."""
        if (opened := self._open.get(key)) is not None:
            opened.waiting.cancel()
            self._queries.cancel(key)

    async def _end_abandoned(self) -> None:
        """End the queries whose senders are gone."""
        while True:
            await self._asked.wait()
            while self._open:
                await anyio.sleep(LOOK_S)
                for key, each in tuple(self._open.items()):
                    gone = each.connection is not None and not each.connection.open
                    self._counters["queries abandoned"] += gone and not each.waiting.cancel_called
                    if gone or each.waiting.cancel_called:  # again: it may have been about to start
                        self._cancel(key)
            self._asked = anyio.Event()

    async def _query(self, asked: Query, key: Key, opened: Open, reply: Callable[..., None]) -> None:
        answer: tuple[QueryDone | No, list[bytes]] = No(CANCELLED), []
        try:
            await self._commit()
            with opened.waiting:
                async with self._places.take(opened.asker):
                    done, parts = await run_sync(self._queries.answer, asked, key, limiter=self._threads)
                answer = QueryDone(*done), parts
        except RefusedError as wrong:
            reply(_no(wrong))
        except Exception as wrong:  # noqa: BLE001  (no client's text ends the analyzer: reported to both, counted)
            self._counters["queries failed"] += 1
            _log.warning("query: failed: %r", wrong)
            reply(_no(wrong))
        else:
            reply(answer[0], *answer[1])
        finally:
            if self._open.get(key) is opened:
                del self._open[key]
            self.under_way -= 1

    async def _forget(self, job: str, reply: Callable[..., None]) -> None:
        if (count := await self._forget_job(job)) is None:
            why = f"job {job}: could not be forgotten: none of this name is known."
            reply(No(f"{why} Those that are: zeus-stream jobs."))
        else:
            reply(Forgotten(count))


_WITHHELD = No(
    f"query: could not be answered: answers that nobody reads take {MAX_UNREAD_BYTES >> 20} MiB already."
    " Read or end them, then ask again."
)


def _asker(message: sockets.Received) -> Asker:
    return Asker(message.uid if message.key is None else message.key, message.pid)


def _no(wrong: Exception) -> No:
    return No(str(wrong)[:2000])
