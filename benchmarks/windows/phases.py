"""Joules of the phases of a step against the truth of a virtual GPU, in virtual time; and what a mark costs.

python -m benchmarks.windows.phases [--runs 6] [--minutes 5] [--swing 5] [--long 10]

Steps of about 25 ms of five phases. Each phase of each step draws its own power (+-SWING %, uniform) and
length (+-LONG %, uniform); power follows each mark after 0 to 1 ms, in a ramp of 1 ms. A counter of 100
ms is read by the sampler and its schedule, and goes through timeline and tracker
(tests/simulation/played.py). The truth of a phase is the exact integral between its marks, in the same
refreshes. Lags and priors of the model were chosen before this was run; nothing was tuned on its seeds
but the load itself.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import count as count_from
from typing import Any

import numpy as np

from analyzers.measurement.energy import Meter
from analyzers.measurement.energy_fit import Shape
from analyzers.measurement.phases.phase_tracker import PhaseTracker
from analyzers.measurement.timeline import Timeline
from analyzers.measurement.windows import Owner
from analyzers.results.windows.window_rows import PhaseRow
from benchmarks.harness import table
from tests.simulation.played import Counter, readings
from zeus_stream.protocol.phases import PhasesRan, pack_marks
from zeus_stream.training.hooks import WindowHooks
from zeus_stream.training.steps.phase_recorder import PhaseRecorder

NAMES = ("data", "forward", "backward", "optimizer", "communication")
LENGTH_MS = np.array([3.0, 7.0, 9.0, 4.0, 2.0])
POWER_W = np.array([90.0, 260.0, 300.0, 220.0, 150.0])
REST_NS = 1_000_000_000
LATE_NS, RAMP_NS, JITTER_NS = 1_000_000, 1_000_000, 200_000
MARKS = 50
"""Marks of an event: a quarter of a second."""
SEED = 20_270


class Steps:
    """Steps of phases, and the power all the while."""

    def __init__(self, seed: int, seconds: float, swing: float, long: float) -> None:
        rng, count = np.random.default_rng(seed), int(seconds / LENGTH_MS.sum() * 1e3)
        shape = count, len(NAMES)
        length_ns = LENGTH_MS * (1 + long * rng.uniform(-1, 1, shape)) * 1e6
        power_w = (POWER_W * (1 + swing * rng.uniform(-1, 1, shape))).ravel()
        self.marks_ns = (REST_NS + np.concatenate(([0], np.cumsum(length_ns)))).astype(np.int64)
        moves_ns = self.marks_ns[:-1] + (LATE_NS * rng.uniform(0, 1, len(power_w))).astype(np.int64)
        before_w = np.concatenate(([POWER_W[0]], power_w[:-1]))
        inner_ns = np.stack((moves_ns, moves_ns + RAMP_NS), axis=1).ravel()
        self._t_ns = np.concatenate(([0], inner_ns, [self.marks_ns[-1] + REST_NS]))
        self._w = np.concatenate(([POWER_W[0]], np.stack((before_w, power_w), axis=1).ravel(), power_w[-1:]))
        self._j = np.concatenate(
            ([0.0], np.cumsum(np.diff(self._t_ns) / 1e9 * (self._w[1:] + self._w[:-1]) / 2))
        )

    def used_j(self, t_ns: np.ndarray) -> np.ndarray:
        """Return the exact energy until instants."""
        left = np.clip(self._t_ns.searchsorted(t_ns, side="right") - 1, 0, len(self._t_ns) - 2)
        part = (t_ns - self._t_ns[left]) / (self._t_ns[left + 1] - self._t_ns[left])
        now_w = self._w[left] + part * (self._w[left + 1] - self._w[left])
        used: np.ndarray = self._j[left] + (t_ns - self._t_ns[left]) / 1e9 * (self._w[left] + now_w) / 2
        return used

    def counter(self, period_ns: int, seed: int) -> Counter:
        """Return a counter that integrates."""
        rng, count = np.random.default_rng([seed, 1]), int(self._t_ns[-1]) // period_ns
        t_ns = np.arange(1, count) * period_ns + rng.integers(-JITTER_NS, JITTER_NS, count - 1)
        return Counter(t_ns, (self.used_j(t_ns) * 1e3).astype(np.int64))

    def events(self) -> Iterator[PhasesRan]:
        """Yield the marks, as a script would send them."""
        numbers = [*np.tile(np.arange(1, len(NAMES) + 1), len(self.marks_ns) // len(NAMES)).tolist(), 0]
        marks = list(zip(self.marks_ns.tolist(), numbers, strict=True))
        for at in range(0, len(marks), MARKS):
            part = marks[at : at + MARKS]
            yield PhasesRan(part[0][0], NAMES, pack_marks(part[0][0], part))


def played(steps: Steps, shown: Counter) -> list[PhaseRow]:
    """Return the last rows of the phases of a run."""
    meter = Meter(Timeline(), Shape())
    tracker = PhaseTracker(Owner("session", "run", "job", 0, "host"))
    events, rows = steps.events(), list[PhaseRow]()
    event: PhasesRan | None = next(events)
    frames = readings(shown, int(steps.marks_ns[-1]) + REST_NS)
    for number, (now_ns, read) in enumerate(frames, start=1):
        if len(read):
            meter.timeline.add(read)
        if meter.timeline.crowded:
            meter.timeline.forget([])
        while event is not None and event.t_ns < now_ns - 300_000_000:
            tracker.take(event)
            event = next(events, None)
        rows = tracker.measure({"gpu": meter}, now_ns, ended=number == len(frames)) or rows
    return rows


def compared(steps: Steps, rows: list[PhaseRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, by phase, energy over truth less 1, whether the interval holds the truth, and its
    half width."""
    truth_j = np.diff(steps.used_j(steps.marks_ns))
    found = {row.phase: row for row in rows}
    error, inside, half = [], [], []
    for place, name in enumerate(NAMES):
        row, each_j = found[name], truth_j[place :: len(NAMES)]
        took_s = np.diff(steps.marks_ns)[place :: len(NAMES)].sum() / 1e9
        true_j = each_j.sum() * row.duration_s / took_s  # some refreshes at both ends are left out
        if row.energy_j is None or row.energy_p2_5_j is None or row.energy_p97_5_j is None:
            for figures in (error, inside, half):
                figures.append(np.nan)
            continue
        error.append(row.energy_j / true_j - 1)
        inside.append(row.energy_p2_5_j <= true_j <= row.energy_p97_5_j)
        half.append((row.energy_p97_5_j - row.energy_p2_5_j) / 2 / true_j)
    return np.array(error), np.array(inside, float), np.array(half)


