"""The ways to read stored results: from memory, and over the query socket of an analyzer."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.feed import Place, ResultsFeed
from analyzers.results.rows import PUBLISHED, Row
from analyzers.service.query_server import AnalyzerAnswers, QueryServer, ResultsServer
from tests.empty_archive import archive_at
from zeus_stream.paths import places
from zeus_stream.protocol.queries import AskResults, Status
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.client import ask_results

ROOM = 1_000
"""Results that a feed under test keeps."""


class Source(Protocol):
    """A feed under test, and one reader of it."""

    def store(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        """Have the analyzer store rows."""

    def read(self, place: Place | None, *, newest: bool = False, wait_ms: int = 0) -> "Read":
        """Return the page at a place; None: at the oldest or the newest one."""

    def restart(self) -> None:
        """Begin another feed, as an analyzer does that starts again."""


class Read(Protocol):
    """A page, as any reader gets it."""

    rows: tuple[Row, ...]
    missed: int | None
    replayed: bool
    next: Place


class _Page:
    def __init__(self, rows: tuple[Row, ...], missed: int | None, replayed: bool, place: Place) -> None:  # noqa: FBT001
        self.rows, self.missed, self.replayed, self.next = rows, missed, replayed, place


class InMemory:
    """A feed that is read in its own process."""

    def __init__(self) -> None:
        self._starts = 0
        self.restart()

    def restart(self) -> None:
        self._starts += 1
        self._feed = ResultsFeed(f"start {self._starts}", ROOM)

    def store(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        self._feed.add(rows, replayed=replayed)

    def read(self, place: Place | None, *, newest: bool = False, wait_ms: int = 0) -> Read:  # noqa: ARG002
        page = self._feed.page(place or self._feed.begin(newest=newest))
        return _Page(page.rows, page.missed, page.replayed, page.next)


class OverASocket:
    """A feed that is read over the query socket."""

    def __init__(self, directory: Path, portal: BlockingPortal, archive: DuckdbFile) -> None:
        self._where = places({"ZEUS_STREAM_DIR": str(directory)})
        self._where.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._portal, self._archive = portal, archive
        self._starts = 0
        self._served = ExitStack()
        self.restart()

    def restart(self) -> None:
        self.close()
        self._starts += 1
        self._server = self._portal.call(lambda: ResultsServer(f"start {self._starts}", ROOM))
        self._served.enter_context(self._portal.wrap_async_context_manager(self._serve()))

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        async def nothing(_job: str = "") -> None:
            pass

        answers = AnalyzerAnswers(nothing, lambda *_: b"", nothing, self._server)
        queries = Queries(self._archive, Settings())
        server = QueryServer(queries, lambda _: Status(()), answers, Counter())
        context = sockets.context()
        try:
            with closing(sockets.listen(self._where.query)) as channel:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(server.run, channel, AccessGate(None, self._where.keys, {}))
                    yield
                    tasks.cancel_scope.cancel()
        finally:
            context.destroy(linger=0)

    def close(self) -> None:
        self._served.close()

    def store(self, rows: Sequence[Row], *, replayed: bool = False) -> None:
        self._portal.call(partial(self._server.publish, rows, replayed=replayed))

    def read(self, place: Place | None, *, newest: bool = False, wait_ms: int = 0) -> Read:
        feed, after = (None, None) if place is None else (place.feed, place.number)
        page, rows = ask_results(self._where, AskResults(feed, after, newest, wait_ms), PUBLISHED, 60)
        assert page.next - page.first == len(rows)
        return _Page(rows, page.missed, page.replayed, Place(page.feed, page.next))  # type: ignore[arg-type]


@contextmanager
def in_memory(_directory: Path) -> Iterator[Source]:
    yield InMemory()


@contextmanager
def over_a_socket(directory: Path) -> Iterator[Source]:
    archive = DuckdbFile.open(archive_at(directory / "energy.duckdb"), Settings(memory_mb=128))
    try:
        with start_blocking_portal() as portal:
            source = OverASocket(directory, portal, archive)
            try:
                yield source
            finally:
                source.close()
    finally:
        archive.close()


FEEDS: dict[str, Callable[[Path], AbstractContextManager[Source]]] = {
    "in memory": in_memory,
    "over the query socket": over_a_socket,
}
