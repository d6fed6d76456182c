"""Searches of runs that start slowly: how far off is the limit chosen?

The first 10 to 300 steps of a run take 1.2 to 3 times as long, at once or fading, in white noise of 1 to 3 %.
A world draws one of Zeus's published curves at 21 limits. ``off``: by how much the limit chosen costs more
than the best one or, with a bound on the time, by how much its time is beyond the bound.

python -m benchmarks.noise.starts --traces DIR [--worlds 500] [--seed 1] [--selectors slowdown:1.1 energy ...]
"""

import argparse
from pathlib import Path

import numpy as np

from analyzers.power_limit import selectors
from benchmarks.harness import table
from benchmarks.noise.__main__ import LIMITS, MOST, NoisyTraining
from benchmarks.noise.driven import Driven
from benchmarks.noise.noise_kinds import Noise, Rng
from benchmarks.noise.published import SELECTORS, curves, drawn_through, excess

BEYOND, OFF = 0.03, 0.1
"""Beyond a bound, and off without one: more is wrong."""


def starting(rng: Rng, steps: int) -> Noise:
    """Return white noise, and a start that ends at once or fades."""
    length, slow = rng.uniform(10, 300), rng.uniform(0.2, 2)
    at = np.arange(steps)
    more = slow * (np.exp(-3 * at / length) if rng.uniform() < 0.5 else at < length)
    white = 1 + rng.uniform(0.01, 0.03) * rng.normal(size=steps)
    return Noise((1 + more) * white, (1 + rng.uniform(0.5, 1) * more) * white)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--worlds", type=int, default=500, help="of each selector")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--selectors", nargs="+", default=list(SELECTORS))
    given = parser.parse_args()
    published = [drawn_through(curve, LIMITS) for curve in curves(given.traces)]
    rows = []
    for text in given.selectors:
        selector, off, steps = selectors.parse(text), [], []
        assert selector is not None
        assert selector.goal is not None
        for number in range(given.worlds):
            rng = np.random.default_rng([given.seed, 11, number])
            curve = published[int(rng.integers(len(published)))]
            driven = Driven(NoisyTraining(curve, starting(rng, MOST)), selector)
            while not driven.decided:
                driven.steps(1)
            at_step, decided = driven.decided[0]
            if selector.goal.factor is None:
                off.append(excess(curve, selector, decided.limit_mw)[0])
            else:
                time_ns = curve.step_ns[curve.limits_mw.index(decided.limit_mw)]
                off.append(max(0.0, time_ns / curve.step_ns[0] / selector.goal.factor - 1))
            steps.append(at_step)
        most = OFF if selector.goal.factor is None else BEYOND
        wrong = sum(each > most for each in off)
        rows.append(
            [text, len(off), f"{most:.0%}", wrong, f"{100 * max(off):.1f}", f"{np.median(steps):.0f}"]
        )
    head = ["selector", "searches", "wrong: above", "wrong", "most off, %", "steps, median"]
    table(f"starts of 10 to 300 steps, seed {given.seed}", head, rows)


if __name__ == "__main__":
    main()
