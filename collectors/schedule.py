"""When to read a device next. Pure.

While the refresh period is unknown, reads are SEARCH_NS apart; once it is known, a fifth of it. Reads
at even distances would lock to the phase of the refreshes (a fifth of 100 ms meets every refresh at
the same five phases for ever). So each distance is stretched or shortened by a step of the sequence
n^2 x golden ratio mod 1: evenly spread like n x golden ratio, but its sums wander instead of returning,
so that in time every phase is met equally often.
"""

from dataclasses import dataclass, replace

SEARCH_NS = 5_000_000
SEARCH_FOR_NS = 3_000_000_000
"""After this long without a period (power that never changes, a slow device) reads are SLOW_NS apart."""
SLOW_NS = 20_000_000
READS_A_PERIOD = 5
LEAST_NS = 1_000_000
MOST_NS = 200_000_000
DITHER = 0.5
"""Distances are spread over this part of their mean."""
_GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio's fraction in units of 2^-64: whole numbers stay exact however long a device is read."""
RETRY_MOST_NS = 1_000_000_000
"""Failed reads double the distance, up to this."""
RETURN_NS = 3_000_000_000
"""Between two looks for a lost device, and between two looks for a driver."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What decides when a device is read next."""

    begun_ns: int
    poll_ns: int = 0
    """Set by a person; 0: by the device's period."""
    reads: int = 0
    failures: int = 0
    """In a row."""
    period_ns: int | None = None


def was_read(schedule: Schedule, period_ns: int | None) -> Schedule:
    """Return the schedule after a read; ``period_ns`` as far as it is known by now."""
    return Schedule(schedule.begun_ns, schedule.poll_ns, schedule.reads + 1, 0, period_ns)


def failed(schedule: Schedule) -> Schedule:
    """Return the schedule after a read that may succeed the next time."""
    return replace(schedule, failures=schedule.failures + 1)


def next_poll_ns(schedule: Schedule, now_ns: int) -> int:
    """Return when to read next, ns after which it is due."""
    mean_ns = _distance_ns(schedule, now_ns)
    if schedule.failures:
        return now_ns + min(mean_ns << min(schedule.failures, 10), RETRY_MOST_NS)
    spread = (schedule.reads**2 * _GOLDEN) % 2**64 / 2**64 - 0.5
    return now_ns + round(mean_ns * (1 + DITHER * spread))


def _distance_ns(schedule: Schedule, now_ns: int) -> int:
    if schedule.poll_ns:
        return schedule.poll_ns
    if schedule.period_ns is not None:
        return min(max(schedule.period_ns // READS_A_PERIOD, LEAST_NS), MOST_NS)
    return SEARCH_NS if now_ns - schedule.begun_ns < SEARCH_FOR_NS else SLOW_NS
