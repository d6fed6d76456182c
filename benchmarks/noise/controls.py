"""The search for a power limit, a graphics clock, and both, on simulated truth: steps to decide, and result.

Every published workload of every simulated GPU model (`simulated_gpu/workloads.py`; 36) is a curve over 21
power limits and over the clocks that `levels` picks from the hundreds of a model. Steps of 250 ms carry noise
with an autocorrelation of 0.3. A limit and a clock of the same time draw the same power there: nobody
published the clocks of these workloads. That a locked clock saves more than a limit which makes the clock
fluctuate is published (Kareus, 2026), but not with figures for these workloads. So worlds with ``--offset``
make steps at a limit that binds take longer or shorter by a share of up to that, drawn for each.

``off``: what the choice costs above the cheaper of the two choices of one control alone, with a bound on the
time in energy. ``bound holds``: it costs at most the stated bound above the best limit or clock.

python -m benchmarks.noise.controls [--noise 0.02] [--selectors energy cost:0.5 slowdown:1.1] [--seeds 1]
    [--offset 0.05] [--seed 0]
"""

import argparse
from collections.abc import Sequence
from random import Random

import numpy as np
from msgspec import Struct

from analyzers.power_limit.search import advice
from analyzers.power_limit.search.advice import Choose
from analyzers.power_limit.search.levels import Level, both_levels, clock_levels, limit_levels
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Selector, Trial
from benchmarks.harness import options, table
from benchmarks.noise.published import STEP_NS, Curve, Training, excess, named
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.simulated_gpu.workloads import Model, Workload, load

LIMITS = 21
OFF = 0.01
"""More than the better of the two controls alone both may not cost."""
BINDS = 0.03
"""Share of its power that a limit has to take, so that the whole offset counts."""
SETTLING, BLOCK = 5, 4
"""Steps after a change of limit that the search leaves out, and those of a block."""


class Case(Struct, frozen=True):
    """A workload on a GPU model."""

    model: Model
    workload: Workload
    offset: float
    """By which share steps take longer at a limit that binds than at a clock of the same power."""

    def at(self, limit_mw: int, clock_mhz: int = UNLOCKED) -> tuple[float, float]:
        """Return ns and mJ of a step."""
        top_mw, workload = self.model.default_limit_mw, self.workload
        ns = STEP_NS * workload.slowdown(limit_mw, clock_mhz) / workload.slowdown(top_mw)
        power_mw = workload.power_mw(limit_mw, clock_mhz)
        if clock_mhz == UNLOCKED:
            less = 1 - power_mw / workload.power_mw(top_mw)
            ns *= 1 + self.offset * min(1.0, less / BINDS)
        return ns, power_mw * ns / 1e9

    def curve(self, levels: Sequence[Level]) -> Curve:
        """Return the curve over nominal powers."""
        top_mw = self.model.default_limit_mw
        figures = [
            self.at(level.limit_mw) if level.clock_mhz is None else self.at(top_mw, level.clock_mhz)
            for level in levels
        ]
        nominal = tuple(level.limit_mw for level in levels)
        return Curve("", nominal, *map(tuple, zip(*figures, strict=True)))

    def by_control(self) -> dict[str, tuple[Curve, set[int]]]:
        """Return the curve of each control, and those of its nominal powers that are clocks."""
        model, top_mw = self.model, self.model.default_limit_mw
        limits_mw = np.linspace(top_mw, model.min_limit_mw, LIMITS).round().astype(int).tolist()
        limits = limit_levels(tuple(limits_mw))
        clocks = clock_levels(range(model.max_clock_mhz, model.idle_clock_mhz - 1, -15), top_mw)
        locked = {level.limit_mw for level in clocks}
        return {
            "power_limit": (self.curve(limits), set()),
            "graphics_clock": (self.curve(clocks), locked),
            "both": (self.curve(both_levels(limits, clocks)), locked - {top_mw}),
        }

    def cost(self, selector: Selector, ns: float, mj: float) -> float:
        """Return what a step costs: with a bound on the time its energy."""
        goal = selector.goal
        assert goal is not None
        if goal.factor is not None:
            return mj
        return float(goal.of_step(mj, ns / 1e9, self.model.default_limit_mw))


