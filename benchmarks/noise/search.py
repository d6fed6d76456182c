"""The search for the best limit on published curves, beside Zeus's sweep over the same noise; what follows.

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

The machine: driven step by step (`driven.py`). In mid-run another curve of the same GPU model takes the place
of the first, where that changes energy or time per step at the limit in force by a tenth.

python -m benchmarks.noise.search --traces DIR [--tables search memory machine] [--limits 7 21] [--seeds 1]
    [--noise 0.01 0.02 0.05] [--gpus v100 a40]
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import sqrt
from pathlib import Path
from random import Random

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit import selectors
from analyzers.power_limit.profiler import WATCH_STEPS
from analyzers.power_limit.search import advice, drift
from analyzers.power_limit.search.advice import Choose
from analyzers.power_limit.search.belief import TRUSTED, Confidence
from analyzers.power_limit.search.visit_blocks import Visit, by_limit
from analyzers.power_limit.selectors import Selector, Trial
from benchmarks.harness import table
from benchmarks.noise.driven import Driven
from benchmarks.noise.published import (
    CORRELATION,
    RUN_STEPS,
    SELECTORS,
    Curve,
    Training,
    curves,
    drawn_through,
    excess,
    profiling,
)

SETTLING = 5
"""Steps after a change of limit that the search leaves out."""
BLOCK = 4
"""Steps of a block."""


USUAL = 0.03
"""Excess of a limit that is as good as a search finds."""


LENGTHS = 200, 400, 800, 2_000
"""Steps of runs whose scripts say how long they are."""
OF_LENGTHS = 12
"""Curves of which runs of these lengths are."""


class Done(Struct, frozen=True):
    """A search that has ended."""

    chosen_mw: int
    visits: int
    trials: tuple[Trial, ...]
    confidence: Confidence | None = None
    remembered: float | None = None


Way = Callable[[Training, Selector], Done]


def sweep(training: Training, selector: Selector) -> Done:
    """Return Zeus's choice: 40 steps at every limit from the highest down, after 10 of warm-up."""
    training.go_on(0, 1)
    trials = []
    for at in range(len(training.curve.limits_mw)):
        training.go_on(at, 10)
        trials.append(training.go_on(at, 40))
    return Done(selector.choose(trials, 1), len(trials), tuple(trials))


def adaptive(training: Training, selector: Selector, remembered: Sequence[Trial] = ()) -> Done:
    """Return the search's choice."""
    assert selector.goal is not None
    limits = training.curve.limits_mw
    training.go_on(0, 1)
    visits: list[Visit] = []
    while True:
        advised = advice.advise(limits, 1, selector.goal, visits, remembered)
        if isinstance(advised, Choose):
            trials = by_limit(block for visit in visits for block in visit.blocks)
            return Done(advised.limit_mw, len(visits), trials, advised.confidence, advised.remembered)
        at = limits.index(advised.limit_mw)
        before: tuple[Trial, ...] = ()
        if visits and visits[-1].limit_mw == advised.limit_mw:
            before = visits.pop().blocks
        else:
            training.go_on(at, SETTLING)
        blocks = (*before, training.go_on(at, BLOCK))
        visits.append(Visit(blocks, round(training.t_ns)))


def parsed(text: str) -> Selector:
    selector = selectors.parse(text)
    assert selector is not None
    return selector


def report(
    workloads: list[Curve], texts: Sequence[str], noises: Sequence[float], seeds: int, way: Way
) -> list[str]:
    """Return the figures of a table's row, over all of these."""
    steps, excesses, forgone, visits, shares, inside, expected, capped = [], [], [], [], [], [], [], []
    for text, noise, seed, (number, curve) in product(texts, noises, range(seeds), enumerate(workloads)):
        selector = parsed(text)
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
        selector, rng = parsed(text), Random(f"{text} {seed} {number} {noise}")
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
    head = [
        "noise, %", "remembered", "steps, median", "p90", "visits", "excess, mean %", "p95", "worst",
        "where capped, mean", "worst",
        "there, steps, median", "there within 60 steps, %", "off, steps, mean", "taken as remembered, %",
    ]  # fmt: skip
    kinds = ("none", "right", "right, at another level", "wrong", "wrong, at another level")
    for count, workloads in by_count.items():
        rows = [
            [f"{100 * noise:g}", kind, *remembering(workloads, given, kind, noise)]
            for noise in given.noise
            for kind in kinds
        ]
        table(f"{len(workloads)} published curves at {count} limits, with what is remembered", head, rows)


