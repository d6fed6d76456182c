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

SETTLING = 5
"""Steps after a change of limit that the search leaves out."""
BLOCK = 4
"""Steps of a block."""


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
