"""One GPU's readings as knots: instants at which its energy is known. Pure.

    readings, in any order  ->  knots, in order  ->  energy between two instants (`energy`)

A counter gives a knot at each change: it stood at this value from some instant within two stamps on.
A device without counter gives one at each power reading; its energy is the power held until the next
(zero-order hold), added up. Both are then the same: a sum that only grows, known at knots. A sensor
says late what was drawn (`analyzers.measurement.sensors`): its knots are moved back by that lag.

A counter that was reset, a GPU or a collector that was gone and came back begin a new *epoch*, unless the
counter cannot have been reset (`knots.bridge`); energies of two epochs have no difference. The first value
of an epoch is a knot nobody may use: it is not known when the counter changed to it. Such a knot is an epoch
of its own.

Working knots out costs as much for one reading as for a hundred, and of most GPUs nobody asks. So readings
lie as they came until somebody does, or until there are `UNREAD` of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from struct import unpack_from
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzers.measurement.knots import (
    GAP_NS,
    HANG_NS,
    PERIODS,
    REFRESH_NS,
    RESET,
    WIDE,
    Estimator,
    Ints,
    Jump,
    Knots,
    Row,
    bridge,
    chain,
    fill_jumps,
    hung_ns,
    place,
    skipped,
)
from analyzers.measurement.sensors import Gain, Sensor
from analyzers.results.readings import READING
from zeus_stream.protocol.readings import ABSENT, READING_BYTES, READING_STRUCT, SAMPLED_WITHIN, Seen

RECENT_NS = 30_000_000_000
"""Kept of a GPU that a session uses, whatever is asked: events arrive after the readings they lie between."""
IDLE_NS = 10_000_000_000
"""Kept of a GPU that no session uses: a session becomes known after its first readings."""
UNREAD = 256
"""Readings that may lie unread."""
CROWDED = 256
"""Knots at which it is worth to forget some."""
MAX_KNOTS = 262_144
"""The oldest go, needed or not: at 50 a second after 87 minutes of one uninterrupted trial."""
MAX_LIMITS = 1_024
"""Changes of the power limit remembered."""
AGREE_MW = 1_000
"""A limit in force that is lower than the requested one by more is another limiter's."""
MAX_LOSSES = 16
"""Stretches without the GPU that are remembered; of more, the oldest go."""
MAX_HANGS = 64
"""Hangs of the driver that are remembered until they are reported; of more, the oldest go."""
CHECK_NS = 25_000_000_000
"""Counter and power are compared over so much; less than `RECENT_NS`, or it may be forgotten."""
CLOSE = 4
"""Refreshes tell their distance if they are bounded to this part of it."""
AGREES = (0.9, 1.1)
"""Counter over power, where both are believed."""
_COUNTED = np.array([seen not in (Seen.UNCHANGED, Seen.POWER) for seen in Seen])
"""By `Seen`: whether such a reading of a counter is a knot."""
_FIRST = np.array([{Seen.FIRST: 1, Seen.RESET: RESET}.get(seen, 0) for seen in Seen])
"""By `Seen`: `Row.FIRST` of its knot."""


