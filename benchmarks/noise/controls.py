"""The search for a power limit, a graphics clock, and both, on simulated truth: steps to decide, and result.

Every published workload of every simulated GPU model (`simulated_gpu/workloads.py`; 36) is a curve over 21
power limits and over the clocks that `levels` picks from the hundreds of a model. Steps of 250 ms carry noise
as in `search.py`. A limit and a clock of the same time draw the same power there: nobody published the clocks
of these workloads. That a locked clock saves more than a limit which makes the clock fluctuate is published
(Kareus, 2026), but not with figures for these workloads. So worlds with ``--offset`` make steps at a limit
that binds take longer or shorter by a share of up to that, drawn for each.

``off``: what the choice costs above the cheaper of the two choices of one control alone, with a bound on the
time in energy. ``bound holds``: it costs at most the stated bound above the best limit or clock.

python -m benchmarks.noise.controls [--noise 0.02] [--selectors energy cost:0.5 slowdown:1.1] [--seeds 1]
    [--offset 0.05] [--seed 0]
"""

import argparse
from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search.levels import Level, both_levels, clock_levels, limit_levels
from analyzers.power_limit.selectors import Selector
from benchmarks.harness import options, table
from benchmarks.noise.published import STEP_NS, Curve, Training, excess, named
from benchmarks.noise.search import adaptive
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.workloads import Model, Workload, load

LIMITS = 21
OFF = 0.01
"""More than the better of the two controls alone both may not cost."""
BINDS = 0.03
"""Share of its power that a limit has to take, so that the whole offset counts."""


class Case(Struct, frozen=True):
    """A workload on a GPU model."""

    name: str
    model: Model
    workload: Workload
    offset: float = 0.0
    """By which share steps take longer at a limit that binds than at a clock of the same power."""

    @property
    def limits_mw(self) -> tuple[int, ...]:
        found, least = self.model.default_limit_mw, self.model.min_limit_mw
        return tuple(np.linspace(found, least, LIMITS).round().astype(int).tolist())

    def at(self, limit_mw: int, clock_mhz: int = UNLOCKED) -> tuple[float, float]:
        """Return ns and mJ of a step."""
        first = self.workload.slowdown(self.model.default_limit_mw)
        ns, power_mw = (
            STEP_NS * self.workload.slowdown(limit_mw, clock_mhz) / first,
            self.workload.power_mw(limit_mw, clock_mhz),
        )
        if clock_mhz == UNLOCKED:
            less = 1 - power_mw / self.workload.power_mw(self.model.default_limit_mw)
            ns *= 1 + self.offset * min(1.0, less / BINDS)
        return ns, power_mw * ns / 1e9

    def by_limit(self) -> Curve:
        return self._curve(limit_levels(self.limits_mw))

    def cost(self, selector: Selector, ns: float, mj: float) -> float:
        """Return what a step costs: with a bound on the time its energy."""
        goal = selector.goal
        assert goal is not None
        return (
            mj if goal.factor is not None else float(goal.of_step(mj, ns / 1e9, self.model.default_limit_mw))
        )

    def cheapest(self, selector: Selector, curve: Curve) -> float:
        return min(self.cost(selector, *each) for each in zip(curve.step_ns, curve.step_mj, strict=True))

    @property
    def clocks_mhz(self) -> range:
        return range(self.model.max_clock_mhz, self.model.idle_clock_mhz - 1, -15)

    def by_clock(self) -> Curve:
        """Return the curve over nominal powers at the highest limit."""
        return self._curve(self.clock_levels)

    def by_both(self) -> Curve:
        return self._curve(both_levels(limit_levels(self.limits_mw), self.clock_levels))

    @property
    def clock_levels(self) -> tuple[Level, ...]:
        return clock_levels(self.clocks_mhz, self.model.default_limit_mw)

    def _curve(self, levels: Sequence[Level]) -> Curve:
        top_mw = self.model.default_limit_mw
        figures = [
            self.at(level.limit_mw) if level.clock_mhz is None else self.at(top_mw, level.clock_mhz)
            for level in levels
        ]
        nominal = tuple(level.limit_mw for level in levels)
        return Curve(self.name, nominal, *map(tuple, zip(*figures, strict=True)))