def _ignore(*_: object) -> Any:
    return None


def mark_us(count: int = 20_000) -> tuple[float, float]:
    """Return the cost of a mark and of a clock read with an append, us: medians of seven."""
    hooks = WindowHooks(numbers=count_from(), put=_ignore, warn=_ignore, energy=_ignore, later=_ignore)
    recorder, kept = PhaseRecorder(hooks), list[int]()
    marks, floor = [], []
    for _ in range(7):
        begin = time.thread_time()
        for _ in range(count):
            with recorder.phase("forward"):
                pass
        marks.append((time.thread_time() - begin) / count / 2 * 1e6)
        begin = time.thread_time()
        for _ in range(count):
            kept.append(time.monotonic_ns())
        floor.append((time.thread_time() - begin) / count * 1e6)
        kept.clear()
    return statistics.median(marks), statistics.median(floor)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=6)
    arguments.add_argument("--minutes", type=float, default=5)
    arguments.add_argument("--swing", type=float, default=5)
    arguments.add_argument("--long", type=float, default=10)
    given = arguments.parse_args()
    found = []
    for seed in range(SEED, SEED + given.runs):
        steps = Steps(seed, given.minutes * 60, given.swing / 100, given.long / 100)
        found.append(compared(steps, played(steps, steps.counter(100_000_000, seed))))
    error, inside, half = (np.array(each) * 100 for each in zip(*found, strict=True))
    rows = [
        [
            name,
            f"{LENGTH_MS[place]:g} ms, {POWER_W[place]:g} W",
            f"{np.isfinite(error[:, place]).sum()} of {given.runs}",
            f"{np.nanmean(error[:, place]):+.1f} %",
            f"{np.nanmean(np.abs(error[:, place])):.1f} %",
            f"{np.nanmax(np.abs(error[:, place])):.1f} %",
            f"{np.nanmean(half[:, place]):.1f} %",
            f"{np.nanmean(inside[:, place]):.0f} %",
        ]
        for place, name in enumerate(NAMES)
    ]
    what = (
        f"{given.runs} runs of {given.minutes:g} min, power +-{given.swing:g} %, lengths +-{given.long:g} %"
    )
    head = [
        "phase",
        "of a step",
        "identified",
        "bias",
        "mean error",
        "largest",
        "half of the interval",
        "holds the truth",
    ]
    table(f"Joules of phases of 25 ms steps, counter of 100 ms, {what}", head, rows)
    cost, floor = mark_us()
    table(
        "Cost of a mark in the training thread",
        ["a mark", "a clock read and an append"],
        [[f"{cost:.2f} us", f"{floor:.2f} us"]],
    )


if __name__ == "__main__":
    main()
