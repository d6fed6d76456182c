"""The search for a limit, and the watch that follows it, on steps whose noise is that of real training.

The kinds of noise are in `noise_kinds.py`, with parameters drawn from ranges. Every world draws a curve of
Zeus's published V100 and A40 traces, at 21 limits, a selector, and a noise. The machine is driven step by
step (`driven.py`). Steps take 250 ms at the highest limit.

First table, of the first decision. ``wrong``: the excess of the limit chosen is above 3 %. ``bound holds``:
the excess is at most the stated 95 % bound. ``above 3 %``: decisions whose own bound is above 3 %, which say
so. ``cost``: what the steps until then take above as many at the best limit, in % of a run of 20 000 steps.

Second table: the watch over 20 000 steps in which nothing but the noise changes, and how soon it notices that
all steps take a tenth more. It begins after a search of
`SEARCHED` steps. After an alarm it begins again, as if the search had chosen the same limit. ``neighbour`` is
no noise to the watch: a load that slows steps for hundreds of them is a change.

Third table: what the first decision states of energy and time at the limit chosen, against the truth.
``off``: by how much the change of a step is missed; ``half``: half of the 95 % interval; ``sums``: by how
much a sum of all that was measured at both limits misses it, as was stated before.

Fourth table: energy and time of a step rise or fall at once by a tenth or more, in white noise of 2 %.

python -m benchmarks.noise --traces DIR [--tables search watch changes] [--kinds KIND ...] [--worlds 100]
    [--seed 1]
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from msgspec.structs import replace

from analyzers.power_limit.profiler import MOST_WIDE, WATCH_STEPS
from analyzers.power_limit.search import drift
from analyzers.power_limit.selectors import Selector, Trial
from benchmarks.harness import table
from benchmarks.noise.driven import Driven
from benchmarks.noise.noise_kinds import KINDS, TUNED, TUNING_SEED, Floats, Noise, draw
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
"""Steps until a search must have ended."""


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
    published: list[Curve], kind: str, count: int, seed: int, steps: int
) -> Iterator[tuple[NoisyTraining, Selector]]:
    """Return trainings of a kind, each with its selector."""
    for number in range(count):
        rng = np.random.default_rng([seed, list(KINDS).index(kind), number])
        curve = published[int(rng.integers(len(published)))]
        selector = named(str(rng.choice(SELECTORS)))
        yield NoisyTraining(curve, draw(kind, rng, steps)), selector


def of_search(published: list[Curve], kind: str, given: argparse.Namespace) -> tuple[list[str], list[bool]]:
    """Return the figures of the first decisions of a kind, and of each world whether its bound holds."""
    steps, excesses, bounds, costs, took_s = [], [], [], [], []
    for training, selector in worlds(published, kind, given.worlds, given.seed, MOST):
        driven, began_s = Driven(training, selector), perf_counter()
        while not driven.decided and training.steps < MOST:
            driven.steps(1)
        took_s.append(perf_counter() - began_s)
        at_step, decided = driven.decided[0]
        assert decided.confidence is not None
        steps.append(at_step)
        excesses.append(excess(training.truth, selector, decided.limit_mw)[0])
        bounds.append(decided.confidence.p95)
        spent = training.spent[:at_step]
        costs.append(profiling(training.truth, selector, spent) * 2000 / LONG_RUN)
        if given.each:
            print(kind, selector.text, at_step, f"{excesses[-1]:.4f} {bounds[-1]:.4f}", flush=True)
    found, bound = np.array(excesses), np.array(bounds)
    holds = (found <= bound + 1e-4).tolist()
    figures = [
        f"{np.median(steps):.0f}",
        f"{np.percentile(steps, 90):.0f}",
        f"{max(steps)}",
        f"{100 * np.mean(found > WRONG):.1f}",
        f"{100 * found.mean():.2f}",
        f"{100 * found.max():.1f}",
        f"{100 * np.mean(holds):.0f}",
        f"{100 * np.median(bound):.1f}",
        f"{100 * np.mean(bound > WRONG):.0f}",
        f"{100 * np.mean(costs):.2f}",
        f"{100 * max(costs):.2f}",
        f"{1000 * np.mean(took_s):.0f}",
    ]
    return figures, [*zip(found > WRONG, holds, strict=True)]


def search_table(published: list[Curve], given: argparse.Namespace) -> None:
    head = (
        "noise | steps, median | p90 | most | wrong, % | excess, mean % | worst | bound holds, % | "
        "bound, median % | bound above 3 %, % | cost, mean % | most | ms"
    )
    rows, every = [], []
    for kind in given.kinds:
        figures, each = of_search(published, kind, given)
        rows.append([kind, *figures])
        every += each
    wrong, holds = 100 * np.mean(every, axis=0)
    table(
        f"{given.worlds} worlds a kind, seed {given.seed}, {LIMITS} limits:"
        f" {wrong:.1f} % wrong, bounds hold in {holds:.1f} %",
        head,
        rows,
    )


def stated_table(published: list[Curve], given: argparse.Namespace) -> None:
    rows = []
    for kind in given.kinds:
        holds, off, halves, sums = [], [], [], []
        for training, selector in worlds(published, kind, given.worlds, given.seed, MOST):
            driven = Driven(training, selector)
            while not driven.decided:
                driven.steps(1)
            (_, decided), curve = driven.decided[0], training.truth
            if decided.costs is None or decided.limit_mw == decided.costs.trials[0].limit_mw:
                continue
            measured = {trial.limit_mw: trial for trial in driven.measured}
            at, top = (
                curve.limits_mw.index(mw) for mw in (decided.limit_mw, decided.costs.trials[0].limit_mw)
            )
            for stated, true, name in (
                (decided.costs.energy, curve.step_mj[at] / curve.step_mj[top] - 1, "step_mj"),
                (decided.costs.time, curve.step_ns[at] / curve.step_ns[top] - 1, "step_ns"),
            ):
                holds.append(stated.low - 1e-4 <= true <= stated.high + 1e-4)
                off.append(abs(stated.middle - true))
                halves.append((stated.high - stated.low) / 2)
                summed, of_top = (getattr(measured[curve.limits_mw[i]], name) for i in (at, top))
                sums.append(abs(summed / of_top - 1 - true))
        rows.append(
            [
                kind,
                "tuned on" if KINDS[kind] in TUNED else "reported",
                len(holds) // 2,
                f"{100 * np.mean(holds):.0f}",
                f"{100 * np.mean(off):.2f}",
                f"{100 * max(off):.1f}",
                f"{100 * np.median(halves):.1f}",
                f"{100 * np.mean(sums):.2f}",
                f"{100 * max(sums):.1f}",
            ]
        )
    head = "noise | kind | runs | holds, % | off, mean % | most | half, median % | sums off, mean % | most"
    table(f"what is stated; {given.worlds} worlds a kind, seed {given.seed}", head, rows)


def watch_table(_: list[Curve], given: argparse.Namespace) -> None:
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
        rows.append(
            [
                kind,
                "tuned on" if KINDS[kind] in TUNED else "reported",
                f"{np.mean(alarms):.2f}",
                max(alarms),
                f"{100 * np.mean(np.array(alarms) > 1):.0f}",
                f"{np.median(noticed):.0f}",
                f"{100 * np.mean(np.array(noticed) <= SOON):.0f}",
            ]
        )
    head = [
        "noise", "kind", "alarms, mean", "most", "runs with more than one, %",
        f"{MORE:+.0%} noticed after, steps, median", f"within {SOON}, %",
    ]  # fmt: skip
    table(f"{given.runs} runs of {LONG_RUN} steps a kind, seed {given.seed}", head, rows)


def _alarms(noise: Noise, steps: int = SEARCHED + LONG_RUN) -> list[int]:
    """Return the steps at which the watch raises an alarm; then it begins again, as after a search."""
    energy, time = 50_000 * noise.energy[:steps], STEP_NS * noise.time[:steps]
    searched, raised = _trials(energy[:SEARCHED], time[:SEARCHED], 4), []
    watch, whole = drift.begun(None, searched), SEARCHED + (steps - SEARCHED) // WATCH_STEPS * WATCH_STEPS
    for count, window in enumerate(_trials(energy[SEARCHED:whole], time[SEARCHED:whole], WATCH_STEPS), 1):
        watch = drift.seen(watch, window)
        if watch.alarm:
            raised.append(SEARCHED + count * WATCH_STEPS)
            watch = drift.begun(None, searched, min(MOST_WIDE, watch.wide + 1))
    return raised


def _trials(energy: Floats, time: Floats, steps: int) -> list[Trial]:
    """Return what follows from the steps, so many at a time."""
    of = zip(energy.reshape(-1, steps).sum(axis=1), time.reshape(-1, steps).sum(axis=1), strict=True)
    return [Trial(1, round(mj), round(ns), steps) for mj, ns in of]


def changes_table(published: list[Curve], given: argparse.Namespace) -> None:
    rows = []
    for energy, time in ((1.1, 1), (1, 1.1), (1.1, 1.1), (0.9, 1), (1, 0.9), (1.2, 1.2), (0.7, 0.8), (2, 1)):
        noticed, runs = [], 0
        for number in range(given.runs):
            rng = np.random.default_rng([given.seed, 99, number])
            curve = published[int(rng.integers(len(published)))]
            selector = named(str(rng.choice(SELECTORS)))
            noise = Noise(*(1 + 0.02 * rng.normal(size=(2, 8000))))
            driven = Driven(NoisyTraining(curve, noise), selector)
            while not driven.watched:
                driven.steps(1)
            driven.steps(int(rng.integers(1500)))
            rounds, since = len(driven.rounds), driven.training.steps
            driven.training.curve = scaled(curve, time, energy)
            while len(driven.rounds) == rounds and driven.training.steps < since + 1000:
                driven.steps(1)
            noticed.append(driven.training.steps - since)
            runs += 1
        rows.append(
            [
                f"{energy - 1:+.0%} energy, {time - 1:+.0%} time",
                runs,
                f"{np.median(noticed):.0f}",
                f"{np.percentile(noticed, 95):.0f}",
                max(noticed),
                f"{100 * np.mean(np.array(noticed) <= 100):.0f}",
            ]
        )
    head = "change | runs | noticed after, steps, median | p95 | most | within 100 steps, %"
    table(f"changes in white noise of 2 %, seed {given.seed}", head, rows)


TABLES = {"search": search_table, "stated": stated_table, "watch": watch_table, "changes": changes_table}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--worlds", type=int, default=100, help="of each kind")
    parser.add_argument("--runs", type=int, default=20, help="of 20 000 steps, of each kind")
    parser.add_argument("--seed", type=int, default=TUNING_SEED)
    parser.add_argument("--each", action="store_true", help="print a line for each world")
    given = parser.parse_args()
    published = [drawn_through(curve, LIMITS) for curve in curves(given.traces)]
    for name in given.tables:
        TABLES[name](published, given)


if __name__ == "__main__":
    main()
