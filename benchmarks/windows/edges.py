"""Energy of steps by the edges of the load: bias, error and coverage, beside an oracle, in virtual time.

Every cell is (load of loads.py) x (step length) x (period of an integrating counter), over several
seeds. The first quarter of each run is left out: a new job has to be learned. The oracle is the same
estimator, and knows the true parameters of the load and the exact instant of every refresh.

    bias        error of the sum over a run's steps: mean over the runs, its standard error, and the worst run
    coverage    share of truths within the 95 % interval, over all runs
    wrong       steps whose truth lies outside of the hard bounds

python -m benchmarks.windows.edges [--runs 8] [--seconds 20]
    [--loads ...] [--steps-ms ...] [--periods-ms ...] [--fast]
"""

import argparse

import numpy as np
from msgspec import Struct

from benchmarks.harness import table
from benchmarks.windows.__main__ import oracle
from benchmarks.windows.loads import EDGES, SEED, Name, load
from tests.simulation.played import Measured, counter, play

SKIPPED = 4
"""One part in so many of each run is left out, at its begin."""


class Run(Struct, frozen=True):
    """One run; figures in %."""

    bias: float
    error: float
    oracle_error: float | None
    covered: float
    half_width: float
    wrong: int


def run(name: Name, step_ms: int, period_ms: int, seed: int, seconds: float, *, beside: bool) -> Run:
    """Play one load and compare what was measured with the truth. ``beside``: with the oracle, too."""
    made = load(name, step_ms, max(40, round(seconds * 1000 / step_ms)), seed)
    shown = counter(made, period_ms * 1_000_000, seed=seed)
    steps, _ = play(made, shown)
    first = len(steps) // SKIPPED
    best_j = oracle(made, shown) if beside else None
    return _compared(steps[first:], None if best_j is None else best_j[first : len(steps)])


def _compared(steps: list[Measured], best_j: np.ndarray | None) -> Run:
    truth_j = np.array([step.truth_j for step in steps])
    ours_j, low_j, high_j = (
        np.array([getattr(step.answer, name) for step in steps]) / 1e6
        for name in ("energy_uj", "p2_5_uj", "p97_5_uj")
    )
    inside = (low_j - 1e-3 <= truth_j) & (truth_j <= high_j + 1e-3)
    wrong = [
        step
        for step in steps
        if step.answer.low_uj is not None
        and step.answer.high_uj is not None
        and not step.answer.low_uj <= step.truth_j * 1e6 <= step.answer.high_uj
    ]
    return Run(
        (ours_j.sum() / truth_j.sum() - 1) * 100,
        float(np.abs(ours_j / truth_j - 1).mean() * 100),
        None if best_j is None else float(np.abs(best_j / truth_j - 1).mean() * 100),
        float(inside.mean() * 100),
        float(((high_j - low_j) / truth_j).mean() * 50),
        len(wrong),
    )


def row(name: Name, step_ms: int, period_ms: int, options: argparse.Namespace) -> list[object]:
    """Return the figures of one cell, as text."""
    runs = [
        run(name, step_ms, period_ms, SEED + number, options.seconds, beside=not options.fast)
        for number in range(options.runs)
    ]
    bias = np.array([one.bias for one in runs])
    error = np.mean([one.error for one in runs])
    best = [one.oracle_error for one in runs if one.oracle_error is not None]
    return [
        *(name, f"{step_ms} ms", f"{period_ms} ms"),
        f"{bias.mean():+.2f} +- {bias.std(ddof=1) / len(bias) ** 0.5:.2f} %",
        f"{bias[np.abs(bias).argmax()]:+.2f} %",
        f"{error:.2f} %",
        *((f"{np.mean(best):.2f} %", f"{error / np.mean(best):.2f}") if best else ("", "")),
        f"{np.mean([one.covered for one in runs]):.1f} %",
        f"{np.mean([one.half_width for one in runs]):.2f} %",
        sum(one.wrong for one in runs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", nargs="+", default=list(EDGES))
    parser.add_argument("--steps-ms", type=int, nargs="+", default=[20, 50, 100, 500])
    parser.add_argument("--periods-ms", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--fast", action="store_true", help="without the oracle")
    options = parser.parse_args()
    table(
        f"Energy of single steps by the edges of the load, {options.runs} runs of {options.seconds:g} s"
        f" (at least 40 steps), seeds {SEED} to {SEED + options.runs - 1}",
        [
            "load",
            "step",
            "counter",
            "bias",
            "worst run",
            "error",
            "oracle",
            "ratio",
            "coverage",
            "half width",
            "wrong",
        ],
        [
            row(name, step_ms, period_ms, options)
            for name in options.loads
            for step_ms in options.steps_ms
            for period_ms in options.periods_ms
        ],
    )


if __name__ == "__main__":
    main()
