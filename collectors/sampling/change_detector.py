"""Raw reads of a device to readings: what changed, and between which two instants. Pure.

A driver refreshes its counter every 10 to 100 ms and does not say when. Two reads tell: the change
came after the last read with the old value had *begun* (it may have come right behind it), and before
the first read with the new one had *ended*. However late a read comes (a suspended host, a stopped
process), that stays true, and the stamps say how little is known.

    first read, or first with a counter    FIRST
    counter grew                           CHANGED
    counter fell                           RESET
    counter as before                      UNCHANGED, once a heartbeat and when a limit changed
    no counter                             POWER, when the power changed, and as above
    grew, or power, after a rest           RESTED (`collectors.sampling.sampled_device`)
"""

from struct import Struct
from typing import NamedTuple

from collectors.device import Sample
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
    """How often the device refreshes; None while too few changes were seen."""
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
