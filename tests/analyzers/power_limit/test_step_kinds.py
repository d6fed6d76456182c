"""The search on runs whose steps are of two kinds, of which a limit slows one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.power_limit.search import step_kinds
from analyzers.power_limit.search.step_kinds import evenly_mixed, halves
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Halves, Trial
from tests.analyzers.power_limit.known_curve import KnownCurve, S, goal, published

STEPS = 4
"""Of a block."""
OTHER_S, OTHER_W = 0.35, 100.0
"""Time and power of a step that no limit changes."""


@pytest.mark.parametrize(
    ("steps_ns", "found"),
    [
        ([], None),
        ([7], Halves(1, 7, 0, 7)),
        ([10, 11, 20, 10], Halves(3, 31 / 3, 1, 20)),
        ([20, 9, 22], Halves(1, 9, 2, 21)),
    ],
)
def test_steps_are_split_at_the_widest_gap_between_their_times(
    steps_ns: list[int], found: Halves | None
) -> None:
    assert halves(steps_ns) == found


def in_turn(first: int, other: int) -> Callable[[int], bool]:
    """Return which steps a limit slows: so many, and then as many that it does not."""
    return lambda step: step % (first + other) < first


@dataclass
class TwoKinds(KnownCurve):
    """A curve that holds for some steps; others take the same at each limit."""

    slowed: Callable[[int], bool] = in_turn(1, 0)

    def block(self, limit_mw: int) -> Trial:
        known, energy_j = [], 0.0
        for _ in range(STEPS):
            slowed, self.steps = self.slowed(self.steps), self.steps + 1
            usual_s, watts = (self.seconds(limit_mw), self.watts(limit_mw)) if slowed else (OTHER_S, OTHER_W)
            known.append(usual_s * self.rng.gauss(1, self.noise))
            energy_j += usual_s * watts * self.rng.gauss(1, self.noise)
        self.t_ns += round(sum(known) * S)
        ns = [round(step_s * S) for step_s in known]
        return Trial(limit_mw, round(energy_j * 1000), sum(ns), STEPS, halves=halves(ns))

    def mean(self, limit_mw: int, share: float) -> tuple[float, float]:
        """Return seconds and joules of a step, where a share of steps is slowed."""
        seconds = self.seconds(limit_mw)
        energy_j = seconds * self.watts(limit_mw)
        return share * seconds + (1 - share) * OTHER_S, share * energy_j + (1 - share) * OTHER_S * OTHER_W

    def of_both(self, share: float) -> KnownCurve:
        def watts(limit_mw: int) -> float:
            seconds, energy_j = self.mean(limit_mw, share)
            return energy_j / seconds

        return KnownCurve(self.limits, lambda limit_mw: self.mean(limit_mw, share)[0], watts)


def two_kinds(slowed: Callable[[int], bool], noise: float = 0.01, seed: int = 0) -> TwoKinds:
    known = published(1)
    return TwoKinds(known.limits, known.seconds, known.watts, noise, seed=seed, slowed=slowed)


def visited(curve: KnownCurve, visits: Sequence[tuple[int, int]]) -> list[Visit]:
    """Return visits of limits (index), for so many blocks."""
    of = []
    for at, count in visits:
        blocks = tuple(curve.block(curve.limits[at]) for _ in range(count))
        of.append(Visit(blocks, curve.t_ns))
    return of


@pytest.mark.parametrize(
    ("slowed", "share", "visits"),
    [
        pytest.param(in_turn(24, 16), 0.6, [(0, 22), (2, 7), (0, 8), (2, 5)], id="long spans in turn"),
        pytest.param(in_turn(1, 4), 0.2, [(0, 12), (2, 9), (0, 8), (2, 11)], id="one step of five"),
    ],
)
def test_every_block_gets_the_share_of_both_kinds_over_whole_cycles(
    slowed: Callable[[int], bool], share: float, visits: list[tuple[int, int]]
) -> None:
    curve = two_kinds(slowed, noise=0.0)
    mixed = evenly_mixed(visited(curve, visits))
    assert mixed is not None
    assert [len(visit.blocks) for visit in mixed.visits] == [count for _, count in visits]
    assert mixed.doubt < 0.02, "each cycle has the same share"
    for block in (block for visit in mixed.visits for block in visit.blocks):
        found = block.step_ns / S, block.step_mj / 1000
        assert found == pytest.approx(curve.mean(block.limit_mw, share), rel=1e-4)


def test_one_return_of_a_kind_is_no_whole_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_kinds, "RETURNS", 1)
    curve = two_kinds(in_turn(24, 16), noise=0.0)
    assert evenly_mixed(visited(curve, [(0, 12), (2, 6)])) is None
    assert evenly_mixed(visited(curve, [(0, 22), (2, 22)])) is not None, "two returns are one"


def test_kinds_that_take_the_same_time_are_known_by_their_power() -> None:
    curve = two_kinds(in_turn(20, 20), noise=0.005)
    curve.seconds = lambda _: OTHER_S
    mixed = evenly_mixed(visited(curve, [(0, 25), (3, 15), (0, 10), (3, 10)]))
    assert mixed is not None
    for visit in mixed.visits:
        assert visit.whole.step_mj / 1000 == pytest.approx(curve.mean(visit.limit_mw, 0.5)[1], rel=0.01)


def test_a_limit_counts_once_the_changed_kind_was_seen_at_it() -> None:
    curve = two_kinds(in_turn(20, 20))
    before = visited(curve, [(0, 25), (1, 10)])
    curve.steps = 20  # others follow
    mixed = evenly_mixed([*before, *visited(curve, [(2, 4)])])
    assert mixed is not None
    assert [visit.limit_mw for visit in mixed.visits] == list(curve.limits[:2])


def starting(step: int) -> float:
    return 1.5 if step < 50 else 1.0


def swings(step: int) -> float:
    return 1.3 if step % 40 < 20 else 1.0


@pytest.mark.parametrize(
    "swing",
    [
        pytest.param(lambda _: 1.0, id="steps of one kind"),
        pytest.param(starting, id="a start is no kind: it does not come back"),
        pytest.param(swings, id="a limit slows both kinds"),
    ],
)
def test_other_runs_stay_as_they_are(swing: Callable[[int], float]) -> None:
    curve = published(1, noise=0.01, swing=swing)
    assert evenly_mixed(visited(curve, [(0, 30), (3, 15), (0, 10), (3, 10), (0, 10)])) is None


@pytest.mark.sweep
@pytest.mark.parametrize("text", ["energy", "cost:0.5", "slowdown:1.1"])
@pytest.mark.parametrize("spans", [(60, 60), (3, 5), (90, 20)])
def test_a_phase_is_not_taken_for_a_better_limit(spans: tuple[int, int], text: str) -> None:
    share = spans[0] / sum(spans)
    for seed in range(2):
        curve = two_kinds(in_turn(*spans), seed=seed)
        chosen = curve.searched(goal(text))
        assert curve.of_both(share).excess(chosen.limit_mw, goal(text)) < 0.03
        assert curve.steps < 800


def at_random(share: float, seed: int) -> Callable[[int], bool]:
    rng = Random(seed)
    return lambda _: rng.random() < share


@pytest.mark.sweep
def test_kinds_drawn_at_random_are_counted() -> None:
    curve = two_kinds(at_random(0.5, 1), noise=0.005)
    visits = visited(curve, [(0, 30), (2, 30), (0, 10)])
    mixed = evenly_mixed(visits)
    assert mixed is not None
    steps = sum(block.steps for visit in visits for block in visit.blocks)
    assert mixed.doubt == pytest.approx(sqrt((1 - 0.5) / (0.5 * steps)), rel=0.5), "a share of so few steps"
    high, low, _ = (visit.whole for visit in mixed.visits)
    more = (curve.mean(curve.limits[2], 0.5)[0] - curve.mean(curve.limits[0], 0.5)[0]) * S
    assert low.step_ns - high.step_ns == pytest.approx(more, rel=0.3)


trial = st.builds(
    Trial,
    st.sampled_from([150_000, 200_000, 250_000]),
    st.integers(10**5, 10**6),
    st.integers(S // 2, S),
    st.integers(4, 20),
    halves=st.none() | st.lists(st.sampled_from([10**7, 10**7 + 10**5, 10**8]), min_size=1).map(halves),
)


@given(st.lists(trial, max_size=24))
def test_any_blocks_keep_their_limits_and_steps(some: list[Trial]) -> None:
    visits = [Visit((block,), number * S) for number, block in enumerate(some, 1)]
    mixed = evenly_mixed(visits)
    for visit in visits if mixed is None else mixed.visits:
        [before] = next(known.blocks for known in visits if known.t_ns == visit.t_ns)
        [after] = visit.blocks
        assert (after.limit_mw, after.steps) == (before.limit_mw, before.steps)
        assert min(after.energy_mj, after.duration_ns) > 0
