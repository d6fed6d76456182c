"""The gain of a GPU's sensor: fitted against a meter, and divided out of energies. Pure.

    shown power = gain x true power + offset

Cards of one model differ by a few percent (Yang, Adamek and Armour, SC24); the same card hardly does.
"""

import csv
import re
from typing import Any

import numpy as np
from msgspec import Struct

from analyzers.measurement.energy import KnownEnergy, Z, measure
from analyzers.measurement.knots import Floats, Ints
from analyzers.measurement.sensors import PRIOR, PRIOR_OFFSET_W, Gain
from analyzers.measurement.timeline import Timeline
from zeus_stream.bench.student import student_quantile
from zeus_stream.errors import RefusedError

WINDOW_NS = 1_000_000_000
"""Mean power over so much is compared, or over ten samples of the meter if that is longer."""
LEAST_WINDOWS = 2
ENOUGH_WINDOWS = 10
"""With fewer, what is published of sensors counts beside them, and an offset is not fitted but feared."""
_LEAST_NOISE = 0.002
"""Of the mean power: windows of a short record that agree by chance do not agree better."""
SURE = 2.58
"""Standard errors by which an offset must differ from 0 to be believed: 99 %."""
LEAST_GAIN, MOST_GAIN = 0.5, 2.0
"""Outside, it is not the meter of this GPU."""
_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WATT = {"w": 1, "mw": 10**3}


class Record(Struct, frozen=True):
    """A meter's record; shape (n,) each."""

    t_ns: Ints
    """Since 1970, rising."""
    power_w: Floats
    columns: str
    """As the record names them."""

    def energy_j(self, begin_ns: Ints, end_ns: Ints) -> Floats:
        """Return the energy of intervals within the record, by trapezoids."""
        used_j = np.diff(self.t_ns) / 1e9 * (self.power_w[1:] + self.power_w[:-1]) / 2
        counted_j = np.concatenate(([0.0], np.cumsum(used_j)))
        until: Floats = np.interp(end_ns, self.t_ns, counted_j)
        return until - np.interp(begin_ns, self.t_ns, counted_j)


