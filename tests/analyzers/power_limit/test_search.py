"""The search, against curves that are known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import exp
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from analyzers.power_limit import selectors
from analyzers.power_limit.curve_fit.belief import TOLERATED, Confidence
from analyzers.power_limit.curve_fit.visits import BLOCKS, Visit, by_limit, series, settled
from analyzers.power_limit.profiler import limits_mw
from analyzers.power_limit.search import Choose, Measure, advise, most_blocks
from analyzers.power_limit.selectors import Goal, Trial
from zeus_stream.simulated_gpu.workloads import load

S = 1_000_000_000
STEPS = 4
"""Of a block."""
GOALS = {text: selectors.parse(text) for text in ("energy", "time", "cost:0.5", "slowdown:1.1")}
MODELS = load()
CURVES = [(model, name) for model in MODELS.values() for name in model.workloads]


def goal(text: str) -> Goal:
    selector = GOALS[text]
    assert selector is not None
    assert selector.goal is not None
    return selector.goal


@dataclass
class World:
    """Steps whose time (s) and power (W) at a limit (mW) are known, and what a search of them does."""

    limits: tuple[int, ...]
    seconds: Callable[[int], float]
    watts: Callable[[int], float]
    noise: float = 0.0
    warming: float = 0.0
    """How much less energy a cold GPU takes."""
    seed: int = 0
    gpus: int = 1
    swing: Callable[[int], float] = lambda _: 1.0
    """How many times as long a step of the run takes as others."""
    steps: int = 0
    t_ns: int = 5 * S
    visits: list[Visit] = field(default_factory=list)
    clocks: bool = False
    """Its limits are nominal powers of clocks."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def block(self, limit_mw: int) -> Trial:
        seconds = energy = 0.0
        for _ in range(STEPS):
            swing, self.steps = self.swing(self.steps), self.steps + 1
            step_s = self.seconds(limit_mw) * max(0.1, self.rng.gauss(1, self.noise)) * swing
            warm = 1 - self.warming * exp(-(self.t_ns / S + seconds) / 15)
            seconds += step_s
            energy += (
                self.seconds(limit_mw) * self.watts(limit_mw) * self.rng.gauss(1, self.noise) * warm * swing
            )
        self.t_ns += round(seconds * S)
        return Trial(limit_mw, max(1, round(energy * 1000 * self.gpus)), round(seconds * S), STEPS)

    def searched(self, of: Goal, remembered: Sequence[Trial] = ()) -> Choose:
        """Do what is advised until it is to choose."""
        while True:
            match advise(self.limits, self.gpus, of, self.visits, remembered, clocks=self.clocks):
                case Choose() as chosen:
                    return chosen
                case Measure(limit_mw):
                    assert limit_mw in self.limits
                    before: tuple[Trial, ...] = ()
                    if self.visits and self.visits[-1].limit_mw == limit_mw:
                        before = self.visits.pop().blocks
                    self.visits.append(Visit((*before, self.block(limit_mw)), self.t_ns))
                    assert (
                        sum(len(visit.blocks) for visit in self.visits)
                        < most_blocks(len(self.limits)) + BLOCKS
                    )

    def excess(self, chosen_mw: int, of: Goal) -> float:
        """Return what is more at the chosen limit than at the best one, as a share."""
        times = {limit: self.seconds(limit) for limit in self.limits}
        if of.factor is not None:
            bound = of.factor * times[self.limits[0]]
            left_out = [1 - times[limit] / bound for limit in self.limits if limit < chosen_mw]
            return max(0.0, times[chosen_mw] / bound - 1, *left_out)
        trials = [Trial(x, round(t * self.watts(x) * 1e6), round(t * 1e12), 1) for x, t in times.items()]
        costs = {trial.limit_mw: of.of(trial, self.limits[0], 1) for trial in trials}
        return costs[chosen_mw] / min(costs.values()) - 1

    @property
    def measured(self) -> tuple[Trial, ...]:
        return by_limit(block for visit in self.visits for block in visit.blocks)

    @property
    def visited(self) -> list[int]:
        return [visit.limit_mw for visit in self.visits]


