"""The search for the best limit on published curves, beside Zeus's sweep over the same noise.

Every curve of Zeus's published V100 and A40 power traces is a workload: as measured (7 limits on V100, 9 on
A40), and drawn through to 21 limits. Steps of 250 ms carry noise with autocorrelation 0.3, and the energy
warms up by 1 % over the first 60 steps or so. Zeus's sweep: 10 steps warm-up and 40 measured at every limit.

Excess: of energy, time or cost over that of the best limit; for a slowdown, by how much the time bound is
broken, or how far below it the time of a limit stays that was left out wrongly (``forgone``: the energy that
costs). Where no limit caps the workload (38 W under limits of 100 W and more), published limits differ by 5
to 10 % as runs do, without order; ``where capped`` leaves those curves out. Profiling: what the steps until
the decision cost above as many at the best limit, as a share of a run of 2000.

python -m benchmarks.noise.search --traces DIR [--limits 7 21] [--seeds 1]
    [--noise 0.01 0.02 0.05] [--gpus v100 a40]
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct

from analyzers.power_limit.search import advice
from analyzers.power_limit.search.advice import Choose
from analyzers.power_limit.search.belief import Confidence
from analyzers.power_limit.search.curves import NO_CLOCKS, Clocks
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Selector, Trial
from benchmarks.harness import options, table
from benchmarks.noise.published import (
    SELECTORS,
    Curve,
    Training,
    curves,
    drawn_through,
    excess,
    named,
    profiling,
)

SETTLING = 5
"""Steps after a change of limit that the search leaves out."""
BLOCK = 4
"""Steps of a block."""


class Done(Struct, frozen=True):
    """A search that has ended."""

    chosen_mw: int
    visits: int
    confidence: Confidence | None = None


Way = Callable[[Training, Selector], Done]


def sweep(training: Training, selector: Selector) -> Done:
    """Return Zeus's choice: 40 steps at every limit from the highest down, after 10 of warm-up."""
    training.go_on(0, 1)
    trials = []
    for at in range(len(training.curve.limits_mw)):
        training.go_on(at, 10)
        trials.append(training.go_on(at, 40))
    return Done(selector.choose(trials, 1), len(trials))


def adaptive(
    training: Training,
    selector: Selector,
    remembered: Sequence[Trial] = (),
    clocks: Clocks = NO_CLOCKS,
) -> Done:
    """Return the search's choice."""
    assert selector.goal is not None
    limits = training.curve.limits_mw
    training.go_on(0, 1)
    visits: list[Visit] = []
    while True:
        advised = advice.advise(limits, 1, selector.goal, visits, remembered, clocks=clocks)
        if isinstance(advised, Choose):
            return Done(advised.limit_mw, len(visits), advised.confidence)
        at = limits.index(advised.limit_mw)
        before: tuple[Trial, ...] = ()
        if visits and visits[-1].limit_mw == advised.limit_mw:
            before = visits.pop().blocks
        else:
            training.go_on(at, SETTLING)
        blocks = (*before, training.go_on(at, BLOCK))
        visits.append(Visit(blocks, round(training.t_ns)))


def report(
    workloads: list[Curve], texts: Sequence[str], noises: Sequence[float], seeds: int, way: Way
) -> list[str]:
    """Return the figures of a table's row, over all of these."""
    steps, excesses, forgone, visits, shares, inside, expected, capped = [], [], [], [], [], [], [], []
    for text, noise, seed, (number, curve) in product(texts, noises, range(seeds), enumerate(workloads)):
        selector = named(text)
        training = Training(curve, noise, Random(f"{seed} {number} {noise}"))
        done = way(training, selector)
        steps.append(training.steps)
        visits.append(done.visits)
        found, less = excess(curve, selector, done.chosen_mw)
        excesses.append(found)
        capped += [found] if curve.capped else []
        forgone.append(less)
        shares.append(profiling(curve, selector, training.spent))
        if done.confidence is not None:
            inside.append(found <= done.confidence.p95)
            expected.append(done.confidence.expected)
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


def search_tables(by_count: dict[int, list[Curve]], given: argparse.Namespace) -> None:
    head = (
        "noise, % | selector | search | steps, median | p90 | visits | excess, mean % | p95 | worst | "
        "where capped, mean | worst | forgone, mean % | profiling, % | expected excess, % | "
        "inside its 95 % bound, %"
    )
    ways: dict[str, Way] = {"ours": adaptive, "Zeus": sweep}
    for count, workloads in by_count.items():
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


def main() -> None:
    given = options(
        __doc__, traces=Path, gpus=["v100", "a40"], limits=[7, 21], noise=[0.01, 0.02, 0.05],
        selectors=SELECTORS, seeds=1,
    )  # fmt: skip
    published = [curve for curve in curves(given.traces) if curve.name.split()[0] in given.gpus]
    by_count = {
        count: [curve for curve in published if len(curve.limits_mw) == count]
        if count < 10
        else [drawn_through(curve, count) for curve in published]
        for count in given.limits
    }
    search_tables(by_count, given)


if __name__ == "__main__":
    main()
