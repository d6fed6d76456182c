"""The search for a limit, and the watch that follows it, on steps whose noise is that of real training.

The kinds of noise are in `noise_kinds.py`, with parameters drawn from ranges. Every world draws a curve of
Zeus's published V100 and A40 traces, at 21 limits, a selector, and a noise. The machine is driven step by
step (`driven.py`). Steps take ``--step-ms`` at the highest limit.

First table, of the first decision. ``wrong``: the excess of the limit chosen is above 3 %. ``bound holds``:
the excess is at most the stated 95 % bound. ``above 3 %``: decisions whose own bound is above 3 %, which say
so. ``cost``: what the steps until then take above as many at the best limit, in % of a run of 20 000 steps.
``stated``: how often the 95 % interval of energy and of time at the limit chosen holds the truth, and between
which shares that may lie with so few worlds; ``off``: by how much the change of a step is missed; ``half``:
half of the interval. ``beyond``: searches in which the mean time of all steps until a moment, as it is
without noise, exceeded the bound on the time. Zeus's sweep takes 10 steps of warm-up and 40 measured at each
limit, in the same worlds.

Second table: the watch over 20 000 steps in which nothing but the noise changes, and how soon it notices that
all steps take a tenth more. It begins after a search of `SEARCHED` steps. After an alarm it begins again, as
if the search had chosen the same limit. ``neighbour`` is no noise to the watch: a load that slows steps for
hundreds of them is a change.

python -m benchmarks.noise [--tables search watch] [--kinds KIND ...] [--worlds 100] [--runs 20] [--seed 1]
    [--selectors slowdown:1.1] [--step-ms 250]
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.profiler import WATCH_STEPS
from analyzers.power_limit.search import drift
from analyzers.power_limit.search.step_costs import ShareInterval
from analyzers.power_limit.search.visit_blocks import Visit, settled
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.visits import BLOCK_NS, BLOCK_STEPS
from benchmarks.harness import options, table
from benchmarks.noise.driven import Driven
from benchmarks.noise.noise_kinds import KINDS, TUNED, Floats, Noise, draw
from benchmarks.noise.published import (
    SELECTORS,
    STEP_NS,
    Curve,
    curves,
    drawn_through,
    excess,
    named,
    profiling,
    scaled,
)

WRONG = 0.03
SEARCHED = 160
"""Steps of a search before the watch."""
LONG_RUN = 20_000
LIMITS = 21
MORE, SOON, UNNOTICED = 0.1, 300, 5_000
"""A change of the second table, in how many steps it should be noticed, and after how many it is not."""
MOST = 6_000
"""Steps until a search must have ended; more where more than four are a block."""


@dataclass(slots=True)
class NoisyTraining:
    """Steps of a curve, under some noise."""

    curve: Curve
    noise: Noise
    steps: int = 0
    t_ns: float = 0.0
    spent: list[int] = field(default_factory=list)
    """By step: index of its limit."""

    @property
    def truth(self) -> Curve:
        """The curve over steps of both kinds, where a limit slows one."""
        curve, slowed = self.curve, self.noise.slowed
        if slowed is None:
            return curve

        def of(values: tuple[float, ...], factor: Floats) -> tuple[float, ...]:
            share = float((factor * slowed).mean() / factor.mean())
            return tuple(share * value + (1 - share) * values[0] for value in values)

        return replace(
            curve, step_ns=of(curve.step_ns, self.noise.time), step_mj=of(curve.step_mj, self.noise.energy)
        )

    def go_on(self, at: int, count: int) -> Trial:
        """Return ``count`` steps at the limit of an index."""
        some = slice(self.steps, self.steps + count)
        slowed = 1.0 if self.noise.slowed is None else self.noise.slowed[some]
        ns, mj = (
            values[0] + slowed * (values[at] - values[0])
            for values in (self.curve.step_ns, self.curve.step_mj)
        )
        duration_ns = float(np.sum(self.noise.time[some] * ns))
        energy_mj = float(np.sum(self.noise.energy[some] * mj))
        self.steps += count
        self.spent += [at] * count
        self.t_ns += duration_ns
        return Trial(self.curve.limits_mw[at], round(energy_mj), round(duration_ns), count)


def worlds(
    published: list[Curve], kind: str, given: argparse.Namespace
) -> Iterator[tuple[NoisyTraining, Selector]]:
    """Return trainings of a kind, each with its selector."""
    for number in range(given.worlds):
        rng = np.random.default_rng([given.seed, list(KINDS).index(kind), number])
        curve = published[int(rng.integers(len(published)))]
        selector = named(str(rng.choice(given.selectors)))
        most = max(MOST, round(MOST * BLOCK_NS / BLOCK_STEPS / curve.step_ns[0]))
        yield NoisyTraining(curve, draw(kind, rng, most)), selector


class Outcome(Struct, frozen=True):
    """The first decision of a world."""

    steps: int
    excess: float
    cost: float
    """Of the steps until then, as a share of a run of `LONG_RUN`."""
    beyond: float
    """By which share the time of the run exceeded its bound at most, at any step until then."""
    bound: float = 0.0
    stated: tuple[tuple[ShareInterval, float], ...] = ()
    """Of energy and time at the limit chosen, each with the truth. Empty where the highest was chosen."""


def outcome(training: NoisyTraining, selector: Selector) -> Outcome:
    """Search once."""
    driven = Driven(training, selector)
    while not driven.decided:
        driven.steps(1)
    at_step, decided = driven.decided[0]
    assert decided.confidence is not None
    assert decided.costs is not None
    curve, stated = training.truth, []
    top_mw = decided.costs.trials[0].limit_mw
    if decided.limit_mw != top_mw:
        at, top = map(curve.limits_mw.index, (decided.limit_mw, top_mw))
        stated = [
            (decided.costs.energy, curve.step_mj[at] / curve.step_mj[top] - 1),
            (decided.costs.time, curve.step_ns[at] / curve.step_ns[top] - 1),
        ]
    chosen = _chosen(training, selector, decided.limit_mw, at_step)
    return replace(chosen, bound=decided.confidence.p95, stated=tuple(stated))


def swept(training: NoisyTraining, selector: Selector) -> Outcome:
    """Return Zeus's choice."""
    training.go_on(0, 1)
    trials = []
    for at in range(len(training.curve.limits_mw)):
        training.go_on(at, 10)
        trials.append(training.go_on(at, 40))
    return _chosen(training, selector, selector.choose(trials, 1), training.steps)


