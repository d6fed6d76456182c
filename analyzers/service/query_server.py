"""The analyzer's query socket: SQL, status, the live state, jobs that are forgotten, stored results.

A reader that follows the results asks for the page after its last one, and waits a while if there is none.
So each reader has its own pace, and a slow one costs the analyzer nothing: it learns how many are kept no
longer.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias, cast, get_args

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.archive.sandbox import bounded_queries
from analyzers.archive.sandbox.bounded_queries import CANCELLED
from analyzers.results.feed import MAX_RESULTS, FeedPage, Place, ResultsFeed
from analyzers.results.rows import Derived
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
    ResultsPage,
    Status,
    StatusRows,
)
from zeus_stream.protocol.snapshots import AskNow
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.channel import PeerConnection
from zeus_stream.transport.listening.listener import Listener

GUESTS = 1
"""Places more, for users who have no query under way."""


class Asker(NamedTuple):
    """The sender of a query."""

    user: str | int | None
    """The name of its key, or its uid."""
    pid: int | None


class QueryPlaces:
    """Places of queries that are answered at once: nobody's queries keep others out.

    Of those who wait, the user with the fewest queries under way is next; of one user's, the process with the
    fewest; then the oldest. A user who has none under way has a place more than the others.
    """

    def __init__(self, places: int) -> None:
        """``places``: without those of guests."""
        self._left = places
        self._of_user: Counter[str | int | None] = Counter()
        self._of: Counter[Asker] = Counter()
        self._waiting: dict[anyio.Event, Asker] = {}

    @asynccontextmanager
    async def take(self, asker: Asker) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the end."""
        place = anyio.Event()
        self._waiting[place] = asker
        self._give()
        try:
            await place.wait()
            yield
        finally:
            if self._waiting.pop(place, None) is None:  # it was given
                self._count(asker, -1)
            self._give()

    def _give(self) -> None:
        while self._waiting:
            place, asker = min(self._waiting.items(), key=self._order)
            if self._left <= (0 if self._of_user[asker.user] else -GUESTS):
                return
            del self._waiting[place]
            self._count(asker, 1)
            place.set()

    def _order(self, waiting: tuple[anyio.Event, Asker]) -> tuple[int, int]:
        _, asker = waiting
        return self._of_user[asker.user], self._of[asker]

    def _count(self, asker: Asker, change: int) -> None:
        self._left -= change
        self._of_user[asker.user] += change
        self._of[asker] += change
        if not self._of[asker]:
            del self._of[asker]
        if not self._of_user[asker.user]:
            del self._of_user[asker.user]


_log = logging.getLogger(__name__)
LOOK_S = 0.25
"""Between two looks at whether the senders of queries are still there."""
Key: TypeAlias = tuple[bytes, bytes]
"""Sender and correlation."""
Taken: TypeAlias = Query | Cancel | AskStatus | AskNow | AskResults | ForgetJob

MAX_READERS = 64
"""Readers that wait for results; one more is refused."""
MAX_UNREAD_BYTES = 512 * 1024 * 1024
"""Answers on their way to clients; one more is withheld."""
MAX_QUERIES = 32
"""Queries under way or waiting; one more is refused. So many more may be of users who have none."""


