"""The search for the best limit on published curves, beside Zeus's sweep over the same noise.

Every curve of Zeus's published V100 and A40 power traces is a workload: as measured (7 limits on V100, 9 on
A40), and drawn through to 21 limits. Steps of 250 ms carry noise with autocorrelation 0.3, and the energy
warms up by 1 % over the first 60 steps or so. Zeus's sweep: 10 steps warm-up and 40 measured at every limit.

Excess: of energy, time or cost over that of the best limit; for a slowdown, by how much the time bound is
broken, or how far below it the time of a limit stays that was left out wrongly (``forgone``: the energy that
costs). Where no limit caps the workload (38 W under limits of 100 W and more), published limits differ by 5
to 10 % as runs do, without order; ``where capped`` leaves those curves out. Profiling: what the steps until
the decision cost above as many at the best limit, as a share of a run of 2000.

Memory: the same search after one of the same curve with other noise (``right``), whose steps take a quarter
more or less, or after one of another workload on the same GPU model (``wrong``). ``there``: steps until the
limit in force is within `USUAL` of the best one for the first time; ``off``: steps until the decision at
limits that are not.

python -m benchmarks.noise.search --traces DIR [--tables search memory] [--limits 7 21] [--seeds 1]
    [--noise 0.01 0.02 0.05] [--gpus v100 a40]
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct

from analyzers.power_limit.search import advice
from analyzers.power_limit.search.advice import Choose
from analyzers.power_limit.search.belief import TRUSTED, Confidence
from analyzers.power_limit.search.visit_blocks import Visit, by_limit
from analyzers.power_limit.selectors import Selector, Trial
from benchmarks.harness import table
from benchmarks.noise.published import (
    RUN_STEPS,
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


USUAL = 0.03
"""Excess of a limit that is as good as a search finds."""


class Done(Struct, frozen=True):
    """A search that has ended."""

    chosen_mw: int
    visits: int
    trials: tuple[Trial, ...]
    confidence: Confidence | None = None
    remembered: float | None = None
    believed: tuple[Trial, ...] = ()
    """Of all limits."""


Way = Callable[[Training, Selector], Done]


def sweep(training: Training, selector: Selector) -> Done:
    """Return Zeus's choice: 40 steps at every limit from the highest down, after 10 of warm-up."""
    training.go_on(0, 1)
    trials = []
    for at in range(len(training.curve.limits_mw)):
        training.go_on(at, 10)
        trials.append(training.go_on(at, 40))
    return Done(selector.choose(trials, 1), len(trials), tuple(trials))


def adaptive(
    training: Training,
    selector: Selector,
    remembered: Sequence[Trial] = (),
    *,
    clocks: bool = False,
    risk: float = advice.RISK,
) -> Done:
    """Return the search's choice."""
    assert selector.goal is not None
    limits = training.curve.limits_mw
    training.go_on(0, 1)
    visits: list[Visit] = []
    while True:
        advised = advice.advise(
            limits, 1, selector.goal, visits, remembered, clocks=clocks, tolerated_risk=risk
        )
        if isinstance(advised, Choose):
            trials = by_limit(block for visit in visits for block in visit.blocks)
            believed = advised.costs.trials if advised.costs else ()
            confidence = advised.confidence, advised.remembered
            return Done(advised.limit_mw, len(visits), trials, *confidence, believed)
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


# ---- memory ------------------------------------------------------------------------------------------


def another(workloads: Sequence[Curve], curve: Curve, rng: Random) -> Curve:
    """Return the curve of another workload of the same GPU model."""
    model, *workload = curve.name.split()[:3]
    same = [other for other in workloads if other.limits_mw == curve.limits_mw]
    return rng.choice([c for c in same if c.name.split()[0] == model and c.name.split()[1:3] != workload])


def at_level(trials: Iterable[Trial], rng: Random) -> tuple[Trial, ...]:
    """Return a curve with steps that take a quarter more or less."""
    factor = rng.choice((0.8, 1.25))
    return tuple(
        Trial(t.limit_mw, round(t.energy_mj * factor), round(t.duration_ns * factor), t.steps) for t in trials
    )


def remembering(workloads: Sequence[Curve], given: argparse.Namespace, kind: str, noise: float) -> list[str]:
    """Return the figures of searches that remember."""
    steps, excesses, visits, there, off, trusted, capped = [], [], [], [], [], [], []
    for text, seed, (number, curve) in product(given.selectors, range(given.seeds), enumerate(workloads)):
        selector, rng = named(text), Random(f"{text} {seed} {number} {noise}")
        remembered: tuple[Trial, ...] = ()
        if kind != "none":
            of = another(workloads, curve, rng) if kind.startswith("wrong") else curve
            remembered = adaptive(
                Training(of, noise, Random(f"before {seed} {number} {noise}")), selector
            ).trials
        if kind.endswith("another level"):
            remembered = at_level(remembered, rng)
        training = Training(curve, noise, Random(f"{seed} {number} {noise}"))
        done = adaptive(training, selector, remembered)
        found = [excess(curve, selector, limit)[0] for limit in curve.limits_mw]
        at = [*training.spent[1:], curve.limits_mw.index(done.chosen_mw)]
        steps.append(training.steps)
        visits.append(done.visits)
        excesses.append(found[at[-1]])
        capped += [found[at[-1]]] if curve.capped else []
        there.append(next((step for step, of in enumerate(at) if found[of] <= USUAL), 10 * RUN_STEPS))
        off.append(sum(found[of] > USUAL for of in at[:-1]))
        trusted.append(done.remembered is not None and done.remembered >= TRUSTED)
    percent = 100 * np.array(excesses)
    return [
        f"{np.median(steps):.0f}",
        f"{np.percentile(steps, 90):.0f}",
        f"{np.mean(visits):.1f}",
        f"{percent.mean():.2f}",
        f"{np.percentile(percent, 95):.1f}",
        f"{percent.max():.1f}",
        f"{100 * np.mean(capped):.2f}",
        f"{100 * max(capped):.1f}",
        f"{np.median(there):.0f}",
        f"{100 * np.mean(np.array(there) <= 60):.0f}",
        f"{np.mean(off):.0f}",
        f"{100 * np.mean(trusted):.0f}",
    ]


def memory_tables(by_count: dict[int, list[Curve]], given: argparse.Namespace) -> None:
    head = (
        "noise, % | remembered | steps, median | p90 | visits | excess, mean % | p95 | worst | "
        "where capped, mean | worst | there, steps, median | there within 60 steps, % | off, steps, mean | "
        "taken as remembered, %"
    )
    kinds = ("none", "right", "right, at another level", "wrong", "wrong, at another level")
    for count, workloads in by_count.items():
        rows = [
            [f"{100 * noise:g}", kind, *remembering(workloads, given, kind, noise)]
            for noise in given.noise
            for kind in kinds
        ]
        table(f"{len(workloads)} published curves at {count} limits, with what is remembered", head, rows)


# ---- all of it ---------------------------------------------------------------------------------------


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


TABLES = {"search": search_tables, "memory": memory_tables}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--gpus", nargs="+", default=["v100", "a40"])
    parser.add_argument("--limits", type=int, nargs="+", default=[7, 21])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--selectors", nargs="+", default=SELECTORS)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    published = [curve for curve in curves(given.traces) if curve.name.split()[0] in given.gpus]
    by_count = {
        count: [curve for curve in published if len(curve.limits_mw) == count]
        if count < 10
        else [drawn_through(curve, count) for curve in published]
        for count in given.limits
    }
    for name in given.tables:
        TABLES[name](by_count, given)


if __name__ == "__main__":
    main()
