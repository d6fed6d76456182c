"""Energy of single steps against the truth of a virtual GPU, in virtual time.

First the loads of loads.py, counters of 100 and 20 ms, through sampler, schedule, timeline and
shape (tests/simulation/played.py): direct reads of the counter at both ends of each step (how Zeus measures),
straight lines between its changes, shaped by the events (what the archive holds), and an oracle: the same
estimator, which knows the load's true parameters and the exact instants of every change. All steps count,
also the first ones, of which nothing is known yet. Runs last 20 s, at least 40 steps.

    met         the error is at most the goal, or at most 1.05 times the oracle's
    bias        error of the sum over a run's steps: mean over the runs, and the worst run
    interval    share of truths within the 95 % interval, and half of its width

Then, through the whole interpreter (tests/simulation/world.py), a constant load.

python -m benchmarks.windows [--runs 4] [--seed 20260] [--loads prompt late ...] [--periods-ms ...]
    [--only-loads]
"""

import argparse
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from analyzers.measurement.energy import KnownEnergy, measure
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.power_model import PowerModel
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import WindowRow
from benchmarks.harness import table
from benchmarks.windows.loads import EDGES, NAMES, SEED, Load, Name, Truth, load
from benchmarks.windows.loads import STEPS_MS as LENGTHS_MS
from tests.simulation.played import Counter, Measured, counter, play
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.protocol.readings import READING_FIELDS, Readings, Seen

STEPS_MS = (20, 50, 100, 500, 5000)
GOALS = ("5 %", "5 %", "5 %", "1 %", "1 %")
PERIODS_MS = (20, 100)


