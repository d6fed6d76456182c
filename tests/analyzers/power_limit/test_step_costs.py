"""What is stated of a choice, against curves that are known."""

from collections.abc import Callable
from math import pi, sin, sqrt

import pytest

from analyzers.power_limit.search import curves
from analyzers.power_limit.search.advice import Choose
from analyzers.power_limit.search.step_costs import (
    MOST_SCATTER,
    SCATTERED,
    ShareInterval,
    step_costs,
)
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Trial
from tests.analyzers.power_limit.known_curve import KnownCurve, goal, published


def truth(curve: KnownCurve, chosen: Choose) -> tuple[float, float]:
    """Return how much more energy and time a step truly takes at the chosen limit, as shares."""
    assert chosen.costs is not None
    at, top = chosen.limit_mw, max(trial.limit_mw for trial in chosen.costs.trials)
    time = curve.seconds(at) / curve.seconds(top)
    return time * curve.watts(at) / curve.watts(top) - 1, time - 1


def holds(interval: ShareInterval, value: float) -> bool:
    return interval.low - 1e-6 <= value <= interval.high + 1e-6


def rare_long_steps(step: int) -> float:
    return 5.0 if step % 47 == 46 else 1.0


STARTS: dict[str, Callable[[int], float]] = {
    "a slow start": lambda step: 1.8 if step < 30 else 1.0,
    "rare long steps": rare_long_steps,
    "a swing": lambda step: 1 + 0.1 * sin(2 * pi * step / 30),
}


@pytest.mark.parametrize("kind", STARTS)
def test_what_is_stated_leaves_out_what_the_search_leaves_out(kind: str) -> None:
    off = []
    for number in range(0, 8, 2):
        curve = published(number, noise=0.01, seed=number, swing=STARTS[kind])
        chosen = curve.searched(goal("energy"))
        assert chosen.costs is not None
        energy, time = truth(curve, chosen)
        off += [abs(chosen.costs.energy.middle - energy), abs(chosen.costs.time.middle - time)]
    assert max(off) < 0.02


@pytest.mark.sweep
@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_the_intervals_hold_in_95_percent(noise: float) -> None:
    held = []
    for seed in range(24):
        curve = published(seed, noise=noise, seed=seed, count=11)
        chosen = curve.searched(goal(("energy", "cost:0.5")[seed % 2]))
        assert chosen.costs is not None
        for interval, true in zip(
            (chosen.costs.energy, chosen.costs.time), truth(curve, chosen), strict=True
        ):
            held.append(holds(interval, true))
    assert sum(held) / len(held) >= 0.93


@pytest.mark.sweep
def test_the_intervals_of_a_search_that_its_run_ends_hold_in_95_percent() -> None:
    """One limit is measured; the highest is remembered, by steps that were noisy as well."""
    held = []
    for seed in range(60):
        noise = (0.005, 0.02, 0.05)[seed % 3]
        earlier = published(seed, noise=noise, seed=1000 + seed).searched(goal("cost:0.5"))
        assert earlier.costs is not None
        curve = published(seed, noise=noise, seed=seed)
        chosen = curve.searched(goal("cost:0.5"), earlier.costs.trials, ends=12)
        assert chosen.costs is not None
        if chosen.limit_mw != curve.limits[0] and curve.limits[0] not in curve.visited:
            energy, _ = truth(curve, chosen)
            held.append(holds(chosen.costs.energy, energy))
            assert chosen.costs.energy.low < chosen.costs.energy.high
    assert len(held) > 30
    assert sum(held) / len(held) >= 0.93


def test_what_is_remembered_is_stated_at_the_level_of_now() -> None:
    first = published(3, noise=0.01)
    known = first.searched(goal("energy")).costs
    assert known is not None
    dearer = [
        Trial(each.limit_mw, round(1.2 * each.energy_mj), round(1.2 * each.duration_ns), each.steps)
        for each in known.trials
    ]
    again = published(3, noise=0.01, seed=1)
    costs = again.searched(goal("energy"), dearer).costs
    assert costs is not None
    assert {trial.limit_mw for trial in costs.trials} == {trial.limit_mw for trial in known.trials}
    for trial in costs.trials:
        assert trial.step_ns == pytest.approx(again.seconds(trial.limit_mw) * 1e9, rel=0.02)


def visits(levels: list[float]) -> list[Visit]:
    """Return visits of 300 and 200 W in turn, of quiet blocks, each at its own level."""
    made = []
    for number, level in enumerate(levels):
        blocks = tuple(
            Trial(200_000 if number % 2 else 300_000, round(4e6 * level * (1 + 0.001 * at)), 10**9, 4)
            for at in (-1, 0, 1, 0)
        )
        made.append(Visit(blocks, (number + 1) * 8 * 10**9))
    return made


def test_what_visits_scatter_by_makes_the_interval_wider() -> None:
    widths = []
    for scatter in (0.0, 0.02):
        signs = 1, 1, -1, -1, 1, 1
        costs = step_costs((300_000, 200_000), 1, visits([1 + scatter * sign for sign in signs]), 200_000)
        measured = visits([1 + scatter * sign for sign in signs])
        energy = curves.believe((300_000, 200_000), 300_000, 1, curves.ENERGY, measured, known=True)
        low, high = energy.difference(1, 0)
        widths.append((costs.energy.high - costs.energy.low) / (high - low))
    quiet, scattered = widths
    assert quiet == pytest.approx(1, abs=0.05)
    assert 1.15 < scattered <= sqrt(1 + SCATTERED * MOST_SCATTER**2) + 0.05


@pytest.mark.parametrize(("slow_mw", "more"), [({200_000}, 0.033), ({200_000, 300_000}, 0.0)])
def test_long_blocks_that_come_at_one_limit_alone_count(slow_mw: set[int], more: float) -> None:
    """A checkpoint comes at any limit and is left out; a kind of step that a limit slows is not."""
    measured = []
    for number in range(10):
        limit_mw = 200_000 if number % 2 else 300_000
        times = [1.1 if limit_mw in slow_mw and at == 1 else 1 + 0.001 * (at % 2) for at in range(3)]
        blocks = tuple(Trial(limit_mw, round(4e6 * each), round(1e9 * each), 4) for each in times)
        measured.append(Visit(blocks, (number + 1) * 8 * 10**9))
    costs = step_costs((300_000, 200_000), 1, measured, 200_000)
    assert costs.time.middle == pytest.approx(more, abs=0.01)
    assert holds(costs.time, more)
