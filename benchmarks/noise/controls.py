"""The search for a power limit, a graphics clock, and both, on simulated truth: steps to decide, and result.

Every published workload of every simulated GPU model (`simulated_gpu/workloads.py`; 36) is a curve over 21
power limits and over the clocks that `levels` picks from the hundreds of a model. Steps of 250 ms carry noise
as in `search.py`. A limit and a clock of the same time draw the same power there: nobody published the clocks
of these workloads, so a gain is only what limits cannot reach. That a locked clock saves more than a limit
which makes the clock fluctuate is published (Kareus, 2026), but not with figures for these workloads.

python -m benchmarks.noise.controls [--noise 0.02] [--selectors energy cost:0.5 slowdown:1.1] [--seeds 1]
"""

from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
from msgspec import Struct

from analyzers.power_limit.limit_search import BETTER
from analyzers.power_limit.search import advice
from analyzers.power_limit.search.levels import clock_levels, foretold
from analyzers.power_limit.selectors import Selector
from benchmarks.harness import options, table
from benchmarks.noise.published import STEP_NS, Curve, Training, named
from benchmarks.noise.search import adaptive
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.workloads import Model, Workload, load

LIMITS = 21
SHARE = 1.001
"""Rounding of powers to mW."""


class Case(Struct, frozen=True):
    """A workload on a GPU model."""

    name: str
    model: Model
    workload: Workload

    @property
    def limits_mw(self) -> tuple[int, ...]:
        found, least = self.model.default_limit_mw, self.model.min_limit_mw
        return tuple(np.linspace(found, least, LIMITS).round().astype(int).tolist())

    def at(self, limit_mw: int, clock_mhz: int = UNLOCKED) -> tuple[float, float]:
        """Return ns and mJ of a step."""
        first = self.workload.slowdown(self.model.default_limit_mw)
        ns = STEP_NS * self.workload.slowdown(limit_mw, clock_mhz) / first
        return ns, self.workload.power_mw(limit_mw, clock_mhz) * ns / 1e9

    def by_limit(self) -> Curve:
        figures = [self.at(limit_mw) for limit_mw in self.limits_mw]
        return Curve(self.name, self.limits_mw, *map(tuple, zip(*figures, strict=True)))

    @property
    def clocks_mhz(self) -> range:
        return range(self.model.max_clock_mhz, self.model.idle_clock_mhz - 1, -15)

    def by_clock(self) -> tuple[Curve, tuple[int, ...]]:
        """Return the curve over nominal powers at the highest limit, and the clocks."""
        levels = clock_levels(self.clocks_mhz, self.model.default_limit_mw)
        clocks = tuple(level.clock_mhz or 0 for level in levels)
        figures = [self.at(self.model.default_limit_mw, clock) for clock in clocks]
        nominal = tuple(level.limit_mw for level in levels)
        return Curve(self.name, nominal, *map(tuple, zip(*figures, strict=True))), clocks


class Found(Struct, frozen=True):
    """The outcome of one search."""

    steps: int
    ns: float
    mj: float


def found(case: Case, selector: Selector, control: str, noise: float, seed: str) -> Found:
    """Search, and return what a step takes at the choice."""
    assert selector.goal is not None
    top_mw, steps, of_clock, known = case.model.default_limit_mw, 0, None, ()
    curve, clocks = case.by_clock()
    clock_mhz = UNLOCKED
    if control != "power_limit":
        training = Training(curve, noise, Random(f"clock {seed}"))
        done = adaptive(training, selector, clocks=True)
        known, clock_mhz, steps = done.believed, clocks[curve.limits_mw.index(done.chosen_mw)], training.steps
        of_clock = {trial.limit_mw: trial for trial in known}[done.chosen_mw]
        if control == "graphics_clock":
            return Found(steps, *case.at(top_mw, clock_mhz))
    limits_mw = case.limits_mw
    training = Training(case.by_limit(), noise, Random(seed), steps)
    expected = foretold(limits_mw, known, 1)
    risk = advice.RISK_BESIDE if of_clock else advice.RISK
    done = adaptive(training, selector, expected, risk=risk)
    if of_clock is not None:
        of_limit = {trial.limit_mw: trial for trial in done.believed}[done.chosen_mw]
        energy = selector.goal.factor is not None
        cost, before = (
            trial.step_mj if energy else selector.goal.of(trial, top_mw, 1) for trial in (of_limit, of_clock)
        )
        if cost > before * (1 - BETTER):
            return Found(training.steps, *case.at(top_mw, clock_mhz))
    return Found(training.steps, *case.at(done.chosen_mw))


def at_equal_time(case: Case, limit: Found) -> float:
    """Return how much less energy a step takes at the best clock that is no slower than a limit's choice."""
    pairs = [case.at(case.model.default_limit_mw, clock_mhz) for clock_mhz in case.clocks_mhz]
    return 1 - min((mj for ns, mj in pairs if ns <= limit.ns * SHARE), default=limit.mj) / limit.mj


def rows(cases: Sequence[Case], texts: Sequence[str], noise: float, seeds: int) -> list[list[str]]:
    made = []
    for text in texts:
        selector = named(text)
        of: dict[str, list[Found]] = {}
        for control in ("power_limit", "graphics_clock", "both"):
            of[control] = [
                found(case, selector, control, noise, f"{seed} {number} {noise}")
                for seed, (number, case) in product(range(seeds), enumerate(cases))
            ]
        tops = [case.at(case.model.default_limit_mw) for _, case in product(range(seeds), cases)]
        for control, outcomes in of.items():
            steps = [each.steps for each in outcomes]
            saved = [1 - each.mj / top[1] for each, top in zip(outcomes, tops, strict=True)]
            added = [each.ns / top[0] - 1 for each, top in zip(outcomes, tops, strict=True)]
            limits = of["power_limit"]
            less = [1 - each.mj / limit.mj for each, limit in zip(outcomes, limits, strict=True)]
            made.append(
                [
                    text,
                    control,
                    f"{np.median(steps):.0f}",
                    f"{np.percentile(steps, 90):.0f}",
                    f"{100 * np.mean(saved):.1f}",
                    f"{100 * np.mean(added):+.1f}",
                    f"{100 * np.mean(less):+.1f}",
                ]
            )
        equal = [
            at_equal_time(case, limit)
            for (_, case), limit in zip(product(range(seeds), cases), of["power_limit"], strict=True)
        ]
        made.append([text, "best clock at most as slow", "-", "-", "-", "-", f"{100 * np.mean(equal):+.1f}"])
    return made


def main() -> None:
    given = options(
        __doc__, noise=0.02, selectors=["energy", "cost:0.5", "slowdown:1.1"], gpus=list(load()), seeds=1
    )
    cases = [
        Case(f"{key} {name}", model, workload)
        for key, model in load().items()
        if key in given.gpus
        for name, workload in model.workloads.items()
    ]
    head = (
        "selector | control | steps to decide, median | p90 | energy saved, mean % | time added, mean % | "
        "less energy than the limit's choice, mean %"
    )
    title = f"{len(cases)} simulated workloads, noise {100 * given.noise:g} %, {given.seeds} seed(s)"
    table(title, head, rows(cases, given.selectors, given.noise, given.seeds))


if __name__ == "__main__":
    main()
