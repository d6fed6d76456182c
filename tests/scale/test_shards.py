"""Analyzers that share a site, with the real PostgreSQL and NATS: one decides, another takes over."""

import gc
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import anyio
import pytest

from analyzers.leases.renewal import DECIDING, Renewal, length_s, valid_until_ns
from analyzers.leases.site_leases import RememberedRow, SiteLeases, SiteShards
from analyzers.shards.sharded_analyzer import LOOK_S, analyze_shards
from analyzers.shards.site_status import site_status
from tests.scale.running_site import HOST, SITE, RunningSite
from tests.scale.servers import Nats, Postgres
from tests.scale.test_lake import ask
from tests.waiting import until
from zeus_stream import connect
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import RefusedError, StorageError, UnreachableError
from zeus_stream.paths import places
from zeus_stream.protocol.events import RunEnded, StepBoundary
from zeus_stream.protocol.fields import Unknown, shard_of
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import ControlApplied, Note, Notes
from zeus_stream.settings import Settings

JOB, SHARDS = "resnet", 2
PATIENCE_S = 240.0
MISSING = """
SELECT count(*) FROM (SELECT DISTINCT "limit" FROM (
    SELECT power_limit_w AS "limit" FROM trials UNION ALL SELECT power_limit_w FROM decisions)
) WHERE "limit" NOT IN (SELECT limit_w FROM commands WHERE limit_w IS NOT NULL)
"""
TWICE = """
SELECT
    (SELECT count(*) - count(DISTINCT (session, kind, index, gpu)) FROM windows),
    (SELECT count(*) - count(DISTINCT (run, round, number)) FROM trials),
    (SELECT count(*) - count(DISTINCT command) FROM commands)
"""
STEPS = "SELECT max(index) - min(index) + 1 = count(*) FROM windows WHERE kind = 'step'"
"""No step is missing from the first to the last, over two take-overs."""


def leases(dsn: str, holder: str) -> Iterator[SiteLeases]:
    with closing(SiteLeases(dsn, SITE, holder)) as opened:
        opened.open_shards(SHARDS)
        yield opened


@pytest.fixture
def first(database: str) -> Iterator[SiteLeases]:
    yield from leases(database, "first")


@pytest.fixture
def second(database: str) -> Iterator[SiteLeases]:
    yield from leases(database, "second")


def renewed(leases: SiteLeases, held: dict[int, int], behind_ms: int = 0) -> SiteShards:
    names = {f"shard-{shard}": epoch for shard, epoch in held.items()}
    return leases.renew_shards(names, dict.fromkeys(names, behind_ms), SHARDS, 60, ready=True)


def test_a_shard_has_one_holder_and_a_higher_epoch_after_each(first: SiteLeases, second: SiteLeases) -> None:
    assert first.take_shard(0, 60) == 1
    assert second.take_shard(0, 60) is None
    assert second.take_shard(1, 60) == 1
    site = renewed(first, {0: 1}, 1500)
    assert (site.kept, site.free, site.analyzers) == (frozenset({"shard-0"}), (), 1)
    assert renewed(second, {1: 1}).analyzers == 2
    first.release("shard-0", 1)
    assert 0 <= second.states()[0].silent_s < PATIENCE_S, "since it was given up"
    assert renewed(first, {0: 1}).kept == frozenset(), "a renewal on its way does not take it back"
    assert renewed(second, {1: 1}).free == (0,)
    assert second.take_shard(0, 60) == 2
    assert renewed(first, {0: 1}).kept == frozenset()
    first.leave()
    assert renewed(second, {0: 2}, 1500).analyzers == 1
    assert [(each.name, each.holder, each.epoch, each.behind_s) for each in second.states()] == [
        ("shard-0", "second", 2, 1.5),
        ("shard-1", "second", 1, 0.0),
    ]


def test_a_site_whose_broker_is_away_shows_its_holders_and_says_so(first: SiteLeases, database: str) -> None:
    first.take_shard(0, 60)
    lines, trouble = site_status(SiteSettings(broker="nats://127.0.0.1:1", database=database, site=SITE))
    assert [(line["name"], line["holder"]) for line in lines] == [("shard-0", "first")]
    assert "could not be reached" in trouble


def test_a_lease_ends_by_the_clock_of_the_database(first: SiteLeases, second: SiteLeases) -> None:
    assert first.take_shard(0, 0.05) == 1
    deadline_s = time.monotonic() + PATIENCE_S
    while (epoch := second.take_shard(0, 60)) is None:
        assert time.monotonic() < deadline_s
    assert epoch == 2


