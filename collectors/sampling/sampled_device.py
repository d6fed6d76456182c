"""The state of one device between its reads: what they have shown, and when the next is due. Pure.

    as before, when close looks were asked for    nothing changes but the lower bound of the refresh to come
    the refresh that they waited for              the shortest way: `_follow`
    all else                                      `change_detector.observe`, then `schedule`

Of ten reads one goes the last way. What a read does decides what it takes: caches are cold after each sleep.
"""

from collections import deque

from collectors.device import Sample
from collectors.sampling import change_detector, schedule
from collectors.sampling.change_detector import Reading
from zeus_stream.protocol.readings import Seen

MAX_READINGS = 20_000
"""Readings that wait for the event loop; past it new ones are dropped and counted."""
NEVER_NS = 1 << 62


class SampledDevice:
    """The reads of one device. One thread takes them in; another one takes the readings."""

    def __init__(self, begun_ns: int, poll_ns: int, heartbeat_ns: int) -> None:
        """``poll_ns``: between two reads, set by a person; 0: by the device's period."""
        self._heartbeat_ns = heartbeat_ns
        self._seen = change_detector.DetectorState()
        self._schedule = schedule.Schedule(begun_ns, poll_ns)
        self._looks: schedule.CloseLooks | None = None
        """The next reads, as long as they see nothing new."""
        self._before_ns = 0
        """When the last of those began."""
        self._readings: deque[Reading] = deque()
        self._dropped = 0
        self._relaxed = False
        self.paused = False
        """The pause before the next read is a long one."""
        self.early_ns = NEVER_NS
        """From then on it may be read, if that takes no wake-up: see `schedule.CloseLooks.guard_ns`."""

    @property
    def period_ns(self) -> int | None:
        """The refresh interval of the device, as far as it was seen."""
        return self._schedule.period_ns

    def begin(self, begun_ns: int) -> None:
        """Forget what was seen: the device was found, or is back."""
        self._seen, self._before_ns, self._looks = change_detector.DetectorState(), 0, None
        self._schedule, self.paused = schedule.Schedule(begun_ns, self._schedule.poll_ns), False

    def relax(self, *, relaxed: bool) -> bool:
        """Read it about once a second from now on, or closely again. Return whether it is to be read now."""
        sooner, self._relaxed = self._relaxed and not relaxed, relaxed
        if relaxed:
            self._looks = None
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
        self._looks, self.early_ns = None, NEVER_NS
        self._schedule = schedule.failed(self._schedule)
        return schedule.next_poll_ns(self._schedule, now_ns)

    def take_in(self, sample: Sample, before_ns: int, after_ns: int) -> int:
        """Take in a read that began and ended then; return when the next one is due, ns."""
        looks, self.early_ns = self._looks, NEVER_NS
        if looks is not None and after_ns < looks.until_ns:
            if sample == self._seen.last:
                self._before_ns = before_ns  # as at most reads: what follows would change nothing else
                return max(after_ns + looks.apart_ns, looks.first_ns)
            if (due_ns := self._follow(sample, before_ns, after_ns)) is not None:
                return due_ns
        return self.take_in_any(sample, before_ns, after_ns)

    def _follow(self, sample: Sample, before_ns: int, after_ns: int) -> int | None:
        """Do as `take_in_any` does with the refresh that was waited for; None: it is none."""
        lo_ns = max(self._before_ns, self._seen.before_ns)
        seen = change_detector.grew(self._seen, sample, lo_ns, before_ns, after_ns)
        if seen is None or seen.period_ns is None or self._relaxed or len(self._readings) >= MAX_READINGS:
            return None
        until_ns = after_ns + self._heartbeat_ns
        followed = schedule.follow(self._schedule, seen.period_ns, (lo_ns, after_ns), until_ns)
        if followed is None:
            return None
        self._seen = seen
        self._readings.append(Reading(lo_ns, after_ns, sample, Seen.CHANGED))
        self._schedule, looks, due_ns = followed
        self._looks = looks
        if looks.guard_ns is not None:
            self.early_ns = looks.guard_ns
        return due_ns

    def take_in_any(self, sample: Sample, before_ns: int, after_ns: int) -> int:
        """Take in a read, whatever it shows."""
        if self._before_ns > self._seen.before_ns:
            self._seen = change_detector.saw_the_same(self._seen, self._before_ns)
        seen, reading = change_detector.observe(self._seen, sample, before_ns, after_ns, self._heartbeat_ns)
        self._seen = change_detector.keep_period(self._seen, seen) if self.paused else seen
        if reading is not None:
            if len(self._readings) < MAX_READINGS:
                self._readings.append(reading)
            else:
                self._dropped += 1
        change = None
        if reading is not None and reading.seen == Seen.CHANGED and not self.paused:
            change = reading.t_lo_ns, reading.t_hi_ns
        self._schedule = schedule.was_read(self._schedule, self._seen.period_ns, change)
        relaxed_ns = None
        if self._relaxed:
            self._schedule, relaxed_ns = schedule.relax(self._schedule, after_ns)
        self.paused, self._looks, self.early_ns = relaxed_ns is not None, None, NEVER_NS
        if relaxed_ns is not None:
            return relaxed_ns
        looks = schedule.close_looks(self._schedule, self._seen.published_ns + self._heartbeat_ns)
        self._looks = looks
        if looks is not None and looks.guard_ns is not None:
            self.early_ns = looks.guard_ns
        return schedule.next_poll_ns(self._schedule, after_ns)