def published(number: int, step_s: float = 0.25, count: int | None = None, **more: Any) -> World:
    """Return the world of a published workload; ``count``: of limits."""
    model, name = CURVES[number % len(CURVES)]
    told = model.workloads[name]
    limits = limits_mw(model.default_limit_mw, model.min_limit_mw, 25_000)
    if count is not None:
        spaced = np.linspace(model.default_limit_mw, model.min_limit_mw, count).round().astype(int)
        limits = tuple(spaced.tolist())
    made = World(limits, lambda x: step_s * told.slowdown(x), lambda x: told.power_mw(x) / 1000)
    for key, value in more.items():
        setattr(made, key, value)
    made.__post_init__()
    return made


@pytest.mark.parametrize("text", GOALS)
@pytest.mark.parametrize("number", range(len(CURVES)))
def test_without_noise_the_limit_is_as_good_as_the_best(number: int, text: str) -> None:
    world = published(number)
    chosen = world.searched(goal(text))
    assert world.excess(chosen.limit_mw, goal(text)) <= 0.003
    assert chosen.limit_mw in world.visited


@pytest.mark.sweep
@pytest.mark.parametrize("text", GOALS)
def test_of_21_limits_most_are_not_measured(text: str) -> None:
    counts = []
    for number in range(0, len(CURVES), 2):
        world = published(number, count=21, noise=0.01, seed=number)
        world.searched(goal(text))
        counts.append(len(set(world.visited)))
    assert np.mean(counts) <= 10


@pytest.mark.sweep
def test_the_choice_is_within_the_stated_bound_in_95_of_100_worlds() -> None:
    inside = [
        world.excess(chosen.limit_mw, goal(text)) <= chosen.confidence.p95 + 1e-4
        for number, noise, text, count in product(range(0, 12, 3), (0.005, 0.03), GOALS, (None, 21))
        for world in [published(number, noise=noise, count=count, seed=number, warming=0.01)]
        for chosen in [world.searched(goal(text))]
    ]
    assert np.mean(inside) >= 0.95


@pytest.mark.sweep
def test_warming_up_is_not_taken_for_a_better_limit() -> None:
    """A cold GPU takes 3 % less; where limits differ by less, the incumbent is measured again."""
    excesses = []
    for number in range(0, len(CURVES), 2):
        world = published(number, noise=0.005, seed=number, warming=0.03)
        excesses.append(world.excess(world.searched(goal("energy")).limit_mw, goal("energy")))
    assert np.mean(excesses) <= 0.003
    assert max(excesses) <= 0.01


def test_limits_that_cannot_win_are_not_visited() -> None:
    world = published(0, noise=0.01)
    world.searched(goal("time"))
    assert min(world.visited) > 2 * min(world.limits) / 1.5


def test_where_no_limit_binds_half_of_them_are_enough() -> None:
    world = World(limits_mw(300_000, 100_000, 10_000), lambda _: 0.25, lambda _: 38.0, noise=0.005)
    chosen = world.searched(goal("energy"))
    assert len(set(world.visited)) <= 12
    assert chosen.confidence.p95 <= 0.02


def without_order(seed: int) -> World:
    """Return a world in which no limit binds, and times differ by some percent from one 25 W to the next."""
    rng, at = Random(f"order {seed}"), np.arange(100_000, 300_001, 25_000)
    logs = [rng.gauss(0, 0.05) for _ in at]
    seconds = lambda limit: 0.25 * exp(float(np.interp(limit, at, logs)))  # noqa: E731
    return World(limits_mw(300_000, 100_000, 10_000), seconds, lambda _: 38.0, noise=0.01, seed=seed)


@pytest.mark.sweep
@pytest.mark.parametrize("text", ["energy", "time"])
def test_where_limits_differ_without_order_none_is_left_out_that_is_much_better(text: str) -> None:
    worlds = [without_order(seed) for seed in range(12)]
    excesses = [world.excess(world.searched(goal(text)).limit_mw, goal(text)) for world in worlds]
    assert max(excesses) <= TOLERATED


