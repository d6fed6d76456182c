"""Knots of a timeline: where each lies, what was counted until then, and in which epoch. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from math import erf, exp, pi, sqrt
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

GAP_NS = 1_500_000_000
"""Longer between two knots (three default heartbeats), beside a rest, and the time between them counts as
unseen."""
HANG_NS = 1_500_000_000
"""A read that took longer than this hung in the driver, and its time counts as unseen."""
MARGIN = 1.5
"""Power may exceed the highest limit by this factor for a moment: no reading above it is believed either."""
RESTED_NS = 100_000_000
"""The counter was refreshed at most so long before a read that ends a rest."""
LATE_NS = 100_000_000
"""A refresh may be late by this, and the next one punctual."""
FILLED = 0.05
"""Standard deviation at least of an energy that is filled in from power, as a part of it."""
WIDE_NS = 2_000_000
"""A knot that is known less closely is placed where the refreshes before it let expect it."""
REFRESH_NS = 110_000_000
"""No counter is known whose refreshes are farther apart (100.002 ms: an H100; 101 ms: A100)."""
AMBIGUOUS = 1.5
"""Bounds wider than so many periods leave open which refresh was read."""
REGULAR = 20
"""Refreshes are regular if most of them stray by less than this part of their period."""
PERIODS = 16
"""Intervals between changes that `Timeline.period_ns` is the median of."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Estimator = Literal["counter", "power"]


class Row:
    """Row numbers of the tables that hold the knots; plain numbers, since they are used so often."""

    LO = 0
    HI = 1
    MID = 2
    ENERGY = 3
    UNSEEN = 4
    POWER = 5
    EPOCH = 6
    FIRST = 7
    """0; 1 after a pause; `RESET`."""
    TEMPERATURE = 8
    RESTED = 9
    """1: the device was at rest before its read."""
    SAMPLED = 10
    """1: by samples of power, between refreshes."""
    COUNT = 11


RESET = 2
"""The counter was seen to fall."""
WIDE = Row.POWER
"""Rows before it are int64, from it on int32."""


class Knots(NamedTuple):
    """The known points of a GPU's energy, oldest first; shape (n,) each."""

    lo_ns: Ints
    """The knot's instant lies within ``lo_ns`` and ``hi_ns``; never falls."""
    hi_ns: Ints
    mid_ns: Ints
    energy_uj: Ints
    """Counted by then, within its epoch; never falls within one."""
    unseen_ns: Ints
    """Time so far that lay between knots more than `GAP_NS` apart, and not at rest."""
    epoch: Ints
    doubt_ns: Floats
    """Standard deviations of ``mid_ns``."""
    sampled: npt.NDArray[np.bool_]
    """By samples of power, so no refresh."""


def skipped(lo_ns: Ints, hi_ns: Ints, first: Ints) -> npt.NDArray[np.bool_]:
    """Return at which knots refreshes were skipped: they and the ones before took a single read each, long
    after that of the knot before. Then ``lo_ns`` is when the read before began. Shape (n,) each.

    ``first``: `Row.FIRST`.
    """
    wide = hi_ns - lo_ns > AMBIGUOUS * REFRESH_NS
    rare = np.zeros(len(wide), np.bool_)
    rare[1:] = wide[1:] & (wide[:-1] | (first[:-1] > 0)) & (lo_ns[1:] <= hi_ns[:-1])
    return rare


