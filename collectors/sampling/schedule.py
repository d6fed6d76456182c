"""When to read a device next. Pure.

A driver call is not free: real calls take the driver's locks. So a refresh gets two reads, and reads become
fewer as they become slower.

While the refresh period is unknown, reads are SEARCH_NS apart. Once it is known, the next refresh can be
predicted, and is bounded by two reads:

    refresh |... no reads ...  first  |  second          ``width_ns`` before and behind what is expected
            '---- period ------------>| expected_ns

    seen by the second read     expected a period later, and a little earlier than that: a refresh that comes
                                late costs another read, one that comes early is not bounded closely
    seen by a later one         each is two widths behind the one before; expected half as much later
    seen by the first           it came early, or the read late: expected there at the latest; a larger width
    not seen by LATER of them   looked for at a fifth of the period, until it is seen

All reads together take at most a CLOSE_BUDGET-th of the time, and a BUDGET-th while all windows are long:
with slow calls most refreshes have no first read, and with slower ones whole refreshes are left out. Then
their grid bounds them (`refresh_grid`): a first read halves its bounds once they are wide, or confirms them.

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
"""Two reads bound a refresh to this part of a period at best, but not to less than LEAST_NS."""
LEAST_NS = 400_000
EARLIER = 5
"""A refresh that came where it was expected is expected this part of a width earlier the next time."""
LATER = 4
FAR = 5
"""Times the least width: a wider one is halved at once."""
CLOSE_BUDGET, BUDGET = 20, 100
"""Reads take at most this part of the time, once the period is known: while windows are short, and otherwise.

On an H100 (driver 580), whose reads take 3.2 ms, 20 reads a second changed the time of no matrix product,
launch, copy or allocation by more than its scatter. Reads without a pause made an allocation 3 to 5 times as
long.
"""
SMOOTHED = 16
"""Reads of which the duration is the mean."""
CLOSELY, LOOSELY = 2.0, 1.1
"""Reads of a refresh, if they are quick, while windows are short, and while they are long."""
SOMETIMES = 0.1
"""Share of the refreshes that have a first read however slow reads are: else what is expected would drift."""
WIDE = 2
"""Bounds by the grid that are wider than so many reads are halved by a first read."""
SEARCHED = 5
"""Reads take at most this part of the time while the period is searched."""
MOST_NS = 200_000_000
DITHER = 0.5
"""Even distances are spread over this part of their mean."""
_GOLDEN = 0x9E3779B97F4A7C15
"""The golden ratio's fraction in units of 2^-64: whole numbers stay exact however long a device is read."""
ALIVE_NS = 900_000_000
"""Between two signs of life of a collector whose devices are all at rest."""
RELAXED_NS = 6 * ALIVE_NS
"""Between two reads of a device that no session uses."""
RETRY_MOST_NS = 1_000_000_000
"""Failed reads double the distance, up to this, or to its own."""
RETURN_NS = 3_000_000_000
"""Between two looks for a lost device, and between two looks for a driver."""


class Schedule(NamedTuple):
    """The facts that decide when a device is read next."""

    begun_ns: int
    poll_ns: int = 0
    """Of the device itself, as a meter has it; 0: by its period."""
    reads: int = 0
    failures: int = 0
    """In a row."""
    period_ns: int | None = None
    expected_ns: int | None = None
    """When the next refresh should come; None until one was seen with the period known."""
    width_ns: int = 0
    """It should come within this of ``expected_ns``."""
    looks: int = 0
    """Reads since the last refresh was seen."""
    first: bool = True
    """The refresh to come is also read before it is expected."""
    credit: float = 0.0
    """First reads that were saved up."""
    took_ns: int = 0
    """Duration of a read."""
    periods: int = 1
    """From the last refresh that was seen to the one to come."""


