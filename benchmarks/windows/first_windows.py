"""Energy of the first seconds of a job on a GPU whose counter may see a part of the time, in virtual time.

The kind of such a counter (a V100's, A100's or H100's) is not known when the first job begins. Each cell is a
load of benchmarks/windows/loads.py with a counter that integrates or a boxcar, over several seeds:

    at once       steps are measured each second, whatever is known (as windows, epochs and answers are)
    waiting       steps wait until the kind is known, 10 s at most (as steps are)
    remembered    an earlier run has shown the kind

    error         mean absolute error of steps that ended in the first seconds
    sum           error of their sum, mean over runs of its absolute value
    coverage      share of truths within the 95 % interval; half width: of that interval

python -m benchmarks.windows.first_windows [--runs 5] [--first 3] [--seconds 14]
"""

import argparse

import numpy as np

from analyzers.measurement.energy_fit import Shape
from analyzers.measurement.windows import UNDECIDED_NS
from benchmarks.harness import table
from benchmarks.windows.loads import SEED, Name, load
from tests.simulation.played import counter, play

CELLS: tuple[tuple[Name, int], ...] = (("clean", 70), ("noisy", 50), ("noisy", 130))
COUNTERS_MS: tuple[tuple[int, int, int | None], ...] = (
    (100, 25, None),
    (100, 25, 25),
    (20, 10, None),
    (20, 10, 10),
)
"""Period, window by the model of the GPU, and the window that it has; None: it integrates."""
WAYS = ("at once", "waiting", "remembered")


def shape_of(way: str, known_ms: int, true_ms: int | None) -> Shape:
    """Return what is known of a GPU when its job begins."""
    shape = Shape()
    if way == "remembered":
        shape.remember("integrating" if true_ms is None else "boxcar", true_ms and true_ms * 1_000_000)
    else:
        shape.suspect(known_ms * 1_000_000)
    return shape


def figures(
    name: Name,
    step_ms: int,
    counter_ms: tuple[int, int, int | None],
    way: str,
    seed: int,
    options: argparse.Namespace,
) -> tuple[float, float, float, float]:
    """Return error, error of the sum, coverage and half width of one run, %."""
    period_ms, known_ms, true_ms = counter_ms
    made = load(name, step_ms, round(options.seconds * 1000 / step_ms), seed)
    shown = counter(made, period_ms * 1_000_000, true_ms and true_ms * 1_000_000, seed=seed)
    waits_ns = UNDECIDED_NS if way == "waiting" else 0
    steps, _ = play(made, shown, shape_of(way, known_ms, true_ms), waits_ns=waits_ns)
    until_ns = steps[0].begin_ns + options.first * 1e9
    first = [step for step in steps if step.end_ns <= until_ns]
    truth = np.array([step.truth_j for step in first]) * 1e6
    ours, low, high = (
        np.array([getattr(step.answer, key) for step in first])
        for key in ("energy_uj", "p2_5_uj", "p97_5_uj")
    )
    return (
        np.abs(ours / truth - 1).mean() * 100,
        abs(ours.sum() / truth.sum() - 1) * 100,
        ((low - 1 <= truth) & (truth <= high + 1)).mean() * 100,
        ((high - low) / truth).mean() * 50,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=14)
    options = parser.parse_args()
    rows = []
    for name, step_ms in CELLS:
        for counter_ms in COUNTERS_MS:
            kind = "integrating" if counter_ms[2] is None else f"boxcar {counter_ms[2]} ms"
            for way in WAYS:
                found = np.array(
                    [
                        figures(name, step_ms, counter_ms, way, SEED + run, options)
                        for run in range(options.runs)
                    ]
                )
                rows.append(
                    [
                        name,
                        f"{step_ms} ms",
                        f"{counter_ms[0]} ms, {kind}",
                        way,
                        *(f"{each:.1f} %" for each in found.mean(axis=0)),
                    ]
                )
    head = ["load", "step", "counter", "measured", "error", "sum", "coverage", "half width"]
    table(
        f"Steps of the first {options.first:g} s of a job, {options.runs} runs, seeds from {SEED}", head, rows
    )


if __name__ == "__main__":
    main()
