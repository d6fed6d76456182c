"""The state of one device between its reads: what they have shown, and when the next is due. Pure.

A driver refreshes its counter every 10 to 100 ms and does not say when. Two reads tell: the change
came after the last read with the old value had *begun* (it may have come right behind it), and before
the first read with the new one had *ended*. However late a read comes (a suspended host, a stopped
process), that stays true, and the stamps say how little is known.

    first read, or first with a counter    FIRST
    counter grew                           CHANGED
    counter fell                           RESET
    counter as before                      UNCHANGED, once a heartbeat and when a limit changed
    no counter                             POWER, when the power changed, and as above
    grew, or power, after a long pause     RESTED
"""

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from collectors.device import PowerSample, Sample, SampleTimes
from collectors.sampling import schedule
from collectors.sampling.counter_filling import CounterFilling
from collectors.sampling.refresh_grid import RefreshGrid
from zeus_stream.protocol.readings import ABSENT, READING_STRUCT, Seen

ENOUGH = 5
"""Intervals between changes, the mean of whose middle half is the period at first."""
SMOOTHED = 32
"""Later it is the mean of about so many intervals that fit it: the newer, the more they count."""
FITS, FITS_NS = 50, 1_200_000
"""An interval fits the period if it is off by at most this part of it, or so much."""
CLOSE = 4
"""A change says something of the period if its bounds are closer than this part of it."""
OTHERS = 15
"""In a row that do not fit: then they make another period."""
_ROW = Struct(READING_STRUCT)
MAX_READINGS = 20_000
"""Readings that wait for the event loop; past it new ones are dropped and counted."""
HEARTBEAT_NS = 500_000_000
"""Longest time between two stored readings."""
OVERDUE_NS = 500_000_000
"""A read at rest that is late by so much hangs, or its device does not answer."""
_GROWN = (Seen.CHANGED, Seen.POWER)
MAX_UNFILLED = 5
"""Refreshes without a sample up to them: then the driver keeps none, and readings are refreshes again."""
MAX_TOOK = 512
"""Reads of which the duration is remembered."""
RECENT_NS = 30_000_000_000
"""Reads that are no longer ago than this make the cost."""


class Reading(NamedTuple):
    """The result of reads between two instants (CLOCK_MONOTONIC, ns)."""

    t_lo_ns: int
    t_hi_ns: int
    sample: Sample
    seen: Seen


class DetectorState(NamedTuple):
    """The memory of a device's reads. One that was lost and is back starts from a new one."""

    last: Sample | None = None
    before_ns: int = 0
    """When the read that gave ``last`` began."""
    published_ns: int = 0
    changed_ns: int | None = None
    """Middle of the two instants of the last change that was bounded closely."""
    intervals_ns: tuple[int, ...] = ()
    """Those since the last one that fits the period."""
    period_ns: int | None = None
    """Time from refresh to refresh; None while too few changes were seen."""
    smoothed: int = 0
    """Intervals of which the period is the mean, at most SMOOTHED."""
    passed: int = 0
    """Refreshes since that change."""


