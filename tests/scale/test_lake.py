"""The lake: the same SQL as a file, each frame once, and one writer for each part."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from msgspec.structs import replace

from analyzers.archive import schema
from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.opening import Reader
from analyzers.lake import catalog, keeper
from analyzers.lake.lake_archive import LakeArchive, frames_of
from analyzers.leases.renewal import ARCHIVING, Renewal
from analyzers.leases.site_leases import KEEPER, SiteLeases
from tests.analyzers.archive.test_schema import FIRST_TABLES, columns_of
from tests.analyzers.archives import BOOTED_NS, HOST, LOG, SECOND, frame, frames, readings, rows
from tests.empty_archive import archive_at
from tests.scale.held_part import PART, SETTINGS, SITE, TTL_S, HeldPart, take
from tests.scale.servers import Postgres
from zeus_stream.broker.batches import PARTS, part_of
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.frames import Break

ROOT = Path(__file__).parents[2]
COVERED = """
SELECT count(*), max(s) < 1.001 FROM (SELECT sum(covered_s) AS s FROM seconds GROUP BY gpu, began_at)
"""
"""Seconds of all GPUs. One that a commit cuts in two is two rows, which add up."""
FENCED = "another process has taken a part, or has stored the same"


def expire(dsn: str) -> None:
    """Give what is held free for others, as time does."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE zs.leases SET until = now() - interval '1 s'")


def ask(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(catalog.attach(dsn, SETTINGS, read_only=True)) as connection:
        return connection.execute(sql).fetchall()


def test_a_lake_is_made_once_and_one_of_another_version_is_refused(dsn: str, data: Path) -> None:
    assert catalog.create(dsn, str(data), SETTINGS)
    assert not catalog.create(dsn, str(data), SETTINGS)
    connection = catalog.attach(dsn, SETTINGS)
    unsigned = connection.execute("SELECT current_setting('allow_unsigned_extensions')").fetchall()
    assert unsigned == [(False,)], "nothing but the wheels' own is loaded without its signature"
    connection.execute("UPDATE meta SET schema_version = 99")
    connection.close()
    with pytest.raises(
        StorageError, match=r"of version 99, not \d+\. Install the zeus-stream that made them"
    ):
        take(dsn, "a")


def test_a_lake_of_an_earlier_version_is_migrated_whole_and_keeps_its_rows(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, first = list(frames()), take(lake, "a")
    first.put_stream([stored[:20]], 2)
    connection = catalog.attach(lake, SETTINGS, read_only=True)
    files_at = catalog.data_path(connection)
    connection.close()
    before = ask(lake, "SELECT count(*), sum(energy_mj) FROM readings")
    version, migrations = schema.newest(), schema.MIGRATIONS
    seen = "ALTER TABLE gaps ADD COLUMN seen VARCHAR"
    monkeypatch.setattr(schema, "MIGRATIONS", (*migrations, f"{seen}; SELECT error('no')"))
    with pytest.raises(
        StorageError, match=rf"version {version}, not {version + 1}\. Run `zeus-stream lake create`, which"
    ):
        LakeArchive(lake, SETTINGS, first.leases)
    with pytest.raises(StorageError, match=r"lake: could not be migrated"):
        catalog.create(lake, files_at, SETTINGS)
    columns = "SELECT count(*) FROM duckdb_columns() WHERE table_name = 'gaps' AND column_name = 'seen'"
    assert ask(lake, columns) == [(0,)], "all of a migration or nothing"
    connection = catalog.attach(lake, SETTINGS)
    connection.execute("CREATE OR REPLACE VIEW steps AS SELECT 'of the version before' AS run")
    connection.close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*migrations, seen))
    assert not catalog.create(lake, files_at, SETTINGS)
    assert ask(lake, "SELECT schema_version FROM meta") == [(version + 1,)]
    assert ask(lake, columns) == [(1,)]
    assert ask(lake, "SELECT run FROM steps") == [], "views are those of this version"
    assert ask(lake, "SELECT count(*), sum(energy_mj) FROM readings") == before != [(0, None)]
    first.put_stream([stored[20:30]], 3)  # an archiver that has the lake open goes on
    first.close()
    expire(lake)
    second = take(lake, "b")
    second.put_stream([stored[30:40]], 4)
    second.close()


