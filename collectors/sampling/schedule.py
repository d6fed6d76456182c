"""When to read a device next. Pure.

While the refresh period is unknown, reads are SEARCH_NS apart. Once it is known, the next refresh can be
predicted: reads sleep through the dead time and look closely around the predicted instant, until the
refresh is seen. So a refresh is placed within one close look, with fewer reads than at even distances.

    refresh |... no reads ...  .  [ . . . | . . . ]          a window of ``width_ns`` on both sides of
            '---- period --------|------->' expected_ns      what is expected, read every LOOK
                                 '- a guard: should the next look come late, the refresh still lies behind it

    seen where it was expected       expected a period later, and a little earlier than that
    seen between other close looks   expected a period after the middle of where it was expected and where it
                                     was seen; the window follows how far it strayed
    seen after a longer pause        a look came late, or the refresh early: what was expected stays, as far
                                     as it can be; the window widens if it cannot; the next GUARDED windows
                                     have guards
    not seen in the window           looked for at a fifth of the period, until it is seen

Reads at even distances (the search, a distance set by a person) would lock to the phase of the refreshes.
So each distance is stretched or shortened by a step of the sequence n^2 x golden ratio mod 1: evenly spread
like n x golden ratio, but its sums wander instead of returning.
"""

from typing import NamedTuple

SEARCH_NS = 5_000_000
SEARCH_FOR_NS = 3_000_000_000
"""After this long without a period (power that never changes, a slow device) reads are SLOW_NS apart."""
SLOW_NS = 20_000_000
READS_A_PERIOD = 5
LOOKS_A_PERIOD = 200
"""Close looks are this part of a period apart, but not less than LEAST_NS."""
LEAST_NS = 400_000
CLOSE = 4
"""Two reads are close if they are at most so many looks apart: a read takes time."""
EARLIER = 16
"""A refresh that came where it was expected is expected this part of a look earlier the next time: one that
comes before all looks is known to a whole period only, one that comes late costs another look."""
GUARD_A_PERIOD, EARLY_GUARD_A_PERIOD = 12, 8
"""The guard is these parts of a period before the window, at the latest and at the earliest."""
GUARDED = 50
"""Windows that have a guard after a refresh that no close looks saw: who is punctual needs none."""
MOST_NS = 200_000_000
DITHER = 0.5
"""Even distances are spread over this part of their mean."""
_GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio's fraction in units of 2^-64: whole numbers stay exact however long a device is read."""
RELAXED_NS = 900_000_000
"""Between two reads of a device that no session uses; an analyzer takes 1.5 s for a hang."""
RETRY_MOST_NS = 1_000_000_000
"""Failed reads double the distance, up to this."""
RETURN_NS = 3_000_000_000
"""Between two looks for a lost device, and between two looks for a driver."""


class Schedule(NamedTuple):
    """The facts that decide when a device is read next."""

    begun_ns: int
    poll_ns: int = 0
    """Set by a person; 0: by the device's period."""
    reads: int = 0
    failures: int = 0
    """In a row."""
    period_ns: int | None = None
    expected_ns: int | None = None
    """When the next refresh should come; None until one was seen with the period known."""
    width_ns: int = 0
    """It should come within this of ``expected_ns``."""
    guarded: bool = False
    """It was read since the last refresh."""
    guards: int = GUARDED
    """Windows to come that have a guard."""


def was_read(schedule: Schedule, period_ns: int | None, change: tuple[int, int] | None) -> Schedule:
    """Return the schedule after a read.

    Args:
        period_ns: as far as it is known by now.
        change: the two instants between which a refresh came that this read saw; None: it saw none.
    """
    expected_ns, width_ns = schedule.expected_ns, schedule.width_ns
    guarded, guards = True, schedule.guards
    if change is not None and period_ns is not None:
        expected_ns, width_ns, guards = _expect(schedule, period_ns, change)
        guarded = False
    # Not `_replace`: each read comes here.
    begun_ns, poll_ns, reads = schedule.begun_ns, schedule.poll_ns, schedule.reads + 1
    return Schedule(begun_ns, poll_ns, reads, 0, period_ns, expected_ns, width_ns, guarded, guards)


