"""What holds for every store: one suite, which each implementation passes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.sandbox.bounded_queries import Queries, Question
from analyzers.archive.store import Store
from analyzers.results.fleet_rows import EarlierUse, RunRow
from analyzers.results.result import OWN
from tests.analyzers.archives import HOST, LOG, RUN, A, fill, frame, frames, readings, window
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.frames import Break
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings, read_back

SETTINGS = Settings(memory_mb=128)
Open = Callable[[], Store]


@pytest.fixture(
    params=[
        pytest.param(DuckdbFile.open, id="DuckdbFile"),
        pytest.param(StoreClient.open, id="StoreClient", marks=pytest.mark.sweep),
    ]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """What opens the store, again and again; whatever is open at the end is closed."""
    stores: list[Store] = []

    def open_store() -> Store:
        if stores:
            stores.pop().close()
        stores.append(request.param(archive_at(tmp_path / "energy.duckdb"), SETTINGS))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def count(store: Store, table: str) -> int:
    queries = Queries(store, SETTINGS)
    done, _ = queries.answer(Query(f"FROM {table}", 100_000, 20_000))
    return done.rows


def test_it_goes_on_where_it_was(opened: Open) -> None:
    store = opened()
    assert store.position(HOST) == (None, None)
    assert store.starts == 1
    fill(store)
    again = opened()
    assert again.starts == 2
    assert again.archive_id == store.archive_id
    assert again.position(HOST) == (LOG, len(list(frames())))


def test_frames_are_stored_once_however_often_they_come(opened: Open) -> None:
    store, stored = opened(), list(frames())
    for _ in range(2):
        store.put([stored[:50]])
        store.put([stored[20:], stored[100:]])
    assert count(store, "readings") == 2400
    assert store.position(HOST) == (LOG, len(stored))


def test_nothing_is_stored_past_a_frame_that_is_missing(opened: Open) -> None:
    store, stored = opened(), list(frames())
    store.put([stored[:3]])
    with pytest.raises(RefusedError, match=r"could not store frame 4 .*: frame 3 comes next"):
        store.put([stored[4:]], [RUN])
    assert store.position(HOST) == (LOG, 3)
    assert count(store, "runs") == 0
    store.put([Break(LOG, 3, 1, "it had left the log"), stored[4:6]])
    assert store.position(HOST) == (LOG, 6)
    assert count(store, "gaps") == 1


def test_what_was_received_and_derived_is_one_transaction(opened: Open) -> None:
    store, stored = opened(), list(frames())
    impossible = replace(window("step", 0, 10, 11, A), rank=2**70)
    with pytest.raises(StorageError, match="a value fits into no column"):
        store.put([stored[:3]], [impossible], {LOG: 3})
    assert store.position(HOST) == (None, None)
    store.put([stored[:3]], [window("step", 0, 10, 11, A)], {LOG: 3})
    assert count(store, "windows") == 1


def test_a_row_of_the_same_key_replaces_the_other_when_it_is_replayed(opened: Open) -> None:
    store = opened()
    row = window("step", 0, 10, 11, A)
    store.put([], [row])
    store.put([], [replace(row, energy_j=7.0)], replaying=True)
    store.put([], [RUN])
    store.put([], [replace(RUN, ended_ns=RUN.began_ns + 1)])
    assert count(store, "windows") == 1
    assert count(store, "runs") == 1
    assert [(each.session, each.over) for each in store.memory(sessions=[RUN.session]).begun] == [
        (RUN.session, True)
    ]


def test_what_an_open_run_needs_comes_again_in_its_order(opened: Open) -> None:
    store, stored = opened(), list(frames())
    store.put([stored], [RUN], {LOG: len(stored)})
    again = [part for page in opened().replay() for part in page]
    offsets = [each.offset for each, _ in again]
    assert offsets == sorted(set(offsets))
    bodies = {each.offset: body for each, body in stored}
    assert all(bodies[each.offset] == body for each, body in again)
    began = next(each.offset for each, body in stored if RUN.session in str(body))
    assert set(range(began, len(stored))) <= set(offsets)


def test_it_knows_who_used_the_gpus_beside_runs_that_are_interpreted_again(opened: Open) -> None:
    def ran(session: str, began_ns: int, ended_ns: int | None, wall_ns: int = 0) -> RunRow:
        return replace(
            RUN,
            session=session,
            run=session,
            began_ns=began_ns,
            ended_ns=ended_ns,
            began_wall_ns=RUN.began_wall_ns + began_ns + wall_ns,
        )

    open_run = ran("open", 100, None)
    beside, before = ran("beside", 50, 110), ran("before", 10, 90)
    other_host = replace(ran("other host", 50, 110), host="other")
    watched = replace(ran("only watched", 50, 110), world_size=0)
    earlier_boot = ran("earlier boot", 50, 110, wall_ns=-(10**15))
    opened().put([], [open_run, beside, before, other_host, watched, earlier_boot])
    memory = opened().memory(sessions=["open"])
    assert memory.uses == (EarlierUse(HOST, "beside", RUN.gpus, 50, 110),)


@pytest.mark.sweep
def test_its_own_log_goes_on(opened: Open) -> None:
    store = opened()
    log_id = f"own-{store.archive_id}"
    assert store.position(OWN) == (None, None)
    words, body = frame(0, readings(1), log_id=log_id)
    store.put([[(replace(words, host=OWN), body)]])
    assert opened().position(OWN) == (log_id, 1)


def test_settings_of_earlier_starts_are_known(opened: Open) -> None:
    opened()
    store = opened()
    store.put([], [replace(RUN, start=1)])
    found = store.memory().settings
    assert {start: read_back(values, "") for start, values in found.items()} == {1: SETTINGS}


def test_a_query_sees_what_was_stored_and_can_be_ended(opened: Open) -> None:
    store = opened()
    fill(store)
    assert count(store, "runs") == 1
    source, sink = os.pipe()
    question = Question("SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b", 10, 60, 128, 1 << 20)
    end = store.query(question, sink)
    os.close(sink)
    end()
    end()
    assert os.read(source, 1) == b"", "its process has ended"
    os.close(source)
