"""When a counter was refreshed: within the bounds of each refresh, and in step with those before it. Pure.

A read bounds a refresh to half a millisecond on an idle host, and to many on a busy one. But refreshes come
at even distances, so those before it say when it came, often closer than its own bounds:

    t_i = a + i T + j_i      a, T: phase and period, which wander slowly; j_i ~ N(0, J): jitter
    l_i <= t_i <= h_i        what the reads saw

A Kalman filter tracks a and T. Its measurement is an interval: the moments of the predicted instant, cut off
at the bounds, take the place of a measured value (assumed density filtering). J is learned from what the
jitter must have been (online expectation maximization). A counter without a rhythm has a wide J, and then the
middle of the bounds is what is left. The hard bounds stay as they were.
"""

from math import erf, exp, pi, sqrt

import numpy as np

from analyzers.measurement.knots import AMBIGUOUS, Knots

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
STRAYED = 1e-6
"""A refresh in bounds less likely than this is none of this rhythm: a new phase begins."""
MOST_PERIODS = 64
"""After a pause longer than this the phase is a new one."""
WIDER = 1.2
"""Deviations are stated as wider by this: no jitter is Gaussian."""
_SQRT_2, _SQRT_2PI = sqrt(2), sqrt(2 * pi)


class RefreshPeriod:
    """The filter: refreshes in order, one by one. Times in ns, variances in ns^2."""

    def __init__(self) -> None:
        self._period_ns = 0.0
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
        if not self._period_ns:
            self._search(mid_ns, var)
            return mid_ns, var
        self._count += 1
        periods = max(round((mid_ns - self._at_ns) / self._period_ns), 1)
        at_ns = self._at_ns + periods * self._period_ns
        at_var = self._at_var + periods * (
            2 * self._shared_var + periods * self._period_var + WANDERS * self._jitter_var
        )
        shared_var = self._shared_var + periods * self._period_var
        period_var = self._period_var + periods * (DRIFTS * self._period_ns) ** 2
        jitter_var = self._jitter_var + LEAST_JITTER_NS**2
        expected_var = at_var + jitter_var
        within = _within((lo_ns - at_ns) / sqrt(expected_var), (hi_ns - at_ns) / sqrt(expected_var))
        if within is None or periods > MOST_PERIODS:
            self._at_ns, self._at_var, self._shared_var, self._period_var = mid_ns, var, 0.0, period_var
            self._jitter_var = min(2 * self._jitter_var + var, (self._period_ns / 4) ** 2)
            return mid_ns, var
        moved, part = within
        part = min(part, var / expected_var)  # never more than the bounds leave open: rounding
        moved_ns, left_var = moved * sqrt(expected_var), part * expected_var
        gain, period_gain, jitter_gain = (each / expected_var for each in (at_var, shared_var, jitter_var))
        self._at_ns, self._period_ns = at_ns + gain * moved_ns, self._period_ns + period_gain * moved_ns
        known = 1 - part
        self._at_var = at_var - gain * at_var * known
        self._shared_var = shared_var - gain * shared_var * known
        self._period_var = period_var - period_gain * shared_var * known
        jittered = (jitter_gain * moved_ns) ** 2 + jitter_var * (1 - jitter_gain * known)
        weight = max(1 / LEARNED, EARLY / (self._count + EARLY))
        self._jitter_var += weight * (max(jittered - LEAST_JITTER_NS**2, 0.0) - self._jitter_var)
        return at_ns + moved_ns, left_var

    def ambiguous(self, open_ns: int) -> bool:
        """Return whether bounds so far apart leave open which refresh lies within."""
        return 0 < AMBIGUOUS * self._period_ns < open_ns

    def _search(self, mid_ns: float, var: float) -> None:
        """Take the distance of two refreshes for the period, if it is that of the two before."""
        gap_ns = mid_ns - self._at_ns
        if abs(gap_ns - self._gap_ns) < ALIKE * gap_ns:
            self._period_ns, self._period_var = gap_ns, 2 * var
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

    def _place(self, knots: Knots, fresh: slice) -> None:
        """Place some knots, behind all that were."""
        ns = np.stack((knots.hi_ns[fresh], knots.mid_ns[fresh]))
        doubt_ns = knots.doubt_ns[fresh].copy()
        rows = zip(*(row[fresh].tolist() for row in (knots.lo_ns, knots.hi_ns, knots.epoch)), strict=True)
        for place, (lo_ns, hi_ns, epoch) in enumerate(rows):
            if epoch % 2:
                continue  # when the counter changed to its first value is not known
            if self._rhythm.ambiguous(hi_ns - lo_ns):
                continue  # a read so late may have seen any of several refreshes
            instant_ns, var = self._rhythm.place(lo_ns, hi_ns)
            ns[1, place], doubt_ns[place] = round(instant_ns), WIDER * sqrt(var)
        self._ns = np.concatenate((self._ns, ns), axis=1)
        self._doubt_ns = np.concatenate((self._doubt_ns, doubt_ns))