class ResultsServer:
    """The results of one analyzer, and those who wait for more. For one event loop."""

    def __init__(self, name: str, room: int = MAX_RESULTS) -> None:
        """``name``: of this start of the analyzer. ``room``: results to keep."""
        self._feed = ResultsFeed(name, room)
        self._stored = anyio.Event()
        self._encoders = anyio.CapacityLimiter(1)
        self.readers = 0
        """Readers that wait."""
        self.missed = 0
        """Results that readers were too slow for."""

    def publish(self, rows: Sequence[Derived], *, replayed: bool) -> None:
        """Take in rows that were stored. Never waits."""
        if rows:
            self._feed.add(rows, replayed=replayed)
            self._stored.set()
            self._stored = anyio.Event()

    def status(self) -> StatusRows:
        kept = self._feed.end - self._feed.oldest
        return [
            ("results", "stored", str(self._feed.end)),
            ("results", "kept for readers", str(kept)),
            ("results", "readers", str(self.readers)),
            ("results", "missed by slow readers", str(self.missed)),
        ]

    async def answer(self, asked: AskResults, reply: Callable[..., None]) -> None:
        """Send the page that a reader asks for, once there is one or its wait is over."""
        if self.readers >= MAX_READERS:
            reply(
                No(
                    f"results: could not be followed: {MAX_READERS} readers wait already."
                    " End one of them, or ask again later."
                )
            )
            return
        self.readers += 1
        try:
            page = await self._next_page(asked)
            rows = page.rows
            encoded = await run_sync(codec.encode_records, rows, limiter=self._encoders)
            while len(encoded) > codec.MAX_BYTES:
                rows = rows[: len(rows) // 2]
                encoded = await run_sync(codec.encode_records, rows, limiter=self._encoders)
        finally:
            self.readers -= 1
        self.missed += page.missed or 0
        head = ResultsPage(
            feed=page.feed,
            first=page.first,
            next=page.first + len(rows),
            missed=page.missed,
            replayed=page.replayed,
        )
        reply(head, encoded)

    async def _next_page(self, asked: AskResults) -> FeedPage:
        if asked.feed is None or asked.after is None:
            place = self._feed.begin(newest=asked.newest)
        else:
            place = Place(asked.feed, asked.after)
        with anyio.move_on_after(asked.wait_ms / 1000):
            while not (page := self._feed.page(place)).rows and page.missed == 0:
                await self._stored.wait()
        return self._feed.page(place)


class Open(Struct, frozen=True):
    """A query that is not answered yet."""

    asker: Asker
    waiting: anyio.CancelScope
    """The scope of its wait for a thread."""
    connection: PeerConnection | None
    """The connection of its sender; None: it was closed at once."""


class AnalyzerAnswers(Struct, frozen=True):
    """The answers of an analyzer to what is not SQL."""

    forget: Callable[[str], Awaitable[int | None]]
    """Lets a job begin again; returns the number of tries that count no more, None if there is none."""
    now: Callable[[AskNow, int], bytes]
    """Returns the answer to a question for the live state, as it is sent."""
    commit: Callable[[], Awaitable[None]]
    """Stores what waits, so that an answer has all that was received."""
    results: ResultsServer
    """Answers readers that follow the stored results."""


class QueryServer:
    """The query socket. SQL runs in threads; status is answered at once."""

    def __init__(
        self,
        queries: bounded_queries.Queries,
        status: Callable[[AccessGate], Status],
        analyzer: AnalyzerAnswers | str,
        counters: Counter[str],
        *,
        readers: int = bounded_queries.THREADS,
    ) -> None:
        """``analyzer``: answers all but SQL; a text: the refusal of that. ``readers``: answered at once."""
        self._queries = queries
        self._status = status
        self._analyzer = analyzer
        self._counters = counters
        self._places = QueryPlaces(readers)
        self._threads = anyio.CapacityLimiter(readers + GUESTS)
        self.under_way = 0
        self._open: dict[Key, Open] = {}
        """Queries that are under way or wait."""
        self._asked = anyio.Event()

    def status_rows(self) -> StatusRows:
        results = [] if isinstance(self._analyzer, str) else self._analyzer.results.status()
        return [("queries", "under way", str(self.under_way)), *results]

    async def run(self, channel: Listener, gate: AccessGate) -> None:
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(self._end_abandoned)
                while True:
                    for message in await channel.receive():
                        self._take(message, channel, gate, tasks)
            finally:
                self._queries.stop()

    def _take(self, message: sockets.Received, channel: Listener, gate: AccessGate, tasks: TaskGroup) -> None:
        def reply(answer: Reply | bytes, *parts: bytes) -> None:
            if parts and channel.unread_bytes + sum(map(len, parts)) > MAX_UNREAD_BYTES:
                self._counters["answers withheld"] += 1
                answer, parts = _WITHHELD, ()
            encoded = answer if isinstance(answer, bytes) else codec.encode(answer)
            if not channel.send(message.sender, correlation, encoded, *parts):
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
        match request:
            case AskStatus():
                reply(self._status(gate))
            case AskNow() | AskResults() | ForgetJob():
                self._ask_analyzer(request, message, gate, reply, tasks)
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

    def _ask_analyzer(
        self,
        request: AskNow | AskResults | ForgetJob,
        message: sockets.Received,
        gate: AccessGate,
        reply: Callable[..., None],
        tasks: TaskGroup,
    ) -> None:
        if isinstance(self._analyzer, str):
            reply(No(self._analyzer))
            return
        match request:
            case AskNow():
                reply(self._analyzer.now(request, monotonic_ns()))
            case AskResults():
                tasks.start_soon(self._analyzer.results.answer, request, reply)
            case ForgetJob(job):
                if (objection := gate.objection(message, "command")) is not None:
                    reply(No(objection))
                else:
                    tasks.start_soon(_forget, self._analyzer, job, reply)

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
            if not isinstance(self._analyzer, str):
                await self._analyzer.commit()
            with opened.waiting:
                async with self._places.take(opened.asker):
                    done, parts = await run_sync(self._queries.answer, asked, key, limiter=self._threads)
                answer = done, parts
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


async def _forget(analyzer: AnalyzerAnswers, job: str, reply: Callable[..., None]) -> None:
    if (count := await analyzer.forget(job)) is None:
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