def observe(
    state: DetectorState,
    sample: Sample,
    before_ns: int,
    after_ns: int,
    heartbeat_ns: int,
    periods: int = 1,
) -> tuple[DetectorState, Reading | None]:
    """Return the next state, and the reading to publish, if any, at least each ``heartbeat_ns``.

    ``periods``: since the last refresh that was seen, where reads leave some out.
    """
    last = state.last
    if sample == last and after_ns - state.published_ns < heartbeat_ns:  # as at most reads
        return DetectorState(last, before_ns, *state[2:]), None
    seen = _compare(last, sample)
    fresh = last is not None and figure(sample) != figure(last)
    changed = seen in (Seen.CHANGED, Seen.RESET) or (seen == Seen.POWER and fresh)
    lo_ns = state.before_ns if changed else before_ns
    known = state
    if fresh:
        passed, open_ns = state.passed + periods, after_ns - state.before_ns
        known = state._replace(passed=passed)
        if state.period_ns is None or open_ns <= state.period_ns // CLOSE:
            middle_ns = (state.before_ns + after_ns) // 2
            if state.changed_ns is not None:
                known = _add_interval(known, (middle_ns - state.changed_ns) // passed)
            known = known._replace(changed_ns=middle_ns, passed=0)
    publish = (
        fresh
        or last is None
        or after_ns - state.published_ns >= heartbeat_ns
        or (sample.limit_mw, sample.requested_mw) != (last.limit_mw, last.requested_mw)
    )
    published_ns = after_ns if publish else state.published_ns
    following = DetectorState(sample, before_ns, published_ns, *known[3:])
    return following, Reading(lo_ns, after_ns, sample, seen) if publish else None


def _compare(last: Sample | None, sample: Sample) -> Seen:
    if sample.energy_mj is None:
        return Seen.POWER
    if last is None or last.energy_mj is None:
        return Seen.FIRST
    if sample.energy_mj == last.energy_mj:
        return Seen.UNCHANGED
    return Seen.CHANGED if sample.energy_mj > last.energy_mj else Seen.RESET


def _add_interval(state: DetectorState, interval_ns: int) -> DetectorState:
    """Return the state with the period one interval later."""
    intervals_ns, period_ns, smoothed = state.intervals_ns, state.period_ns, state.smoothed
    if period_ns is not None and abs(interval_ns - period_ns) <= max(period_ns // FITS, FITS_NS):
        smoothed = min(smoothed + 1, SMOOTHED)
        period_ns += (interval_ns - period_ns) // smoothed
        return state._replace(intervals_ns=(), period_ns=period_ns, smoothed=smoothed)
    intervals_ns += (interval_ns,)
    if len(intervals_ns) < (ENOUGH if period_ns is None else OTHERS):
        return state._replace(intervals_ns=intervals_ns)
    return state._replace(intervals_ns=(), period_ns=_period_ns(intervals_ns), smoothed=ENOUGH)


def _period_ns(intervals_ns: tuple[int, ...]) -> int:
    """Return the mean of their middle half: refreshes that were missed or seen late do not move it."""
    outside = len(intervals_ns) // 4
    middle = sorted(intervals_ns)[outside : len(intervals_ns) - outside]
    return sum(middle) // len(middle)


def figure(sample: Sample) -> int | None:
    """Return what tells a refresh."""
    return sample.power_mw if sample.energy_mj is None else sample.energy_mj


def pack(reading: Reading, gpu: int) -> bytes:
    """Return a reading as a row of `Readings.rows`; ``gpu`` is the device's place in `Readings.gpus`."""
    t_lo_ns, t_hi_ns, (energy_mj, power_mw, limit_mw, requested_mw, *others), seen = reading
    clock_mhz, temperature_c, utilization_pct, *_ = others
    return _ROW.pack(
        t_lo_ns,
        t_hi_ns,
        ABSENT if energy_mj is None else energy_mj,
        ABSENT if power_mw is None else power_mw,
        ABSENT if limit_mw is None else limit_mw,
        ABSENT if requested_mw is None else requested_mw,
        ABSENT if clock_mhz is None else clock_mhz,
        ABSENT if temperature_c is None else temperature_c,
        ABSENT if utilization_pct is None else utilization_pct,
        gpu,
        seen,
    )


class ReadCost(NamedTuple):
    """The cost of the last reads of a device."""

    per_s: float
    p50_ns: int
    p99_ns: int


class SampledDevice:
    """The reads of one device. One thread takes them in; another one takes the readings."""

    def __init__(self, begun_ns: int) -> None:
        self._seen = DetectorState()
        self._schedule = schedule.Schedule(begun_ns)
        self._took: deque[tuple[int, int]] = deque(maxlen=MAX_TOOK)
        """End and duration of the last reads, ns."""
        self._readings: deque[Reading] = deque()
        self._dropped = 0
        self._relaxed = False
        self._grid = RefreshGrid()
        self._shown_ns: int | None = None
        """By when the last refresh that was seen had come."""
        self._times: SampleTimes | None = None
        """Of the samples of power that fill its counter; None: none do."""
        self._filling: CounterFilling | None = None
        self._reads: deque[tuple[int, Sample]] = deque(maxlen=MAX_TOOK)
        """End and sample of reads: filled readings have the limits that were in force then."""
        self._stated_mj = 0
        """The counter in the last reading."""
        self.closely = True
        """Windows of its sessions are short."""
        self._due_ns: int | None = None
        """The planned end of the pause before the next read, if that is a long one."""

    @property
    def paused(self) -> bool:
        """Tell whether the pause before the next read is a long one."""
        return self._due_ns is not None

    def overdue(self, now_ns: int) -> bool:
        """Tell whether a read after a long pause should be over."""
        return self._due_ns is not None and now_ns > self._due_ns + OVERDUE_NS

    @property
    def period_ns(self) -> int | None:
        """The refresh interval of the device, as far as it was seen."""
        return self._schedule.period_ns

    @property
    def timed(self) -> bool:
        """Tell whether refreshes keep to a grid, which narrows their bounds."""
        return self._grid.believed

    def begin(
        self,
        begun_ns: int,
        every_ns: int = 0,
        period_ns: int | None = None,
        times: SampleTimes | None = None,
    ) -> None:
        """Forget what was seen: the device was found, or is back.

        ``every_ns``: its own distance of reads. ``period_ns`` of its refreshes, and ``times`` of its samples
        of power: as its sensor card says.
        """
        self._times, self._filling, self._stated_mj = times, None, 0
        known = ENOUGH if period_ns else 0
        self._seen = DetectorState(period_ns=period_ns, smoothed=known)
        self._grid, self._shown_ns, self._due_ns = RefreshGrid(), None, None
        self._schedule = schedule.Schedule(begun_ns, every_ns, period_ns=period_ns)

    def relax(self, *, relaxed: bool) -> bool:
        """Read it seldom from now on, or closely again. Return whether it is to be read now."""
        sooner, self._relaxed = self._relaxed and not relaxed, relaxed
        return sooner

    def take_readings(self, most: int) -> list[Reading]:
        """Return the oldest readings."""
        return [self._readings.popleft() for _ in range(min(most, len(self._readings)))]

    def take_dropped(self) -> int:
        """Return how many readings found no room since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def fail(self, now_ns: int) -> int:
        """Take in that a read failed that may succeed the next time; return when that is, ns."""
        self._schedule = schedule.failed(self._schedule)
        return schedule.next_poll_ns(self._schedule, now_ns)

    def sleep(self, now_ns: int) -> int | None:
        """Put off a read at rest of a device that is suspended; None: it is to be read."""
        if not (self._relaxed and self.paused):
            return None
        self._due_ns = schedule.relaxed_ns(now_ns)
        return self._due_ns

    def take_in(self, sample: Sample, before_ns: int, after_ns: int) -> int:
        """Take in a read that began and ended then; return when the next one is due, ns."""
        reads = before_ns, after_ns, HEARTBEAT_NS, self._schedule.periods
        seen, reading = observe(self._seen, sample, *reads)
        last = self._seen.last
        fresh = last is not None and figure(sample) != figure(last)
        if self.paused:  # a change that was seen after a long pause says nothing of the period
            known = self._seen
            seen = seen._replace(changed_ns=None, intervals_ns=known.intervals_ns, period_ns=known.period_ns)
        self._seen = seen
        if reading is not None:
            if reading.seen == Seen.CHANGED and self.period_ns is not None and not self.paused:
                by_reads = reading.t_lo_ns, reading.t_hi_ns
                t_lo_ns, t_hi_ns = self._grid.narrow(*by_reads, before_ns, self.period_ns)
                reading = reading._replace(t_lo_ns=t_lo_ns, t_hi_ns=t_hi_ns)
            if self.paused and reading.seen in _GROWN and not self.overdue(after_ns):
                reading = reading._replace(seen=Seen.RESTED)
            self._put(reading, before_ns)
        change = None
        if reading is not None and fresh and reading.seen != Seen.RESET and not self.paused:
            change = reading.t_lo_ns, reading.t_hi_ns
            self._shown_ns = reading.t_hi_ns
        took_ns = after_ns - before_ns
        self._took.append((after_ns, took_ns))
        self._schedule = schedule.was_read(
            self._schedule,
            self._seen.period_ns,
            change,
            took_ns,
            closely=self.closely or self._grid.doubtful,
            frugal=not self._grid.doubtful,
            open_ns=0 if change is None else self._grid.open_ns,
        )
        relaxed_ns = None
        if self._relaxed:
            self._schedule, relaxed_ns = schedule.relax(self._schedule, after_ns)
        self._due_ns = relaxed_ns
        if relaxed_ns is not None:
            return relaxed_ns
        return schedule.next_poll_ns(self._schedule, after_ns, self._coming_ns())

    # ---- samples of power --------------------------------------------------------------------------

    @property
    def unsampled_ns(self) -> int | None:
        """Since when samples of power are wanted, ns; None: none are."""
        return None if self._filling is None else self._filling.sampled_ns

    def take_samples(self, samples: Sequence[PowerSample]) -> bool:
        """Take in the samples since `unsampled_ns`. False: they are of no use, and not wanted any more."""
        if self._filling is None:
            return True
        self._filling.add(samples)
        for t_lo_ns, t_hi_ns, energy_mj, power_mw in self._filling.take():
            while len(self._reads) > 1 and self._reads[1][0] <= t_lo_ns:
                self._reads.popleft()
            sample = self._reads[0][1]._replace(energy_mj=energy_mj, power_mw=power_mw)
            self._append(Reading(t_lo_ns, t_hi_ns, sample, Seen.SAMPLED))
        if self._filling.strays or self._filling.waiting > MAX_UNFILLED:
            self._times = self._filling = None
            return False
        return True

    def _put(self, reading: Reading, before_ns: int) -> None:
        """Put a reading by, or leave what it says to the samples of power."""
        wanted = self._times is not None and self.closely and not self._relaxed
        if not wanted or reading.seen not in (Seen.CHANGED, Seen.UNCHANGED):
            self._filling = None
        elif self._times is not None and self._filling is None and self.period_ns is not None:
            self._filling = CounterFilling(self._times)
            self._reads.clear()
        if self._filling is None:
            self._append(reading)
            return
        self._reads.append((reading.t_hi_ns, reading.sample))
        if reading.seen == Seen.CHANGED and reading.sample.energy_mj is not None:
            # Of several refreshes since the read before, the last one was at most a period before this one.
            t_lo_ns = max(reading.t_lo_ns, before_ns - (self.period_ns or 0))
            self._filling.see(t_lo_ns, reading.t_hi_ns, reading.sample.energy_mj)
        else:
            self._append(reading)

    def _append(self, reading: Reading) -> None:
        """Put a reading by. The counter does not fall behind what samples gave."""
        energy_mj = reading.sample.energy_mj
        if energy_mj is not None and reading.seen not in (Seen.FIRST, Seen.RESET):
            if energy_mj < self._stated_mj and reading.seen == Seen.CHANGED:
                return
            if reading.seen == Seen.UNCHANGED:
                energy_mj = max(energy_mj if self._filling is None else 0, self._stated_mj)
                reading = reading._replace(sample=reading.sample._replace(energy_mj=energy_mj))
        if len(self._readings) < MAX_READINGS:
            self._readings.append(reading)
            self._stated_mj = energy_mj or 0
        else:
            self._dropped += 1

    def _coming_ns(self) -> tuple[int, int] | None:
        """Return the bounds of the refresh that is to be seen next, by the grid; None: reads are quick."""
        if self._shown_ns is None or self.period_ns is None or self._schedule.took_ns <= schedule.LEAST_NS:
            return None
        later_ns = (2 * self._schedule.periods - 1) * self.period_ns // 2
        return self._grid.coming_ns(self._shown_ns + later_ns)

    @property
    def cost(self) -> ReadCost | None:
        """The cost of the last reads; None: there were fewer than two."""
        known = list(self._took)  # the thread that reads goes on
        took = [each for each in known if each[0] >= known[-1][0] - RECENT_NS]
        if len(took) < 2:
            return None
        each_ns = sorted(took_ns for _, took_ns in took)
        over_s = (took[-1][0] - took[0][0]) / 1e9
        return ReadCost(
            (len(took) - 1) / max(over_s, 1e-9), each_ns[len(took) // 2], each_ns[len(took) * 99 // 100]
        )
