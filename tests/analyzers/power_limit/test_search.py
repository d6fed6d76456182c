"""The search, against curves that are known."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import exp
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.power_limit.search.advice import LOOK, Measure, advise, most_blocks
from analyzers.power_limit.search.belief import TOLERATED, Confidence
from analyzers.power_limit.search.step_costs import ShareInterval
from analyzers.power_limit.search.visit_blocks import BLOCKS, Visit, by_limit, series, settled
from analyzers.power_limit.selectors import Goal, Trial
from analyzers.power_limit.visits import limits_mw
from benchmarks.noise.noise_kinds import (
    Floats,
    neighbour,
    rare_long_steps,
    slow_start,
    sorted_batches,
    sudden_start,
)
from tests.analyzers.power_limit.known_curve import CURVES, GOALS, STEPS, KnownCurve, S, goal, published


@pytest.mark.parametrize("text", GOALS)
@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.sweep) if n % 8 else n for n in range(0, len(CURVES), 6)]
)
def test_without_noise_the_limit_is_as_good_as_the_best(number: int, text: str) -> None:
    curve = published(number)
    chosen = curve.searched(goal(text))
    assert curve.excess(chosen.limit_mw, goal(text)) <= 0.003
    assert chosen.limit_mw in curve.visited


@pytest.mark.sweep
def test_the_choice_is_within_the_stated_bound_in_95_of_100_worlds() -> None:
    inside = [
        curve.excess(chosen.limit_mw, goal(text)) <= chosen.confidence.p95 + 1e-4
        for number, (noise, count), text in product(range(0, 12, 3), ((0.005, 21), (0.03, None)), GOALS)
        for curve in [published(number, noise=noise, count=count, seed=number, warming=0.01)]
        for chosen in [curve.searched(goal(text))]
    ]
    assert np.mean(inside) >= 0.95


@pytest.mark.parametrize(("start", "slow", "number"), [(56, 1.3, 4), (88, 2.0, 0)])
def test_a_start_that_ends_during_the_search_breaks_no_bound_on_the_time(
    start: int, slow: float, number: int
) -> None:
    curve = published(number, count=21, noise=0.01, seed=number)
    curve.swing = lambda step: slow if step < start else 1.0
    chosen_mw = curve.searched(goal("slowdown:1.1")).limit_mw
    assert curve.seconds(chosen_mw) <= 1.1 * 1.03 * curve.seconds(curve.limits[0])


@pytest.mark.sweep
def test_warming_up_is_not_taken_for_a_better_limit() -> None:
    """A cold GPU takes 3 % less; where limits differ by less, the incumbent is measured again."""
    excesses = []
    for number in range(0, len(CURVES), 3):
        curve = published(number, noise=0.005, seed=number, warming=0.03)
        excesses.append(curve.excess(curve.searched(goal("energy")).limit_mw, goal("energy")))
    assert np.mean(excesses) <= 0.003
    assert max(excesses) <= 0.01


@pytest.mark.parametrize(
    ("ceiling_mw", "visited_w"),
    [(None, (250, 225, 200, 175, 150)), (210_000, (250, 200, 175, 150)), (150_000, (250,))],
)
def test_limits_above_that_of_another_limiter_are_one_limit(
    ceiling_mw: int | None, visited_w: tuple[int, ...]
) -> None:
    visited_mw = tuple(watts * 1000 for watts in visited_w)
    assert limits_mw(250_000, 150_000, 25_000, ceiling_mw) == visited_mw


def test_limits_that_cannot_win_are_not_visited() -> None:
    curve = published(0, noise=0.01)
    curve.searched(goal("time"))
    assert min(curve.visited) > 2 * min(curve.limits) / 1.5


def test_where_no_limit_binds_half_of_them_are_enough() -> None:
    curve = KnownCurve(limits_mw(300_000, 100_000, 10_000), lambda _: 0.25, lambda _: 38.0, noise=0.005)
    chosen = curve.searched(goal("energy"))
    assert len(set(curve.visited)) <= 12
    assert chosen.confidence.p95 <= 0.02


def without_order(seed: int) -> KnownCurve:
    """Return a curve in which no limit binds, and times differ by some percent from one 25 W to the next."""
    rng, at = Random(f"order {seed}"), np.arange(100_000, 300_001, 25_000)
    logs = [rng.gauss(0, 0.05) for _ in at]
    seconds = lambda limit: 0.25 * exp(float(np.interp(limit, at, logs)))  # noqa: E731
    return KnownCurve(limits_mw(300_000, 100_000, 10_000), seconds, lambda _: 38.0, noise=0.01, seed=seed)


@pytest.mark.sweep
@pytest.mark.parametrize("text", ["energy", "time"])
def test_where_limits_differ_without_order_none_is_left_out_that_is_much_better(text: str) -> None:
    curves = [without_order(seed) for seed in range(4)]
    excesses = [curve.excess(curve.searched(goal(text)).limit_mw, goal(text)) for curve in curves]
    assert max(excesses) <= TOLERATED


def test_a_bound_on_the_time_is_looked_for_where_it_is_believed_to_be() -> None:
    curve = published(0, count=21, noise=0.01)
    curve.searched(goal("slowdown:1.1"))
    bound = 1.1 * curve.seconds(curve.limits[0])
    assert sum(curve.seconds(limit) > 1.25 * bound for limit in curve.visited) == 0
    assert len(set(curve.visited)) <= 9


def test_a_bound_on_the_time_holds_at_each_moment_of_a_search() -> None:
    """A limit far beyond it was visited when too few steps at the highest had been there for that."""
    for number, factor in product(range(0, 12, 2), (1.05, 1.1)):
        curve = published(number, count=21, noise=0.01, seed=number)
        curve.searched(Goal(0.0, factor))
        assert most_mean_time(curve) <= factor


def test_a_visit_of_a_limit_that_is_far_slower_than_believed_ends_before_it_breaks_the_bound() -> None:
    limits = tuple(range(300_000, 99_000, -10_000))
    curve = KnownCurve(limits, lambda mw: 0.25 if mw > 150_000 else 0.6, lambda mw: mw / 1050, noise=0.01)
    curve.searched(Goal(0.0, 1.2))
    assert min(curve.visited) <= 150_000
    assert most_mean_time(curve) <= 1.2


def most_mean_time(curve: KnownCurve) -> float:
    """Return the longest mean time of all steps of a search until some block, over that at the highest."""
    spent = [block.limit_mw for visit in curve.visits for block in visit.blocks]
    taken = np.cumsum([curve.seconds(limit_mw) / curve.seconds(curve.limits[0]) for limit_mw in spent])
    return float(np.max(taken / np.arange(1, len(spent) + 1)))


@pytest.mark.parametrize(
    ("step_s", "block_steps", "most"),
    [
        pytest.param(20, 1, 12, id="20 s: one step is a block, so a search takes a dozen of them"),
        pytest.param(3, 1, 30, id="3 s"),
        pytest.param(0.005, 100, 3_200, id="5 ms: half a second is a block, so a search takes about 15 s"),
    ],
)
def test_a_search_counts_what_steps_tell_and_not_steps(step_s: float, block_steps: int, most: int) -> None:
    curves = [
        published(number, step_s=step_s, count=7, noise=0.01, seed=number, block_steps=block_steps)
        for number in range(0, 36, 6)
    ]
    off = [curve.excess(curve.searched(goal("energy")).limit_mw, goal("energy")) for curve in curves]
    assert np.median([curve.steps for curve in curves]) <= most
    assert max(off) <= 0.01


def test_very_unequal_steps_take_more_of_them() -> None:
    steady, wild = (published(2, noise=noise, seed=1) for noise in (0.01, 0.4))
    assert max(curve.searched(goal("energy")).confidence.p95 for curve in (steady, wild)) < TOLERATED
    assert wild.steps > 2 * steady.steps


# ---- noise that is not white ---------------------------------------------------------------------------


def swing_of(kind: Callable[[np.random.Generator, int], Floats], seed: int) -> Callable[[int], float]:
    """Return how many times as long each step takes in a world of some kind of noise."""
    factors = 1 + np.maximum(kind(np.random.default_rng(seed), 5_000), -0.8)
    return lambda step: float(factors[step % len(factors)])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [sorted_batches, rare_long_steps, slow_start, sudden_start])
def test_what_all_limits_share_is_not_taken_for_a_better_limit(
    kind: Callable[[np.random.Generator, int], Floats],
) -> None:
    chosen = []
    for number, text in ((0, "energy"), (3, "time"), (6, "energy"), (9, "time")):
        curve = published(number, noise=0.01, seed=number, swing=swing_of(kind, number))
        choice = curve.searched(goal(text))
        chosen.append((curve.excess(choice.limit_mw, goal(text)), choice.confidence.p95))
    assert max(excess for excess, _ in chosen) <= TOLERATED
    assert sum(excess > bound + 1e-4 for excess, bound in chosen) <= 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_short_steps_beside_a_neighbour_do_not_hold_a_search_at_its_first_limit(seed: int) -> None:
    """Where steps are correlated the first visit has 160 of them, not 40 blocks of half a second."""
    curve = published(1, step_s=0.022, noise=0.01, block_steps=23, swing=swing_of(neighbour, seed))
    curve.searched(goal("cost:0.5"))
    assert curve.visits[0].whole.steps <= 2 * LOOK * curve.block_steps


def test_a_search_that_runs_out_of_steps_says_that_it_is_not_sure() -> None:
    rng = Random(1)
    levels = [rng.gauss(1, 0.3) for _ in range(200)]
    curve = published(2, noise=0.01, swing=lambda step: max(0.3, levels[step // 30 % 200]))
    chosen = curve.searched(goal("energy"))
    assert not chosen.sure
    assert chosen.confidence.p95 > TOLERATED
    assert curve.steps <= STEPS * (most_blocks(len(curve.limits)) + BLOCKS)
    bounds = advise(curve.limits, 1, goal("energy"), curve.visits, more_blocks=3)
    assert isinstance(bounds, Measure)  # with more steps it goes on


@pytest.mark.parametrize("text", GOALS)
@pytest.mark.parametrize("length", [60, 400])
def test_a_run_of_known_length_is_searched_for_at_most_half_of_it(length: int, text: str) -> None:
    curve = published(3, noise=0.1, seed=1)
    curve.searched(goal(text), length=length)
    assert curve.steps <= max(length / 2, STEPS * LOOK) + STEPS * BLOCKS


@pytest.mark.parametrize("length", [60, 200])
def test_a_short_run_measures_another_limit_than_the_first_and_is_nearer_to_the_best(length: int) -> None:
    of, chosen, kept = goal("cost:0.5"), [], []
    for number in range(0, len(CURVES), 3):
        curve = published(number, noise=0.15, seed=number)
        chosen.append(curve.excess(curve.searched(of, length=length).limit_mw, of))
        kept.append(curve.excess(curve.limits[0], of))
        assert len(set(curve.visited)) > 1
    assert np.mean(chosen) < 0.75 * np.mean(kept)


@cache
def played(number: int, seed: int, text: str) -> KnownCurve:
    """Return a published curve that was searched. Several tests compare with it, and none changes it."""
    curve = published(number, noise=0.01, seed=seed)
    curve.searched(goal(text))
    return curve


def at_level(trials: Sequence[Trial], energy: float, time: float) -> list[Trial]:
    return [
        Trial(t.limit_mw, round(t.energy_mj * energy), round(t.duration_ns * time), t.steps) for t in trials
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("level", [1.0, 0.75])
@pytest.mark.parametrize("text", GOALS)
def test_what_is_remembered_rightly_is_confirmed_by_a_few_visits(text: str, level: float) -> None:
    before, after, excesses = [], [], []
    for number in range(0, len(CURVES), 6):
        first = played(number, 100 + number, text)
        curve = published(number, noise=0.01, seed=number)
        chosen = curve.searched(goal(text), at_level(first.measured, level, level))
        assert chosen.remembered is not None
        before.append(len(first.visits))
        after.append(len(curve.visits))
        excesses.append(curve.excess(chosen.limit_mw, goal(text)))
    assert np.median(after) <= 3
    assert np.mean(after) <= np.mean(before)
    assert np.mean(excesses) <= 0.005


def test_the_best_of_the_remembered_limits_is_measured_first() -> None:
    known = [Trial(x, y, S, 1) for x, y in ((300_000, 120), (250_000, 100), (160_000, 110), (120_000, 140))]
    limits = limits_mw(250_000, 100_000, 25_000)
    assert advise(limits, 1, goal("energy"), (), known) == Measure(250_000)
    assert advise(limits, 1, goal("slowdown:1.1"), (), known) == Measure(250_000)
    assert advise(limits[1:], 1, goal("energy"), (), known[2:]) in {Measure(x) for x in limits[1:]}


def block(seconds: float, watts: float = 100.0) -> Trial:
    return Trial(200_000, round(seconds * watts * 1000), round(seconds * S), STEPS)


def test_a_block_with_a_checkpoint_in_it_is_left_out() -> None:
    visits = [Visit((block(1), block(1.01), block(2), block(0.99), block(1)), 5 * S)]
    series_, limits = series(visits, lambda trial: trial.step_ns)
    assert limits == [200_000]
    assert series_.value.tolist() == [0.25 * S, 0.2525 * S, 0.2475 * S, 0.25 * S]
    assert series_.position.tolist() == [2, 6, 14, 18]  # the others are where they were


def test_visits_before_the_run_had_started_are_left_out() -> None:
    slow, fast = Visit((block(2),) * 3, 24 * S), Visit((block(1),) * 3, 60 * S)
    other = Visit(tuple(replace(each, limit_mw=100_000) for each in fast.blocks), 40 * S)
    assert settled([slow, other, fast]) == [fast]
    assert settled([fast, other, fast]) == [fast, other, fast]
    slow_other = Visit(tuple(replace(each, limit_mw=100_000) for each in slow.blocks), 40 * S)
    kinds_in_turn = [slow, other, fast, slow_other, other, slow, fast]
    assert settled(kinds_in_turn) == kinds_in_turn[1:]  # the first steps are left out in any case


@pytest.mark.parametrize(
    ("blocks", "left"),
    [
        pytest.param([block(1), block(1), block(1)], 3, id="settled from the start"),
        pytest.param([block(0.7), block(1), block(1), block(1)], 3, id="time was settling"),
        pytest.param([block(1, 140), block(1, 120), block(1), block(1), block(1)], 3, id="so was power"),
        pytest.param([block(0.7), block(1)], 2, id="too few to tell"),
        pytest.param([block(4), block(8), block(1), block(1), block(1)], 3, id="as long as it lasts"),
        pytest.param([block(6), block(1.5), block(1), block(1), block(1)], 3, id="a run that starts"),
    ],
)
def test_blocks_at_the_head_are_left_out_while_time_or_power_settle(blocks: list[Trial], left: int) -> None:
    (visit,) = settled([Visit(tuple(blocks), 9 * S)])
    assert visit.blocks == tuple(blocks[-left:])


def test_blocks_that_differ_by_noise_are_not_left_out() -> None:
    seconds = (0.95, 1.04, 0.93, 1.06, 1.0)
    visits = [Visit(tuple(block(s) for s in (*seconds[n:], *seconds[:n])), 9 * S) for n in range(2)]
    assert settled(visits) == visits


def test_trials_of_a_limit_add_up() -> None:
    one, other = Trial(200_000, 10, 20, 3), Trial(100_000, 1, 2, 1)
    assert by_limit([one, other, one]) == (Trial(200_000, 20, 40, 6), other)


curves = st.builds(
    KnownCurve,
    st.lists(st.integers(1, 400).map(lambda w: w * 1000), min_size=1, max_size=12, unique=True).map(
        lambda limits: tuple(sorted(limits, reverse=True))
    ),
    st.integers(0, 1000).map(lambda seed: lambda limit: 0.001 * exp(Random(f"{seed} {limit}").gauss())),
    st.sampled_from([lambda _: 40.0, lambda x: x / 1000, lambda _: 900.0]),
    noise=st.sampled_from((0.0, 0.02, 0.5)),
    warming=st.sampled_from((0.0, 0.2)),
    seed=st.integers(0, 100),
    gpus=st.sampled_from((1, 8)),
)


noisy = KnownCurve(
    tuple(w * 1000 for w in (153, 146, 138, 101, 100, 77, 55, 51, 1)),
    lambda limit: 0.001 * exp(Random(f"488 {limit}").gauss()),
    lambda _: 40.0,
    noise=0.5,
    gpus=8,
)


@pytest.mark.sweep
@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(curves, st.sampled_from(list(GOALS)))
@example(noisy, "time")  # blocks of its last visit are taken for settling
def test_it_ends_within_its_bound_and_never_leaves_the_limits(curve: KnownCurve, text: str) -> None:
    chosen = curve.searched(goal(text))  # asserts both at every step
    assert chosen.limit_mw in curve.visited
    assert chosen.confidence.expected >= 0
    assert chosen.confidence.p95 >= 0
    assert advise(curve.limits, curve.gpus, goal(text), curve.visits) == chosen


memories = st.lists(
    st.builds(
        Trial,
        st.integers(1_000, 500_000),
        st.integers(1, 10**9),
        st.integers(1, 10**15),
        st.integers(1, 1000),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda trial: trial.limit_mw,
)


unordered = KnownCurve(
    tuple(w * 1000 for w in (349, 343, 228, 225, 194, 187, 167, 37)),
    lambda limit: 0.001 * exp(Random(f"291 {limit}").gauss()),
    lambda _: 900.0,
)


@pytest.mark.sweep
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    st.one_of(curves, st.builds(published, st.integers(0, len(CURVES) - 1), seed=st.integers(0, 999))),
    memories,
    st.booleans(),
    st.sampled_from(("energy", "time", "cost:0.5")),
)
@example(
    curve=unordered,
    remembered=[Trial(129_527, 64_546_739, 799_141_869_954_231, 763)],
    near=False,
    text="time",
)
def test_whatever_is_remembered_no_limit_is_kept_that_was_measured_to_be_worse(
    curve: KnownCurve,
    remembered: list[Trial],
    near: bool,  # noqa: FBT001 - drawn
    text: str,
) -> None:
    curve.noise = curve.warming = 0.0
    if near:  # at limits that there are
        remembered = [replace(t, limit_mw=x) for t, x in zip(remembered, curve.limits, strict=False)]
    chosen = curve.searched(goal(text), remembered)  # asserts that it ends, and within the limits
    costs = {t.limit_mw: goal(text).of(t, curve.limits[0], curve.gpus) for t in curve.measured}
    assert costs[chosen.limit_mw] <= 1.05 * min(costs.values())
    assert chosen.remembered is not None
    assert 0 <= chosen.remembered <= 1


def test_a_single_limit_is_measured_and_chosen() -> None:
    curve = KnownCurve((200_000,), lambda _: 0.25, lambda _: 150.0)
    chosen = curve.searched(goal("energy"))
    assert (chosen.limit_mw, chosen.confidence, chosen.sure) == (200_000, Confidence(0.0, 0.0), True)
    assert chosen.costs is not None
    assert chosen.costs.energy == chosen.costs.time == ShareInterval(0.0, 0.0, 0.0)
    assert [len(visit.blocks) for visit in curve.visits] == [BLOCKS]