# ---- the machine -------------------------------------------------------------------------------------


def settled(driven: Driven) -> None:
    """Go on until the limit was chosen and is watched."""
    while not driven.watched:
        driven.steps(1)


def heavier(curve: Curve) -> Curve:
    """Return the same workload with steps that take a quarter more."""
    return replace(
        curve,
        step_ns=tuple(1.25 * ns for ns in curve.step_ns),
        step_mj=tuple(1.25 * mj for mj in curve.step_mj),
    )


def switched(
    workloads: Sequence[Curve], given: argparse.Namespace, noise: float, *, other_workload: bool
) -> list[str]:
    """Return the figures of runs whose workload is another, or heavier, from some step on."""
    noticed, again, excesses = [], [], []
    for text, seed, (number, curve) in product(given.selectors, range(given.seeds), enumerate(workloads)):
        rng = Random(f"switched {text} {seed} {number} {noise}")
        driven = Driven(Training(curve, noise, rng), parsed(text))
        settled(driven)
        driven.steps(rng.randrange(200))
        other, at = another(workloads, curve, rng) if other_workload else heavier(curve), driven.at
        factors = other.step_mj[at] / curve.step_mj[at], other.step_ns[at] / curve.step_ns[at]
        if len(driven.rounds) > 1 or all(1 / 1.1 < factor < 1.1 for factor in factors):
            continue
        driven.training.curve, since = other, driven.training.steps
        while len(driven.rounds) == 1 and driven.training.steps < since + RUN_STEPS:
            driven.steps(1)
        noticed.append(driven.training.steps - since)
        settled(driven)
        again.append(driven.decided[-1][0] - since)
        excesses.append(excess(other, driven.selector, driven.decided[-1][1].limit_mw)[0])
    return [
        f"{len(noticed)}",
        f"{np.median(noticed):.0f}",
        f"{np.percentile(noticed, 95):.0f}",
        f"{max(noticed)}",
        f"{100 * np.mean(np.array(noticed) <= 100):.0f}",
        f"{np.median(again):.0f}",
        f"{np.percentile(again, 90):.0f}",
        f"{100 * np.mean(excesses):.2f}",
        f"{100 * np.percentile(excesses, 95):.1f}",
    ]


def false_alarms(noise: float, runs: int, steps: int = 100_000) -> int:
    """Return how many runs of so many steps raise an alarm though nothing changes but that they warm up."""
    rng, alarms = np.random.default_rng(round(1000 * noise)), 0
    for _ in range(runs):
        errors = rng.normal(size=(steps, 2)) * sqrt(1 - CORRELATION**2)
        for step in range(1, steps):
            errors[step] += CORRELATION * errors[step - 1]
        factors = np.maximum(1 + noise * errors, 0.01)
        factors[:, 0] *= 1 - 0.01 * np.exp(-np.arange(steps) / 60)
        windows = factors.reshape(-1, WATCH_STEPS, 2).sum(axis=1)
        watch = drift.Watch()
        for energy, time in windows.tolist():
            watch = drift.seen(watch, Trial(1, round(50_000 * energy), round(250e6 * time), WATCH_STEPS))
            if watch.alarm:
                alarms += 1
                break
    return alarms


def machine_tables(by_count: dict[int, list[Curve]], given: argparse.Namespace) -> None:
    head = [
        "noise, %", "from then on", "runs", "noticed after, steps, median", "p95", "worst", "within 100, %",
        "decided again after, steps, median", "p90", "excess then, mean %", "p95",
    ]  # fmt: skip
    for count, workloads in by_count.items():
        rows = [
            [f"{100 * noise:g}", name, *switched(workloads, given, noise, other_workload=other)]
            for noise in given.noise
            for name, other in (("another workload", True), ("the same, a quarter heavier", False))
        ]
        table(f"{len(workloads)} published curves at {count} limits, switched in mid-run", head, rows)
    alarms = [[f"{100 * n:g}", given.alarm_runs, false_alarms(n, given.alarm_runs)] for n in given.noise]
    table("nothing changes for 100 000 steps", ["noise, %", "runs", "of them with a false alarm"], alarms)
    for count, workloads in by_count.items():
        table(
            f"{len(workloads)} published curves at {count} limits, in epochs, with a pause after each",
            ["steps of an epoch", "runs", "decided", "steps, median", "p90", "worst"],
            [[epoch or "no epochs", *in_epochs(workloads, given, epoch)] for epoch in (None, 5, 10, 20, 50)],
        )
        head = ["selector", "profiling, %", "whole run, %"]
        rows = [[text, *whole_runs(workloads, text)] for text in given.selectors]
        table(f"cost of {RUN_STEPS} steps above the best limit's, {count} limits, noise 2 %", head, rows)