def test_a_lake_of_0_1_0_gets_the_tables_of_this_version_and_keeps_its_rows(dsn: str, data: Path) -> None:
    connection = catalog.attach(dsn, SETTINGS, data=str(data))
    connection.execute(FIRST_TABLES.read_text(encoding="utf-8"))
    for statement in catalog.LAYOUT.split(";"):
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('zeus-stream', 1, 'id', 0)")
    connection.execute("INSERT INTO gaps BY NAME SELECT 'alpha' AS host, 7 AS count")
    connection.close()
    assert not catalog.create(dsn, str(data), SETTINGS)
    taken = take(dsn, "a")
    taken.put_stream([list(frames())], 2)
    taken.close()
    now = duckdb.connect()
    schema.make(now)
    connection = catalog.attach(dsn, SETTINGS, read_only=True)
    assert columns_of(connection, catalog.LAKE) == columns_of(now)
    assert connection.execute("SELECT host, count FROM gaps").fetchall() == [("alpha", 7)]
    assert connection.execute("SELECT count(*) FROM readings").fetchall() == [(2400,)]
    connection.close()


def test_a_catalog_without_our_tables_is_one_sentence(dsn: str, data: Path) -> None:
    catalog.attach(dsn, SETTINGS, data=str(data)).close()
    leases = SiteLeases(dsn, SITE, "a")
    leases.create()
    with pytest.raises(StorageError, match=r"no tables of ours\. Run `zeus-stream lake create`"):
        take(dsn, "a")
    leases.close()
    with pytest.raises(StorageError, match=r"could not be opened: Unable to connect.*Start PostgreSQL"):
        catalog.attach("host=/nowhere dbname=lake", SETTINGS)
    with pytest.raises(StorageError, match=r"PostgreSQL of the site: could not be asked.*Start the server"):
        SiteLeases("host=/nowhere dbname=lake", SITE, "a").log_positions()


def statements() -> dict[str, str]:
    """Return all SQL of README and docs, and the queries that are shipped."""
    found = {
        f"@{each.name}": each.read_text(encoding="utf-8")
        for each in files("analyzers.archive").joinpath("queries").iterdir()
    }
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
        blocks += re.findall(
            r'(?:zeus-stream sql(?: --\S+)*(?: csv)?|\.sql\()\s*"((?:FROM|SELECT|WITH)[^"]+)"', text
        )
        found |= {f"{page.name} {number}": block for number, block in enumerate(blocks)}
    return found


def answers(connection: Any) -> dict[str, list[dict[str, Any]]]:
    given = {}
    for name, text in statements().items():
        _, batches = Reader(connection).batches(text, 10_000)
        given[name] = [row for batch in batches for row in batch.to_pylist()]
    return given


def test_all_sql_of_the_guides_gives_the_same_on_a_file_and_on_a_lake(lake: str, tmp_path: Path) -> None:
    file = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS)
    file.put([list(frames())], rows())
    taken = take(lake, "a")
    taken.put_stream([list(frames())], 2)
    taken.lake.writer.put([], rows())
    taken.close()
    keeper.keep(lake, replace(SETTINGS, keep_readings_days=0, keep_seconds_days=0, keep_minutes_days=0,
                              keep_steps_days=0), holder="k", wall_ns=BOOTED_NS)  # fmt: skip
    connection = catalog.attach(lake, SETTINGS, read_only=True)
    with file.file.cursor() as cursor:
        of_file = answers(cursor)
    of_lake = answers(connection)
    assert len(of_file) > 20
    for name, given in of_file.items():
        assert len(of_lake[name]) == len(given), name
        for mine, theirs in zip(_in_order(of_lake[name]), _in_order(given), strict=True):
            assert mine.keys() == theirs.keys(), name
            for column, value in mine.items():
                known = (
                    pytest.approx(theirs[column], rel=1e-6) if isinstance(value, float) else theirs[column]
                )
                assert value == known, (name, column)
    connection.close()
    file.close()