def was_read(
    schedule: Schedule,
    period_ns: int | None,
    change: tuple[int, int] | None,
    took_ns: int = 0,
    *,
    closely: bool = True,
    frugal: bool = True,
    open_ns: int = 0,
) -> Schedule:
    """Return the schedule after a read. ``change``: the instants around the refresh that it saw, or None.

    ``frugal``: reads keep to their share of the time. ``open_ns``: width of the bounds that its grid has
    for the next refresh.
    """
    smoothed_ns = schedule.took_ns + (took_ns - schedule.took_ns) // SMOOTHED if schedule.reads else took_ns
    read = schedule._replace(
        reads=schedule.reads + 1,
        failures=0,
        period_ns=period_ns,
        looks=schedule.looks + 1,
        took_ns=smoothed_ns,
    )
    if change is None or period_ns is None:
        return read
    came_ns, width_ns = _came(schedule, period_ns, change)
    wanted, share = (CLOSELY, CLOSE_BUDGET) if closely else (LOOSELY, BUDGET)
    allowed = period_ns / (share * smoothed_ns) if smoothed_ns and frugal else wanted
    credit = min(schedule.credit + max(min(wanted, allowed) - 1, SOMETIMES), 2.0)
    wide = open_ns > WIDE * smoothed_ns > WIDE * LEAST_NS
    first = credit >= (0 if wide else 1)
    skipped = 1 if allowed >= 1 or first else -int(-1 // allowed)
    return read._replace(
        expected_ns=came_ns + skipped * period_ns,
        width_ns=min(width_ns, period_ns // 4),
        looks=0,
        first=first,
        credit=credit - first,
        periods=skipped,
    )


def _came(schedule: Schedule, period_ns: int, change: tuple[int, int]) -> tuple[int, int]:
    """Return when a refresh should have come, and the width from now on."""
    lo_ns, hi_ns = change
    least_ns = _look_ns(period_ns) // 2
    middle_ns, expected_ns, width_ns = (lo_ns + hi_ns) // 2, schedule.expected_ns, schedule.width_ns
    if expected_ns is None:
        return middle_ns, max((hi_ns - lo_ns) // 2, 2 * least_ns)
    if hi_ns - lo_ns <= 3 * width_ns + least_ns:  # between two reads that follow each other
        narrower_ns = max(width_ns // 2 if width_ns > FAR * least_ns else width_ns * 98 // 100, least_ns)
        if lo_ns < expected_ns <= hi_ns:
            return expected_ns - narrower_ns // EARLIER, narrower_ns
        return (expected_ns + middle_ns) // 2, max(width_ns, least_ns)
    if lo_ns > expected_ns + 2 * LATER * width_ns:  # long after: another phase
        return middle_ns, (hi_ns - lo_ns) // 4
    came_ns = min(max(expected_ns, lo_ns), hi_ns)  # before the first read, or that one came late
    return came_ns, width_ns if came_ns == expected_ns else max(width_ns * 5 // 4, 2 * least_ns)


def failed(schedule: Schedule) -> Schedule:
    """Return the schedule after a read that may succeed the next time."""
    return schedule._replace(failures=schedule.failures + 1)


def next_poll_ns(schedule: Schedule, now_ns: int, coming_ns: tuple[int, int] | None = None) -> int:
    """Return when to read next, ns after which it is due.

    ``coming_ns``: the bounds of the next refresh, by its grid, where reads are slow. They are before and
    behind these bounds; the first one is in the middle of wide ones, where it tells most.
    """
    if schedule.failures:
        distance_ns = _distance_ns(schedule, now_ns) << min(schedule.failures, 10)
        return now_ns + max(min(distance_ns, RETRY_MOST_NS), schedule.poll_ns)
    if schedule.poll_ns == 0 and schedule.period_ns is not None and schedule.expected_ns is not None:
        soonest_ns, width_ns = now_ns + LEAST_NS // 2, schedule.width_ns
        first_ns, second_ns = schedule.expected_ns - width_ns, schedule.expected_ns + width_ns
        if coming_ns is not None:
            first_ns, second_ns = coming_ns
            wide = second_ns - first_ns > WIDE * schedule.took_ns
            first_ns = (first_ns + second_ns - schedule.took_ns) // 2 if wide else first_ns - schedule.took_ns
            width_ns = schedule.took_ns
        if schedule.first and not schedule.looks and soonest_ns <= second_ns:
            return max(first_ns, soonest_ns)
        if schedule.looks <= LATER and now_ns < second_ns + 2 * LATER * width_ns:
            return max(second_ns, min(now_ns + 2 * width_ns, second_ns + 2 * LATER * width_ns), soonest_ns)
    spread = (schedule.reads**2 * _GOLDEN) % 2**64 / 2**64 - 0.5
    return now_ns + round(_distance_ns(schedule, now_ns) * (1 + DITHER * spread))


def relax(schedule: Schedule, now_ns: int) -> tuple[Schedule, int | None]:
    """Return the schedule of a device that no session uses, and when to read it next.

    All such devices are read at one instant, for one frame. None: the search for its period goes on.
    """
    searching = schedule.period_ns is None and now_ns - schedule.begun_ns < SEARCH_FOR_NS
    if schedule.poll_ns or schedule.failures or searching:
        return schedule, None
    return schedule._replace(expected_ns=None), relaxed_ns(now_ns)


def relaxed_ns(now_ns: int) -> int:
    """Return when devices that no session uses are read next."""
    return (now_ns // RELAXED_NS + 1) * RELAXED_NS


def _look_ns(period_ns: int) -> int:
    return max(period_ns // LOOKS_A_PERIOD, LEAST_NS)


def _distance_ns(schedule: Schedule, now_ns: int) -> int:
    if schedule.poll_ns:
        return schedule.poll_ns
    least_ns = min(BUDGET * schedule.took_ns, MOST_NS)
    if schedule.period_ns is not None:
        return max(min(max(schedule.period_ns // READS_A_PERIOD, LEAST_NS), MOST_NS), least_ns)
    if now_ns - schedule.begun_ns < SEARCH_FOR_NS:
        return max(SEARCH_NS, min(SEARCHED * schedule.took_ns, MOST_NS))
    return max(SLOW_NS, least_ns)