def errors(step_ms: int, period_ms: int) -> tuple[float, float]:
    """Return the mean absolute error in % of step windows, and that of direct reads."""
    count = max(40, 20_000 // step_ms)
    device = f"simulated:a40x1,period_ms={period_ms},seed={step_ms}"
    world = World(device, Training("imagenet", step_ms / 1000 * 0.987, count), RunSettings(selector=None))
    world.run()
    [gpu] = world.hosts[0].gpus.values()
    rows = [row for row in world.rows(WindowRow) if row.kind == "step" and row.energy_j is not None]
    truths = np.array([gpu.device.energy_mj(row.begin_ns, row.end_ns) / 1000 for row in rows])
    ours = np.array([row.energy_j for row in rows])

    readings = [
        np.frombuffer(body.rows, list(READING_FIELDS))
        for _, body in world.frames
        if isinstance(body, Readings)
    ]
    changes = np.concatenate(readings)
    changes = changes[changes["seen"] == Seen.CHANGED]
    at = changes["t_lo_ns"].tolist()
    counter = [int(changes["energy_mj"][0]), *changes["energy_mj"].tolist()]
    direct = np.array(
        [counter[bisect_right(at, row.end_ns)] - counter[bisect_right(at, row.begin_ns)] for row in rows]
    )
    return float(np.mean(np.abs(ours / truths - 1)) * 100), float(
        np.mean(np.abs(direct / 1000 / truths - 1)) * 100
    )


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


class Errors(Struct, frozen=True):
    """Errors of the steps of one run against the truth; figures in %."""

    bias: float
    mean: float
    inside: float
    half_width: float


def errors_of(steps: Sequence[Measured]) -> Errors:
    """Compare what was measured with the truth."""
    truth_uj, ours_uj, low_uj, high_uj = np.array(
        [(1e6 * one.truth_j, one.answer.energy_uj, one.answer.p2_5_uj, one.answer.p97_5_uj) for one in steps]
    ).T
    return Errors(
        float(ours_uj.sum() / truth_uj.sum() - 1) * 100,
        float(np.abs(ours_uj / truth_uj - 1).mean()) * 100,
        float(((low_uj - 1e3 <= truth_uj) & (truth_uj <= high_uj + 1e3)).mean()) * 100,
        float(((high_uj - low_uj) / truth_uj).mean()) * 50,
    )


class Run(Struct, frozen=True, kw_only=True):
    """One run of a load; figures in %."""

    direct: float
    lines: float
    oracle: float
    shaped: Errors


def run(name: Name, step_ms: int, period_ms: int, seed: int) -> Run:
    """Play one load, and compare what was measured with the truth."""
    made = load(name, step_ms, None, seed)
    shown = counter(made, period_ms * 1_000_000, seed=seed - SEED)
    steps, meter = play(made, shown)
    begin_ns, end_ns = (np.array([getattr(s, edge) for s in steps]) for edge in ("begin_ns", "end_ns"))
    truth_j = np.array([step.truth_j for step in steps])
    straight = measure(meter.timeline, begin_ns.tolist(), end_ns.tolist())
    lines_j = np.array([a.energy_uj / 1e6 if isinstance(a, KnownEnergy) else np.nan for a in straight])
    direct_j = (shown.read_mj(end_ns) - shown.read_mj(begin_ns)) / 1e3

    def error(energy_j: np.ndarray) -> float:
        return float(np.nanmean(np.abs(energy_j / truth_j - 1)) * 100)

    best = error(oracle(made, shown)[: len(steps)])
    return Run(direct=error(direct_j), lines=error(lines_j), oracle=best, shaped=errors_of(steps))


def accuracy(name: Name, step_ms: int, period_ms: int, seeds: range) -> list[str]:
    """Return the figures of one cell, as text: means over runs."""
    runs = [run(name, step_ms, period_ms, seed) for seed in seeds]
    direct, lines, best, shaped, inside, half_width = np.mean(
        [
            (one.direct, one.lines, one.oracle, each.mean, each.inside, each.half_width)
            for one in runs
            for each in [one.shaped]
        ],
        axis=0,
    ).tolist()
    bias = np.array([one.shaped.bias for one in runs])
    goal = ACCURACY[period_ms].get(name, {}).get(step_ms)
    met = goal is not None and (shaped <= goal or shaped <= NEAR_ORACLE * best)
    return [
        f"{direct:.1f} %",
        f"{lines:.2f} %",
        f"{shaped:.3f} %",
        f"{best:.3f} %",
        f"{shaped / best:.2f}" if name == "noisy" else "",
        "" if goal is None else f"{goal:g} %",
        "" if goal is None else ("yes" if met else "no"),
        f"{bias.mean():+.2f} %",
        f"{bias[np.abs(bias).argmax()]:+.2f} %",
        f"{inside:.1f} %",
        f"{half_width:.2f} %",
    ]


def oracle(made: Load, shown: Counter) -> np.ndarray:
    """Return the energies of the steps, J, from the parameters and the instants of all changes."""
    gaps_s = np.diff(made.steps_ns.ravel())[1::2] / 1e9
    steps, _ = play(made, shown, EnergyFit(Oracle(made.truth, float(gaps_s.mean()))), exact=True)
    return np.array([step.answer.energy_uj for step in steps]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--loads", nargs="+", default=list(NAMES), choices=(*NAMES, *EDGES))
    parser.add_argument("--periods-ms", type=int, nargs="+", default=list(ACCURACY), choices=list(ACCURACY))
    parser.add_argument("--only-loads", action="store_true", help="without the interpreter")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    head = ["load", "counter", "step", "direct reads", "straight lines", "shaped", "oracle", "of oracle"]
    table(
        f"Energy of single steps, mean absolute error, seeds {seeds[0]} to {seeds[-1]}",
        [*head, "goal", "met", "bias", "worst run", "in 95 % interval", "its half width"],
        [
            [name, f"{period_ms} ms", f"{step_ms} ms", *accuracy(name, step_ms, period_ms, seeds)]
            for period_ms in options.periods_ms
            for name in options.loads
            for step_ms in LENGTHS_MS[name]
        ],
    )
    if not options.only_loads:
        interpreted()


def interpreted() -> None:
    """Print the table of a constant load, through the whole interpreter."""
    rows = []
    for step_ms, goal in zip(STEPS_MS, GOALS, strict=True):
        row: list[str] = [f"{step_ms} ms"]
        for period_ms in PERIODS_MS:
            ours, direct = errors(step_ms, period_ms)
            row += [f"{ours:.2f} %", f"{direct:.2f} %"]
        rows.append([*row, goal])
    head = ["step"]
    for period_ms in PERIODS_MS:
        head += [f"{period_ms} ms counter", "direct reads of it"]
    table("Energy of steps at constant load, mean absolute error", [*head, "goal at 100 ms"], rows)


if __name__ == "__main__":
    main()