class Found(Struct, frozen=True):
    """The outcome of one search."""

    steps: int
    ns: float
    mj: float
    bound: float
    excess: float
    """Over the best limit or clock that it chose from; what its bound is about."""


def found(case: Case, selector: Selector, control: str, noise: float, seed: str) -> Found:
    """Search, and return what a step takes at the choice."""
    locked = {level.limit_mw for level in case.clock_levels}
    match control:
        case "power_limit":
            curve, clocks = case.by_limit(), set[int]()
        case "graphics_clock":
            curve, clocks = case.by_clock(), locked
        case _:
            curve, clocks = case.by_both(), locked - {case.model.default_limit_mw}
    training = Training(curve, noise, Random(f"{control} {seed}"))
    done = adaptive(training, selector, clocks=clocks)
    assert done.confidence is not None
    at = curve.limits_mw.index(done.chosen_mw)
    ns, mj = curve.step_ns[at], curve.step_mj[at]
    own = curve
    if control == "both" and selector.goal is not None and selector.goal.factor is not None:
        own = case.by_clock() if done.chosen_mw in clocks else case.by_limit()
    return Found(training.steps, ns, mj, done.confidence.p95, excess(own, selector, done.chosen_mw)[0])


def rows(cases: Sequence[Case], text: str, given: argparse.Namespace) -> list[list[str]]:
    """Return a row for each control."""
    selector, made = named(text), []
    worlds = [
        (replace(case, offset=given.offset * Random(f"{seed} {number}").uniform(-1, 1)), f"{seed} {number}")
        for seed, (number, case) in product(range(given.seed, given.seed + given.seeds), enumerate(cases))
    ]
    of = {
        control: [found(case, selector, control, given.noise, f"{of} {given.noise}") for case, of in worlds]
        for control in ("power_limit", "graphics_clock", "both")
    }
    alone = zip(of["power_limit"], of["graphics_clock"], strict=True)
    least = [
        min(case.cost(selector, each.ns, each.mj) for each in pair)
        for (case, _), pair in zip(worlds, alone, strict=True)
    ]
    for control, outcomes in of.items():
        off = np.array([
            case.cost(selector, each.ns, each.mj) / better - 1
            for (case, _), each, better in zip(worlds, outcomes, least, strict=True)
        ])  # fmt: skip
        saved = [
            1 - each.mj / case.at(case.model.default_limit_mw)[1]
            for (case, _), each in zip(worlds, outcomes, strict=True)
        ]
        steps = [each.steps for each in outcomes]
        made.append(
            [
                text,
                control,
                f"{np.median(steps):.0f}",
                f"{np.percentile(steps, 90):.0f}",
                f"{100 * np.mean(saved):.1f}",
                f"{100 * off.mean():+.2f}",
                f"{100 * off.max():+.1f}",
                f"{100 * np.mean(off > OFF):.0f}",
                f"{100 * np.mean([each.excess <= each.bound + 1e-4 for each in outcomes]):.0f}",
                f"{100 * np.median([each.bound for each in outcomes]):.1f}",
            ]
        )
    return made


def main() -> None:
    given = options(
        __doc__, noise=0.02, selectors=["energy", "cost:0.5", "slowdown:1.1"], gpus=list(load()), seeds=1,
        offset=0.0, seed=0,
    )  # fmt: skip
    cases = [
        Case(f"{key} {name}", model, workload)
        for key, model in load().items()
        if key in given.gpus
        for name, workload in model.workloads.items()
    ]
    head = (
        "selector | control | steps to decide, median | p90 | energy saved, mean % | off, mean % | most | "
        f"off by more than {100 * OFF:.0f} %, % | bound holds, % | bound, median %"
    )
    title = (
        f"{len(cases)} simulated workloads, noise {100 * given.noise:g} %, offset {100 * given.offset:g} %, "
        f"{given.seeds} seed(s) from {given.seed}"
    )
    table(title, head, [row for text in given.selectors for row in rows(cases, text, given)])


if __name__ == "__main__":
    main()