class Timeline:
    """One GPU. Memory is bounded by `MAX_KNOTS`, 64 bytes each; `forget` gives back what is not needed."""

    def __init__(self) -> None:
        self.gone: str | None = None
        """Why there will be no readings until it returns."""
        self._losses: deque[tuple[int, int, str]] = deque(maxlen=MAX_LOSSES)
        """Begin and end of stretches in which the GPU was lost, with the reason."""
        self.sensor = Sensor()
        """Of its power readings. To be set before the first of them."""
        self.gain: Gain | None = None
        """By calibration, if there was one. Knots are as the sensor shows them."""
        self.most_mw: int | None = None
        """The highest limit of the GPU; None: not known."""
        self.hangs_ns: deque[tuple[int, int]] = deque(maxlen=MAX_HANGS)
        """Begins and ends of stretches in which the driver hung until they are reported."""
        self.jumps: deque[Jump] = deque(maxlen=MAX_HANGS)
        """Steps of the counter that cannot be, until they are reported."""
        self.sampled = False
        """There were knots by samples of power."""
        self._filled: deque[Jump] = deque(maxlen=MAX_HANGS)
        """Those in place of which there is what the power readings beside them say."""
        self._inbox = b""
        """Readings that lie unread."""
        self._estimator: Estimator = "power"
        self._received_ns = 0
        self._late = 0
        self._wide = np.empty((WIDE, 0), np.int64)
        self._narrow = np.empty((Row.COUNT - WIDE, 0), np.int32)
        self._size = 0
        self._crowded = CROWDED
        self._whole_since_ns = -(2**62)
        self._broken = False
        self._ready_ns = 0
        self._limits_received_ns = -1
        self._limit_lo_ns: list[int] = []
        self._limit_hi_ns: list[int] = []
        self._limit_mw: list[int] = []
        self._ceiling_mw: int | None = None

    # ---- what was read ---------------------------------------------------------------------------------

    def add(self, rows: npt.NDArray[np.void]) -> None:
        if len(self._inbox) + rows.nbytes > UNREAD * READING_BYTES:
            self._read()
        if len(rows) > UNREAD:
            self._take_in(rows)
        else:
            self._inbox += rows.tobytes()

    def _read(self) -> None:
        if self._inbox:
            rows, self._inbox = np.frombuffer(self._inbox, READING), b""
            self._take_in(rows)

    def _take_in(self, rows: npt.NDArray[np.void]) -> None:
        if (rows["t_hi_ns"][1:] < rows["t_hi_ns"][:-1]).any():
            rows = rows.take(np.argsort(rows["t_hi_ns"], kind="stable"))
        self._received_ns = max(self._received_ns, int(rows["t_hi_ns"][-1]))
        self._add_limits(rows)
        counted = _COUNTED[rows["seen"]] & (rows["energy_mj"] != ABSENT)
        if self._estimator == "power" and counted.any():
            self._estimator, self._size = "counter", 0
        if self._estimator == "counter":
            fit, lag_ns = counted, 0
        else:
            sensed = (rows["seen"] == Seen.POWER) | (rows["seen"] == Seen.RESTED)
            fit, lag_ns = sensed & (rows["power_mw"] != ABSENT), self.sensor.lag_ns
        if rows["t_hi_ns"][0] - lag_ns <= self._whole_since_ns:
            timely = rows["t_hi_ns"] - lag_ns > self._whole_since_ns
            self._late += int(np.count_nonzero(fit & ~timely))
            fit &= timely
        if not fit.all():
            rows = rows.compress(fit)
        if len(rows):
            self._insert(self._fresh(rows, lag_ns))

    def interrupt(self, gone: str | None, t_ns: int = 0) -> None:
        """Begin a new epoch: the GPU is lost, or back. ``gone``: why it is not there from ``t_ns`` on."""
        self._read()
        self._broken = True
        if gone is not None and self.gone is None:
            self._losses.append((t_ns, 2**62, gone))
        elif gone is None and self.gone is not None:
            self._losses.append((self._losses.pop()[0], t_ns, self.gone))
        self.gone = gone

    def loss(self, begin_ns: int, end_ns: int) -> str | None:
        """Return why the GPU was lost within an interval; None: it was not, or that is long ago."""
        met = (why for since_ns, until_ns, why in self._losses if begin_ns < until_ns and since_ns <= end_ns)
        return next(met, None)

    def filled(self, begin_ns: Ints, end_ns: Ints) -> Iterator[tuple[Jump, npt.NDArray[np.bool_]]]:
        """Yield the jumps of the counter that were filled, each with the windows that it concerns."""
        for jump in self._filled:
            yield jump, (begin_ns < jump.t_ns) & (end_ns > jump.since_ns)

    def _fresh(self, rows: npt.NDArray[np.void], lag_ns: int) -> Ints:
        fresh = np.zeros((Row.COUNT, len(rows)), np.int64)
        fresh[Row.HI] = rows["t_hi_ns"] - lag_ns
        fresh[Row.LO] = np.minimum(rows["t_lo_ns"], rows["t_hi_ns"]) - lag_ns
        fresh[Row.ENERGY] = rows["energy_mj"] * 1000
        for jump in self._filled:  # what it counted too much then is taken out of all that follows
            fresh[Row.ENERGY, fresh[Row.HI] > jump.t_ns] -= jump.grown_uj - (jump.filled_uj or 0)
        fresh[Row.POWER] = rows["power_mw"]
        fresh[Row.TEMPERATURE] = rows["temperature_c"]
        fresh[Row.FIRST] = _FIRST[rows["seen"]]
        fresh[Row.RESTED] = rows["seen"] == Seen.RESTED
        fresh[Row.SAMPLED] = rows["seen"] == Seen.SAMPLED
        self.sampled |= bool(fresh[Row.SAMPLED].any())
        if self._broken:
            fresh[Row.FIRST, 0] = max(fresh[Row.FIRST, 0], 1)
            self._broken = False
        return fresh

    def _insert(self, fresh: Ints) -> None:
        """Put knots in their place and work out again what depends on those before."""
        at = self._size
        if at and fresh[Row.HI, 0] < self._wide[Row.HI, at - 1]:
            at = int(np.searchsorted(self._row(Row.HI), fresh[Row.HI, 0], side="right"))
            fresh = np.concatenate((self._columns(at, self._size), fresh), axis=1)
            fresh = fresh[:, np.argsort(fresh[Row.HI], kind="stable")]
        before = self._columns(at - 1, at) if at else None
        if self._estimator == "counter" and self.most_mw is not None:
            fresh = bridge(fresh, before, self.most_mw)
            jumps = fill_jumps(fresh, before, self.most_mw)
            self.jumps.extend(jumps)
            self._filled.extend(jump for jump in jumps if jump.filled_uj is not None)
        if not fresh.shape[1]:
            return
        recent = slice(max(at - PERIODS - 1, 0), at)
        place(fresh, self._columns(recent.start, recent.stop))
        chain(fresh, before, self._estimator)
        if at == self._size and (fresh[Row.HI] - fresh[Row.LO]).max() > HANG_NS:
            lo_ns, hi_ns = fresh[: Row.HI + 1, hung_ns(fresh, before) > 0].tolist()
            self.hangs_ns.extend(zip(lo_ns, hi_ns, strict=True))
        size = at + fresh.shape[1]
        if size > self._wide.shape[1]:
            room = max(size, self._wide.shape[1] * 5 // 4)
            wide, narrow = self._wide, self._narrow
            self._wide = np.empty((len(wide), room), np.int64)
            self._narrow = np.empty((len(narrow), room), np.int32)
            self._wide[:, :at], self._narrow[:, :at] = wide[:, :at], narrow[:, :at]
        self._wide[:, at:size], self._narrow[:, at:size] = fresh[:WIDE], fresh[WIDE:]
        self._size = size
        self._ready_ns = int(self._wide[Row.LO, size - 1])

    def _add_limits(self, rows: npt.NDArray[np.void]) -> None:
        if rows["t_hi_ns"][0] <= self._limits_received_ns:
            rows = rows[rows["t_hi_ns"] > self._limits_received_ns]
            if not len(rows):
                return
        received_ns, self._limits_received_ns = self._limits_received_ns, int(rows["t_hi_ns"][-1])
        limit_mw, requested_mw = int(rows["limit_mw"][-1]), int(rows["requested_mw"][-1])
        if ABSENT < limit_mw < requested_mw - AGREE_MW:
            self._ceiling_mw = limit_mw
        elif limit_mw > (self._ceiling_mw or limit_mw):
            self._ceiling_mw = None
        in_force = np.where(rows["limit_mw"] != ABSENT, rows["limit_mw"], rows["requested_mw"])
        last = self._limit_mw[-1] if self._limit_mw else None
        if (in_force == last).all():
            return
        seen_ns = np.append(received_ns, rows["t_hi_ns"][:-1])
        for index in np.flatnonzero(np.diff(in_force, prepend=-2 if last is None else last)):
            if rows["seen"][index] == Seen.FIRST and self._limit_mw:  # nobody saw when it changed
                self._limit_changed(int(seen_ns[index]), int(seen_ns[index]), ABSENT)
            lo_ns, hi_ns = int(rows["t_lo_ns"][index]), int(rows["t_hi_ns"][index])
            self._limit_changed(lo_ns, hi_ns, int(in_force[index]))
        if len(self._limit_mw) > MAX_LIMITS:
            for column in (self._limit_lo_ns, self._limit_hi_ns, self._limit_mw):
                del column[: MAX_LIMITS // 2]

    def _limit_changed(self, lo_ns: int, hi_ns: int, limit_mw: int) -> None:
        self._limit_lo_ns.append(lo_ns)
        self._limit_hi_ns.append(hi_ns)
        self._limit_mw.append(limit_mw)

    # ---- what is known ---------------------------------------------------------------------------------

    @property
    def estimator(self) -> Estimator:
        """``power`` until the first value of a counter."""
        if self._estimator == "power":
            self._read()
        return self._estimator

    @property
    def received_ns(self) -> int:
        """Latest instant a reading speaks of; heartbeats count."""
        self._read()
        return self._received_ns

    @property
    def late(self) -> int:
        """Readings dropped because their place had been forgotten."""
        self._read()
        return self._late

    def knots(self) -> Knots:
        """Return the knots. All but ``doubt_ns`` are views: valid until another method is called."""
        self._read()
        rows = (Row.LO, Row.HI, Row.MID, Row.ENERGY, Row.UNSEEN, Row.EPOCH)
        lo_ns, hi_ns, mid_ns, energy_uj, unseen_ns, epoch = (self._row(row) for row in rows)
        late = (self._row(Row.RESTED) > 0) | skipped(lo_ns, hi_ns, self._row(Row.FIRST))
        open_ns = np.where(late, 2 * (hi_ns - mid_ns), hi_ns - lo_ns)
        sampled = self._row(Row.SAMPLED) > 0
        doubt_ns = np.where(sampled, open_ns / (2 * SAMPLED_WITHIN), open_ns / 12**0.5)
        return Knots(lo_ns, hi_ns, mid_ns, energy_uj, unseen_ns, epoch, doubt_ns, sampled)

    def rested(self, knots: Ints) -> npt.NDArray[np.bool_]:
        """Return before which of these knots, by their places, the device was at rest."""
        return self._row(Row.RESTED)[knots] > 0

    def settled(self, t_ns: int) -> bool:
        """Return whether later readings can no longer change what is known of ``t_ns``."""
        if self._ready_ns < t_ns and (np.frombuffer(self._inbox, READING)["t_lo_ns"] >= t_ns).any():
            self._read()
        return self._ready_ns >= t_ns or self.gone is not None

    def seen_ns(self, t_ns: int) -> int:
        """Return when the first knot after ``t_ns`` was read, once that is `settled`."""
        self._read()
        return int(self._row(Row.HI)[np.searchsorted(self._row(Row.LO), t_ns)])

    @property
    def period_ns(self) -> int | None:
        """Return how often the device refreshes, as seen lately, or None while that is unknown."""
        if self._size + len(self._inbox) // READING_BYTES <= PERIODS:
            return None
        self._read()
        if self._size <= PERIODS:
            return None
        return round(float(np.median(np.diff(self._row(Row.MID)[-PERIODS - 1 :]))))

    @property
    def refresh_period_ns(self) -> int | None:
        """Return the distance of refreshes none of which reads left out; None: reads do not tell."""
        self._read()
        lo_ns, hi_ns, mid_ns = (self._row(row)[-4 * PERIODS :] for row in (Row.LO, Row.HI, Row.MID))
        if len(mid_ns) <= PERIODS:
            return None
        apart_ns = np.sort(np.diff(mid_ns))
        shortest_ns = apart_ns[len(apart_ns) // 10]
        if shortest_ns > REFRESH_NS or np.median(hi_ns - lo_ns) > shortest_ns / CLOSE:
            return None
        return round(float(apart_ns[apart_ns < shortest_ns * 5 // 4].mean()))

    @property
    def period_known(self) -> bool:
        """Return whether there is a `period_ns`, without taking in what lies unread if there is."""
        return self._size > PERIODS or self.period_ns is not None

    @property
    def sees_all(self) -> bool:
        """Return whether knots are sums of all that was drawn: a counter's, or means without a pause."""
        return self.estimator == "counter" or self.sensor.sees_all

    @property
    def follows_events(self) -> bool:
        """Return whether it is known which time each knot speaks of, so that events can share it out."""
        return self.sees_all or self.sensor.blind

    @property
    def counter_to_power(self) -> float | None:
        """Return the recent growth of the counter over that of its power readings; None: not known yet."""
        self._read()
        if self.estimator != "counter" or not self._size:
            return None
        mid_ns = self._row(Row.MID)
        first = int(np.searchsorted(mid_ns, mid_ns[-1] - CHECK_NS, side="right")) - 1
        epoch, energy_uj = self._row(Row.EPOCH), self._row(Row.ENERGY)
        if first < 0 or epoch[first] != epoch[-1]:
            return None
        power_mw = self._row(Row.POWER)[first + 1 :]
        took_ns = np.diff(mid_ns[first:])
        took_ns[(self._row(Row.RESTED)[first + 1 :] > 0) | (took_ns > GAP_NS)] = 0
        if (power_mw == ABSENT).any() or took_ns.sum() < CHECK_NS / 2:
            return None  # a reading of power says nothing of a rest, or of what nobody saw
        # A reading of power is a mean over time before it; mW x ns = pJ.
        drawn_uj = float(power_mw @ took_ns) / 1e6
        counted_uj = int(np.diff(energy_uj[first:]) @ (took_ns > 0))
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
        """The power of the reading that came last, without working knots out if it lies unread."""
        if self._inbox:
            last = unpack_from(READING_STRUCT, self._inbox, len(self._inbox) - READING_BYTES)
            if last[3] != ABSENT:
                return int(last[3])
        self._read()
        power_mw = int(self._row(Row.POWER)[-1]) if self._size else ABSENT
        return None if power_mw == ABSENT else power_mw

    @property
    def limit_mw(self) -> int | None:
        self._read()
        return self._limit_mw[-1] if self._limit_mw and self._limit_mw[-1] != ABSENT else None

    @property
    def ceiling_mw(self) -> int | None:
        """The limit of another limiter, as last in force below the requested one; None: there is none."""
        self._read()
        return self._ceiling_mw

    def limits_mw(self, begin_ns: Sequence[int], end_ns: Sequence[int]) -> list[int | None]:
        """Return the limit in force all through each interval; None where it changed or is not known."""
        levels = self.limits_or_absent(begin_ns, end_ns)
        return [None if level == ABSENT else level for level in levels]

    def limits_or_absent(self, begin_ns: Sequence[int], end_ns: Sequence[int]) -> list[int | None]:
        """Return the same; ABSENT where nobody saw the GPU while its limit changed."""
        self._read()
        before = np.searchsorted(self._limit_hi_ns, begin_ns, side="right").tolist()
        until = np.searchsorted(self._limit_lo_ns, end_ns, side="right").tolist()
        return [
            self._limit_mw[a - 1] if a == b and a > 0 else None for a, b in zip(before, until, strict=True)
        ]

    def temperature_c(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the mean temperature at the knots within an interval."""
        self._read()
        first, last = np.searchsorted(self._row(Row.MID), (begin_ns, end_ns))
        known = self._row(Row.TEMPERATURE)[first:last]
        known = known[known != ABSENT]
        return float(known.mean()) if len(known) else None

    # ---- what may be forgotten -------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """There is so much that `forget` is worth its while."""
        return self._size > self._crowded

    def forget(self, needed_ns: Iterable[int], recent_ns: int = RECENT_NS) -> None:
        """Forget all but the recent knots, and those on either side of the instants still needed."""
        self._read()
        hi_ns, lo_ns = self._row(Row.HI), self._row(Row.LO)
        recent = max(int(np.searchsorted(hi_ns, self._received_ns - recent_ns)) - 1, 0)
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
            first_ns = int(self._wide[Row.LO, 0])
            past = max(int(np.searchsorted(self._limit_hi_ns, first_ns, side="right")) - 1, 0)
            for column in (self._limit_lo_ns, self._limit_hi_ns, self._limit_mw):
                del column[:past]

    def _row(self, row: int) -> Ints:
        table: npt.NDArray[Any] = self._wide if row < WIDE else self._narrow
        return table[row if row < WIDE else row - WIDE, : self._size]

    def _columns(self, first: int, end: int) -> Ints:
        """Return a copy of some knots, with all rows."""
        return np.concatenate((self._wide[:, first:end], self._narrow[:, first:end]))
