import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.sampling.schedule import (
    CLOSE_BUDGET,
    LEAST_NS,
    LOOKS_A_PERIOD,
    RETRY_MOST_NS,
    SEARCH_FOR_NS,
    SEARCH_NS,
    SLOW_NS,
    Schedule,
    failed,
    next_poll_ns,
    relax,
    was_read,
)

MS = 1_000_000


def reads(schedule: Schedule, period_ns: int | None, count: int) -> Iterator[int]:
    """Yield the times of reads that take no time, always succeed and see no refresh."""
    now_ns = schedule.begun_ns
    for _ in range(count):
        yield now_ns
        schedule = was_read(schedule, period_ns, None)
        now_ns = next_poll_ns(schedule, now_ns)


def mean_distance_ns(times: list[int]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def follow(
    refreshes: list[int], period_ns: int, late_ns: Callable[[], int] = lambda: 0, took_ns: int = 0
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return when a counter with these refreshes is read, and between which reads each of them was seen.

    ``late_ns``: how long after it is due a read comes.
    """
    schedule, now_ns, last_ns, times, changes = Schedule(0), 0, 0, [], []
    while now_ns < refreshes[-1]:
        seen = bisect_right(refreshes, now_ns) > bisect_right(refreshes, last_ns)
        change = (last_ns, now_ns) if seen else None
        changes += [change] if change else []
        times.append(now_ns)
        schedule, last_ns = was_read(schedule, period_ns, change, took_ns), now_ns
        now_ns = next_poll_ns(schedule, now_ns) + late_ns()
    return times, changes


@pytest.mark.parametrize("period_ms", [20, 100])
@pytest.mark.parametrize("jitter_ms", [0, 1])
@pytest.mark.parametrize("drift", [0, 0.01])
def test_refreshes_are_placed_closely_with_few_reads(period_ms: int, jitter_ms: int, drift: float) -> None:
    """``drift``: the real period is that much longer than the one known."""
    rng, period_ns = Random(7), period_ms * MS
    real_ns = period_ns * (1 + drift)
    refreshes = [round(n * real_ns + rng.uniform(-jitter_ms, jitter_ms) * MS) for n in range(1, 400)]
    times, changes = follow(refreshes, period_ns)
    widths = sorted(hi - lo for lo, hi in changes[20:])
    assert len(changes) == pytest.approx(len(refreshes), abs=3)
    look_ns = max(period_ns // LOOKS_A_PERIOD, LEAST_NS)
    assert widths[len(widths) // 2] <= look_ns + 1.3 * jitter_ms * MS + 1.6 * drift * period_ns
    assert jitter_ms or widths[len(widths) * 95 // 100] <= 2.5 * MS
    assert len(times) / len(refreshes) < 2.2 + 100 * drift


@pytest.mark.parametrize(("period_ms", "took_us"), [(100, 400), (100, 1000), (20, 1000), (20, 5000)])
def test_slow_reads_become_fewer(period_ms: int, took_us: int) -> None:
    period_ns, took_ns = period_ms * MS, took_us * 1000
    refreshes = [n * period_ns for n in range(1, 1000)]
    times, changes = follow(refreshes, period_ns, lambda: took_ns, took_ns)
    assert len(times) * took_ns * CLOSE_BUDGET < 1.1 * refreshes[-1]
    assert len(changes) > 0.8 * len(refreshes) / max(1, CLOSE_BUDGET * took_ns / period_ns)


def test_a_counter_that_stops_for_a_while_is_found_again() -> None:
    period_ns = 100 * MS
    refreshes = [n * period_ns for n in (*range(1, 50), *range(80, 200))]
    refreshes = [t + 37 * MS * (t > 60 * period_ns) for t in refreshes]
    _, changes = follow(refreshes, period_ns)
    widths = sorted(hi - lo for lo, hi in changes[-100:])
    assert widths[50] <= 0.75 * MS
    assert widths[-1] <= 1.7 * MS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60), st.sampled_from([2, 20, 100]))
def test_whatever_is_seen_reads_go_on_and_never_take_a_whole_core(
    seen: list[tuple[bool, int]], period_ms: int
) -> None:
    schedule, now_ns = Schedule(0), 0
    for changed, before_ms in seen:
        change = (max(0, now_ns - before_ms * MS), now_ns) if changed else None
        schedule = was_read(schedule, period_ms * MS, change)
        following_ns = next_poll_ns(schedule, now_ns)
        assert LEAST_NS // 2 <= following_ns - now_ns <= 2 * period_ms * MS
        now_ns = following_ns


@pytest.mark.parametrize("period_ms", [10, 20, 100])
def test_a_known_period_without_refreshes_is_read_five_times(period_ms: int) -> None:
    times = list(reads(Schedule(0), period_ms * MS, 1000))
    assert mean_distance_ns(times) == pytest.approx(period_ms * MS / 5, rel=0.02)


def test_reads_at_even_distances_do_not_lock_to_the_phase_of_the_refreshes() -> None:
    period_ns = 100 * MS
    phases = [t % period_ns * 20 // period_ns for t in reads(Schedule(0), period_ns, 1000)]
    assert all(30 <= phases.count(phase) <= 70 for phase in range(20))


def test_a_distance_of_the_device_itself_is_dithered_too() -> None:
    times = list(reads(Schedule(0, poll_ns=20 * MS), 100 * MS, 1000))
    assert mean_distance_ns(times) == pytest.approx(20 * MS, rel=0.02)
    assert len({later - earlier for earlier, later in itertools.pairwise(times)}) > 100


def test_the_search_for_a_period_is_fast_and_does_not_last_for_ever() -> None:
    times = list(reads(Schedule(0), None, 2000))
    early = [t for t in times if t < SEARCH_FOR_NS]
    late = [t for t in times if t > SEARCH_FOR_NS + SLOW_NS]
    assert mean_distance_ns(early) == pytest.approx(SEARCH_NS, rel=0.02)
    assert mean_distance_ns(late) == pytest.approx(SLOW_NS, rel=0.02)


def test_a_period_too_short_to_follow_does_not_take_a_whole_core() -> None:
    assert mean_distance_ns(list(reads(Schedule(0), 100_000, 200))) == pytest.approx(LEAST_NS, rel=0.05)


def test_failed_reads_are_tried_ever_more_slowly_and_a_success_starts_over() -> None:
    schedule, distances = was_read(Schedule(0), 20 * MS, None), []
    for _ in range(20):
        schedule = failed(schedule)
        distances.append(next_poll_ns(schedule, 0))
    assert distances == sorted(distances)
    assert distances[0] < 20 * MS
    assert distances[-1] == RETRY_MOST_NS
    assert next_poll_ns(was_read(schedule, 20 * MS, None), 0) < 8 * MS


def test_devices_that_no_session_uses_are_read_at_the_same_instants() -> None:
    known = Schedule(0, period_ns=100_000_000)
    begins_ns = (5_000_000_000, 5_300_000_123, 5_399_999_999)
    dues_ns = {relax(known, begin_ns)[1] for begin_ns in begins_ns}
    assert dues_ns == {5_400_000_000}