def place(knots: Ints, before: Ints) -> None:
    """Work out the middles of ``knots``, given up to `PERIODS` + 1 knots before.

    One that a late look left wide open is where the regular ones before it let expect it, within its bounds.
    Where reads are rarer than refreshes, the last refresh was at most `REFRESH_NS` before the read, which
    took as long as the one before it. After a single long read, within which the counter may have been
    refreshed more than once, it is where the energy at the recent mean power predicts it; at the end of a
    rest, shortly before the read.
    """
    lo_ns, hi_ns = knots[Row.LO], knots[Row.HI]
    before_ns, before_uj = before[Row.MID], before[Row.ENERGY]
    rows = [Row.LO, Row.HI, Row.FIRST]
    both = np.concatenate((before[rows], knots[rows]), axis=1)
    rare = skipped(*both)
    mid_ns = np.concatenate((before_ns, lo_ns + (hi_ns - lo_ns) // 2))
    energy_uj = np.concatenate((before_uj, knots[Row.ENERGY]))
    for place in np.flatnonzero((hi_ns - lo_ns > WIDE_NS) & (knots[Row.SAMPLED] == 0)):
        at = len(before_ns) + place
        if knots[Row.RESTED, place]:
            mid_ns[at] = max(hi_ns[place] - RESTED_NS // 2, mid_ns[at])
            continue
        period_ns = _period_ns(mid_ns[max(at - PERIODS - 1, 0) : at].tolist())
        if rare[at]:
            read_ns = both[Row.HI, at - 1] - lo_ns[place]
            mid_ns[at] = max(hi_ns[place] - (REFRESH_NS + read_ns) // 2, mid_ns[at])
            continue
        if period_ns is None:
            continue
        since_ns = mid_ns[at] - mid_ns[at - 1]
        used_uj = energy_uj[at - 1] - energy_uj[at - 1 - PERIODS]
        if hi_ns[place] - lo_ns[place] > AMBIGUOUS * period_ns and used_uj > 0:
            took_ns = mid_ns[at - 1] - mid_ns[at - 1 - PERIODS]
            since_ns = took_ns * float((energy_uj[at] - energy_uj[at - 1]) / used_uj)
        expected_ns = mid_ns[at - 1] + max(round(since_ns / period_ns), 1) * period_ns
        mid_ns[at] = min(max(expected_ns, lo_ns[place]), hi_ns[place])
    knots[Row.MID] = mid_ns[len(before_ns) :]


def _period_ns(mid_ns: Sequence[int]) -> int | None:
    """Return the median distance of `PERIODS` + 1 instants; None: they are fewer, or not regular."""
    steps_ns = sorted(after - before for before, after in pairwise(mid_ns))
    if len(steps_ns) < PERIODS:
        return None
    period_ns = round((steps_ns[PERIODS // 2 - 1] + steps_ns[PERIODS // 2]) / 2)
    strays_ns = sorted(abs(step_ns - period_ns) for step_ns in steps_ns)
    quartile_ns = (3 * strays_ns[PERIODS * 3 // 4 - 1] + strays_ns[PERIODS * 3 // 4]) / 4
    return period_ns if quartile_ns < period_ns / REGULAR else None


class Jump(NamedTuple):
    """A step of a counter that cannot be."""

    t_ns: int
    grown_uj: int
    most_uj: int
    """The energy that the GPU can have drawn, uJ."""
    since_ns: int
    """From when on it is not known from the counter what was drawn."""
    filled_uj: int | None
    """What was drawn, by the power on both sides; None: it was not read, so the counter starts over."""
    deviation_uj: int = 0
    """Standard deviation of ``filled_uj``."""


def bridge(knots: Ints, before: Ints | None, most_mw: int) -> Ints:
    """Return the knots without first values before which the counter cannot have been reset.

    A counter that began at zero within a pause shows no more at its end than the highest power times the
    pause. One that shows more, and no less than before, has counted on. When it changed to its first
    value is not known, so that is no knot; the next change is.
    """
    firsts = np.flatnonzero(knots[Row.FIRST] == 1)
    if not len(firsts):
        return knots
    previous = knots[:, :1] * 0 if before is None else before
    previous = np.concatenate((previous, knots[:, :-1]), axis=1)
    # mW x ns = pJ; from the last read with the value before
    most_uj = MARGIN * most_mw * (knots[Row.HI] - previous[Row.LO]) / 1e6
    grown_uj = knots[Row.ENERGY] - previous[Row.ENERGY]
    counted_on = (knots[Row.ENERGY] > most_uj) & (grown_uj >= 0) & (grown_uj <= most_uj)
    counted_on[0] &= before is not None
    bridged = firsts[counted_on[firsts]]
    return np.delete(knots, bridged, axis=1)


def fill_jumps(knots: Ints, before: Ints | None, most_mw: int) -> list[Jump]:
    """Take steps of the counter that the GPU cannot have drawn out of it, in favour of the power beside it.

    Until `LATE_NS` after its time, a refresh may show what was drawn since. Without readings of power a knot
    to which the counter jumped is marked as reset.
    """
    last = knots[:, :1] if before is None else before
    previous = np.concatenate((last, knots[:, :-1]), axis=1)
    elapsed_ns = knots[Row.HI] - previous[Row.LO] + LATE_NS
    most_uj = MARGIN * most_mw * elapsed_ns / 1e6  # mW x ns = pJ
    grown_uj = knots[Row.ENERGY] - previous[Row.ENERGY]
    jumped = np.flatnonzero((knots[Row.FIRST] == 0) & (grown_uj > most_uj))
    jumps = []
    for at in jumped.tolist():
        power_mw = knots[Row.POWER, max(at - PERIODS, 0) : at + 1]
        power_mw = np.append(previous[Row.POWER, at], power_mw)
        since_ns, took_ns = int(previous[Row.LO, at]), int(knots[Row.HI, at] - previous[Row.HI, at])
        most, filled_uj, deviation_uj = int(most_uj[at]), None, 0
        if (power_mw < 0).any():  # there is no reading of power
            knots[Row.FIRST, at] = RESET
        else:
            mean_mw = (power_mw[0] + power_mw[-1]) / 2
            filled_uj = min(round(mean_mw * took_ns / 1e6), most)  # mW x ns = pJ
            deviation_mw = max(float(power_mw.std()), abs(power_mw[-1] - power_mw[0]) / 2, FILLED * mean_mw)
            deviation_uj = round(deviation_mw * took_ns / 1e6)
            knots[Row.ENERGY, at:] -= int(grown_uj[at]) - filled_uj
        jumps.append(Jump(int(knots[Row.HI, at]), int(grown_uj[at]), most, since_ns, filled_uj, deviation_uj))
    return jumps


def hung_ns(knots: Ints, before: Ints | None) -> Ints:
    """Return for how long the driver hung before each knot; 0 where it did not."""
    last = knots[Row.LO, :1] if before is None else before[Row.HI]
    since_ns = np.maximum(knots[Row.LO], np.concatenate((last, knots[Row.HI, :-1])))
    open_ns = knots[Row.HI] - since_ns
    hung: Ints = np.where(
        (open_ns > HANG_NS) & (knots[Row.FIRST] == 0) & (knots[Row.RESTED] == 0), open_ns, 0
    )
    return hung


def chain(knots: Ints, before: Ints | None, estimator: Estimator) -> None:
    """Work out the rows of ``knots`` that depend on the knot before each."""
    last = knots[:, :1] if before is None else before
    previous = np.concatenate((last, knots[:, :-1]), axis=1)
    elapsed_ns = knots[Row.MID] - previous[Row.MID]
    unseen_ns = np.where((elapsed_ns > GAP_NS) & (knots[Row.RESTED] == 0), elapsed_ns, hung_ns(knots, before))
    knots[Row.UNSEEN] = (0 if before is None else last[Row.UNSEEN]) + np.cumsum(unseen_ns)
    if estimator == "power":
        held_uj = previous[Row.POWER] * elapsed_ns // 1_000_000  # mW x ns = pJ
        knots[Row.ENERGY] = (0 if before is None else last[Row.ENERGY]) + np.cumsum(held_uj)
    else:
        fell = knots[Row.ENERGY] < previous[Row.ENERGY]
        knots[Row.FIRST] = np.where(fell, RESET, knots[Row.FIRST])
    first = knots[Row.FIRST] > 0
    epochs = (0 if before is None else (last[Row.EPOCH] + 1) // 2) + np.cumsum(first)
    # Even numbers are epochs; an odd one sets apart a counter's first value. Power is valid at once.
    knots[Row.EPOCH] = 2 * epochs - (first if estimator == "counter" else 0)


FIRST_JITTER_NS = 250_000.0
"""Standard deviation of the jitter that is assumed at first."""
LEAST_JITTER_NS = 2_000.0
LEARNED = 32
"""Refreshes over which the jitter is learned."""
EARLY = 4
"""It is learned faster at first: this over the number of refreshes so far and itself."""
WANDERS = 1 / 256
"""Variance by which the phase wanders in a period, part of that of the jitter."""
DRIFTS = 3e-6
"""Standard deviation by which the period changes in a period, part of it."""
ALIKE = 0.1
"""Two distances in a row that differ by less than this part are a period."""
NO_RHYTHM = 1 / 6
"""A jitter of more than this part of the period is none: the period is searched for again. Two distances of
15.8 ms were taken for the period of a counter of 20 ms, for ever (seed 61000)."""
STRAYED = 1e-6
"""A refresh in bounds less likely than this is none of this rhythm: a new phase begins."""
MOST_PERIODS = 64
"""After a pause longer than this the phase is a new one."""
WIDER = 1.2
"""Deviations are stated as wider by this: no jitter is Gaussian."""
_SQRT_2, _SQRT_2PI = sqrt(2), sqrt(2 * pi)


class RefreshPeriod:
    """The period of a counter's refreshes, by a Kalman filter. It says when a refresh came within its bounds.

        t_i = a + i T + j_i      a, T: phase and period, which wander slowly; j_i ~ N(0, J): jitter
        l_i <= t_i <= h_i        what the reads saw

    A measurement is an interval: the moments of the predicted instant, cut off at the bounds, take the place
    of a measured value (assumed density filtering). J is learned from what the jitter must have been (online
    expectation maximization). A counter without a rhythm has a wide J: then the middle of the bounds is left.
    """

    def __init__(self) -> None:
        self.period_ns = 0.0
        """0: not known yet."""
        self._gap_ns = 0.0
        self._at_ns = 0.0
        """The phase: when the last refresh would have come without its jitter."""
        self._at_var = self._shared_var = self._period_var = 0.0
        """Covariance of phase and period."""
        self._jitter_var = FIRST_JITTER_NS**2
        self._count = 0

    def place(self, lo_ns: int, hi_ns: int) -> tuple[float, float]:
        """Return the expected instant of the next refresh, which lies within its bounds, and its variance."""
        mid_ns, var = (lo_ns + hi_ns) / 2, max((hi_ns - lo_ns) ** 2 / 12, 1.0)
        if not self.period_ns:
            self._search(mid_ns, var)
            return mid_ns, var
        self._count += 1
        periods = max(round((mid_ns - self._at_ns) / self.period_ns), 1)
        at_ns = self._at_ns + periods * self.period_ns
        at_var = self._at_var + periods * (
            2 * self._shared_var + periods * self._period_var + WANDERS * self._jitter_var
        )
        shared_var = self._shared_var + periods * self._period_var
        period_var = self._period_var + periods * (DRIFTS * self.period_ns) ** 2
        jitter_var = self._jitter_var + LEAST_JITTER_NS**2
        expected_var = at_var + jitter_var
        within = _within((lo_ns - at_ns) / sqrt(expected_var), (hi_ns - at_ns) / sqrt(expected_var))
        if within is None or periods > MOST_PERIODS:
            self._at_ns, self._at_var, self._shared_var, self._period_var = mid_ns, var, 0.0, period_var
            self._jitter_var = min(2 * self._jitter_var + var, (self.period_ns / 4) ** 2)
            return mid_ns, var
        moved, part = within
        part = min(part, var / expected_var)  # never more than the bounds leave open: rounding
        moved_ns, left_var = moved * sqrt(expected_var), part * expected_var
        gain, period_gain, jitter_gain = (each / expected_var for each in (at_var, shared_var, jitter_var))
        self._at_ns, self.period_ns = at_ns + gain * moved_ns, self.period_ns + period_gain * moved_ns
        known = 1 - part
        self._at_var = at_var - gain * at_var * known
        self._shared_var = shared_var - gain * shared_var * known
        self._period_var = period_var - period_gain * shared_var * known
        jittered = (jitter_gain * moved_ns) ** 2 + jitter_var * (1 - jitter_gain * known)
        weight = max(1 / LEARNED, EARLY / (self._count + EARLY))
        self._jitter_var += weight * (max(jittered - LEAST_JITTER_NS**2, 0.0) - self._jitter_var)
        if self._jitter_var > (NO_RHYTHM * self.period_ns) ** 2:  # it never was the period
            self.period_ns, self._gap_ns, self._at_ns = 0.0, 0.0, mid_ns
            self._jitter_var, self._count = FIRST_JITTER_NS**2, 0
        return at_ns + moved_ns, left_var

    def ambiguous(self, open_ns: int) -> bool:
        """Return whether bounds so far apart leave open which refresh lies within."""
        return open_ns > AMBIGUOUS * (self.period_ns or REFRESH_NS)

    def _search(self, mid_ns: float, var: float) -> None:
        """Take the distance of two refreshes for the period, if it is that of the two before."""
        gap_ns = mid_ns - self._at_ns
        if abs(gap_ns - self._gap_ns) < ALIKE * gap_ns:
            self.period_ns, self._shared_var, self._period_var = gap_ns, 0.0, 2 * var
            self._jitter_var = max(self._jitter_var, var)
        self._gap_ns, self._at_ns, self._at_var = gap_ns, mid_ns, var


def _within(low: float, high: float) -> tuple[float, float] | None:
    """Return mean and variance of a standard normal variable between two bounds; None: it is hardly there."""
    chance = (erf(high / _SQRT_2) - erf(low / _SQRT_2)) / 2
    if chance < STRAYED:
        return None
    at_low, at_high = exp(-low * low / 2) / _SQRT_2PI / chance, exp(-high * high / 2) / _SQRT_2PI / chance
    mean = at_low - at_high
    return mean, max(1 + low * at_low - high * at_high - mean * mean, 1e-6)


class RefreshTimes:
    """The refreshes of one counter that were placed. Memory is bounded by what is still needed."""

    def __init__(self) -> None:
        self._rhythm = RefreshPeriod()
        self._ns = np.empty((2, 0), np.int64)
        """The end of the bounds of each, and its instant."""
        self._doubt_ns = np.empty(0)

    def placed(self, knots: Knots, since_ns: int, last: int) -> Knots:
        """Return the knots, from ``since_ns`` (it never falls) to ``last`` in step with those before."""
        known = int(self._ns[0].searchsorted(since_ns))
        self._ns, self._doubt_ns = self._ns[:, known:], self._doubt_ns[known:]
        newest_ns = int(self._ns[0, -1]) if self._ns.size else since_ns
        self._place(knots, slice(int(knots.hi_ns.searchsorted(newest_ns, side="right")), last + 1))
        at = knots.hi_ns.searchsorted(self._ns[0])
        same = knots.hi_ns[np.minimum(at, len(knots.hi_ns) - 1)] == self._ns[0]
        mid_ns, doubt_ns = knots.mid_ns.copy(), knots.doubt_ns.copy()
        mid_ns[at[same]], doubt_ns[at[same]] = self._ns[1, same], self._doubt_ns[same]
        return knots._replace(mid_ns=np.maximum.accumulate(mid_ns), doubt_ns=doubt_ns)

    @property
    def period_s(self) -> float:
        """The period of refreshes; 0: not known yet."""
        return self._rhythm.period_ns / 1e9

    def _place(self, knots: Knots, fresh: slice) -> None:
        """Place some knots, behind all that were."""
        ns = np.stack((knots.hi_ns[fresh], knots.mid_ns[fresh]))
        doubt_ns = knots.doubt_ns[fresh].copy()
        columns = knots.lo_ns, knots.hi_ns, knots.epoch, knots.sampled
        rows = zip(*(column[fresh].tolist() for column in columns), strict=True)
        for place, (lo_ns, hi_ns, epoch, sampled) in enumerate(rows):
            if epoch % 2 or sampled:
                continue  # when the counter changed to its first value is not known
            if self._rhythm.ambiguous(hi_ns - lo_ns):
                continue  # a read so late may have seen any of several refreshes
            instant_ns, var = self._rhythm.place(lo_ns, hi_ns)
            ns[1, place], doubt_ns[place] = round(instant_ns), WIDER * sqrt(var)
        self._ns = np.concatenate((self._ns, ns), axis=1)
        self._doubt_ns = np.concatenate((self._doubt_ns, doubt_ns))