def searched(training: Training, selector: Selector, clocks: set[int]) -> Choose:
    """Do what the search advises until it chooses."""
    assert selector.goal is not None
    limits = training.curve.limits_mw
    training.go_on(0, 1)
    visits: list[Visit] = []
    while True:
        advised = advice.advise(limits, 1, selector.goal, visits, (), clocks=clocks)
        if isinstance(advised, Choose):
            return advised
        at = limits.index(advised.limit_mw)
        before: tuple[Trial, ...] = ()
        if visits and visits[-1].limit_mw == advised.limit_mw:
            before = visits.pop().blocks
        else:
            training.go_on(at, SETTLING)
        visits.append(Visit((*before, training.go_on(at, BLOCK)), round(training.t_ns)))


class Found(Struct, frozen=True):
    """The outcome of one search."""

    steps: int
    cost: float
    saved: float
    bound: float
    excess: float
    """Over the best limit or clock that it chose from; what its bound is about."""


def found(case: Case, selector: Selector, control: str, noise: float, seed: str) -> Found:
    """Search, and return what came of it."""
    curves = case.by_control()
    curve, clocks = curves[control]
    training = Training(curve, noise, Random(f"{control} {seed}"))
    chosen = searched(training, selector, clocks)
    own = curve
    if control == "both" and selector.goal is not None and selector.goal.factor is not None:
        own, _ = curves["graphics_clock" if chosen.limit_mw in clocks else "power_limit"]
    at = curve.limits_mw.index(chosen.limit_mw)
    ns, mj = curve.step_ns[at], curve.step_mj[at]
    assert chosen.confidence is not None
    return Found(
        steps=training.steps,
        cost=case.cost(selector, ns, mj),
        saved=1 - mj / case.at(case.model.default_limit_mw)[1],
        bound=chosen.confidence.p95,
        excess=excess(own, selector, chosen.limit_mw),
    )


def rows(text: str, given: argparse.Namespace) -> list[list[str]]:
    """Return a row for each control."""
    selector, made = named(text), []
    jobs = [(model, workload) for model in load().values() for workload in model.workloads.values()]
    seeds = [f"{seed} {n}" for seed in range(given.seed, given.seed + given.seeds) for n in range(len(jobs))]
    cases = [
        Case(model, workload, given.offset * Random(seed).uniform(-1, 1))
        for (model, workload), seed in zip(jobs * given.seeds, seeds, strict=True)
    ]
    outcomes = {
        control: [
            found(case, selector, control, given.noise, f"{seed} {given.noise}")
            for case, seed in zip(cases, seeds, strict=True)
        ]
        for control in ("power_limit", "graphics_clock", "both")
    }
    alone = zip(outcomes["power_limit"], outcomes["graphics_clock"], strict=True)
    least = np.array([min(limit.cost, clock.cost) for limit, clock in alone])
    for control, of in outcomes.items():
        off = np.array([each.cost for each in of]) / least - 1
        steps = [each.steps for each in of]
        figures = [
            f"{np.median(steps):.0f}",
            f"{np.percentile(steps, 90):.0f}",
            f"{100 * np.mean([each.saved for each in of]):.1f}",
            f"{100 * off.mean():+.2f}",
            f"{100 * off.max():+.1f}",
            f"{100 * np.mean(off > OFF):.0f}",
            f"{100 * np.mean([each.excess <= each.bound + 1e-4 for each in of]):.0f}",
            f"{100 * np.median([each.bound for each in of]):.1f}",
        ]
        made.append([text, control, *figures])
    return made


def main() -> None:
    given = options(
        __doc__, noise=0.02, selectors=["energy", "cost:0.5", "slowdown:1.1"], seeds=1, offset=0.0, seed=0,
    )  # fmt: skip
    head = "selector | control | steps to decide, median | p90 | energy saved, mean % | off, mean % | most"
    head += f" | off by more than {100 * OFF:.0f} %, % | bound holds, % | bound, median %"
    title = f"Simulated workloads, noise {100 * given.noise:g} %, offset {100 * given.offset:g} %"
    found_rows = [row for text in given.selectors for row in rows(text, given)]
    table(f"{title}, {given.seeds} seed(s) from {given.seed}", head, found_rows)


if __name__ == "__main__":
    main()