def _chosen(training: NoisyTraining, selector: Selector, limit_mw: int, steps: int) -> Outcome:
    curve, spent = training.truth, training.spent[:steps]
    factor = None if selector.goal is None else selector.goal.factor
    beyond = 0.0
    if factor is not None:
        step_ns = np.array(curve.step_ns)[spent]
        mean_ns = np.cumsum(step_ns) / np.arange(1, len(step_ns) + 1)
        beyond = max(0.0, float(mean_ns.max()) / (factor * curve.step_ns[0]) - 1)
    cost = profiling(curve, selector, spent) / LONG_RUN
    return Outcome(steps, excess(curve, selector, limit_mw), cost, beyond)


def search_table(given: argparse.Namespace) -> None:
    longer = given.step_ms * 1e6 / STEP_NS
    published = [scaled(drawn_through(curve, LIMITS), longer) for curve in curves()]
    rows, every, sweeps = [], list[Outcome](), list[Outcome]()
    for kind in given.kinds:
        of = [outcome(*world) for world in worlds(published, kind, given)]
        sweeps += [swept(*world) for world in worlds(published, kind, given)]
        rows.append([kind, _class_of(kind), *figures(of), *stated_figures(of)])
        every += of
    rows.append(["all", "", *figures(every), *stated_figures(every)])
    rows.append(["all, Zeus's sweep", "", *figures(sweeps), *["-"] * 7])
    head = (
        "noise | kind | steps, median | p90 | most | wrong, % | excess, mean % | worst | cost, mean % | "
        "beyond a bound on time at a moment, % | most | bound holds, % | bound, median % | "
        "bound above 3 %, % | stated holds, % | off, mean % | most | half, median %"
    )
    table(f"{given.worlds} worlds a kind, seed {given.seed}, {LIMITS} limits", head, rows)


def _class_of(kind: str) -> str:
    return "tuned on" if KINDS[kind] in TUNED else "reported"


def figures(of: Sequence[Outcome]) -> list[str]:
    """Return what came of searches."""
    steps, found, beyond = ([getattr(each, name) for each in of] for name in ("steps", "excess", "beyond"))
    return [
        f"{np.median(steps):.0f}",
        f"{np.percentile(steps, 90):.0f}",
        f"{max(steps)}",
        f"{100 * np.mean(np.array(found) > WRONG):.1f}",
        f"{100 * np.mean(found):.2f}",
        f"{100 * max(found):.1f}",
        f"{100 * np.mean([each.cost for each in of]):.2f}",
        f"{100 * np.mean(np.array(beyond) > 0):.0f}",
        f"{100 * max(beyond):.1f}",
    ]


