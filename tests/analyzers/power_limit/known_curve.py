"""Curves of time and power over limits that are known, and searches for the best limit on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp
from random import Random
from typing import Any

import numpy as np

from analyzers.power_limit import selectors
from analyzers.power_limit.search.advice import Choose, Measure, advise, most_blocks
from analyzers.power_limit.search.visit_blocks import BLOCKS, Visit, by_limit
from analyzers.power_limit.selectors import Goal, Trial
from analyzers.power_limit.visits import limits_mw
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
class KnownCurve:
    """Time (s) and power (W) of a step at each limit (mW), all known, and a search for the best limit."""

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
    block_steps: int = STEPS
    clocks: tuple[int, ...] = ()
    """Those of its limits that are nominal powers of clocks."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def block(self, limit_mw: int) -> Trial:
        seconds = energy = 0.0
        for _ in range(self.block_steps):
            swing, self.steps = self.swing(self.steps), self.steps + 1
            step_s = self.seconds(limit_mw) * max(0.1, self.rng.gauss(1, self.noise)) * swing
            warm = 1 - self.warming * exp(-(self.t_ns / S + seconds) / 15)
            seconds += step_s
            energy += (
                self.seconds(limit_mw) * self.watts(limit_mw) * self.rng.gauss(1, self.noise) * warm * swing
            )
        self.t_ns += round(seconds * S)
        return Trial(limit_mw, max(1, round(energy * 1000 * self.gpus)), round(seconds * S), self.block_steps)

    def searched(
        self,
        of: Goal,
        remembered: Sequence[Trial] = (),
        length: int | None = None,
        ends: int | None = None,
    ) -> Choose:
        """Do what is advised until it is to choose.

        Args:
            of: what is minimized.
            remembered: what an earlier run measured.
            length: steps of the run, as its script says.
            ends: steps after which it ends, unforeseen, as soon as something is known.
        """
        while True:
            left = None if length is None else length - self.steps
            left = 0 if ends is not None and self.steps >= ends else left
            known = self.visits, remembered
            match advise(self.limits, self.gpus, of, *known, clocks=self.clocks, steps_left=left):
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


def published(number: int, step_s: float = 0.25, count: int | None = None, **more: Any) -> KnownCurve:
    """Return the curve of a published workload; ``count``: of limits."""
    model, name = CURVES[number % len(CURVES)]
    told = model.workloads[name]
    limits = limits_mw(model.default_limit_mw, model.min_limit_mw, 25_000)
    if count is not None:
        spaced = np.linspace(model.default_limit_mw, model.min_limit_mw, count).round().astype(int)
        limits = tuple(spaced.tolist())
    made = KnownCurve(limits, lambda x: step_s * told.slowdown(x), lambda x: told.power_mw(x) / 1000)
    for key, value in more.items():
        setattr(made, key, value)
    made.__post_init__()
    return made
