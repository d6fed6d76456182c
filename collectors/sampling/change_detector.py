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
"""

from struct import Struct
from typing import NamedTuple

from collectors.device import Sample
from zeus_stream.protocol.readings import ABSENT, READING_STRUCT, Seen

INTERVALS = 15
"""Intervals between changes, the mean of whose middle half is the period."""
ENOUGH = 5
"""Intervals from which on the period counts as known."""
_ROW = Struct(READING_STRUCT)


class Reading(NamedTuple):
    """The result of reads between two instants (CLOCK_MONOTONIC, ns)."""

    t_lo_ns: int
    t_hi_ns: int
    sample: Sample
    seen: Seen


class State(NamedTuple):
    """The memory of a device's reads. One that was lost and is back starts from a new one."""

    last: Sample | None = None
    before_ns: int = 0
    """When the read that gave ``last`` began."""
    published_ns: int = 0
    changed_ns: int | None = None
    """Middle of the two instants of the last change."""
    intervals_ns: tuple[int, ...] = ()
    period_ns: int | None = None
    """How often the device refreshes; None while too few changes were seen."""


def observe(
    state: State, sample: Sample, before_ns: int, after_ns: int, heartbeat_ns: int
) -> tuple[State, Reading | None]:
    """Return the next state, and the reading to publish if there is something to say.

    Args:
        before_ns: when the read began.
        after_ns: when it had ended.
        heartbeat_ns: something is published at least this often.
    """
    last = state.last
    if sample == last and after_ns - state.published_ns < heartbeat_ns:  # as at most reads
        intervals_ns, period_ns = state.intervals_ns, state.period_ns
        return State(sample, before_ns, state.published_ns, state.changed_ns, intervals_ns, period_ns), None
    seen = _compare(last, sample)
    fresh = last is not None and _figure(sample) != _figure(last)
    changed = seen in (Seen.CHANGED, Seen.RESET) or (seen == Seen.POWER and fresh)
    lo_ns = state.before_ns if changed else before_ns
    changed_ns, intervals_ns, period_ns = state.changed_ns, state.intervals_ns, state.period_ns
    if fresh:
        middle_ns = (state.before_ns + after_ns) // 2
        if changed_ns is not None:
            intervals_ns = (*intervals_ns, middle_ns - changed_ns)[-INTERVALS:]
            period_ns = _period_ns(intervals_ns) if len(intervals_ns) >= ENOUGH else None
        changed_ns = middle_ns
    publish = (
        fresh
        or last is None
        or after_ns - state.published_ns >= heartbeat_ns
        or (sample.limit_mw, sample.requested_mw) != (last.limit_mw, last.requested_mw)
    )
    published_ns = after_ns if publish else state.published_ns
    following = State(sample, before_ns, published_ns, changed_ns, intervals_ns, period_ns)
    return following, Reading(lo_ns, after_ns, sample, seen) if publish else None


def saw_the_same(state: State, before_ns: int) -> State:
    """Return the state after a read that began then, saw nothing new and had nothing to publish."""
    return State(state.last, before_ns, *state[2:])


def keep_period(before: State, after: State) -> State:
    """Return a state in which a change that was seen after a long pause says nothing of the period."""
    return after._replace(changed_ns=None, intervals_ns=before.intervals_ns, period_ns=before.period_ns)


def _compare(last: Sample | None, sample: Sample) -> Seen:
    if sample.energy_mj is None:
        return Seen.POWER
    if last is None or last.energy_mj is None:
        return Seen.FIRST
    if sample.energy_mj == last.energy_mj:
        return Seen.UNCHANGED
    return Seen.CHANGED if sample.energy_mj > last.energy_mj else Seen.RESET


def _period_ns(intervals_ns: tuple[int, ...]) -> int:
    """Return the mean of their middle half: refreshes that were missed or seen late do not move it."""
    outside = len(intervals_ns) // 4
    middle = sorted(intervals_ns)[outside : len(intervals_ns) - outside]
    return sum(middle) // len(middle)


def _figure(sample: Sample) -> int | None:
    """Return what tells a refresh."""
    return sample.power_mw if sample.energy_mj is None else sample.energy_mj


def pack(reading: Reading, gpu: int) -> bytes:
    """Return a reading as a row of `Readings.rows`; ``gpu`` is the device's place in `Readings.gpus`."""
    t_lo_ns, t_hi_ns, (energy_mj, power_mw, limit_mw, requested_mw, *others), seen = reading
    clock_mhz, temperature_c, utilization_pct = others
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