def test_who_was_replaced_keeps_nothing_and_is_told_so(first: SiteLeases, second: SiteLeases) -> None:
    first.take_shard(0, 60)
    first.remember(0, 1, [RememberedRow("ProfileRow", "a", b"1")])
    first.release("shard-0", 1)
    second.take_shard(0, 60)
    with pytest.raises(RefusedError, match=r"under epoch 1: another analyzer has taken it over. It decides"):
        first.remember(0, 1, [RememberedRow("ProfileRow", "a", b"2"), RememberedRow("ProfileRow", "b", b"3")])
    assert second.remembered(0) == [RememberedRow("ProfileRow", "a", b"1")]
    second.remember(0, 2, [RememberedRow("ProfileRow", "a", b"4")])
    assert second.remembered(0) == [RememberedRow("ProfileRow", "a", b"4")]
    assert second.remembered(1) == []


def test_another_number_of_shards_and_a_database_that_is_away_are_one_sentence(
    database: str, first: SiteLeases
) -> None:
    del first
    other = SiteLeases(database, SITE, "other")
    with pytest.raises(RefusedError, match=r"site site has 2 shards, not 3. Start with --shards 2"):
        other.open_shards(3)
    other.close()
    away = SiteLeases("host=/nowhere dbname=x", SITE, "other")
    with pytest.raises(StorageError, match=r"could not be asked: .*or correct --database"):
        away.open_shards(2)


@pytest.mark.anyio
async def test_an_analyzer_that_may_not_start_leaves_no_thread_and_no_connection(
    first: SiteLeases, zeus_dir: Path
) -> None:
    site = SiteSettings(database=first.dsn, broker="nats://127.0.0.1:1", site=SITE, shards=SHARDS + 1)
    with pytest.raises(RefusedError, match="has 2 shards, not 3"):
        await analyze_shards(Settings(), site, environ={"ZEUS_STREAM_DIR": str(zeus_dir)}, started=print)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("renewal")] == []
    gc.collect()  # a connection that is left open is an error


@pytest.mark.anyio
async def test_a_slow_step_of_an_analyzer_loses_no_shard(first: SiteLeases, zeus_dir: Path) -> None:
    site = SiteSettings(database=first.dsn, broker="nats://127.0.0.1:1", site=SITE, shards=SHARDS)
    environ = {"ZEUS_STREAM_DIR": str(zeus_dir)}

    def held() -> dict[str, int]:
        return {each.name: each.epoch for each in first.states() if each.left_s > 0}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(analyze_shards, Settings(), site, environ=environ, started=print))
        with anyio.fail_after(PATIENCE_S):
            while len(before := held()) < SHARDS:
                await anyio.sleep(0.05)
        time.sleep(2 * DECIDING.ttl_s)  # noqa: ASYNC251  (the step)
        await anyio.sleep(3 * LOOK_S)
        assert held() == before
        tasks.cancel_scope.cancel()
    assert held() == {}


@pytest.mark.parametrize(
    ("delays_s", "length"),
    [
        ([], 2.2),
        ([0.01] * 40, 2.2),
        pytest.param(
            [0.01] * 38 + [8.0], 2.2, id="a cut of 8 s made each lease 9 s long, and take-overs too"
        ),
        pytest.param([0.01, 1.5, 0.2, 1.2], 3 * 1.2, id="late again and again"),
        pytest.param([30.0] * 40, 7.0, id="a take-over is over in 10 s all the same"),
    ],
)
def test_leases_are_longer_where_renewals_come_late_again_and_again(
    delays_s: list[float], length: float
) -> None:
    assert length_s(DECIDING, delays_s) == pytest.approx(length)


def test_a_lease_is_valid_no_longer_by_its_holders_clock_than_by_that_of_the_database(
    server: Postgres, first: SiteLeases
) -> None:
    epoch = first.take_shard(0, DECIDING.ttl_s)
    assert epoch
    renewal = Renewal(SiteLeases(first.dsn, SITE, "first"), DECIDING)
    renewal.hold({"shard-0": epoch}, valid_until_ns(DECIDING.ttl_s))

    def valid() -> bool:
        renewal.step()  # the work goes on, however long the server takes on a busy machine
        return renewal.valid("shard-0", epoch)

    until(valid)
    assert not renewal.valid("shard-0", epoch + 1)
    until(lambda: renewal.times)
    server.kill()
    try:
        until(lambda: not valid())
    finally:
        server.start()
    until(valid)  # nobody has taken it in the meantime
    first.close()  # its connection ended with the server
    first.release("shard-0", epoch)
    first.take_shard(0, 60)
    until(lambda: not valid())
    assert renewal.lost == {("shard-0", epoch)}
    renewal.end()


# ---- real processes -----------------------------------------------------------------------------------


