import itertools
from collections.abc import Iterator

import pytest

from collectors.schedule import (
    LEAST_NS,
    RETRY_MOST_NS,
    SEARCH_FOR_NS,
    SEARCH_NS,
    SLOW_NS,
    Schedule,
    failed,
    next_poll_ns,
    was_read,
)

MS = 1_000_000


def reads(schedule: Schedule, period_ns: int | None, count: int) -> Iterator[int]:
    """Yield the times of reads that take no time and always succeed."""
    now_ns = schedule.begun_ns
    for _ in range(count):
        yield now_ns
        schedule = was_read(schedule, period_ns)
        now_ns = next_poll_ns(schedule, now_ns)


def mean_distance_ns(times: list[int]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


@pytest.mark.parametrize("period_ms", [10, 20, 100])
def test_a_known_period_is_read_five_times(period_ms: int) -> None:
    times = list(reads(Schedule(0), period_ms * MS, 1000))
    assert mean_distance_ns(times) == pytest.approx(period_ms * MS / 5, rel=0.02)


def test_reads_do_not_lock_to_the_phase_of_the_refreshes() -> None:
    period_ns = 100 * MS
    phases = [t % period_ns * 20 // period_ns for t in reads(Schedule(0), period_ns, 1000)]
    assert all(30 <= phases.count(phase) <= 70 for phase in range(20))


def test_a_period_set_by_a_person_is_dithered_too() -> None:
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
    schedule, distances = was_read(Schedule(0), 20 * MS), []
    for _ in range(20):
        schedule = failed(schedule)
        distances.append(next_poll_ns(schedule, 0))
    assert distances == sorted(distances)
    assert distances[0] < 20 * MS
    assert distances[-1] == RETRY_MOST_NS
    assert next_poll_ns(was_read(schedule, 20 * MS), 0) < 8 * MS
