"""One GPU's readings as knots: instants at which its energy is known. Pure.

    readings, in any order  ->  knots, in order  ->  energy between two instants (`energy`)

A counter gives a knot at each change: it stood at this value from some instant within two stamps on.
A device without counter gives one at each power reading; its energy is the power held until the next
(zero-order hold), added up. Both are then the same: a sum that only grows, known at knots. A sensor
says late what was drawn (`analyzers.measurement.sensors`): its knots are moved back by that lag.

A counter that was reset, a GPU or a collector that was gone and came back begin a new *epoch*; energies of
two epochs have no difference. The first value of an epoch is a knot nobody may use: it is not known
when the counter changed to it. Such a knot is an epoch of its own.

Working knots out costs as much for one reading as for a hundred, and of most GPUs nobody asks. So readings
lie as they came until somebody does, or until there are `UNREAD` of them.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from analyzers.measurement.sensors import Gain, Sensor
from analyzers.results.readings import READING
from zeus_stream.protocol.readings import ABSENT, Seen

GAP_NS = 1_500_000_000
"""Longer between two knots (three default heartbeats), and the time between them counts as unseen."""
RECENT_NS = 30_000_000_000
"""Kept of a GPU that a session uses, whatever is asked: events arrive after the readings they lie between."""
IDLE_NS = 10_000_000_000
"""Kept of one that none uses: the session that will is told after its first readings."""
UNREAD = 128
"""Readings that may lie unread."""
CROWDED = 256
"""Knots at which it is worth to forget some."""
MAX_KNOTS = 262_144
"""The oldest go, needed or not: at 50 a second after 87 minutes of one uninterrupted trial."""
MAX_LIMITS = 1_024
"""Changes of the power limit remembered."""
CHECK_NS = 25_000_000_000
"""Counter and power are compared over so much; less than `RECENT_NS`, or it may be forgotten."""
AGREES = (0.9, 1.1)
"""Counter over power, where both are believed."""
WIDE_NS = 2_000_000
"""A knot that is known less closely is placed where the refreshes before it let expect it."""
REGULAR = 20
"""Refreshes are regular if most of them stray by less than this part of their period."""
PERIODS = 16
"""Intervals between changes that `Timeline.period_ns` is the median of."""

Ints = npt.NDArray[np.int64]
Estimator = Literal["counter", "power"]


class _Row(IntEnum):
    """Rows of the tables that hold the knots, one knot a column: searching wants them contiguous."""

    LO = 0
    HI = 1
    MID = 2
    ENERGY = 3
    LOW = 4
    HIGH = 5
    UNSEEN = 6
    POWER = 7
    EPOCH = 8
    FIRST = 9
    TEMPERATURE = 10


_WIDE = _Row.POWER
"""Rows before it are int64, from it on int32."""


class Knots(NamedTuple):
    """What is known of a GPU's energy, oldest first; shape (n,) each."""

    lo_ns: Ints
    """The knot's instant lies within ``lo_ns`` and ``hi_ns``; never falls."""
    hi_ns: Ints
    mid_ns: Ints
    energy_uj: Ints
    """Counted by then, within its epoch; never falls within one."""
    low_uj: Ints
    """The same with the lesser of two readings of power between them; a counter's is itself."""
    high_uj: Ints
    """The same with the greater."""
    unseen_ns: Ints
    """Time so far that lay between knots more than `GAP_NS` apart."""
    epoch: Ints