def _in_order(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without what differs between two archives: ids and starts."""
    plain = [
        {key: value for key, value in row.items() if not isinstance(value, list | dict | datetime)}
        for row in given
    ]
    return sorted(plain, key=str)


def test_frames_are_stored_once_and_positions_are_kept(lake: str) -> None:
    stored = list(frames())
    for begin in range(0, len(stored), 60):
        taken = take(lake, "a")  # it was killed, and starts again
        assert taken.held.next == begin + 1
        taken.put_stream([stored[max(begin - 20, 0) : begin + 60]], begin + 61)
        taken.put_stream([stored[: begin + 60]], begin + 61)
        taken.close()
    assert ask(lake, "SELECT count(*), count(DISTINCT (gpu, t_hi_ns)) FROM readings") == [(2400, 2400)]
    assert ask(lake, "SELECT sum(energy_j) > 0 FROM seconds") == [(True,)]
    leases = SiteLeases(lake, SITE, "a")
    positions = leases.log_positions().items()
    assert [(log_id, following) for log_id, (_, following, _) in positions] == [(LOG, len(stored))]
    leases.close()


def test_a_gap_is_a_row_and_the_log_goes_on_after_it(lake: str) -> None:
    stored, taken = list(frames()), take(lake, "a")
    taken.put_stream([stored[:10], Break(LOG, 10, 5, "they had left the log"), stored[15:20]], 3)
    taken.close()
    again = take(lake, "a")
    with pytest.raises(RefusedError, match="frame 20 comes next"):
        again.put_stream([stored[21:]], 9)
    again.put_stream([stored[20:]], 4)
    again.close()
    assert ask(lake, "SELECT first_offset, count, reason FROM gaps") == [(10, 5, "they had left the log")]


def test_a_part_is_held_while_its_process_works_however_long_a_commit_takes(lake: str) -> None:
    first, second, third = (SiteLeases(lake, SITE, holder) for holder in "abc")
    [held] = first.take([PART], 60)
    expire(lake)
    renewal = Renewal(SiteLeases(lake, SITE, "a"), replace(ARCHIVING, ttl_s=0.2, every_s=0.05))
    renewal.hold({PART: held.epoch})
    while first.states()[0].left_s < 0:  # until the thread has extended it
        time.sleep(0.01)
    renewal.end()
    expire(lake)
    [again] = second.take([PART], 60)
    expire(lake)
    hung = Renewal(SiteLeases(lake, SITE, "b"), replace(ARCHIVING, every_s=0.005, step_s=0))
    hung.hold({PART: again.epoch})
    assert third.take([PART], 60), "what hangs holds nothing"
    hung.end()
    for each in (first, second, third):
        each.close()


def test_of_two_that_store_at_the_same_time_one_does(lake: str) -> None:
    """One began its transaction before it was replaced, and commits after."""
    stored, first = list(frames()), take(lake, "a")
    expire(lake)
    second = take(lake, "b")
    failed: list[str] = []

    def store(archive: HeldPart) -> None:
        try:
            archive.put_stream([stored[:40]], 2)
        except StorageError as wrong:
            failed.append(str(wrong))

    threads = [threading.Thread(target=store, args=(each,)) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [why] = failed
    assert FENCED in why
    assert (first.held.next, second.held.next) == (1, 2), "the one that was replaced"
    assert ask(lake, "SELECT count(*) = count(DISTINCT (gpu, t_hi_ns)) FROM readings") == [(True,)]
    assert ask(lake, "SELECT next_offset FROM logs") == [(40,)]
    first.close()
    second.close()


def test_archivers_of_different_parts_do_not_hinder_each_other(lake: str) -> None:
    stored = list(frames())
    parts = [frames_of(part_of(f"host-{number}")) for number in range(3)]
    taken = {number: take(lake, f"archiver-{number}", part) for number, part in enumerate(parts)}
    wrong: list[BaseException] = []

    def store(number: int, archive: HeldPart) -> None:
        log = [(replace(each, log_id=f"log-{number}", host=f"host-{number}"), body) for each, body in stored]
        try:
            for begin in range(0, len(log), 60):
                archive.put_stream([log[begin : begin + 60]], begin + 61)
        except StorageError as error:
            wrong.append(error)

    threads = [threading.Thread(target=store, args=each) for each in taken.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ask(lake, "SELECT host, count(*) FROM readings GROUP BY host ORDER BY host") == [
        (f"host-{number}", 2400) for number in range(3)
    ]
    for archive in taken.values():
        archive.close()


def test_a_host_that_changes_its_part_is_archived_once_by_two_processes(lake: str) -> None:
    """Its log comes again by the stream of the new part, from the oldest frame that it still has."""
    stored = list(frames())
    before, after = take(lake, "a", frames_of(0)), take(lake, "b", frames_of(16))
    before.put_stream([stored[:70]], 2)
    after.put_stream([Break(LOG, 0, 40, "they had left the log"), stored[40:90]], 2)
    for each, rest in ((before, stored[70:120]), (after, stored[90:])):  # each knows an earlier end
        with pytest.raises(StorageError, match=FENCED):
            each.put_stream([rest], 3)
        assert not each.lake.recover()
        each.put_stream([rest], 3)
        each.close()
    assert ask(lake, "SELECT count(*), count(DISTINCT (gpu, t_hi_ns)) FROM readings") == [(2400, 2400)]
    assert ask(lake, "SELECT count(*) FROM gaps") == [(0,)]
    assert ask(lake, COVERED) == [(240, True)], "no second twice"


def test_a_commit_that_failed_is_tried_again_with_what_was_read_and_is_known_if_it_was_stored(
    server: Postgres, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, taken = list(frames()), take(lake, "a")
    taken.put_stream([stored[:50]], 2)
    server.kill()
    with pytest.raises(StorageError, match="could not be written"):
        taken.put_stream([stored[50:80]], 3)
    with pytest.raises(StorageError):
        taken.lake.recover()
    server.start()
    if not taken.lake.recover():
        taken.put_stream([stored[50:80]], 3)
    assert taken.held.next == 3
    committing = taken.leases.committing

    @contextmanager
    def without_answer() -> Iterator[None]:
        with committing():
            yield
        raise StorageError("its answer is lost")

    monkeypatch.setattr(taken.leases, "committing", without_answer)
    with pytest.raises(StorageError, match="its answer is lost"):
        taken.put_stream([stored[80:120]], 4)
    monkeypatch.undo()
    assert taken.lake.recover()
    assert taken.held.next == 4
    taken.put_stream([stored[120:]], 5)
    taken.close()
    assert ask(lake, "SELECT count(*), count(DISTINCT (gpu, t_hi_ns)) FROM readings") == [(2400, 2400)]
    assert ask(lake, COVERED) == [(240, True)], "no second twice"


def test_a_process_stores_all_its_parts_in_one_commit_and_loses_only_what_was_taken(lake: str) -> None:
    leases, other = SiteLeases(lake, SITE, "a"), SiteLeases(lake, SITE, "b")
    names = [frames_of(part) for part in range(PARTS)]
    archive = LakeArchive(lake, SETTINGS, leases)
    archive.hold(leases.take(names, TTL_S))
    [(before,)] = ask(lake, "SELECT max(snapshot_id) FROM lake.snapshots()")
    logs = {}
    for number in range(3):
        host = f"host-{number}"
        logs[host] = [(replace(each, log_id=f"log-{host}", host=host), body) for each, body in frames()]
    archive.put_stream([log[:60] for log in logs.values()], dict.fromkeys(names, 2))
    assert ask(lake, "SELECT max(snapshot_id) FROM lake.snapshots()") == [(before + 1,)]
    expire(lake)
    lost = frames_of(part_of("host-1"))
    assert [lease.next for lease in other.take([lost], TTL_S)] == [2]
    with pytest.raises(StorageError, match=FENCED):
        archive.put_stream([log[60:] for log in logs.values()], dict.fromkeys(names, 3))
    assert not archive.recover()
    assert archive.held.keys() == set(names) - {lost}
    kept = [log[60:] for host, log in logs.items() if host != "host-1"]
    archive.put_stream(kept, dict.fromkeys(archive.held, 3))
    archive.close()
    leases.close()
    other.close()
    ends = ask(lake, "SELECT host, max(next_offset) FROM logs GROUP BY host ORDER BY host")
    whole = len(logs["host-0"])
    assert ends == [("host-0", whole), ("host-1", 60), ("host-2", whole)]


def test_one_keeper_at_a_time_removes_by_age_and_adds_up_hours(lake: str) -> None:
    taken = take(lake, "a")
    stored = list(frames())
    taken.put_stream([stored], 2)
    late_ns = 30 * 86_400 * SECOND
    late = [frame(len(stored), readings(30 * 86_400), t_ns=late_ns)]
    taken.put_stream([late], 3)
    taken.close()
    assert rows_in_catalog(lake) > 0
    leases = SiteLeases(lake, "", "first")
    [held] = leases.take([KEEPER], 600)
    with pytest.raises(RefusedError, match="another process does so"):
        keeper.keep(lake, SETTINGS, holder="k", wall_ns=BOOTED_NS)
    leases.release(KEEPER, held.epoch)
    leases.close()
    keeper.keep(lake, SETTINGS, holder="k", wall_ns=BOOTED_NS + 86_400 * SECOND)
    by_minute = ask(lake, "SELECT round(sum(energy_j), 3) FROM minutes")
    assert ask(lake, "SELECT round(sum(energy_j), 3) FROM hours") == by_minute
    removed = keeper.keep(lake, SETTINGS, holder="the next", wall_ns=BOOTED_NS + late_ns)
    assert removed["seconds"] > 200
    assert ask(lake, "SELECT round(sum(energy_j), 3) FROM hours") == by_minute
    assert ask(lake, "SELECT DISTINCT host FROM hours") == [(HOST,)]
    assert rows_in_catalog(lake) == 0, "rows of small commits are in files now"


def test_a_host_whose_clock_is_ahead_keeps_no_hours_from_others(lake: str) -> None:
    """Hours were those of the last two days that have minutes, which no other host reached any more."""
    taken, ahead_s = take(lake, "a"), 30 * 86_400
    taken.put_stream([stored := list(frames())], 2)
    ahead = [
        frame(len(stored) + n, readings(ahead_s + n), t_ns=(ahead_s + n + 1) * SECOND) for n in range(200)
    ]
    taken.put_stream([ahead], 3)
    taken.close()
    keeper.keep(lake, SETTINGS, holder="k", wall_ns=BOOTED_NS + 3600 * SECOND)
    by_day = "SELECT began_at::DATE, round(sum(energy_j), 3) GROUP BY ALL ORDER BY ALL"
    minutes, hours = ask(lake, f"FROM minutes {by_day}"), ask(lake, f"FROM hours {by_day}")
    assert len(minutes) == 2
    assert hours == minutes


def rows_in_catalog(dsn: str) -> int:
    """Return the number of rows of readings that are in the catalog, not in a file."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT inlined.table_name FROM ducklake_inlined_data_tables AS inlined"
            " JOIN ducklake_table AS named USING (table_id) WHERE named.table_name = 'readings'"
        ).fetchall()
        counts = [connection.execute(f"SELECT count(*) FROM {table}".encode()) for (table,) in tables]  # noqa: S608
        return sum(count for each in counts for (count,) in each)


@pytest.fixture(autouse=True)
def _runs(server: Postgres) -> Iterator[None]:
    yield
    if server.process.poll() is not None:
        server.start()
