"""Times and energies of instructions at each clock, from their boundaries and an energy counter. Pure.

An instruction lasts some tens of milliseconds, a counter is refreshed about as seldom: no energy of one
instruction is ever read. Between two refreshes, however,

    energy = sum over kinds of (instructions of that kind) x (energy of one) + waiting power x waiting time

where an instruction counts with the share of it that lies between the refreshes. Many such windows give the
energies by non-negative least squares, for each stage apart: one unknown per kind and clock, and one for the
waiting power.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from analyzers.pipeline.frontier import ClockOption, PipelineProfile, StageKind
from analyzers.pipeline.solvers import Vector, non_negative_least_squares
from analyzers.results.pipeline_rows import InstructionRow
from zeus_stream.errors import RefusedError

_NORMAL_95 = 1.96
_MEDIAN_95 = 1.2533 * _NORMAL_95
"""Of a median, times the standard deviation and the root of the number of values (normal distribution)."""
_MAD = 1.4826
"""Standard deviation, times the median absolute deviation (normal distribution)."""
SMOOTH_FROM = 4
"""With so many measured clocks power is smoothed over the clock, and clocks between are options too."""


class InstructionSpan(Struct, frozen=True):
    """One instruction as it ran on its stage."""

    kind: str
    chunk: int
    begin_ns: int
    end_ns: int


class EnergyWindow(Struct, frozen=True):
    """Work of one stage between two refreshes of its energy counter, at one clock."""

    clock_mhz: int
    energy_j: float
    counts: tuple[tuple[tuple[str, int], float], ...]
    """Instructions by (kind, chunk); a part of one counts as a fraction."""
    waiting_s: float


def cut_windows(
    clock_mhz: int, spans: Sequence[InstructionSpan], refresh_ns: Sequence[int], energy_j: Sequence[float]
) -> list[EnergyWindow]:
    """Return the windows between refreshes of a counter within the spans of a stage, which ran at one clock.

    ``refresh_ns``: CLOCK_MONOTONIC, strictly increasing. ``energy_j``: the counter since each refresh.
    """
    if not spans:
        return []
    refresh, energy = np.asarray(refresh_ns, np.int64), np.asarray(energy_j, np.float64)
    within = (refresh >= spans[0].begin_ns) & (refresh <= spans[-1].end_ns)
    origin_ns = spans[0].begin_ns
    at, energy = (refresh[within] - origin_ns).astype(np.float64), energy[within]
    if len(at) < 2:
        return []
    names = sorted({(span.kind, span.chunk) for span in spans})
    counts, busy = {}, np.zeros(len(at) - 1)
    for name in names:
        own = [span for span in spans if (span.kind, span.chunk) == name]
        edges = np.array([[span.begin_ns - origin_ns, span.end_ns - origin_ns] for span in own], float)
        done = np.column_stack([np.arange(len(own)), np.arange(1, len(own) + 1)]).ravel()
        counts[name] = np.diff(np.interp(at, edges.ravel(), done, left=0.0))
        lengths = np.concatenate([[0.0], np.cumsum(edges[:, 1] - edges[:, 0])])
        spent = np.column_stack([lengths[:-1], lengths[1:]]).ravel()
        busy += np.diff(np.interp(at, edges.ravel(), spent, left=0.0))
    waiting = np.maximum(np.diff(at) - busy, 0.0) / 1e9
    return [
        EnergyWindow(
            clock_mhz,
            float(energy[row + 1] - energy[row]),
            tuple((name, float(counts[name][row])) for name in names),
            float(waiting[row]),
        )
        for row in range(len(at) - 1)
    ]


def fit_stage(
    run: str,
    stage: int,
    durations_s: Mapping[tuple[str, int, int], Sequence[float]],
    windows: Sequence[EnergyWindow],
) -> list[InstructionRow]:
    """Return what instructions of a stage take at each clock: median time, mean energy, 95 % intervals.

    ``durations_s``: by (kind, chunk, MHz); ``windows``: of all clocks.
    Raises RefusedError: fewer windows than unknowns. UnsupportedError: SciPy is not installed.
    """
    unknowns = sorted(durations_s)
    place = {name: column for column, name in enumerate(unknowns)}
    if len(windows) <= len(unknowns) + 1:
        raise RefusedError(
            f"pipeline: could not fit energies of stage {stage}: {len(windows)} windows for"
            f" {len(unknowns) + 1} unknowns. Run more iterations at each clock."
        )
    matrix = np.zeros((len(windows), len(unknowns) + 1))
    for row, window in enumerate(windows):
        for (kind, chunk), count in window.counts:
            matrix[row, place[kind, chunk, window.clock_mhz]] += count
        matrix[row, -1] = window.waiting_s
    energy_j = np.array([window.energy_j for window in windows])
    found = non_negative_least_squares(matrix, energy_j)
    error = _errors(matrix, energy_j - matrix @ found, found)
    measured = []
    for (kind, chunk, clock_mhz), column in place.items():
        lengths = np.asarray(durations_s[kind, chunk, clock_mhz], np.float64)
        usual_s, off_s = float(np.median(lengths)), _median_error(lengths)
        energy, off_j = float(found[column]), _NORMAL_95 * float(error[column])
        measured.append(
            InstructionRow(
                run=run,
                stage=stage,
                kind=kind,
                chunk=chunk,
                clock_mhz=clock_mhz,
                samples=len(lengths),
                time_s=usual_s,
                time_low_s=usual_s - off_s,
                time_high_s=usual_s + off_s,
                energy_j=energy,
                energy_low_j=max(energy - off_j, 0.0),
                energy_high_j=energy + off_j,
                waiting_w=float(found[-1]),
            )
        )
    return measured


def combine(rows: Sequence[InstructionRow], clocks_mhz: Sequence[int] = ()) -> PipelineProfile:
    """Return the profile of all stages for planning.

    Time is fitted as ``a + b / clock`` with a and b of at least 0: a lower clock is never faster, as plans
    assume. From SMOOTH_FROM clocks on, power is fitted as a square of the clock, and each clock of
    ``clocks_mhz`` within the measured span is an option too. The spread of an instruction is the same share
    of its time at each clock: the median of those measured.
    """
    spread_s: dict[StageKind, float] = {}
    options: dict[StageKind, tuple[ClockOption, ...]] = {}
    by_name: dict[StageKind, list[InstructionRow]] = {}
    waiting_w: dict[int, float] = {}
    for row in rows:
        by_name.setdefault((row.stage, row.kind, row.chunk), []).append(row)
        waiting_w[row.stage] = row.waiting_w
    for name, measured in by_name.items():
        options[name] = _options(sorted(measured, key=lambda each: -each.clock_mhz), clocks_mhz)
        shares = [
            (each.time_high_s - each.time_s) * sqrt(each.samples) / each.time_s
            for each in measured
            if each.samples > 1
        ]
        spread_s[name] = options[name][0].time_s * median(shares or [0.0]) / _MEDIAN_95
    return PipelineProfile(options, tuple(waiting_w[stage] for stage in sorted(waiting_w)), spread_s)


def _options(measured: Sequence[InstructionRow], clocks_mhz: Sequence[int]) -> tuple[ClockOption, ...]:
    mhz = np.array([each.clock_mhz for each in measured], float)
    top, low = mhz[0], mhz[-1]
    time_s = np.array([each.time_s for each in measured])
    time_fit = non_negative_least_squares(np.column_stack([np.ones(len(mhz)), top / mhz]), time_s)
    if len(measured) < SMOOTH_FROM:
        times = np.polynomial.polynomial.polyval(top / mhz, time_fit)
        return tuple(
            ClockOption(each.clock_mhz, float(time), each.energy_j)
            for each, time in zip(measured, times, strict=True)
        )
    power_w = np.array([each.energy_j for each in measured]) / time_s
    wanted = sorted({int(m) for m in mhz} | {c for c in clocks_mhz if low <= c <= top}, reverse=True)
    at = np.array(wanted, float) / top
    power_fit = np.polynomial.polynomial.polyfit(mhz / top, power_w, 2)
    times = np.polynomial.polynomial.polyval(1 / at, time_fit)
    powers = np.maximum(np.polynomial.polynomial.polyval(at, power_fit), 0.0)
    return tuple(
        ClockOption(clock, float(time), float(time * power))
        for clock, time, power in zip(wanted, times, powers, strict=True)
    )


def _median_error(values: NDArray[np.float64]) -> float:
    """Return half the 95 % interval of a median, by the median absolute deviation; infinite for one value."""
    if len(values) < 2:
        return float("inf")
    return _MEDIAN_95 * _MAD * float(np.median(np.abs(values - np.median(values)))) / sqrt(len(values))


def _errors(matrix: Vector, residuals: Vector, found: Vector) -> Vector:
    """Return the standard error of each unknown: least squares over those above zero; else infinite."""
    errors = np.full(len(found), np.inf)
    active = found > 0
    degrees = len(residuals) - int(active.sum())
    if not active.any() or degrees < 1:
        return errors
    part = matrix[:, active]
    covariance = np.linalg.pinv(part.T @ part) * float(residuals @ residuals) / degrees
    errors[active] = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return errors
