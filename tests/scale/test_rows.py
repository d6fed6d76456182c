"""Derived rows of shards in the lake: each once, whichever analyzer or archiver is replaced."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from msgspec.structs import replace

from analyzers.lake import keeper
from analyzers.leases import site_leases
from analyzers.leases.site_leases import BATCH_ROWS, ROWS, Packed, SiteLeases, pack, unpack
from analyzers.results.rows import CheckpointRow, MetricRow, Row
from tests.analyzers.archives import BOOTED_NS, RUN, SECOND, A, rows, window
from tests.scale import held_part
from tests.scale.held_part import SETTINGS, HeldPart
from tests.scale.test_lake import FENCED, ask
from zeus_stream.errors import MalformedError, RefusedError, StorageError

SITE, SHARD = "site", 3
DAY_NS = 86_400 * SECOND


@pytest.fixture
def leases(lake: str) -> Iterator[SiteLeases]:
    with closing(SiteLeases(lake, SITE, "analyzer")) as opened:
        opened.open_shards(4)
        assert opened.take_shard(SHARD, 60) == 1
        yield opened


def take(dsn: str, holder: str) -> HeldPart:
    return held_part.take(dsn, holder, ROWS)


def leave(leases: SiteLeases, derived: list[Row], epoch: int = 1) -> None:
    assert leases.remember(SHARD, epoch, [], list(pack(derived))) == 0


def test_rows_as_bytes_are_the_same_rows_without_checkpoints() -> None:
    derived = rows()
    metric = MetricRow(session="s", run="r", name="loss", t_ns=1, step=None, value=0.5)
    checkpoint = CheckpointRow(
        name="analyzer", number=1, start=1, wall_ns=1, code="1",
        signature=b"", runs=(), sessions=(), log_ids=("log-1",),
        offsets=(7,), state=b"1" * 100, live=b"",
    )  # fmt: skip
    packed = list(pack([*derived, checkpoint, *(replace(metric, t_ns=t_ns) for t_ns in range(BATCH_ROWS))]))
    assert [each.rows for each in packed] == [BATCH_ROWS, len(derived)]
    again = [row for each in packed for row in unpack(each.body)]
    assert again[: len(derived)] == derived
    assert len(again) == len(derived) + BATCH_ROWS
    with pytest.raises(MalformedError, match="batch of rows: could not be read"):
        unpack(b"no batch")


def test_rows_reach_the_lake_once_and_leave_the_outbox_with_the_commit(lake: str, leases: SiteLeases) -> None:
    leave(leases, rows())
    archive = take(lake, "a")
    waiting = archive.waiting()
    assert [each.shard for each in waiting] == [SHARD]
    archive.put_batches(waiting)
    assert archive.waiting() == []
    with pytest.raises(StorageError, match=FENCED):
        archive.put_batches(waiting)  # its answer was lost, say
    archive.close()
    assert ask(lake, "SELECT run, power_limit_w FROM decisions") == [("run-1", 200.0)]
    assert ask(lake, "SELECT count(*) FROM windows WHERE began_at IS NOT NULL") == [(98,)]
    assert ask(lake, "SELECT count(*) FROM savings") == [(1,)]


def test_rows_that_are_derived_again_after_a_take_over_replace_the_first(
    lake: str, leases: SiteLeases
) -> None:
    archive = take(lake, "a")
    leave(leases, [RUN, window("step", 0, 10, 11, A), window("step", 1, 11, 12, A)])
    archive.put_batches(archive.waiting())
    leases.release(f"shard-{SHARD}", 1)
    assert leases.take_shard(SHARD, 60) == 2
    leave(leases, [replace(RUN, ended_ns=50 * SECOND), window("step", 1, 11, 12, A)], epoch=2)
    leave(leases, [window("step", 2, 12, 13, A)], epoch=2)
    with pytest.raises(RefusedError, match="another analyzer has taken it over"):
        leave(leases, [window("step", 9, 19, 20, A)])
    archive.put_batches(archive.waiting())
    archive.close()
    assert ask(lake, "SELECT index FROM windows ORDER BY index") == [(0,), (1,), (2,)]
    assert ask(lake, "SELECT ended_ns FROM runs") == [(50 * SECOND,)]


def test_a_batch_that_cannot_be_read_is_counted_and_left_out(lake: str, leases: SiteLeases) -> None:
    leases.remember(SHARD, 1, [], [Packed(1, b"no batch"), *pack([RUN])])
    archive = take(lake, "a")
    archive.put_batches(archive.waiting())
    assert (archive.lake.malformed_batches, archive.waiting()) == (1, [])
    archive.close()
    assert ask(lake, "SELECT count(*) FROM runs") == [(1,)]


def test_without_archivers_the_oldest_rows_leave_the_outbox(
    lake: str, leases: SiteLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_leases, "OUTBOX_BYTES", 3_000)
    monkeypatch.setattr(site_leases, "SHED_EVERY", 10)
    gone = [leases.remember(SHARD, 1, [], list(pack([replace(RUN, session=str(n))]))) for n in range(20)]
    assert sum(gone) > 0
    archive = take(lake, "a")
    assert len(archive.waiting()) == 20 - sum(gone)
    archive.close()


def test_a_database_without_a_lake_takes_no_rows(database: str) -> None:
    opened = SiteLeases(database, SITE, "analyzer")
    opened.open_shards(4)
    opened.take_shard(SHARD, 60)
    leave(opened, [RUN])
    opened.close()
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('zs.outbox')").fetchone() == (None,)


def test_the_keeper_removes_steps_by_age_and_keeps_their_savings(lake: str, leases: SiteLeases) -> None:
    leave(leases, [*rows(), replace(RUN, ended_ns=50 * SECOND)])
    archive = take(lake, "a")
    archive.put_batches(archive.waiting())
    archive.close()
    before = ask(lake, "SELECT run, energy_per_step_j, energy_saved_percent FROM savings")
    removed = keeper.keep(lake, SETTINGS, holder="k", wall_ns=BOOTED_NS + 100 * DAY_NS)
    assert removed["windows"] == 88
    assert ask(lake, "SELECT DISTINCT kind FROM windows ORDER BY kind") == [("epoch",), ("run",)]
    assert ask(lake, "SELECT run, energy_per_step_j, energy_saved_percent FROM savings") == before
