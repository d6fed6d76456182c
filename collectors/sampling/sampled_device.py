"""The state of one device between its reads: what they have shown, and when the next is due. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from collectors.device import PowerSample, Sample, SampleTimes
from collectors.sampling import change_detector, schedule
from collectors.sampling.change_detector import Reading
from collectors.sampling.counter_filling import CounterFilling
from collectors.sampling.refresh_grid import RefreshGrid
from zeus_stream.protocol.readings import Seen

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


class ReadCost(NamedTuple):
    """The cost of the last reads of a device."""

    per_s: float
    p50_ns: int
    p99_ns: int


class SampledDevice:
    """The reads of one device. One thread takes them in; another one takes the readings."""

    def __init__(self, begun_ns: int) -> None:
        self._seen = change_detector.DetectorState()
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
        known = change_detector.ENOUGH if period_ns else 0
        self._seen = change_detector.DetectorState(period_ns=period_ns, smoothed=known)
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
        seen, reading = change_detector.observe(self._seen, sample, *reads)
        last = self._seen.last
        fresh = last is not None and change_detector.figure(sample) != change_detector.figure(last)
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
