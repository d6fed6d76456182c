"""Energy of single steps against the truth of a virtual GPU, in virtual time.

The loads of loads.py, through sampler, schedule, timeline and shape (tests/simulation/played.py): direct
reads of the counter at both ends of each step (how Zeus measures), straight lines between its changes, shaped
by the events (what the archive holds), and for counters that integrate an oracle: the same estimator, which
knows the load's true parameters and the exact instants of every change. Runs last 20 s, or ``--seconds``, at
least 40 steps.

Counters are PERIOD/WINDOW in ms: 20/10, 100/25 and 100/23 are published (V100, A100, H100). PERIOD alone is a
counter that integrates. Their kind is known, or (``--unknown``) is to be found: then the first quarter of a
run is left out.

    met         the error is at most the goal, or at most 1.05 times the oracle's
    bias        error of the sum over a run's steps, with its sign: mean over the runs, its root mean square,
                and the worst run
    interval    share of truths within the 95 % interval, over all runs and in the worst, and half its width
    false       steps whose truth lies outside of hard bounds, of those that have them
    kind        what was stated of the counter at the end: right, open or wrong, in how many runs

python -m benchmarks.windows [--runs 4] [--seed 20260] [--loads prompt late ...] [--steps-ms 20 ...]
    [--counters 100 20 20/10 ...] [--seconds 20] [--unknown]
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
from msgspec import Struct

from analyzers.measurement.energy import KnownEnergy, measure
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.power_model import PowerModel
from benchmarks.harness import options, table
from tests.simulation.loads import EDGES, NAMES, SEED, STEPS_MS, Load, Name, Truth, load
from tests.simulation.played import Counter, Measured, counter, play

MS = 1_000_000
UNKNOWN_NS = 25 * MS
"""The window that a counter is suspected of while its kind is unknown."""
LEFT_OUT = 0.25
"""The part of a run before its kind can be known."""
_STEADY = {
    "constant": {20: 0.3, 50: 0.2, 100: 0.1, 500: 0.02},
    "clean": {20: 1.0, 50: 0.2, 100: 0.1, 500: 0.02},
}
ACCURACY: dict[int, dict[str, dict[int, float]]] = {
    100: {**_STEADY, "noisy": {20: 6.0, 50: 3.5, 100: 1.5, 500: 0.2}},
    20: {**_STEADY, "noisy": {20: 1.5, 50: 0.5, 100: 0.2, 500: 0.05}},
}
"""Goals in %, by period of the counter (ms), load, and length of a step (ms)."""
NEAR_ORACLE = 1.05


class Oracle(PowerModel):
    """Learns nothing: it knows what the load was drawn from."""

    def __init__(self, truth: Truth, gap_s: float) -> None:
        super().__init__()
        rise_w = (truth.step_mw - truth.gap_mw) / 1e3
        falls_ns = truth.fall_ramp_ns or truth.ramp_ns

        def late_s(late_ns: tuple[int, int], ramp_ns: tuple[int, int]) -> tuple[float, float]:
            """Return mean and deviation of how late power is, half a ramp included."""
            mean_s = (np.mean(late_ns) + np.mean(ramp_ns) / 2) / 1e9
            return float(mean_s), float(np.hypot(np.ptp(late_ns), np.ptp(ramp_ns) / 2) / 12**0.5 / 1e9)

        rises, falls = late_s(truth.late_ns, truth.ramp_ns), late_s(truth.fall_late_ns, falls_ns)
        self._power_w = {"step": truth.step_mw / 1e3, "gap": truth.gap_mw / 1e3}
        self._swing = truth.swing / 3**0.5
        self._change_j = {
            "step": (-rises[0] * rise_w, rises[1] * rise_w),
            "gap": (min(falls[0], gap_s / 2) * rise_w, falls[1] * rise_w),
        }

    def parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        mean, var = np.zeros(len(self)), np.full(len(self), 1e-9)
        for states, number in self.known.items():
            phase = states[-1][-1].rsplit("/")[-1]
            where = "step" if phase == "step" else "gap"
            if len(states) == 1:
                mean[number] = self._power_w[where]
                var[number] += (self._swing * self._power_w[where]) ** 2
            elif phase in self._change_j:
                mean[number], deviation = self._change_j[where]
                var[number] += deviation**2
        return mean, np.zeros((len(self), len(self))), var, np.full(len(self), 1e-9)


class Run(Struct, frozen=True, kw_only=True):
    """One run of a load; figures in %."""

    kind: str
    direct: float
    lines: float
    oracle: float
    """NaN of a counter that sees a part of the time."""
    error: float
    bias: float
    inside: float
    half_width: float
    bounded: int
    """Steps that have hard bounds; ``false``: those of them that are outside."""
    false: int


def run(name: Name, step_ms: int, sensor: str, seed: int, *, seconds: int, unknown: bool) -> Run:
    """Play one load, and compare what was measured with the truth."""
    period_ms, _, window_ms = sensor.partition("/")
    window_ns = int(window_ms) * MS if window_ms else None
    made = load(name, step_ms, max(40, 1_000 * seconds // step_ms), seed)
    shown = counter(made, int(period_ms) * MS, window_ns, seed=seed)

    shape = EnergyFit()
    if unknown:
        shape.suspect(window_ns or UNKNOWN_NS)
    elif window_ns:
        shape.remember("boxcar", window_ns)
    steps, meter = play(made, shown, shape)
    steps = steps[round(LEFT_OUT * len(steps)) if unknown else 0 :]
    kind, right = shape.kind, "boxcar" if window_ns else "integrating"
    begin_ns, end_ns, truth_j = (
        np.array([getattr(step, each) for step in steps]) for each in ("begin_ns", "end_ns", "truth_j")
    )
    straight = measure(meter.timeline, begin_ns.tolist(), end_ns.tolist())
    lines_j = np.array([a.energy_uj / 1e6 if isinstance(a, KnownEnergy) else np.nan for a in straight])
    ours_uj, low_uj, high_uj = np.array(
        [(one.answer.energy_uj, one.answer.p2_5_uj, one.answer.p97_5_uj) for one in steps]
    ).T

    def error(energy_j: np.ndarray) -> float:
        return float(np.nanmean(np.abs(energy_j / truth_j - 1)) * 100)

    truth_uj = 1e6 * truth_j
    bounds = [(one.answer.low_uj, one.truth_j * 1e6, one.answer.high_uj) for one in steps]
    hard = [(low, true, high) for low, true, high in bounds if low is not None and high is not None]
    return Run(
        kind="open" if kind is None else ("right" if kind == right else "wrong"),
        direct=error((shown.read_mj(end_ns) - shown.read_mj(begin_ns)) / 1e3),
        lines=error(lines_j),
        oracle=np.nan if window_ns else error(oracle(made, shown, steps)),
        error=error(ours_uj / 1e6),
        bias=float(ours_uj.sum() / 1e6 / truth_j.sum() - 1) * 100,
        inside=float(((low_uj - 1e3 <= truth_uj) & (truth_uj <= high_uj + 1e3)).mean()) * 100,
        half_width=float(((high_uj - low_uj) / truth_uj).mean()) * 50,
        bounded=len(hard),
        false=sum(not low - 1 <= true <= high + 1 for low, true, high in hard),
    )


def oracle(made: Load, shown: Counter, steps: Sequence[Measured]) -> np.ndarray:
    """Return the energies of steps, J, from the parameters and the instants of all changes."""
    gaps_s = np.diff(made.steps_ns.ravel())[1::2] / 1e9
    found, _ = play(made, shown, EnergyFit(Oracle(made.truth, float(gaps_s.mean()))), exact=True)
    known = {step.begin_ns: step.answer.energy_uj / 1e6 for step in found}
    return np.array([known.get(step.begin_ns, np.nan) for step in steps])


def row(name: Name, step_ms: int, kind: str, runs: Sequence[Run]) -> list[object]:
    """Return the figures of one cell, as text: means over runs."""
    figures = ("direct", "lines", "error", "oracle", "inside", "half_width")
    direct, lines, error, best, inside, half_width = (
        float(np.mean([getattr(one, each) for one in runs])) for each in figures
    )
    bias, kinds = np.array([one.bias for one in runs]), [one.kind for one in runs]
    goal = ACCURACY[int(kind)].get(name, {}).get(step_ms) if kind in ("20", "100") else None
    met = goal is not None and (error <= goal or error <= NEAR_ORACLE * best)
    return [
        *(name, kind, step_ms, f"{direct:.1f}", f"{lines:.2f}", f"{error:.3f}"),
        "" if np.isnan(best) else f"{best:.3f}",
        "" if goal is None else f"{goal:g}",
        "" if goal is None else ("yes" if met else "no"),
        *(f"{bias.mean():+.2f}", f"{bias[np.abs(bias).argmax()]:+.2f}"),
        *(f"{inside:.1f}", f"{min(one.inside for one in runs):.1f}", f"{half_width:.2f}"),
        f"{sum(one.false for one in runs)} of {sum(one.bounded for one in runs)}",
        ", ".join(f"{kinds.count(each)} {each}" for each in ("right", "open", "wrong") if each in kinds),
    ]


def main() -> None:
    given = options(
        __doc__, choices={"loads": (*NAMES, *EDGES, "epochs")}, runs=4, seed=SEED, loads=NAMES,
        steps_ms=[int], counters=["100", "20"], seconds=20, unknown=False,
    )  # fmt: skip
    seeds = range(given.seed, given.seed + given.runs)
    rows = []
    for kind, name in product(given.counters, given.loads):
        for step_ms in given.steps_ms or STEPS_MS[name]:
            runs = [
                run(name, step_ms, kind, seed, seconds=given.seconds, unknown=given.unknown) for seed in seeds
            ]
            rows.append(row(name, step_ms, kind, runs))
    head = "load | counter, ms | step, ms | direct reads | straight lines | shaped | oracle | goal | met"
    head += " | bias | worst run | in 95 % interval | worst run | its half width | false bounds | kind"
    table(f"Energy of single steps, %: mean absolute error, seeds {seeds[0]} to {seeds[-1]}", head, rows)


if __name__ == "__main__":
    main()
