"""A power budget over shards, with the real PostgreSQL and NATS."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
from msgspec.structs import replace

from analyzers.leases.budget_grants import BudgetGrants, SiteGpu
from analyzers.leases.site_leases import SiteLeases
from analyzers.power_budget.grants import GpuUse, ShardUse
from tests.scale.running_site import SITE
from tests.scale.servers import Nats, Postgres
from tests.scale.test_shards import SHARDS, ShardedSite
from tests.waiting import until
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.notes import Budget, ControlApplied, ControlLeaseEnded, Note

W = 1000
BUDGET_W = 400
S = 10**9
NOW_NS = 1_700_000_000 * S
GPUS = {f"GPU-{n}": SiteGpu("alpha", n, 300 * W) for n in range(2)}
ALL = Budget(
    group="all",
    limit_mw=BUDGET_W * W,
    gpus=(),
    set_ns=NOW_NS,
    begin_ns=NOW_NS,
    end_ns=NOW_NS + 3600 * S,
    ramp_ns=S,
)


@pytest.fixture
def leases(database: str) -> Iterator[SiteLeases]:
    with closing(SiteLeases(database, SITE, "holder")) as opened:
        opened.open_shards(SHARDS)
        opened.take_shard(0, 60)
        opened.take_shard(1, 60)
        yield opened


def used(shard: int, epoch: int = 1, *, limit_w: int = 300, obeyed_w: int | None = None) -> ShardUse:
    gpu = GpuUse(used_mw=limit_w * W, least_mw=100 * W, wanted_mw=300 * W, busy=True, returned=False)
    obeyed = {} if obeyed_w is None else {"all": obeyed_w * W}
    return ShardUse(shard=shard, epoch=epoch, gpus={f"GPU-{shard}": gpu}, obeyed_mw=obeyed)


def test_two_shards_share_what_one_budget_allows(leases: SiteLeases) -> None:
    grants, later_ns = BudgetGrants(leases), NOW_NS + 10 * S
    grants.exchange([ALL], GPUS, [used(0), used(1)], later_ns)  # the GPU of a shard that was not seen counts
    given = grants.exchange([ALL], GPUS, [used(0), used(1)], later_ns)
    assert {shard: [each.limit_mw for each in of] for shard, of in given.items()} == {
        0: [200 * W],
        1: [200 * W],
    }
    assert {each.site_mw for of in given.values() for each in of} == {BUDGET_W * W}
    assert given[1][0].gpus == ("GPU-1",)
    assert grants.hosts(1) == {"alpha"}
    other = BudgetGrants(leases).exchange([], {}, [used(0, limit_w=150, obeyed_w=200)], later_ns)
    assert other[0][0].limit_mw == 200 * W
    assert grants.exchange([], GPUS, [used(1, epoch=7)], later_ns) == {}, "an epoch that is not the latest"
    ended = replace(ALL, end_ns=later_ns)
    assert grants.exchange([ended], GPUS, [used(0)], later_ns + 2 * S) == {0: ()}
    assert grants.hosts(0) == frozenset()


class BudgetedSite(ShardedSite):
    """A host with two GPUs, and a job on each, of two shards."""

    def begin(self) -> None:
        """Start the host and two analyzers, and wait until each has a shard."""
        self.collect("simulated:a40x2")
        self.analyze("a", SHARDS)
        self.analyze("b", SHARDS)
        until(lambda: len(set(self.holders())) == SHARDS)
        until((self.host / "publish").exists)

    def train_on(self, gpu: int, shard: int) -> str:
        """Start a job of a shard on a GPU. Return its name, under which it runs."""
        names = (f"job-{gpu}-{n}" for n in range(100))
        job = next(name for name in names if shard_of(name, SHARDS) == shard)
        self.train(job, gpu)
        return job

    def holders(self) -> list[int]:
        """Return the process of each shard that one decides on."""
        states = self.leases.states()
        return [int(each.holder.rpartition("/")[2]) for each in states if each.left_s > 0]

    def sums_w(self) -> list[float]:
        """Return the sum of limits after each change, as the host has logged it."""
        return [after_w for _, _, after_w in self.changes()]

    def changes(self) -> list[tuple[Note, float, float]]:
        """Return each change of a limit, with the sum of limits before and after it."""
        limits_mw: dict[str, int] = {}
        changes: list[tuple[Note, float, float]] = []
        before_w = 600.0
        for note in self.noted():
            if isinstance(note, ControlApplied | ControlLeaseEnded) and note.value is not None:
                limits_mw[note.gpu] = note.value
                after_w = sum(limits_mw.values()) / W + 300 * (2 - len(limits_mw))
                changes.append((note, before_w, after_w))
                before_w = after_w
        return changes

    def shards_of_gpus(self) -> list[int | None]:
        """Return the shards that may command the GPUs under the budget."""
        with psycopg.connect(self.leases.dsn) as connection:
            return [shard for (shard,) in connection.execute("SELECT shard FROM zs.budget_gpus ORDER BY gpu")]

    def granted_w(self) -> float:
        """Return what the grants of all shards add up to."""
        with psycopg.connect(self.leases.dsn) as connection:
            row = connection.execute("SELECT sum(granted_mw) FROM zs.budget_grants").fetchone()
        assert row is not None
        return float(row[0] or 0) / W

    def set_budget(self) -> None:
        command = [sys.executable, "-m", "zeus_stream", "budget", "--watts", str(BUDGET_W), "--ramp", "1"]
        subprocess.run([*command, "--dir", str(self.where["a"])], check=True, capture_output=True)
        until(lambda: self.sums_w() and self.sums_w()[-1] <= BUDGET_W)
        until(lambda: 0 < self.granted_w() <= BUDGET_W)
        listing = [*command[:4], "--dir", str(self.where["b"])]  # set on the machine of the other analyzer
        shown = subprocess.run(listing, check=True, capture_output=True, text=True)
        assert f"all: {BUDGET_W} W for every GPU of the site" in shown.stdout


@pytest.mark.sweep
def test_the_budget_holds_when_an_analyzer_is_killed_and_a_gpu_changes_its_shard_without_postgresql(
    server: Postgres, database: str, broker: Nats
) -> None:
    """Without PostgreSQL a lease may end, and give back what was found: no command raises a limit then."""
    with ExitStack() as processes:
        site = BudgetedSite(database, broker, processes)
        site.begin()
        site.train_on(0, 0)
        leaving = site.train_on(1, 1)
        site.set_budget()
        site.analyze("c", SHARDS)
        begun = len(site.sums_w())
        site.running["a"].kill()
        until(lambda: len(site.holders()) == SHARDS and site.running["a"].pid not in site.holders())
        until(lambda: len(site.sums_w()) > begun + 4)
        assert max(site.sums_w()[begun - 1 :]) <= BUDGET_W

        until(lambda: sorted(site.shards_of_gpus(), key=str) == [0, 1])
        begun = len(site.changes())
        server.kill()
        try:
            site.running[leaving].kill()
            site.train_on(1, 0)
        finally:
            server.start()
        until(lambda: site.shards_of_gpus() == [0, 0])
        until(lambda: site.sums_w()[-1] <= BUDGET_W)
        for note, before_w, after_w in site.changes()[begun:]:
            assert after_w <= max(BUDGET_W, before_w) or isinstance(note, ControlLeaseEnded), note