class ShardedSite(RunningSite):
    """A collector, a training, and analyzers that share the shards."""

    def __init__(self, dsn: str, broker: Nats, processes: ExitStack) -> None:
        super().__init__(dsn, broker, processes)
        self.leases = SiteLeases(dsn, SITE, "test")
        self.leases.open_shards(SHARDS)
        processes.callback(self.leases.close)

    def holder(self) -> tuple[str, int] | None:
        """Return the analyzer that decides on the job, and its epoch."""
        for state in self.leases.states():
            if state.name == f"shard-{shard_of(JOB, SHARDS)}" and state.left_s > 0:
                pid = int(state.holder.rpartition("/")[2])
                names = [name for name, process in self.running.items() if process.pid == pid]
                return names[0], state.epoch
        return None

    def archive_of(self, name: str) -> dict[str, str]:
        """Return what `doctor` finds of the archive of an analyzer."""
        command = [sys.executable, "-m", "zeus_stream", "doctor", "--json", "--dir", str(self.where[name])]
        shown = subprocess.run(command, capture_output=True, check=False).stdout
        checks: list[dict[str, str]] = json.loads(shown)
        return next(each for each in checks if each["what"] == "archive")

    def epoch_known(self) -> int:
        """Return the epoch that the collector obeys."""
        file = places({"ZEUS_STREAM_DIR": str(self.host)}).epochs
        epochs = json.loads(file.read_text()) if file.exists() else {}
        return int(epochs.get(f"{SITE}/shard-{shard_of(JOB, SHARDS)}", 0))

    def applied(self) -> list[ControlApplied]:
        """Return what was set on the host, in order."""
        return [note for note in self.noted() if isinstance(note, ControlApplied)]

    def noted(self) -> list[Note | Unknown]:
        """Return the notes that the host has logged, in order."""
        return [note for _, each in self.logged("notes", Notes) for note in each.notes]

    def steps(self) -> tuple[set[int], bool]:
        """Return the steps whose ends the host has logged, and whether their session is over."""
        events = [event for _, each in self.logged("events", Events) for event in each.events]
        ended = {event.index - 1 for event in events if isinstance(event, StepBoundary) and event.ended_ns}
        return ended, any(isinstance(event, RunEnded) for event in events)

    def decided_w(self) -> float | None:
        """Return the limit that the job's analyzer has decided on."""
        if (holder := self.holder()) is None:
            return None
        where = self.where[holder[0]] / f"shard-{shard_of(JOB, SHARDS)}"
        try:
            decided = connect({"ZEUS_STREAM_DIR": str(where)}).sql("SELECT power_limit_w FROM decisions")
        except UnreachableError:  # it has just taken the shard
            return None
        return decided["power_limit_w"][0].as_py() if decided.num_rows else None


@pytest.mark.sweep
def test_a_search_goes_on_when_analyzers_are_killed_suspended_and_ended(lake: str, broker: Nats) -> None:
    with ExitStack() as processes:
        site = ShardedSite(lake, broker, processes)
        site.collect()
        site.archive()
        site.analyze("a", SHARDS)
        site.analyze("b", SHARDS)
        until(site.holder)
        site.train(JOB)
        until(lambda: len(site.applied()) >= 2)
        first = site.holder()
        assert first is not None
        now = connect({"ZEUS_STREAM_DIR": str(site.where[first[0]])}).now()
        assert ([run.job for run in now.runs], [host.host for host in now.hosts]) == ([JOB], [HOST])
        assert site.archive_of(first[0])["verdict"] == "works"
        site.running[first[0]].kill()
        until(lambda: site.epoch_known() > first[1])
        second = site.holder()
        assert second is not None
        assert second[0] != first[0]
        before = len(site.applied())
        until(lambda: len(site.applied()) > before)

        site.analyze("c", SHARDS)
        site.running[second[0]].send_signal(signal.SIGSTOP)
        until(lambda: site.epoch_known() > second[1])
        site.running[second[0]].send_signal(signal.SIGCONT)
        third = site.holder()
        assert third is not None
        assert third[0] == "c"
        decided_w = until(site.decided_w)
        until(lambda: site.applied()[-1].value == decided_w * 1000)

        applied = site.applied()
        assert len({note.command for note in applied}) == len(applied)
        assert max(note.value for note in applied) <= 300_000
        assert "it ends here" in site.printed(second[0])

        site.running["c"].terminate()
        until(lambda: site.epoch_known() > third[1])
        assert site.running["c"].wait(PATIENCE_S) == 0
        until(lambda: ask(lake, "SELECT count(*) FROM decisions") == [(1,)])
        until(lambda: ask(lake, MISSING) == [(0,)])
        assert ask(lake, "SELECT power_limit_w FROM decisions") == [(decided_w,)]
        assert ask(lake, TWICE) == [(0, 0, 0)]
        assert ask(lake, STEPS) == [(True,)]

        site.running[second[0]].kill()  # the last analyzer
        known, _ = site.steps()
        until(lambda: len(site.steps()[0]) > len(known) + 50)
        site.running[JOB].send_signal(signal.SIGINT)
        until(lambda: site.steps()[1])
        logged, _ = site.steps()
        site.analyze("d", SHARDS)
        stored = "SELECT index FROM windows WHERE kind = 'step'"
        until(lambda: {index for (index,) in ask(lake, stored)} >= logged)  # it ended while nobody decided
        assert ask(lake, TWICE) == [(0, 0, 0)]
