"""Searches over steps of 50 ms to 20 s: steps and seconds until a limit is chosen, and how far off it is.

A world draws one of Zeus's published curves of a V100 at its seven limits; its steps carry correlated noise.

python -m benchmarks.noise.step_lengths --traces DIR [--worlds 20] [--seed 1] [--steps-s 3 20]
"""

from itertools import product
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.harness import options, table
from benchmarks.noise.driven import Driven
from benchmarks.noise.published import SELECTORS, STEP_NS, Training, curves, excess, named, scaled

STEPS_S = (0.05, 0.25, 1.0, 3.0, 20.0)
NOISES = (0.01, 0.05)
LIMITS = 7


def main() -> None:
    given = options(__doc__, traces=Path, worlds=20, seed=1, steps_s=list(STEPS_S), selectors=list(SELECTORS))
    published = [curve for curve in curves(given.traces) if len(curve.limits_mw) == LIMITS]
    rows = []
    for text, step_s, noise in product(given.selectors, given.steps_s, NOISES):
        selector, times = named(text), step_s * 1e9 / STEP_NS
        steps, seconds, off = [], [], []
        for number in range(given.worlds):
            rng = Random(f"{given.seed} {number}")
            curve = scaled(rng.choice(published), times, times)
            driven = Driven(Training(curve, noise, rng), selector)
            while not driven.decided:
                driven.steps(1)
            steps.append(driven.decided[0][0])
            seconds.append(driven.t_ns / 1e9)
            off.append(100 * excess(curve, selector, driven.decided[0][1].limit_mw)[0])
        figures = f"{np.median(steps):.0f}", f"{np.percentile(steps, 90):.0f}", f"{np.median(seconds):.0f}"
        rows.append([text, f"{step_s:g}", f"{noise:.0%}", *figures, f"{np.mean(off):.2f}", f"{max(off):.1f}"])
    head = "selector | step, s | noise | steps, median | p90 | seconds, median | off, mean % | most, %"
    table(f"{LIMITS} limits, {given.worlds} worlds, seed {given.seed}", head, rows)


if __name__ == "__main__":
    main()