def test_a_bound_on_the_time_is_looked_for_where_it_is_believed_to_be() -> None:
    world = published(0, count=21, noise=0.01)
    world.searched(goal("slowdown:1.1"))
    bound = 1.1 * world.seconds(world.limits[0])
    assert sum(world.seconds(limit) > 1.25 * bound for limit in world.visited) == 0
    assert len(world.visited) <= 9


def test_very_unequal_steps_take_more_of_them() -> None:
    steady, wild = (published(2, noise=noise, seed=1) for noise in (0.01, 0.4))
    assert max(world.searched(goal("energy")).confidence.p95 for world in (steady, wild)) < TOLERATED
    assert wild.steps > 2 * steady.steps


# ---- noise that is not white ---------------------------------------------------------------------------


def sorted_batches(seed: int) -> Callable[[int], float]:
    rng = Random(f"sorted {seed}")
    period, size, phase = rng.randint(15, 100), rng.uniform(0.1, 0.3), rng.random()
    return lambda step: 1 + size * (2 * ((step / period + phase) % 1) - 1)


def checkpoints(seed: int) -> Callable[[int], float]:
    rng = Random(f"checkpoints {seed}")
    long = {step for step in range(5_000) if rng.random() < 1 / 30}
    return lambda step: 5.0 if step in long else 1.0


def slow_start(seed: int) -> Callable[[int], float]:
    rng = Random(f"start {seed}")
    size, fades = rng.uniform(0.3, 1), rng.uniform(5, 40)
    return lambda step: 1 + size * exp(-step / fades)


def sudden_start(seed: int) -> Callable[[int], float]:
    until = Random(f"sudden {seed}").randint(5, 60)
    return lambda step: 1.8 if step < until else 1.0


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [sorted_batches, checkpoints, slow_start, sudden_start])
def test_what_all_limits_share_is_not_taken_for_a_better_limit(kind: Callable[[int], Any]) -> None:
    chosen = []
    for number, text in product(range(0, 12, 3), ("energy", "time")):
        world = published(number, noise=0.01, seed=number, swing=kind(number))
        choice = world.searched(goal(text))
        chosen.append((world.excess(choice.limit_mw, goal(text)), choice.confidence.p95))
    assert max(excess for excess, _ in chosen) <= TOLERATED
    assert sum(excess > bound + 1e-4 for excess, bound in chosen) <= 1


def test_steps_that_swing_are_looked_at_for_longer_than_steps_that_do_not() -> None:
    plain, swinging = (published(0, noise=0.01, swing=swing) for swing in (lambda _: 1.0, sorted_batches(3)))
    for world in (plain, swinging):
        world.searched(goal("energy"))
    assert len(plain.visits[0].blocks) < 15 < len(swinging.visits[0].blocks)
    assert plain.steps < swinging.steps


