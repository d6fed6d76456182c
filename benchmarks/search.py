"""The search for the best limit on published curves, beside Zeus's sweep over the same noise.

Every curve of Zeus's published V100 and A40 power traces is a workload: as measured (7 limits on V100, 9 on
A40), and drawn through to 21 limits. Steps of 250 ms carry noise with autocorrelation 0.3, and the energy
warms up by 1 % over the first 60 steps or so. Zeus's sweep: 10 steps warm-up and 40 measured at every limit.

Excess: of energy, time or cost over that of the best limit; for a slowdown, by how much the time bound is
broken, or how far below it the time of a limit stays that was left out wrongly (``forgone``: the energy that
costs). Where no limit caps the workload (38 W under limits of 100 W and more), published limits differ by 5
to 10 % as runs do, without order; ``where capped`` leaves those curves out. Profiling: what the steps until
the decision cost above as many at the best limit, as a share of a run of 2000.

python benchmarks/search.py --traces DIR [--limits 7 21] [--noise 0.01 0.02 0.05] [--seeds 1]
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import exp, sqrt
from pathlib import Path
from random import Random

import numpy as np
from common import table

from analyzers import search, selectors
from analyzers.search import Choose, Visit
from analyzers.selectors import Selector, Trial

SELECTORS = ("energy", "time", "cost:0.5", "slowdown:1.1")
STEP_NS = 250_000_000
SETTLING = 5
"""Steps after a change of limit that the search leaves out."""
BLOCK = 4
"""Steps of a block."""
CORRELATION = 0.3
WARMING, WARMING_STEPS = 0.01, 60
RUN_STEPS = 2000


@dataclass(frozen=True, slots=True)
class Curve:
    """A workload: limits descending, and what a step takes at each."""

    name: str
    limits_mw: tuple[int, ...]
    step_ns: tuple[float, ...]
    step_mj: tuple[float, ...]

    @property
    def capped(self) -> bool:
        """Whether the lowest limit caps it at all: the mean power at the highest is above the lowest."""
        return self.step_mj[0] / self.step_ns[0] * 1e9 > self.limits_mw[-1]


def curves(traces: Path) -> Iterator[Curve]:
    """Return the published curves, as measured; a step takes `STEP_NS` at the highest limit."""
    for gpu in ("v100", "a40"):
        by: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        with (traces / f"summary_power_{gpu}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                name = " ".join((gpu, row["dataset"], row["network"], row["batch_size"], row["optimizer"]))
                limit_mw = round(float(row["power_limit"]) * 1000)
                by[name][limit_mw] = float(row["time_per_epoch"]), float(row["average_power"])
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


@dataclass(slots=True)
class Training:
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
        return Trial(self.curve.limits_mw[at], round(energy_mj * 1e3), round(duration_ns * 1e3), count)


def sweep(training: Training, selector: Selector) -> tuple[int, search.Confidence | None, int]:
    """Return Zeus's choice: 40 steps at every limit from the highest down, after 10 of warm-up."""
    training.go_on(0, 1)
    trials = []
    for at in range(len(training.curve.limits_mw)):
        training.go_on(at, 10)
        trials.append(training.go_on(at, 40))
    return selector.choose(trials, 1), None, len(trials)


def adaptive(training: Training, selector: Selector) -> tuple[int, search.Confidence | None, int]:
    """Return the search's choice."""
    assert selector.goal is not None
    limits = training.curve.limits_mw
    training.go_on(0, 1)
    visits: list[Visit] = []
    while True:
        advice = search.advise(limits, 1, selector.goal, visits)
        if isinstance(advice, Choose):
            return advice.limit_mw, advice.confidence, len(visits)
        at = limits.index(advice.limit_mw)
        before: tuple[Trial, ...] = ()
        if visits and visits[-1].limit_mw == advice.limit_mw:
            before = visits.pop().blocks
        else:
            training.go_on(at, SETTLING)
        blocks = (*before, training.go_on(at, BLOCK))
        visits.append(Visit(blocks, round(training.t_ns)))