def in_epochs(workloads: Sequence[Curve], given: argparse.Namespace, epoch: int | None) -> list[str]:
    """Return the figures of runs in epochs of so many steps."""
    steps = []
    for text, (number, curve) in product(given.selectors, enumerate(workloads)):
        driven = Driven(Training(curve, 0.02, Random(f"{text} {number}")), parsed(text), epoch=epoch)
        while not driven.decided and driven.training.steps < RUN_STEPS:
            driven.steps(1)
        steps += [driven.decided[0][0]] if driven.decided else []
    runs = len(workloads) * len(given.selectors)
    figures = runs, len(steps), np.median(steps), np.percentile(steps, 90), max(steps)
    return [f"{figure:.0f}" for figure in figures]


def whole_runs(workloads: Sequence[Curve], text: str) -> list[str]:
    """Return what profiling, and what all of a run, cost above as many steps at the best limit."""
    until, whole = [], []
    for number, curve in enumerate(workloads):
        driven = Driven(Training(curve, 0.02, Random(f"{text} {number}")), parsed(text))
        driven.steps(RUN_STEPS)
        spent = driven.training.spent
        until.append(profiling(curve, driven.selector, spent[: driven.decided[0][0]]))
        whole.append(profiling(curve, driven.selector, spent))
    return [f"{100 * np.mean(until):.2f}", f"{100 * np.mean(whole):.2f}"]


def length_tables(by_count: dict[int, list[Curve]], given: argparse.Namespace) -> None:
    head = [
        "noise, %",
        "steps of the run",
        "known",
        "decided, %",
        "after steps, median",
        "p90",
        "above the best, %",
    ]
    for count, workloads in by_count.items():
        rows = []
        for noise, length, known in product(given.noise, LENGTHS, (False, True)):
            after, above = [], []
            for number, curve in enumerate(workloads[::-1][:OF_LENGTHS]):
                for text in given.selectors:
                    rng = Random(f"{given.seeds} {text} {number}")
                    driven = Driven(
                        Training(curve, noise, rng), parsed(text), length=length if known else None
                    )
                    driven.steps(length)
                    after.append(driven.decided[0][0] if driven.decided else np.inf)
                    above.append(profiling(curve, driven.selector, driven.training.spent))
            figures = 100 * np.mean(np.isfinite(after)), *np.percentile(after, [50, 90], method="nearest")
            rows.append(
                [f"{100 * noise:g}", f"{length}", str(known)]
                + [f"{figure:.0f}" for figure in figures]
                + [f"{100 * np.mean(above):.2f}"]
            )
        table(f"{len(workloads)} published curves at {count} limits, runs of a length", head, rows)


# ---- all of it ---------------------------------------------------------------------------------------


def search_tables(by_count: dict[int, list[Curve]], given: argparse.Namespace) -> None:
    head = [
        "noise, %", "selector", "search", "steps, median", "p90", "visits", "excess, mean %", "p95", "worst",
        "where capped, mean", "worst", "forgone, mean %", "profiling, %",
        "expected excess, %", "inside its 95 % bound, %",
    ]  # fmt: skip
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


TABLES = {
    "search": search_tables,
    "memory": memory_tables,
    "machine": machine_tables,
    "length": length_tables,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--gpus", nargs="+", default=["v100", "a40"])
    parser.add_argument("--limits", type=int, nargs="+", default=[7, 21])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--selectors", nargs="+", default=SELECTORS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--alarm-runs", type=int, default=20, help="runs of 100 000 steps for false alarms")
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