def _expect(schedule: Schedule, period_ns: int, change: tuple[int, int]) -> tuple[int, int, int]:
    """Return when the next refresh should come, within what of that, and how many windows have guards."""
    lo_ns, hi_ns = change
    look_ns = _look_ns(period_ns)
    middle_ns, expected_ns, width_ns = (lo_ns + hi_ns) // 2, schedule.expected_ns, schedule.width_ns
    guards = max(schedule.guards - 1, 0)
    if expected_ns is None:
        came_ns, width_ns = middle_ns, 2 * look_ns
    elif hi_ns - lo_ns <= CLOSE * look_ns:
        stray_ns = middle_ns - expected_ns
        if lo_ns < expected_ns and 2 * abs(stray_ns) <= look_ns:
            came_ns = expected_ns - look_ns // EARLIER
        else:  # Half way: what strays by itself each time is followed half as far, what adds up is followed.
            came_ns = expected_ns + stray_ns // 2
        width_ns = max(width_ns * 95 // 100, abs(stray_ns) * 3 // 2, look_ns)
    else:  # a look came late, or the refresh early: what was expected stays, as far as it can be
        came_ns, guards = min(max(expected_ns, lo_ns), hi_ns), GUARDED
        width_ns = max(width_ns * (9 if came_ns == expected_ns else 20) // 10, 2 * look_ns)
    return came_ns + period_ns, min(width_ns, period_ns // 4), guards


class CloseLooks(NamedTuple):
    """The next reads of a device, as long as they see nothing new: `next_poll_ns` would say the same."""

    first_ns: int
    apart_ns: int
    """From the end of a read to the next, if that is not before ``first_ns``."""
    until_ns: int
    """A read that ends later decides again when the next one is due."""
    guard_ns: int | None = None
    """The earliest time of a guard before ``first_ns``; None: there is none."""


def close_looks(schedule: Schedule, until_ns: int) -> CloseLooks | None:
    """Return the reads around the next refresh, at most until then; None: it is not known when it comes."""
    if schedule.poll_ns or schedule.failures or schedule.period_ns is None or schedule.expected_ns is None:
        return None
    first_ns, end_ns = schedule.expected_ns - schedule.width_ns, schedule.expected_ns + 2 * schedule.width_ns
    guard_ns = None
    if schedule.guards and not schedule.guarded:
        guard_ns = first_ns - schedule.period_ns // EARLY_GUARD_A_PERIOD
    return CloseLooks(first_ns, _look_ns(schedule.period_ns), min(end_ns, until_ns), guard_ns)


def follow(
    schedule: Schedule, period_ns: int, change: tuple[int, int], until_ns: int
) -> tuple[Schedule, CloseLooks, int] | None:
    """Return the schedule after a read that saw a refresh, the next reads, and when the first of them is due.

    The same as `was_read`, `close_looks` and `next_poll_ns`, in one. None: ask them; it was seen too late.
    ``change``, ``until_ns``: as there. The read ended at the second instant.
    """
    begun_ns, poll_ns, reads, *_ = schedule
    expected_ns, width_ns, guards = _expect(schedule, period_ns, change)
    until_ns, first_ns = min(expected_ns + 2 * width_ns, until_ns), expected_ns - width_ns
    if poll_ns or change[1] >= until_ns:
        return None
    due_ns, guard_ns = first_ns, None
    if guards:
        due_ns, guard_ns = (
            first_ns - period_ns // GUARD_A_PERIOD,
            first_ns - period_ns // EARLY_GUARD_A_PERIOD,
        )
    following = Schedule(begun_ns, poll_ns, reads + 1, 0, period_ns, expected_ns, width_ns, guards=guards)
    look_ns = _look_ns(period_ns)
    return following, CloseLooks(first_ns, look_ns, until_ns, guard_ns), max(change[1] + look_ns, due_ns)


def failed(schedule: Schedule) -> Schedule:
    """Return the schedule after a read that may succeed the next time."""
    return schedule._replace(failures=schedule.failures + 1)


def next_poll_ns(schedule: Schedule, now_ns: int) -> int:
    """Return when to read next, ns after which it is due."""
    if schedule.failures:
        distance_ns = _distance_ns(schedule, now_ns) << min(schedule.failures, 10)
        return now_ns + min(distance_ns, RETRY_MOST_NS)
    if schedule.poll_ns == 0 and schedule.period_ns is not None and schedule.expected_ns is not None:
        soonest_ns = now_ns + _look_ns(schedule.period_ns)
        if now_ns < schedule.expected_ns + 2 * schedule.width_ns:
            guard = schedule.guards and not schedule.guarded
            guard_ns = schedule.period_ns // GUARD_A_PERIOD if guard else 0
            return max(soonest_ns, schedule.expected_ns - schedule.width_ns - guard_ns)
    spread = (schedule.reads**2 * _GOLDEN) % 2**64 / 2**64 - 0.5
    return now_ns + round(_distance_ns(schedule, now_ns) * (1 + DITHER * spread))


def relax(schedule: Schedule, now_ns: int) -> tuple[Schedule, int | None]:
    """Return the schedule of a device that no session uses, and when to read it next.

    All such devices are read at the same instant: their readings go into one frame.
    None: its period is not known yet, and the search for it goes on. A period set by a person is kept.
    """
    searching = schedule.period_ns is None and now_ns - schedule.begun_ns < SEARCH_FOR_NS
    if schedule.poll_ns or schedule.failures or searching:
        return schedule, None
    return schedule._replace(expected_ns=None), (now_ns // RELAXED_NS + 1) * RELAXED_NS


def _look_ns(period_ns: int) -> int:
    return max(period_ns // LOOKS_A_PERIOD, LEAST_NS)


def _distance_ns(schedule: Schedule, now_ns: int) -> int:
    if schedule.poll_ns:
        return schedule.poll_ns
    if schedule.period_ns is not None:
        return min(max(schedule.period_ns // READS_A_PERIOD, LEAST_NS), MOST_NS)
    return SEARCH_NS if now_ns - schedule.begun_ns < SEARCH_FOR_NS else SLOW_NS
