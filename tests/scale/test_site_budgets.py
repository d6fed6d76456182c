"""A power budget over shards, with the real PostgreSQL and NATS."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from analyzers.leases.budget_grants import BudgetGrants, SiteGpu
from analyzers.leases.site_leases import SiteLeases
from analyzers.power_budget.grants import GpuUse, ShardUse
from tests.scale.servers import nats
from tests.scale.test_shards import SHARDS, SITE, Site, wait_for
from zeus_stream.protocol.fields import shard_of
from zeus_stream.protocol.notes import Budget, ControlApplied, ControlLeaseEnded

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
TRAINER = """
import itertools, sys
import zeus_stream
gpu = int(sys.argv[2])
with zeus_stream.Publisher(job=sys.argv[1], run=sys.argv[1], gpus=[gpu]) as publisher:
    works = zeus_stream.simulated.attach("imagenet", gpus=[gpu])
    for _ in publisher.steps(itertools.count()):
        works.run(0.03)
"""


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
    assert given[1][0].gpus == ("GPU-1",)
    assert grants.hosts(1) == {"alpha"}
    other = BudgetGrants(leases).exchange([], {}, [used(0, limit_w=150, obeyed_w=200)], later_ns)
    assert other[0][0].limit_mw == 200 * W
    assert grants.exchange([], GPUS, [used(1, epoch=7)], later_ns) == {}, "an epoch that is not the latest"
    ended = replace(ALL, end_ns=later_ns)
    assert grants.exchange([ended], GPUS, [used(0)], later_ns + 2 * S) == {0: ()}
    assert grants.hosts(0) == frozenset()


class BudgetedSite(Site):
    """A host with two GPUs, and a job on each, of two shards."""

    def train_on(self, gpu: int) -> str:
        job = next(f"job-{n}" for n in range(100) if shard_of(f"job-{n}", SHARDS) == gpu)
        self.start(job, self.host, "-c", TRAINER, job, str(gpu))
        return job

    def holders(self) -> set[int]:
        """Return the processes that decide on shards."""
        states = self.leases.states()
        return {int(each.holder.rpartition("/")[2]) for each in states if each.left_s > 0}

    def sums_w(self) -> list[float]:
        """Return the sum of limits after each change, as the host has logged it."""
        limits_mw: dict[str, int] = {}
        sums: list[float] = []
        for note in self.noted():
            if isinstance(note, ControlApplied | ControlLeaseEnded) and note.value is not None:
                limits_mw[note.gpu] = note.value
                sums.append(sum(limits_mw.values()) / W + 300 * (2 - len(limits_mw)))
        return sums


@pytest.mark.sweep
def test_the_sum_of_limits_holds_while_an_analyzer_is_killed(database: str) -> None:
    with ExitStack() as processes:
        site = BudgetedSite(database, processes.enter_context(nats()), processes)
        site.collect("simulated:a40x2")
        site.analyze("a")
        site.analyze("b")
        wait_for(lambda: len(site.holders()) == 2, "both analyzers have a shard")
        wait_for((site.host / "publish").exists, "the collector takes events")
        site.train_on(0)
        site.train_on(1)
        command = [sys.executable, "-m", "zeus_stream", "budget", "--watts", str(BUDGET_W), "--ramp", "1"]
        subprocess.run([*command, "--dir", str(site.where["a"])], check=True, capture_output=True)
        wait_for(lambda: site.sums_w() and site.sums_w()[-1] <= BUDGET_W, "the budget is kept")
        begun = len(site.sums_w())
        site.running["a"].kill()
        wait_for(lambda: site.holders() == {site.running["b"].pid}, "the other analyzer has both shards")
        wait_for(lambda: len(site.sums_w()) > begun + 4, "limits are set after the take-over")
        assert max(site.sums_w()[begun - 1 :]) <= BUDGET_W
