"""Grants of shards: whatever begins, ends, dies or is taken over, the sum of limits is kept."""

from dataclasses import dataclass, field
from random import Random

import pytest

from analyzers.power_budget.grants import GpuUse, Grant, GrantedPower, Grants, Member, ShardUse, share

LEAST, FOUND = 100, 700
LEASE_S = 30
"""A limit that nobody renews returns to what was found so long after."""
BUDGET = "all"


@dataclass
class Holder:
    """A shard as its process sees it: commands take a while, and are known by their outcomes alone."""

    shard: int
    epoch: int
    runs: set[str]
    limits: dict[str, int]
    """In force, by GPU: shared with the world."""
    holders: dict[str, int]
    use: GrantedPower | None = None
    obeyed_mw: int | None = None
    asked: dict[str, int | None] = field(default_factory=dict)
    """None: the limit is given back."""

    def report(self) -> ShardUse:
        gpus = {}
        for gpu, limit_mw in self.limits.items():
            asked_mw = self.asked.get(gpu)
            gpus[gpu] = GpuUse(
                used_mw=max(limit_mw, asked_mw or 0),
                least_mw=LEAST,
                wanted_mw=FOUND if gpu in self.runs else LEAST,
                busy=gpu in self.runs,
                returned=self.holders.get(gpu) != self.shard and gpu not in self.asked,
            )
        stated = self.use is not None and self.use.gpus  # a budget about no GPU is not stated
        obeyed = {BUDGET: self.obeyed_mw} if self.obeyed_mw is not None and stated else {}
        return ShardUse(shard=self.shard, epoch=self.epoch, gpus=gpus, obeyed_mw=obeyed)

    def obey(self) -> None:
        """Ask for limits that are within the last grant, lower ones first, as `Enforcer` does."""
        if self.use is None:
            return
        self.obeyed_mw = self.use.limit_mw
        mine = [gpu for gpu in self.use.gpus if gpu not in self.asked]
        each_mw = max(min(self.use.limit_mw // max(len(self.use.gpus), 1), FOUND), LEAST)
        promised_mw = sum(max(self.limits[gpu], self.asked.get(gpu) or 0) for gpu in self.use.gpus)
        for gpu in mine:
            more_mw = each_mw - self.limits[gpu]
            if more_mw < 0 or (more_mw > 0 and promised_mw + more_mw <= self.use.limit_mw):
                self.asked[gpu] = each_mw
                promised_mw += max(more_mw, 0)
        for gpu, holder in self.holders.items():
            if holder == self.shard and gpu not in self.use.gpus and gpu not in self.asked:
                self.asked[gpu] = None


class World:
    """Shards, their holders and the GPUs of a site."""

    def __init__(self, seed: int, gpus: int = 12, shards: int = 3) -> None:
        self.rng = Random(seed)
        self.limits = {f"g{n:02}": FOUND for n in range(gpus)}
        self.holders: dict[str, int] = {}
        """By GPU, the shard whose limit is in force."""
        self.book = Grants({gpu: Member(FOUND) for gpu in self.limits}, {})
        self.runs: dict[int, set[str]] = {shard: set() for shard in range(shards)}
        self.deciding = {shard: self._holder(shard, 1) for shard in range(shards)}
        self.dead_s: dict[int, int] = {}
        self.most_mw = gpus * FOUND
        self.kept = False
        """The budget holds: from now on it is never exceeded."""
        self.takeovers = 0

    def _holder(self, shard: int, epoch: int) -> Holder:
        return Holder(shard, epoch, self.runs[shard], self.limits, self.holders)

    def events(self) -> None:
        busy = set().union(*self.runs.values())
        shard = self.rng.choice(sorted(self.runs))
        if self.rng.random() < 0.06 and (idle := sorted(self.limits.keys() - busy)):
            self.runs[shard] |= set(self.rng.sample(idle, self.rng.randint(1, len(idle))))
        if self.rng.random() < 0.06:
            self.runs[shard].clear()
        if self.rng.random() < 0.04 and shard in self.deciding:
            del self.deciding[shard]
            self.dead_s[shard] = 0
        for dead, since_s in tuple(self.dead_s.items()):
            self.dead_s[dead] += 1
            if since_s == 7 and dead in self.book.grants:
                self.book.abandon([dead])
                self.kept = False  # the least limits of the others may be too much beside what was found
            if since_s >= LEASE_S:
                for gpu in [gpu for gpu, holder in self.holders.items() if holder == dead]:
                    self.limits[gpu] = FOUND
                    del self.holders[gpu]
            if self.rng.random() < 0.1:
                del self.dead_s[dead]
                self.deciding[dead] = self._holder(dead, self.takeovers + 2)
                self.takeovers += 1

    def second(self) -> None:
        self.events()
        for shard, holder in sorted(self.deciding.items()):
            if self.rng.random() < 0.8:
                holder.use = self.book.exchange(holder.report(), BUDGET, self.most_mw)
                self.check(shard)
            if self.rng.random() < 0.8:
                holder.obey()
            for gpu in list(holder.asked):
                if self.rng.random() < 0.6:
                    self.carry_out(holder, gpu)
                    self.check(shard)

    def carry_out(self, holder: Holder, gpu: str) -> None:
        asked_mw = holder.asked.pop(gpu)
        if self.holders.get(gpu, holder.shard) != holder.shard:
            return  # refused: another shard's lease
        if asked_mw is None:
            self.limits[gpu] = FOUND
            self.holders.pop(gpu, None)
        else:
            self.limits[gpu], self.holders[gpu] = asked_mw, holder.shard

    def check(self, shard: int) -> None:
        in_force_mw = sum(self.limits.values())
        promised_mw = self.book.promised_mw()
        assert in_force_mw <= promised_mw, f"shard {shard}: {in_force_mw} mW, {promised_mw} mW are promised"
        self.kept = self.kept or promised_mw <= self.most_mw
        if self.kept:
            assert in_force_mw <= self.most_mw


@pytest.mark.parametrize("seed", range(40))
def test_what_is_in_force_is_never_more_than_was_promised(seed: int) -> None:
    world = World(seed)
    for _ in range(30):
        world.second()
    world.most_mw, world.kept = world.most_mw * 6 // 10, False
    for _ in range(600):
        world.second()
    assert world.takeovers > 5


def test_the_others_make_room_before_the_leases_of_a_dead_shard_end() -> None:
    world = World(1)
    for shard in world.runs:
        world.runs[shard] |= {f"g{n:02}" for n in range(shard * 4, shard * 4 + 4)}
    world.events = lambda: None  # type: ignore[method-assign]
    world.most_mw = world.most_mw * 6 // 10
    for _ in range(60):
        world.second()
    before_mw = sum(world.limits.values())
    assert 0.9 * world.most_mw < before_mw <= world.most_mw
    del world.deciding[0]
    world.book.abandon([0])
    for _ in range(LEASE_S - 7):
        world.second()
    for gpu in [gpu for gpu, holder in world.holders.items() if holder == 0]:
        world.limits[gpu] = FOUND
    assert sum(world.limits.values()) <= world.most_mw


def test_a_gpu_goes_from_the_shard_that_had_it_to_the_one_whose_run_is_on_it() -> None:
    world = World(2)
    world.events = lambda: None  # type: ignore[method-assign]
    world.runs[0].update(world.limits)
    world.most_mw = world.most_mw * 6 // 10
    for _ in range(60):
        world.second()
    world.runs[0].clear()
    world.runs[1].update(world.limits)
    for _ in range(200):
        world.second()
    assert set(world.holders.values()) == {1}
    assert sum(world.limits.values()) > 0.8 * world.most_mw


def test_who_takes_an_abandoned_shard_over_may_not_use_what_the_others_still_have() -> None:
    """An abandoned shard counts at what was found, so the sum is over the budget until others make room."""
    book = Grants({"g0": Member(FOUND, shard=0), "g1": Member(FOUND, shard=1)}, {})
    book.grants |= {0: Grant(1, granted_mw=FOUND), 1: Grant(1, granted_mw=LEAST)}
    book.abandon([1])
    unread = ShardUse(shard=1, epoch=2, gpus={}, obeyed_mw={})
    assert book.exchange(unread, BUDGET, FOUND + LEAST).limit_mw <= LEAST


def test_the_only_gpu_of_a_shard_is_free_once_it_is_given_back() -> None:
    """A budget about no GPU is not stated to a shard, so that it says of none what it obeys."""
    book = Grants({"g0": Member(FOUND, shard=1, wanted=0, leaving=True), "g1": Member(FOUND, shard=0)}, {})
    book.grants |= {1: Grant(5, granted_mw=FOUND), 0: Grant(1, granted_mw=FOUND)}

    def given_back(*, returned: bool) -> ShardUse:
        use = GpuUse(used_mw=FOUND, least_mw=LEAST, wanted_mw=LEAST, busy=False, returned=returned)
        return ShardUse(shard=1, epoch=5, gpus={"g0": use}, obeyed_mw={})

    book.exchange(given_back(returned=False), BUDGET, 2 * FOUND)
    assert book.members["g0"].leaving
    book.exchange(given_back(returned=True), BUDGET, 2 * FOUND)
    assert (book.members["g0"], book.grants[1].granted_mw) == (Member(FOUND), 0)


def test_power_goes_by_weight_and_nobody_gets_more_than_it_gains_from() -> None:
    assert share(300, {1: (200, 1.0), 2: (200, 1.0)}) == {1: 150, 2: 150}
    assert share(300, {1: (200, 3.0), 2: (200, 1.0)}) == {1: 200, 2: 100}
    assert share(900, {1: (200, 3.0), 2: (0, 1.0)}) == {1: 200, 2: 0}
