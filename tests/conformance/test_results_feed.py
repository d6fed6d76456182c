"""What holds for every way to read stored results: one suite, which each of them passes."""

import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from msgspec.structs import fields

from analyzers.results.feed import Place
from analyzers.results.rows import PUBLISHED, CheckpointRow, MetricRow, Row
from tests.conformance.results_feeds import FEEDS, ROOM, Read, Source


@pytest.fixture(params=FEEDS)
def source(request: pytest.FixtureRequest, zeus_dir: Path) -> Iterator[Source]:
    with FEEDS[request.param](zeus_dir) as opened:
        yield opened


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


def test_a_reader_that_waits_gets_a_result_when_it_is_stored(zeus_dir: Path) -> None:
    with FEEDS["over the query socket"](zeus_dir) as source, ThreadPoolExecutor(4) as threads:
        place = source.read(None).next
        waiting = [threads.submit(source.read, place, wait_ms=30_000) for _ in range(4)]
        source.store(metrics(0, 1))
        assert [page.result().rows for page in waiting] == [tuple(metrics(0, 1))] * 4
        assert source.read(Place(place.feed, 1), wait_ms=1).rows == (), (
            "it waits no longer than it was asked to"
        )
