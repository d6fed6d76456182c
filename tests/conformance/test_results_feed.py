"""Properties of stored results that are read over the query socket of an analyzer."""

import types
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec.structs import fields

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.results.feed import Place
from analyzers.results.rows import PUBLISHED, CheckpointRow, MetricRow, Row
from analyzers.service.query_server import AnalyzerAnswers, QueryServer, ResultsServer
from tests.empty_archive import archive_at
from zeus_stream.paths import places
from zeus_stream.protocol.queries import AskResults, Status
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets
from zeus_stream.transport.access import AccessGate
from zeus_stream.transport.client import ask_results
from zeus_stream.transport.listening.listener import Listener

ROOM = 1_000
"""Results that the feed under test keeps."""


class Read(NamedTuple):
    """A page, as any reader gets it."""

    rows: tuple[Row, ...]
    missed: int | None
    replayed: bool
    next: Place


class Source:
    """A feed under test, and a reader of it over the query socket."""

    def __init__(self, directory: Path, portal: BlockingPortal, archive: DuckdbFile) -> None:
        self._where = places({"ZEUS_STREAM_DIR": str(directory)})
        self._where.run.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._portal, self._archive = portal, archive
        self._starts = 0
        self._served = ExitStack()
        self.restart()

    def restart(self) -> None:
        """Begin another feed, as an analyzer does that starts again."""
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
            with closing(Listener(self._where.query)) as channel:
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
        """Return the page at a place; None: at the oldest or the newest one."""
        feed, after = (None, None) if place is None else (place.feed, place.number)
        page, rows = ask_results(self._where, AskResults(feed, after, newest, wait_ms), PUBLISHED, 60)
        assert page.next - page.first == len(rows)
        return Read(rows, page.missed, page.replayed, Place(page.feed, page.next))  # type: ignore[arg-type]


@pytest.fixture
def source(zeus_dir: Path) -> Iterator[Source]:
    archive = DuckdbFile.open(archive_at(zeus_dir / "energy.duckdb"), Settings(memory_mb=128))
    with (
        closing(archive),
        start_blocking_portal() as portal,
        closing(Source(zeus_dir, portal, archive)) as made,
    ):
        yield made


def metrics(first: int, count: int) -> list[Row]:
    return [
        MetricRow(session="s", run="r", name="loss", t_ns=number, step=number, value=0.5)
        for number in range(first, first + count)
    ]


def read_all(source: Source, place: Place | None = None) -> tuple[list[Row], list[Read]]:
    """Return what is read to the end of the feed, and its pages."""
    rows: list[Row] = []
    pages: list[Read] = []
    while (page := source.read(place)).rows or not pages:
        pages.append(page)
        rows += page.rows
        place = page.next
    return rows, pages


def test_results_come_in_order_and_each_once(source: Source) -> None:
    source.store(metrics(0, 10))
    source.store(metrics(10, 700))
    rows, pages = read_all(source)
    assert rows == metrics(0, 710)
    assert [page.missed for page in pages] == [0] * len(pages)
    source.store(metrics(710, 1))
    assert read_all(source, pages[-1].next)[0] == metrics(710, 1)


def test_a_reader_may_begin_with_what_is_stored_from_now_on(source: Source) -> None:
    source.store(metrics(0, 10))
    place = source.read(None, newest=True).next
    source.store(metrics(10, 5))
    assert source.read(place).rows == tuple(metrics(10, 5))


def test_a_slow_reader_is_told_how_many_results_it_missed(source: Source) -> None:
    source.store(metrics(0, 10))
    place = source.read(None).next
    for first in range(10, 3_000, 10):
        source.store(metrics(first, 10))
    page = source.read(place)
    assert page.missed is not None
    assert page.missed >= 3_000 - 10 - ROOM, "a feed keeps no more than it has room for"
    rows, _ = read_all(source, place)
    assert rows == metrics(10 + page.missed, len(rows)), "it goes on behind the hole, without another"
    assert rows[-1] == metrics(2_999, 1)[0]


def test_after_a_start_of_the_analyzer_the_number_of_missed_results_is_not_known(source: Source) -> None:
    source.store(metrics(0, 10))
    place = source.read(None).next
    source.restart()
    assert source.read(place).missed is None
    source.store(metrics(50, 2))
    page = source.read(place)
    assert (page.rows, page.missed) == (tuple(metrics(50, 2)), None)
    assert source.read(page.next).missed == 0


def test_results_that_may_come_twice_are_marked_and_share_no_page_with_others(source: Source) -> None:
    source.store(metrics(0, 3), replayed=True)
    source.store(metrics(3, 3))
    _, pages = read_all(source)
    assert [(page.replayed, len(page.rows)) for page in pages] == [(True, 3), (False, 3)]


def test_a_place_that_never_was_is_one_of_another_start(source: Source) -> None:
    source.store(metrics(0, 3))
    name = source.read(None).next.feed
    page = source.read(Place(name, 10**9))
    assert (page.rows, page.missed) == (tuple(metrics(0, 3)), None)


def sample(hint: Any) -> Any:
    """Return some value of a type that rows have."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return args[0]
    if origin is types.UnionType:
        return sample(args[0])
    if isinstance(hint, type) and issubclass(hint, tuple):
        return hint(*map(sample, get_type_hints(hint).values())) if hint is not tuple else ()
    if origin is tuple:
        return (sample(args[0]),) * 2
    return {int: 7, float: 2.5, str: "text", bool: True, bytes: b"bytes"}[hint]


def example(kind: Any, *, whole: bool) -> Row:
    """Return a row with all its values, or with those only that it must have."""
    hints = get_type_hints(kind)
    wanted = [field.name for field in fields(kind) if whole or field.required]
    absent = {name for name, hint in hints.items() if not whole and type(None) in get_args(hint)}
    row: Row = kind(**{name: None if name in absent else sample(hints[name]) for name in wanted})
    return row


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "only what it must have"])
def test_every_kind_of_row_comes_back_as_it_was(source: Source, *, whole: bool) -> None:
    rows = [example(kind, whole=whole) for kind in PUBLISHED]
    source.store(rows)
    assert read_all(source)[0] == rows


def test_a_checkpoint_is_no_result(source: Source) -> None:
    source.store([example(CheckpointRow, whole=True), *metrics(0, 1)])
    assert read_all(source)[0] == metrics(0, 1)


def test_a_reader_that_waits_gets_a_result_when_it_is_stored(source: Source) -> None:
    with ThreadPoolExecutor(4) as threads:
        place = source.read(None).next
        waiting = [threads.submit(source.read, place, wait_ms=30_000) for _ in range(4)]
        source.store(metrics(0, 1))
        assert [page.result().rows for page in waiting] == [tuple(metrics(0, 1))] * 4
        assert source.read(Place(place.feed, 1), wait_ms=1).rows == (), (
            "it waits no longer than it was asked to"
        )
