"""Steps by kind of counter, length and load: bias, error, intervals, bounds, also of kinds not tuned on.

Each cell plays a load of loads.py in virtual time to a counter whose kind the analyzer does not know, over
several seeds. Kinds are PERIOD/WINDOW in ms: 20/10, 100/25 and 100/23 are published (V100, A100, H100);
50/20, 100/60, 33/11 and 100/12 are not. PERIOD alone is a counter that integrates.

    kind        what was stated of the counter at the end: right, open or wrong, in how many runs
    bias        error of the sum over a run's steps, with its sign: mean over the runs, and the worst run
    coverage    share of truths within the 95 % interval, over all runs, and in the worst run
    false       steps whose truth lies outside of hard bounds, of those that have them

python -m benchmarks.windows.coverage [--runs 4] [--seconds 20] [--kinds 20/10 100] [--loads ...]
    [--steps-ms ...] [--skip 0.25] [--wait] [--known]
"""

import argparse

import numpy as np
from msgspec import Struct

from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.windows import UNDECIDED_NS
from benchmarks.harness import table
from benchmarks.windows.__main__ import Errors, errors_of
from benchmarks.windows.loads import EDGES, NAMES, SEED, Name, load
from tests.simulation.played import counter, play

KINDS = ("20/10", "100/25", "100/23", "50/20", "100/60", "33/11", "100/12", "20", "100", "50")
MS = 1_000_000


class Run(Struct, frozen=True):
    """One run of a cell; figures in %."""

    kind: str
    shaped: Errors
    bounded: int
    false: int


def run(name: Name, step_ms: int, kind: str, seed: int, options: argparse.Namespace) -> Run:
    """Play one load, and compare what was measured with the truth."""
    period_ms, _, window_ms = kind.partition("/")
    window_ns = int(window_ms) * MS if window_ms else None
    made = load(name, step_ms, max(40, round(options.seconds * 1000 / step_ms)), seed)
    shown = counter(made, int(period_ms) * MS, window_ns, seed=seed)
    shape, right = EnergyFit(), "boxcar" if window_ms else "integrating"
    if options.known:
        shape.remember("boxcar" if window_ms else "integrating", window_ns)
    else:
        shape.suspect(window_ns or 25 * MS)
    steps, meter = play(made, shown, shape, waits_ns=UNDECIDED_NS if options.wait else 0)
    skipped = round(options.skip * len(steps))
    steps = steps[skipped:]
    hard = [
        (one.truth_j * 1e6, one.answer.low_uj, one.answer.high_uj)
        for one in steps
        if one.answer.low_uj is not None and one.answer.high_uj is not None
    ]
    found = meter.shape.kind
    return Run(
        "open" if found is None else ("right" if found == right else "wrong"),
        errors_of(steps),
        len(hard),
        sum(not low - 1 <= truth <= high + 1 for truth, low, high in hard),
    )


def row(name: Name, step_ms: int, kind: str, options: argparse.Namespace) -> list[object]:
    """Return the figures of one cell, as text."""
    runs = [run(name, step_ms, kind, options.seed + number, options) for number in range(options.runs)]
    bias = np.array([one.shaped.bias for one in runs])
    kinds = [one.kind for one in runs]
    return [
        *(name, f"{step_ms} ms", kind),
        ", ".join(f"{kinds.count(each)} {each}" for each in ("right", "open", "wrong") if each in kinds),
        f"{bias.mean():+.2f} %",
        f"{bias[np.abs(bias).argmax()]:+.2f} %",
        f"{np.mean([one.shaped.mean for one in runs]):.2f} %",
        f"{np.mean([one.shaped.inside for one in runs]):.1f} %",
        f"{min(one.shaped.inside for one in runs):.1f} %",
        f"{np.mean([one.shaped.half_width for one in runs]):.2f} %",
        f"{sum(one.false for one in runs)} of {sum(one.bounded for one in runs)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--loads", nargs="+", default=["clean", "noisy"], choices=(*NAMES, *EDGES))
    parser.add_argument("--steps-ms", type=int, nargs="+", default=[20, 50, 100, 170, 500])
    parser.add_argument("--skip", type=float, default=0.25, help="share of a run that is left out")
    parser.add_argument("--wait", action="store_true", help="steps wait for the kind, 10 s at most")
    parser.add_argument("--known", action="store_true", help="an earlier run has found the kind")
    options = parser.parse_args()
    head = "load | step | kind of counter | kind | bias | worst run | error"
    head += " | coverage | worst run | half width | false bounds"
    table(
        f"Steps by kind of counter, {options.runs} runs of {options.seconds:g} s, seeds from {options.seed}",
        head,
        [
            row(name, step_ms, kind, options)
            for kind in options.kinds
            for name in options.loads
            for step_ms in options.steps_ms
        ],
    )


if __name__ == "__main__":
    main()
