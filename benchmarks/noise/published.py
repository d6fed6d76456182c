"""Zeus's published power traces as workloads, for the benchmarks of the search and of what follows it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, sqrt
from random import Random

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.power_limit import selectors
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.simulation.traces import read

SELECTORS = ("energy", "time", "cost:0.5", "slowdown:1.1")
STEP_NS = 250_000_000
CORRELATION = 0.3
"""Of a step's noise with that of the step before."""
WARMING, WARMING_STEPS = 0.01, 60
"""Energy that a cold GPU takes less, and in how many steps it warms up."""


class Curve(Struct, frozen=True):
    """A workload: limits descending, and what a step takes at each."""

    name: str
    limits_mw: tuple[int, ...]
    step_ns: tuple[float, ...]
    step_mj: tuple[float, ...]


def curves() -> Iterator[Curve]:
    """Return the published curves, as measured; a step takes `STEP_NS` at the highest limit."""
    powered = read().powered
    for gpu in ("v100", "a40"):
        by: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in powered[gpu]:
            name = f"{gpu} {row.dataset} {row.network} {row.batch_size} {row.optimizer}"
            by[name][round(row.limit_w * 1000)] = row.epoch_s, row.power_w
        for name, points in by.items():
            limits = sorted(points, reverse=True)
            if len(limits) >= 4:
                slow = [points[limit][0] / points[limits[0]][0] for limit in limits]
                energy = [points[limit][1] * s * STEP_NS / 1e6 for limit, s in zip(limits, slow, strict=True)]
                yield Curve(name, tuple(limits), tuple(s * STEP_NS for s in slow), tuple(energy))


def drawn_through(curve: Curve, count: int) -> Curve:
    """Return a curve at so many limits, linear in the logarithms between those measured."""
    limits = np.linspace(curve.limits_mw[0], curve.limits_mw[-1], count).round().astype(int)

    def at(values: tuple[float, ...]) -> tuple[float, ...]:
        logs = np.interp(limits, curve.limits_mw[::-1], np.log(values[::-1]))
        return tuple(np.exp(logs).tolist())

    return Curve(curve.name, tuple(limits.tolist()), at(curve.step_ns), at(curve.step_mj))


def scaled(curve: Curve, times: float) -> Curve:
    """Return a curve whose steps take so many times as long, and as much energy."""
    return replace(
        curve,
        step_ns=tuple(times * ns for ns in curve.step_ns),
        step_mj=tuple(times * mj for mj in curve.step_mj),
    )


class Training(Struct):
    """Steps of a curve, as they come."""

    curve: Curve
    noise: float
    rng: Random
    steps: int = 0
    t_ns: float = 0.0
    spent: list[int] = field(default_factory=list)
    """By step: index of its limit."""
    _errors: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self._errors = self.rng.gauss(), self.rng.gauss()

    def go_on(self, at: int, count: int) -> Trial:
        """Return ``count`` steps at the limit of an index."""
        energy_mj = duration_ns = 0.0
        for _ in range(count):
            time_error, energy_error = (
                CORRELATION * error + sqrt(1 - CORRELATION**2) * self.rng.gauss() for error in self._errors
            )
            self._errors = time_error, energy_error
            warm = 1 - WARMING * exp(-self.steps / WARMING_STEPS)
            duration_ns += self.curve.step_ns[at] * (1 + self.noise * time_error)
            energy_mj += self.curve.step_mj[at] * (1 + self.noise * energy_error) * warm
            self.steps += 1
            self.spent.append(at)
        self.t_ns += duration_ns
        return Trial(self.curve.limits_mw[at], round(energy_mj), round(duration_ns), count)


def named(text: str) -> Selector:
    """Return the selector of a text that names one."""
    found = selectors.parse(text)
    assert found is not None
    return found


def true_trials(curve: Curve) -> list[Trial]:
    """Return what steps take at each limit, exactly."""
    points = zip(curve.limits_mw, curve.step_mj, curve.step_ns, strict=True)
    return [Trial(limit, round(mj * 1e6), round(ns * 1e6), 1) for limit, mj, ns in points]


def excess(curve: Curve, selector: Selector, chosen: int) -> float:
    """Return the excess of a limit over the best, as a share.

    Of a slowdown it is the share by which the bound is broken. If it holds, it is that by which the time of a
    lower limit stays below the bound.
    """
    assert selector.goal is not None
    limits, goal, trials = curve.limits_mw, selector.goal, true_trials(curve)
    at, best = limits.index(chosen), limits.index(selector.choose(trials, 1))
    if goal.factor is None:
        objective = [goal.of(trial, limits[0], 1) for trial in trials]
        return objective[at] / objective[best] - 1
    bound = goal.factor * curve.step_ns[0]
    over = curve.step_ns[at] / bound - 1
    left_out = max((1 - ns / bound for ns in curve.step_ns[at + 1 :]), default=0.0)
    return over if over > 0 else max(0.0, left_out)


def profiling(curve: Curve, selector: Selector, spent: Sequence[int]) -> float:
    """Return what steps at these limits cost above as many at the best, in steps at the best."""
    assert selector.goal is not None
    limits, goal, trials = curve.limits_mw, selector.goal, true_trials(curve)
    best = limits.index(selector.choose(trials, 1))
    value = curve.step_mj if goal.factor is not None else [goal.of(t, limits[0], 1) for t in trials]
    return sum(value[at] / value[best] - 1 for at in spent)