class Timeline:
    """One GPU. Memory is bounded by `MAX_KNOTS`, 72 bytes each; `forget` gives back what is not needed."""

    def __init__(self) -> None:
        self.gone: str | None = None
        """Why there will be no readings until it returns."""
        self.sensor = Sensor()
        """Of its power readings. To be set before the first of them."""
        self.gain: Gain | None = None
        """By calibration, if there was one. Knots are as the sensor shows them."""
        self._inbox = np.empty(UNREAD, READING)
        self._unread = 0
        self._estimator: Estimator = "power"
        self._heard_ns = 0
        self._late = 0
        self._wide = np.empty((_WIDE, 0), np.int64)
        self._narrow = np.empty((len(_Row) - _WIDE, 0), np.int32)
        self._size = 0
        self._crowded = CROWDED
        self._whole_since_ns = -(2**62)
        self._broken = False
        self._ready_ns = 0
        self._limits_heard_ns = -1
        self._limit_lo_ns: list[int] = []
        self._limit_hi_ns: list[int] = []
        self._limit_mw: list[int] = []

    # ---- what was read ---------------------------------------------------------------------------------

    def add(self, rows: npt.NDArray[np.void]) -> None:
        """Take in readings of this GPU, of dtype `READING`, in any order."""
        self.gone = None
        if self._unread + len(rows) > UNREAD:
            self._read()
        if len(rows) > UNREAD:
            self._take_in(rows)
        else:
            self._inbox[self._unread : self._unread + len(rows)] = rows
            self._unread += len(rows)

    def _read(self) -> None:
        """Take in what lies unread."""
        if self._unread:
            rows, self._unread = self._inbox[: self._unread], 0
            self._take_in(rows)

    def _take_in(self, rows: npt.NDArray[np.void]) -> None:
        if (np.diff(rows["t_hi_ns"]) < 0).any():
            rows = rows.take(np.argsort(rows["t_hi_ns"], kind="stable"))
        self._heard_ns = max(self._heard_ns, int(rows["t_hi_ns"][-1]))
        self._add_limits(rows)
        seen = rows["seen"]
        counted = (seen != Seen.POWER) & (seen != Seen.UNCHANGED) & (rows["energy_mj"] != ABSENT)
        if self._estimator == "power" and counted.any():
            self._estimator, self._size = "counter", 0
        fit = counted if self._estimator == "counter" else (seen == Seen.POWER) & (rows["power_mw"] != ABSENT)
        lag_ns = self.sensor.lag_ns if self._estimator == "power" else 0
        timely = rows["t_hi_ns"] - lag_ns > self._whole_since_ns
        self._late += int(np.count_nonzero(fit & ~timely))
        rows = rows.compress(fit & timely)
        if len(rows):
            self._insert(self._fresh(rows, lag_ns))

    def interrupt(self, gone: str | None) -> None:
        """The GPU is gone, or was: what follows is a new epoch. ``gone``: why it is not there now."""
        self._read()
        self._broken = True
        self.gone = gone

    def _fresh(self, rows: npt.NDArray[np.void], lag_ns: int) -> Ints:
        fresh = np.zeros((len(_Row), len(rows)), np.int64)
        fresh[_Row.HI] = rows["t_hi_ns"] - lag_ns
        fresh[_Row.LO] = np.minimum(rows["t_lo_ns"], rows["t_hi_ns"]) - lag_ns
        fresh[_Row.ENERGY] = rows["energy_mj"] * 1000
        fresh[_Row.POWER] = rows["power_mw"]
        fresh[_Row.TEMPERATURE] = rows["temperature_c"]
        fresh[_Row.FIRST] = (rows["seen"] == Seen.FIRST) | (rows["seen"] == Seen.RESET)
        if self._broken:
            fresh[_Row.FIRST, 0] = 1
            self._broken = False
        return fresh

    def _insert(self, fresh: Ints) -> None:
        """Put knots in their place and work out again what depends on those before."""
        at = int(np.searchsorted(self._row(_Row.HI), fresh[_Row.HI, 0], side="right"))
        if at < self._size:
            fresh = np.concatenate((self._columns(at, self._size), fresh), axis=1)
            fresh = fresh[:, np.argsort(fresh[_Row.HI], kind="stable")]
        _place(fresh, self._wide[_Row.MID, max(at - PERIODS - 1, 0) : at])
        self._chain(fresh, self._columns(at - 1, at) if at else None)
        size = at + fresh.shape[1]
        if size > self._wide.shape[1]:
            room = max(size, self._wide.shape[1] * 5 // 4)
            wide, narrow = self._wide, self._narrow
            self._wide = np.empty((len(wide), room), np.int64)
            self._narrow = np.empty((len(narrow), room), np.int32)
            self._wide[:, :at], self._narrow[:, :at] = wide[:, :at], narrow[:, :at]
        self._wide[:, at:size], self._narrow[:, at:size] = fresh[:_WIDE], fresh[_WIDE:]
        self._size = size
        self._ready_ns = int(self._wide[_Row.LO, size - 1])

    def _chain(self, knots: Ints, before: Ints | None) -> None:
        """Work out the rows of ``knots`` that depend on the knot before each."""
        last = knots[:, :1] if before is None else before
        previous = np.concatenate((last, knots[:, :-1]), axis=1)
        elapsed_ns = knots[_Row.MID] - previous[_Row.MID]
        unseen_ns = np.where(elapsed_ns > GAP_NS, elapsed_ns, 0)
        knots[_Row.UNSEEN] = (0 if before is None else last[_Row.UNSEEN]) + np.cumsum(unseen_ns)
        if self._estimator == "power":
            power_mw = knots[_Row.POWER], previous[_Row.POWER]
            for row, held_mw in (
                (_Row.ENERGY, previous[_Row.POWER]),
                (_Row.LOW, np.minimum(*power_mw)),
                (_Row.HIGH, np.maximum(*power_mw)),
            ):
                held_uj = held_mw * elapsed_ns // 1_000_000  # mW x ns = pJ
                knots[row] = (0 if before is None else last[row]) + np.cumsum(held_uj)
        else:
            knots[_Row.LOW] = knots[_Row.HIGH] = knots[_Row.ENERGY]
            knots[_Row.FIRST] |= knots[_Row.ENERGY] < previous[_Row.ENERGY]
        epochs = (0 if before is None else (last[_Row.EPOCH] + 1) // 2) + np.cumsum(knots[_Row.FIRST])
        # Even numbers are epochs; an odd one sets apart a counter's first value. Power is valid at once.
        knots[_Row.EPOCH] = 2 * epochs - (knots[_Row.FIRST] if self._estimator == "counter" else 0)

    def _add_limits(self, rows: npt.NDArray[np.void]) -> None:
        rows = rows[rows["t_hi_ns"] > self._limits_heard_ns]
        if not len(rows):
            return
        self._limits_heard_ns = int(rows["t_hi_ns"][-1])
        in_force = np.where(rows["limit_mw"] != ABSENT, rows["limit_mw"], rows["requested_mw"])
        last = self._limit_mw[-1] if self._limit_mw else None
        if (in_force == last).all():
            return
        for index in np.flatnonzero(np.diff(in_force, prepend=-2 if last is None else last)):
            self._limit_lo_ns.append(int(rows["t_lo_ns"][index]))
            self._limit_hi_ns.append(int(rows["t_hi_ns"][index]))
            self._limit_mw.append(int(in_force[index]))
        if len(self._limit_mw) > MAX_LIMITS:
            for column in (self._limit_lo_ns, self._limit_hi_ns, self._limit_mw):
                del column[: MAX_LIMITS // 2]

    # ---- what is known ---------------------------------------------------------------------------------

    @property
    def estimator(self) -> Estimator:
        """``power`` until the first value of a counter."""
        self._read()
        return self._estimator

    @property
    def heard_ns(self) -> int:
        """Latest instant a reading speaks of; heartbeats count."""
        self._read()
        return self._heard_ns

    @property
    def late(self) -> int:
        """Readings dropped because their place had been forgotten."""
        self._read()
        return self._late

    def knots(self) -> Knots:
        """Return the knots. They are views: valid until another method is called."""
        self._read()
        rows = (_Row.LO, _Row.HI, _Row.MID, _Row.ENERGY, _Row.LOW, _Row.HIGH, _Row.UNSEEN, _Row.EPOCH)
        return Knots(*(self._row(row) for row in rows))

    def settled(self, t_ns: int) -> bool:
        """Return whether later readings can no longer change what is known of ``t_ns``."""
        if self._ready_ns < t_ns and (self._inbox["t_lo_ns"][: self._unread] >= t_ns).any():
            self._read()
        return self._ready_ns >= t_ns or self.gone is not None

    @property
    def period_ns(self) -> int | None:
        """Return how often the device refreshes, as seen lately, or None while that is unknown."""
        if self._size + self._unread <= PERIODS:
            return None
        self._read()
        if self._size <= PERIODS:
            return None
        return round(float(np.median(np.diff(self._row(_Row.MID)[-PERIODS - 1 :]))))

    @property
    def sees_all(self) -> bool:
        """Return whether knots are sums of all that was drawn: a counter's, or means without a pause."""
        return self.estimator == "counter" or self.sensor.sees_all

    @property
    def counter_to_power(self) -> float | None:
        """Return what the counter grew by, over the energy of the power readings beside it, of late.

        None: there is no counter, or not yet `CHECK_NS` of both without a break.
        """
        if self.estimator != "counter" or not self._size:
            return None
        mid_ns = self._row(_Row.MID)
        first = int(np.searchsorted(mid_ns, mid_ns[-1] - CHECK_NS, side="right")) - 1
        epoch, energy_uj = self._row(_Row.EPOCH), self._row(_Row.ENERGY)
        if first < 0 or epoch[first] != epoch[-1]:
            return None
        power_mw = self._row(_Row.POWER)[first + 1 :]
        if (power_mw == ABSENT).any():
            return None
        # A reading of power is a mean over time before it; mW x ns = pJ.
        drawn_uj = float(power_mw @ np.diff(mid_ns[first:])) / 1e6
        counted_uj = int(energy_uj[-1] - energy_uj[first])
        return counted_uj / drawn_uj if drawn_uj else None

    @property
    def doubt(self) -> str | None:
        """Return why the counter is not to be believed, if it is not."""
        ratio = self.counter_to_power
        if ratio is None or AGREES[0] <= ratio <= AGREES[1]:
            return None
        return f"the counter shows {ratio:.2f} of the power beside it"

    @property
    def power_mw(self) -> int | None:
        """What was drawn, as it was read last."""
        self._read()
        power_mw = int(self._row(_Row.POWER)[-1]) if self._size else ABSENT
        return None if power_mw == ABSENT else power_mw

    @property
    def limit_mw(self) -> int | None:
        """The limit in force, as it was read last."""
        self._read()
        return self._limit_mw[-1] if self._limit_mw and self._limit_mw[-1] != ABSENT else None

    def limits_mw(self, begin_ns: Sequence[int], end_ns: Sequence[int]) -> list[int | None]:
        """Return the limit in force all through each interval; None where it changed or is not known."""
        self._read()
        before = np.searchsorted(self._limit_hi_ns, begin_ns, side="right").tolist()
        until = np.searchsorted(self._limit_lo_ns, end_ns, side="right").tolist()
        return [
            self._limit_mw[a - 1] if a == b and a > 0 and self._limit_mw[a - 1] != ABSENT else None
            for a, b in zip(before, until, strict=True)
        ]

    def temperature_c(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the mean temperature at the knots within an interval."""
        self._read()
        first, last = np.searchsorted(self._row(_Row.MID), (begin_ns, end_ns))
        known = self._row(_Row.TEMPERATURE)[first:last]
        known = known[known != ABSENT]
        return float(known.mean()) if len(known) else None

    # ---- what may be forgotten -------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """There is so much that `forget` is worth its while."""
        return self._size > self._crowded

    def forget(self, needed_ns: Iterable[int], recent_ns: int = RECENT_NS) -> None:
        """Forget all but the knots of late, and those on either side of the instants still needed.

        Args:
            needed_ns: in any order.
            recent_ns: how much of late is kept.
        """
        self._read()
        hi_ns, lo_ns = self._row(_Row.HI), self._row(_Row.LO)
        recent = max(int(np.searchsorted(hi_ns, self._heard_ns - recent_ns)) - 1, 0)
        if recent:
            self._whole_since_ns = max(self._whole_since_ns, int(hi_ns[recent]))
        needed = np.fromiter(needed_ns, np.int64)
        before = np.maximum(np.searchsorted(hi_ns, needed, side="right") - 1, 0)
        after = np.maximum(np.searchsorted(lo_ns, needed), before)
        wanted = np.zeros(self._size + 2, np.int64)  # by knot, how many spans begin less how many have ended
        np.add.at(wanted, before, 1)
        np.add.at(wanted, after + 1, -1)
        keep = np.cumsum(wanted)[: self._size] > 0
        keep[recent:] = True
        kept = np.flatnonzero(keep)[-MAX_KNOTS:]
        self._wide, self._narrow = self._wide.take(kept, axis=1), self._narrow.take(kept, axis=1)
        self._size = len(kept)
        self._crowded = min(max(CROWDED, self._size * 5 // 4), MAX_KNOTS)
        self._forget_limits()

    def _forget_limits(self) -> None:
        """Forget the limits before that which was in force at the first knot."""
        if self._size:
            first_ns = int(self._wide[_Row.LO, 0])
            past = max(int(np.searchsorted(self._limit_hi_ns, first_ns, side="right")) - 1, 0)
            for column in (self._limit_lo_ns, self._limit_hi_ns, self._limit_mw):
                del column[:past]

    def _row(self, row: _Row) -> Ints:
        table: npt.NDArray[Any] = self._wide if row < _WIDE else self._narrow
        return table[row if row < _WIDE else row - _WIDE, : self._size]

    def _columns(self, first: int, end: int) -> Ints:
        """Return a copy of some knots, with all rows."""
        return np.concatenate((self._wide[:, first:end], self._narrow[:, first:end]))


def _place(knots: Ints, before_ns: Ints) -> None:
    """Work out the middles of ``knots``. ``before_ns``: those of the last `PERIODS` + 1 before them.

    One that a late look left wide open is where the regular ones before it let expect it, within its bounds.
    """
    lo_ns, hi_ns = knots[_Row.LO], knots[_Row.HI]
    mid_ns = np.concatenate((before_ns, lo_ns + (hi_ns - lo_ns) // 2))
    for place in np.flatnonzero(hi_ns - lo_ns > WIDE_NS):
        at = len(before_ns) + place
        steps_ns = np.diff(mid_ns[max(at - PERIODS - 1, 0) : at])
        if len(steps_ns) < PERIODS:
            continue
        period_ns = round(float(np.median(steps_ns)))
        if np.percentile(np.abs(steps_ns - period_ns), 75) < period_ns / REGULAR:
            since_ns = mid_ns[at] - mid_ns[at - 1]
            expected_ns = mid_ns[at - 1] + max(round(since_ns / period_ns), 1) * period_ns
            mid_ns[at] = min(max(expected_ns, lo_ns[place]), hi_ns[place])
    knots[_Row.MID] = mid_ns[len(before_ns) :]