def excess(curve: Curve, selector: Selector, chosen: int) -> tuple[float, float]:
    """Return the excess of a limit, and the energy it forgoes, as shares."""
    assert selector.goal is not None
    limits, goal = curve.limits_mw, selector.goal
    trials = [
        Trial(limit, round(mj * 1e6), round(ns * 1e6), 1)
        for limit, mj, ns in zip(limits, curve.step_mj, curve.step_ns, strict=True)
    ]
    at, best = limits.index(chosen), limits.index(selector.choose(trials, 1))
    if goal.factor is None:
        objective = [goal.of(trial, limits[0], 1) for trial in trials]
        return objective[at] / objective[best] - 1, 0.0
    bound = goal.factor * curve.step_ns[0]
    over = curve.step_ns[at] / bound - 1
    if over > 0:
        return over, 0.0
    left_out = max((1 - ns / bound for ns in curve.step_ns[at + 1 :]), default=0.0)
    return max(0.0, left_out), max(0.0, curve.step_mj[at] / curve.step_mj[best] - 1)


def profiling(curve: Curve, selector: Selector, spent: list[int]) -> float:
    """Return what steps at these limits cost above as many at the best, as a share of a run."""
    assert selector.goal is not None
    goal, limits = selector.goal, curve.limits_mw
    trials = [
        Trial(limit, round(mj * 1e6), round(ns * 1e6), 1)
        for limit, mj, ns in zip(limits, curve.step_mj, curve.step_ns, strict=True)
    ]
    best = limits.index(selector.choose(trials, 1))
    value = curve.step_mj if goal.factor is not None else [goal.of(t, limits[0], 1) for t in trials]
    return sum(value[at] / value[best] - 1 for at in spent) / RUN_STEPS


Way = Callable[[Training, Selector], tuple[int, search.Confidence | None, int]]


def report(
    workloads: list[Curve], texts: Sequence[str], noises: Sequence[float], seeds: int, way: Way
) -> list[str]:
    """Return the figures of a table's row, over all of these."""
    steps, excesses, forgone, visits, shares, inside, expected, capped = [], [], [], [], [], [], [], []
    for text, noise, seed, (number, curve) in product(texts, noises, range(seeds), enumerate(workloads)):
        selector = selectors.parse(text)
        assert selector is not None
        training = Training(curve, noise, Random(f"{seed} {number} {noise}"))
        chosen, confidence, visited = way(training, selector)
        steps.append(training.steps)
        visits.append(visited)
        found, less = excess(curve, selector, chosen)
        excesses.append(found)
        capped += [found] if curve.capped else []
        forgone.append(less)
        shares.append(profiling(curve, selector, training.spent))
        if confidence is not None:
            inside.append(found <= confidence.p95)
            expected.append(confidence.expected)
    percent = 100 * np.array([excesses, forgone, shares])
    return [
        f"{np.median(steps):.0f}",
        f"{np.percentile(steps, 90):.0f}",
        f"{np.mean(visits):.1f}",
        f"{percent[0].mean():.2f}",
        f"{np.percentile(percent[0], 95):.1f}",
        f"{percent[0].max():.1f}",
        f"{100 * np.mean(capped):.2f}",
        f"{100 * max(capped):.1f}",
        f"{percent[1].mean():.2f}",
        f"{percent[2].mean():.2f}",
        f"{100 * np.mean(expected):.2f}" if expected else "-",
        f"{100 * np.mean(inside):.0f}" if inside else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--limits", type=int, nargs="+", default=[7, 21])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--selectors", nargs="+", default=SELECTORS)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    published = list(curves(given.traces))
    head = [
        "noise, %", "selector", "search", "steps, median", "p90", "visits", "excess, mean %", "p95", "worst",
        "where capped, mean", "worst", "forgone, mean %", "profiling, %",
        "expected excess, %", "inside its 95 % bound, %",
    ]  # fmt: skip
    ways: dict[str, Way] = {"ours": adaptive, "Zeus": sweep}
    for count in given.limits:
        workloads = (
            [curve for curve in published if len(curve.limits_mw) == count]
            if count < 10
            else [drawn_through(curve, count) for curve in published]
        )
        rows = [
            [f"{100 * noise:g}", text, name, *report(workloads, [text], [noise], given.seeds, way)]
            for noise in given.noise
            for text in given.selectors
            for name, way in ways.items()
        ]
        rows += [
            ["all", "all", name, *report(workloads, given.selectors, given.noise, given.seeds, way)]
            for name, way in ways.items()
        ]
        table(f"{len(workloads)} published curves at {count} limits", head, rows)


if __name__ == "__main__":
    main()