def test_a_search_that_runs_out_of_steps_says_that_it_is_not_sure() -> None:
    rng = Random(1)
    levels = [rng.gauss(1, 0.3) for _ in range(200)]
    world = published(2, noise=0.01, swing=lambda step: max(0.3, levels[step // 30 % 200]))
    chosen = world.searched(goal("energy"))
    assert not chosen.sure
    assert chosen.confidence.p95 > TOLERATED
    assert world.steps <= STEPS * (most_blocks(len(world.limits)) + BLOCKS)
    bounds = advise(world.limits, 1, goal("energy"), world.visits, more_blocks=3)
    assert isinstance(bounds, Measure)  # with more steps it goes on


def at_level(trials: Sequence[Trial], energy: float, time: float) -> list[Trial]:
    return [
        Trial(t.limit_mw, round(t.energy_mj * energy), round(t.duration_ns * time), t.steps) for t in trials
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("level", [1.0, 1.02, 0.75, 1.4])
@pytest.mark.parametrize("text", GOALS)
def test_what_is_remembered_rightly_is_confirmed_by_a_few_visits(text: str, level: float) -> None:
    before, after, excesses = [], [], []
    for number in range(0, len(CURVES), 2):
        first = published(number, noise=0.01, seed=100 + number)
        first.searched(goal(text))
        world = published(number, noise=0.01, seed=number)
        chosen = world.searched(goal(text), at_level(first.measured, level, level))
        assert chosen.remembered is not None
        before.append(len(first.visits))
        after.append(len(world.visits))
        excesses.append(world.excess(chosen.limit_mw, goal(text)))
    assert np.median(after) <= 3
    assert np.mean(after) <= np.mean(before)
    assert np.mean(excesses) <= 0.005


@pytest.mark.sweep
@pytest.mark.parametrize("text", GOALS)
def test_what_is_remembered_wrongly_costs_little(text: str) -> None:
    more, excesses = [], []
    for number in range(0, len(CURVES), 2):
        other = published(next(o for o in range(number + 1, 99) if same_model(o, number)), noise=0.01)
        other.searched(goal(text))
        plain, world = (published(number, noise=0.01, seed=number) for _ in range(2))
        plain.searched(goal(text))
        chosen = world.searched(goal(text), other.measured)
        more.append(len(world.visits) - len(plain.visits))
        excesses.append(world.excess(chosen.limit_mw, goal(text)))
    assert np.mean(more) <= 1
    assert np.mean(excesses) <= 0.01


def same_model(one: int, other: int) -> bool:
    return CURVES[one % len(CURVES)][0] is CURVES[other % len(CURVES)][0]


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
    visits = [Visit(tuple(block(s) for s in (*seconds[n:], *seconds[:n])), 9 * S) for n in range(5)]
    assert settled(visits) == visits


def test_trials_of_a_limit_add_up() -> None:
    one, other = Trial(200_000, 10, 20, 3), Trial(100_000, 1, 2, 1)
    assert by_limit([one, other, one]) == (Trial(200_000, 20, 40, 6), other)


worlds = st.builds(
    World,
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


noisy = World(
    tuple(w * 1000 for w in (153, 146, 138, 101, 100, 77, 55, 51, 1)),
    lambda limit: 0.001 * exp(Random(f"488 {limit}").gauss()),
    lambda _: 40.0,
    noise=0.5,
    gpus=8,
)


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(worlds, st.sampled_from(list(GOALS)))
@example(noisy, "time")  # blocks of its last visit are taken for settling
def test_it_ends_within_its_bound_and_never_leaves_the_limits(world: World, text: str) -> None:
    chosen = world.searched(goal(text))  # asserts both at every step
    assert chosen.limit_mw in world.visited
    assert chosen.confidence.expected >= 0
    assert chosen.confidence.p95 >= 0
    assert advise(world.limits, world.gpus, goal(text), world.visits) == chosen


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


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(worlds, memories, st.booleans(), st.sampled_from(("energy", "time", "cost:0.5")))
def test_whatever_is_remembered_no_limit_is_kept_that_was_measured_to_be_worse(
    world: World,
    remembered: list[Trial],
    near: bool,  # noqa: FBT001 - drawn
    text: str,
) -> None:
    world.noise = world.warming = 0.0
    if near:  # at limits that there are
        remembered = [replace(t, limit_mw=x) for t, x in zip(remembered, world.limits, strict=False)]
    chosen = world.searched(goal(text), remembered)  # asserts that it ends, and within the limits
    costs = {t.limit_mw: goal(text).of(t, world.limits[0], world.gpus) for t in world.measured}
    assert costs[chosen.limit_mw] <= 1.05 * min(costs.values())
    assert chosen.remembered is not None
    assert 0 <= chosen.remembered <= 1


@pytest.mark.sweep
@given(st.integers(0, 11), st.sampled_from(list(GOALS)))
def test_what_was_measured_at_limits_that_cannot_be_had_any_longer_is_left_out(
    number: int, text: str
) -> None:
    world = published(number, noise=0.01)
    chosen = world.searched(goal(text))
    left = tuple(limit for limit in world.limits if limit != chosen.limit_mw)
    assert advise(left, 1, goal(text), world.visits).limit_mw in left


def test_a_single_limit_is_measured_and_chosen() -> None:
    world = World((200_000,), lambda _: 0.25, lambda _: 150.0)
    assert world.searched(goal("energy")) == Choose(200_000, Confidence(0.0, 0.0))
    assert [len(visit.blocks) for visit in world.visits] == [BLOCKS]
