"""A counter between its refreshes, filled from samples of power. Pure.

Some drivers keep samples of power with their instants, a mean each, and give those of the last seconds in one
call. Added up they follow the counter, but stray from it by some percent. So the counter says how much was
drawn, and the samples say when:

    E(t) = S(t) + x(t)          S: the samples, added up; x strays by a random walk
    E(r - lag) = what the counter shows at a refresh r, of which the bounds are known

x is followed by a Kalman filter. What a refresh tells of it is spread over the samples since the
refresh before, in proportion to their variance. An H100 (driver 580) refreshes its counter each 100 ms, of
which a read bounds the instant to 30 ms; its samples come each 20 ms.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

from collectors.device import PowerSample, SampleTimes
from zeus_stream.protocol.readings import SAMPLED_WITHIN

STRAYS_BY_CHANGE, STRAYS = 0.2, 0.03
"""Standard deviation of a sample's energy: parts of the change of power since the sample before, and of its
own power, times its duration. On an H100 under square loads of 130, 370 and 900 ms."""
NEAR, STEP = 2, 0.5
"""The doubt of an instant is that of the energies of some samples: the variance of the walk over so many on
either side, times this. What all have in common, as refreshes are bounded loosely, is no part of it."""
OWN, FORGETS, WIDE = 0.25, 0.01, 2
"""Refreshes lie in their bounds alike: of the variance of where, the first part is new at each, and of what
they have in common the second is forgotten. Bounds wider than a period over the third have nothing so."""
SHARPENS = 0.05
"""A sum of means is blunt where power changes: this part of the change over a sample is taken off. Bias in
arithmetic time, without and with it: steps of 50 ms -1.4 and -0.6 %, of 47 ms with pauses -1.4 and +0.5 %, of
30 ms with gaps of 8 ms, shorter than a sample, -4.0 and -2.0 %."""
FAR, STRIKES = 6.0, 3
"""Refreshes that miss the samples by so many standard deviations, and in a row: then samples are not used."""
BREAK = 4
"""Samples that are more than so many periods apart are not added up."""
LEARNED_MJ = 5_000_000.0
"""The gain of the samples is that of about so much energy, mJ."""
MOST_GAIN = 0.15
"""It is 1 give or take this; else samples are not used."""
LEAST_MW = 20_000
"""A GPU draws at least so much, as far as bounds of instants are concerned."""
KEPT_NS = 2_000_000_000
"""Samples from so long before the last refresh are kept."""


class FilledInstant(NamedTuple):
    """An instant at which the energy is known, between refreshes of a counter."""

    t_lo_ns: int
    t_hi_ns: int
    energy_mj: int
    power_mw: int
    """Mean since the instant before, as sampled."""


class _Summed(NamedTuple):
    """The samples until one, added up."""

    t_ns: int
    power_mw: int
    sum_mj: float
    var_mj2: float
    """Variance of the walk so far."""


class _Walk:
    """The energy by which samples stray, and the time by which refreshes differ from the middle of their
    bounds: a Kalman filter of two states.

        shown = x + slope d + noise
    """

    def __init__(self) -> None:
        self.x_mj = self._d_ns = 0.0
        self._xx = self._xd = self._dd = 0.0

    def begin(self, shown_mj: float, slope: float, open_ns: int) -> None:
        """Begin at a refresh. ``slope``: of the counter there, mJ / ns."""
        self.x_mj, self._d_ns, self._dd = shown_mj, 0.0, open_ns**2 / 12
        self._xd, self._xx = -slope * self._dd, (1 + OWN) * slope**2 * self._dd + 1.0

    def see(self, shown_mj: float, slope: float, open_ns: int, walked_mj2: float, *, alike: bool) -> bool:
        """Take in the next refresh, if it can be, and return whether. ``alike``: d is that of others."""
        before = self._d_ns, self._xx, self._xd, self._dd
        self._xx += walked_mj2
        where_mj2 = slope**2 * open_ns**2 / 12
        if alike:
            kept = 1 - FORGETS
            self._d_ns, self._xd = kept * self._d_ns, kept * self._xd
            self._dd = kept**2 * self._dd + (1 - kept**2) * open_ns**2 / 12
        own = slope * alike
        with_x, with_d = self._xx + own * self._xd, self._xd + own * self._dd
        expected_mj2 = with_x + own * with_d + (OWN if alike else 1) * where_mj2 + 1.0
        missed_mj = shown_mj - self.x_mj - own * self._d_ns
        if missed_mj**2 > FAR**2 * expected_mj2:
            self._d_ns, self._xx, self._xd, self._dd = before
            return False
        of_x, of_d = with_x / expected_mj2, alike * with_d / expected_mj2
        self.x_mj += of_x * missed_mj
        if alike:
            self._d_ns = min(max(self._d_ns + of_d * missed_mj, -open_ns / 2), open_ns / 2)
        self._xx -= of_x * with_x
        self._xd -= of_x * with_d
        self._dd -= of_d * with_d
        return True


class CounterFilling:
    """The samples of one device beside its counter."""

    def __init__(self, times: SampleTimes) -> None:
        self._times = times
        self._samples: deque[_Summed] = deque()
        self._refreshes: deque[tuple[int, int, int]] = deque()
        """Those that samples have not come up to: bounds, and the counter, mJ."""
        self._walk = _Walk()
        """At `_settled`."""
        self._settled: _Summed | None = None
        """The samples until the last refresh that was used."""
        self._last = FilledInstant(0, 0, 0, 0)
        self._gain, self._counted_mj, self._sampled_mj = 1.0, LEARNED_MJ, LEARNED_MJ
        self._strikes = 0

    @property
    def strays(self) -> bool:
        """Tell whether the samples are those of another figure than the counter."""
        return self._strikes >= STRIKES or abs(self._gain - 1) > MOST_GAIN

    @property
    def waiting(self) -> int:
        """Refreshes that samples have not come up to."""
        return len(self._refreshes)

    @property
    def sampled_ns(self) -> int:
        """The instant of the last sample; 0: there is none."""
        return self._samples[-1].t_ns + self._times.late_ns if self._samples else 0

    def add(self, samples: Iterable[PowerSample]) -> None:
        """Take in samples, oldest first."""
        for t_ns, power_mw in samples:
            at_ns = t_ns - self._times.late_ns
            last = self._samples[-1] if self._samples else _Summed(at_ns, power_mw, 0.0, 0.0)
            took_ns = at_ns - last.t_ns
            if took_ns <= 0 < len(self._samples):
                continue
            if took_ns > BREAK * self._times.period_ns:
                self._samples.clear()
                self._settled = None
                took_ns = 0
            drawn_mj = power_mw * took_ns / 1e9
            strays_mj2 = (STRAYS_BY_CHANGE * (power_mw - last.power_mw) * took_ns / 1e9) ** 2
            strays_mj2 += (STRAYS * drawn_mj) ** 2
            summed = last.sum_mj + self._gain * drawn_mj, last.var_mj2 + strays_mj2
            self._samples.append(_Summed(at_ns, power_mw, *summed))

    def see(self, t_lo_ns: int, t_hi_ns: int, energy_mj: int) -> None:
        """Take in a refresh of the counter between two instants."""
        late_ns = self._times.counter_late_ns
        self._refreshes.append((t_lo_ns - late_ns, t_hi_ns - late_ns, energy_mj))

    def take(self) -> Iterator[FilledInstant]:
        """Yield the instants that are known by now, each once, oldest first."""
        while self._refreshes and self._covers(self._refreshes[0][1]):
            yield from self._settle(*self._refreshes.popleft())

    def _covers(self, t_ns: int) -> bool:
        return len(self._samples) > NEAR and self._samples[-1 - NEAR].t_ns >= t_ns

    def _settle(self, lo_ns: int, hi_ns: int, energy_mj: int) -> Iterator[FilledInstant]:
        """Yield the instants since the refresh before until this one."""
        if hi_ns <= self._samples[0].t_ns:
            return
        low, high = self._at(max(lo_ns, self._samples[0].t_ns)), self._at(hi_ns)
        at, open_ns = self._at((low.t_ns + hi_ns) // 2), hi_ns - low.t_ns
        shown_mj, slope = energy_mj - at.sum_mj, (high.sum_mj - low.sum_mj) / max(open_ns, 1)
        before, alike = self._settled, WIDE * open_ns < self._times.counter_period_ns
        if before is None:
            self._walk.begin(shown_mj, slope, open_ns)
            self._settled = at
        if before is None or at.t_ns <= before.t_ns:
            return
        walked_mj2 = max(at.var_mj2 - before.var_mj2, 1e-9)
        was_mj = self._walk.x_mj
        if not self._walk.see(shown_mj, slope, open_ns, walked_mj2, alike=alike):
            self._strikes += 1
            return
        moved_mj, self._strikes = self._walk.x_mj - was_mj, 0
        samples = list(self._samples)
        for place in range(NEAR, len(samples) - NEAR):
            each = samples[place]
            if before.t_ns < each.t_ns <= at.t_ns:
                gone = (each.var_mj2 - before.var_mj2) / walked_mj2
                strayed_mj2 = samples[place + NEAR].var_mj2 - samples[place - NEAR].var_mj2
                around_mw = (each.power_mw + samples[place + 1].power_mw) / 2
                rose_mj = (samples[place + 1].power_mw - each.power_mw) * self._times.period_ns / 1e9
                drawn_mj = each.sum_mj + was_mj + gone * moved_mj - SHARPENS * rose_mj
                yield self._instant(each, drawn_mj, strayed_mj2, around_mw)
        self._learn(at.sum_mj - before.sum_mj, moved_mj)
        self._settled = at
        while self._samples[0].t_ns < at.t_ns - KEPT_NS:
            self._samples.popleft()

    def _instant(self, each: _Summed, energy_mj: float, strayed_mj2: float, power_mw: float) -> FilledInstant:
        """Return an instant that is in step with those before."""
        open_ns = round(SAMPLED_WITHIN * sqrt(STEP * strayed_mj2) / max(power_mw, LEAST_MW) * 1e9)
        last = self._last
        self._last = FilledInstant(
            max(each.t_ns - open_ns, last.t_lo_ns),
            max(each.t_ns + open_ns, last.t_hi_ns),
            max(round(energy_mj), last.energy_mj),
            each.power_mw,
        )
        return self._last

    def _learn(self, sampled_mj: float, moved_mj: float) -> None:
        """Learn the gain of samples, which have it already, by what a refresh adds to them."""
        kept = max(1 - sampled_mj / LEARNED_MJ, 0.0)
        self._sampled_mj = kept * self._sampled_mj + sampled_mj / self._gain
        self._counted_mj = kept * self._counted_mj + sampled_mj + moved_mj
        self._gain = self._counted_mj / self._sampled_mj

    def _at(self, t_ns: int) -> _Summed:
        """Return the samples until an instant that lies between them."""
        for later, earlier in pairwise(reversed(self._samples)):
            if earlier.t_ns <= t_ns:
                part = (t_ns - earlier.t_ns) / max(later.t_ns - earlier.t_ns, 1)
                sum_mj = earlier.sum_mj + part * (later.sum_mj - earlier.sum_mj)
                var_mj2 = earlier.var_mj2 + part * (later.var_mj2 - earlier.var_mj2)
                return _Summed(t_ns, later.power_mw, sum_mj, var_mj2)
        return self._samples[0]