def stated_figures(of: Sequence[Outcome]) -> list[str]:
    """Return how far what searches state is right."""
    bounds, stated = [each.bound for each in of], [each for one in of for each in one.stated]
    holds = [of.low - 1e-4 <= true <= of.high + 1e-4 for of, true in stated]
    off = [abs(of.middle - true) for of, true in stated] or [0.0]
    halves = [(of.high - of.low) / 2 for of, _ in stated] or [0.0]
    return [
        f"{100 * np.mean([each.excess <= each.bound + 1e-4 for each in of]):.0f}",
        f"{100 * np.median(bounds):.1f}",
        f"{100 * np.mean(np.array(bounds) > WRONG):.0f}",
        share_words(sum(holds), len(holds)) if holds else "-",
        f"{100 * np.mean(off):.2f}",
        f"{100 * max(off):.1f}",
        f"{100 * np.median(halves):.1f}",
    ]


def share_words(held: int, of: int) -> str:
    """Return a share in percent with its 95 % interval, by Wilson: both ends are shares."""
    z = 1.96
    whole, middle = 1 + z * z / of, held / of + z * z / (2 * of)
    half = z * sqrt(held / of * (1 - held / of) / of + z * z / (4 * of * of))
    low, high = (middle - half) / whole, (middle + half) / whole
    return f"{100 * held / of:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def watch_table(given: argparse.Namespace) -> None:
    rows = []
    for kind in given.kinds:
        alarms, noticed = [], []
        for number in range(given.runs):
            rng = np.random.default_rng([given.seed, 7, list(KINDS).index(kind), number])
            noise = draw(kind, rng, SEARCHED + LONG_RUN)
            alarms.append(len(_alarms(noise)))
            changed = SEARCHED + int(rng.integers(1000, 2500))
            factor = np.where(np.arange(SEARCHED + LONG_RUN) >= changed, 1 + MORE, 1.0)
            dearer = Noise(noise.time * factor, noise.energy * factor)
            after = [step - changed for step in _alarms(dearer, changed + UNNOTICED) if step > changed]
            noticed.append(after[0] if after else UNNOTICED)
        often = f"{100 * np.mean(np.array(alarms) > 1):.0f}"
        soon = f"{100 * np.mean(np.array(noticed) <= SOON):.0f}"
        of_kind = kind, _class_of(kind)
        rows.append(
            [*of_kind, f"{np.mean(alarms):.2f}", max(alarms), often, f"{np.median(noticed):.0f}", soon]
        )
    head = "noise | kind | alarms, mean | most | runs with more than one, %"
    head += f" | {MORE:+.0%} noticed after, steps, median | within {SOON}, %"
    table(f"{given.runs} runs of {LONG_RUN} steps a kind, seed {given.seed}", head, rows)


def _alarms(noise: Noise, steps: int = SEARCHED + LONG_RUN) -> list[int]:
    """Return the steps at which the watch raises an alarm; then it begins again, as after a search."""
    energy, time = 50_000 * noise.energy[:steps], STEP_NS * noise.time[:steps]
    searched, raised = settled([Visit(tuple(_trials(energy[:SEARCHED], time[:SEARCHED], 4)), 0)]), []
    watch = drift.begun(None, searched[0].blocks)
    whole = SEARCHED + (steps - SEARCHED) // WATCH_STEPS * WATCH_STEPS
    for count, window in enumerate(_trials(energy[SEARCHED:whole], time[SEARCHED:whole], WATCH_STEPS), 1):
        watch = drift.seen(watch, window)
        if watch.alarm:
            raised.append(SEARCHED + count * WATCH_STEPS)
            watch = drift.begun(None, before=watch)
    return raised


def _trials(energy: Floats, time: Floats, steps: int) -> list[Trial]:
    """Return what follows from the steps, so many at a time."""
    of = zip(energy.reshape(-1, steps).sum(axis=1), time.reshape(-1, steps).sum(axis=1), strict=True)
    return [Trial(1, round(mj), round(ns), steps) for mj, ns in of]


def main() -> None:
    tables = {"search": search_table, "watch": watch_table}
    given = options(
        __doc__, {"tables": tables, "kinds": KINDS}, tables=list(tables), kinds=list(KINDS), worlds=100,
        runs=20, seed=1, selectors=SELECTORS, step_ms=STEP_NS / 1e6,
    )  # fmt: skip
    for name in given.tables:
        tables[name](given)


if __name__ == "__main__":
    main()