def read_meter(text: str, source: str) -> Record:
    """Return a record in CSV: columns ``t_UNIT`` since 1970 (s, ms, us, ns) and ``power_UNIT`` (w, mw).

    Raises RefusedError: it is none; the sentence says what is wrong.
    """

    def refuse(why: str) -> RefusedError:
        wanted = "Give a CSV with the columns t_us (since 1970) and power_mw, or t_s and power_w."
        return RefusedError(f"{source}: could not be read as a meter's record: {why}. {wanted}")

    header, *lines = list(csv.reader(text.splitlines())) or [[]]
    names = [name.strip().lower() for name in header]
    times = [re.fullmatch(r"t(?:ime)?_(s|ms|us|ns)", name) for name in names]
    powers = [re.fullmatch(r"power_(w|mw)", name) for name in names]
    t_column = next((number for number, found in enumerate(times) if found), None)
    power_column = next((number for number, found in enumerate(powers) if found), None)
    if t_column is None or power_column is None:
        raise refuse(f"its columns are {', '.join(names) or 'none'}")
    second, watt = _SECOND[names[t_column].split("_")[1]], _WATT[names[power_column].split("_")[1]]
    t_ns: list[int] = []
    power_w: list[float] = []
    for number, line in enumerate(lines, start=2):
        try:
            t, power = line[t_column].strip(), float(line[power_column])
            # Microseconds since 1970 as a float would be off by a quarter of one.
            whole_ns = int(t) * (10**9 // second) if t.isdecimal() else round(float(t) * (1e9 / second))
        except (ValueError, IndexError, OverflowError) as wrong:
            raise refuse(f"line {number} is {','.join(line)!r}") from wrong
        if t_ns and whole_ns <= t_ns[-1]:
            raise refuse(f"in line {number} time does not rise")
        if not 0 <= power < 1e9 or not 1e18 < whole_ns < 4e18:
            raise refuse(f"line {number} is no power at a time since 1970: {','.join(line)!r}")
        t_ns.append(whole_ns)
        power_w.append(power / watt)
    if len(t_ns) < 2:
        raise refuse("it has fewer than two samples")
    columns = f"{names[t_column]}, {names[power_column]}"
    return Record(np.array(t_ns, np.int64), np.array(power_w), columns)


def compared(timeline: Timeline, meter: Record) -> tuple[Floats, Floats]:
    """Return mean powers, W, as shown and by the meter, of windows with both whole (ns since 1970)."""
    step_ns = int(np.median(np.diff(meter.t_ns)))
    window_ns = max(WINDOW_NS, 10 * step_ns)
    begin_ns = np.arange(meter.t_ns[0], meter.t_ns[-1] - window_ns, window_ns)
    end_ns = begin_ns + window_ns
    # Where the meter paused for half a window there is no truth.
    paused = np.flatnonzero(np.diff(meter.t_ns) > window_ns // 2)
    seen = np.ones(len(begin_ns), np.bool_)
    for pause in paused:
        seen &= (end_ns <= meter.t_ns[pause]) | (begin_ns >= meter.t_ns[pause + 1])
    begin_ns, end_ns = begin_ns[seen], end_ns[seen]
    found = measure(timeline, begin_ns.tolist(), end_ns.tolist())
    whole = np.array([isinstance(one, KnownEnergy) and one.seen for one in found], np.bool_)
    shown_uj = [one.energy_uj for one in found if isinstance(one, KnownEnergy) and one.seen]
    true_j = meter.energy_j(begin_ns[whole], end_ns[whole])
    seconds = window_ns / 1e9
    return np.array(shown_uj, np.float64) / 1e6 / seconds, true_j / seconds


def fit(shown_w: Floats, true_w: Floats, source: str, at: str) -> Gain:
    """Return the gain by least squares; with an offset only where the windows are sure that there is one.

    Powers are means of windows, shape (n,). ``at``: UTC. Raises RefusedError: too few, or they do not agree.
    """
    if len(shown_w) < LEAST_WINDOWS:
        raise RefusedError(
            f"{source}: could not be compared: GPU and meter have {len(shown_w)} whole windows in common,"
            f" {LEAST_WINDOWS} are needed. Record both at the same time, for longer, with clocks that agree."
        )
    if len(shown_w) < ENOUGH_WINDOWS:
        gain, error = _short(shown_w, true_w)
        return Gain(_believable(gain, source), error, 0.0, source, at)
    ones = np.ones_like(true_w)
    (gain, offset_w), error, offset_error_w = _least_squares(np.stack((true_w, ones), axis=1), shown_w)
    if abs(offset_w) <= SURE * offset_error_w:
        (gain,), error, _ = _least_squares(true_w[:, None], shown_w)
        offset_w = 0.0
    t = student_quantile(0.975, len(shown_w) - 2)
    return Gain(_believable(gain, source), float(t * error), float(offset_w), source, at)


def _believable(gain: float, source: str) -> float:
    """Return a gain. Raises RefusedError where it cannot be that of a sensor."""
    if not LEAST_GAIN <= gain <= MOST_GAIN:
        raise RefusedError(
            f"{source}: could not be the meter of this GPU: the gain would be {gain:.3g}."
            " Check the units, the clocks, and that nothing else is metered."
        )
    return float(gain)


def _short(shown_w: Floats, true_w: Floats) -> tuple[float, float]:
    """Return the gain from a few windows and half of its 95 % interval.

    Least squares with what is known before: the gain as published, the offset 0 +- `PRIOR_OFFSET_W`.
    """
    alone = float(shown_w @ true_w / (true_w @ true_w))
    if not LEAST_GAIN <= alone <= MOST_GAIN:
        return alone, 0.0
    freedom = len(shown_w) - 1
    noise_w = float(np.sqrt(np.sum((shown_w - alone * true_w) ** 2) / freedom))
    noise_w = max(noise_w, _LEAST_NOISE * float(true_w.mean())) * student_quantile(0.975, freedom) / Z
    inputs = np.stack((true_w, np.ones_like(true_w)), axis=1)
    precision = np.diag(((Z / PRIOR.gain_error) ** 2, PRIOR_OFFSET_W**-2))
    covariance = np.linalg.inv(inputs.T @ inputs / noise_w**2 + precision)
    mean = covariance @ (inputs.T @ shown_w / noise_w**2 + precision @ np.array((PRIOR.gain, 0.0)))
    return float(mean[0]), float(Z * covariance[0, 0] ** 0.5)


def _least_squares(inputs: Floats, outputs: Floats) -> tuple[Any, float, float]:
    """Return coefficients, and the standard errors of the first and the last."""
    coefficients, _, rank, _ = np.linalg.lstsq(inputs, outputs, rcond=None)
    columns = inputs.shape[1]
    if rank < columns:  # power never moved: nothing tells an offset from a gain
        return coefficients, float("inf"), float("inf")
    variance = float(np.sum((outputs - inputs @ coefficients) ** 2)) / max(len(outputs) - columns, 1)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(inputs.T @ inputs)))
    return coefficients, float(errors[0]), float(errors[-1])
