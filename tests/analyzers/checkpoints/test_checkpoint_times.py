"""When the state is written: after a decision, after work, after a minute with some, and never too often."""

from itertools import accumulate, pairwise

from analyzers.checkpoints.checkpoint_taker import (
    EVERY_NS,
    LEAST_TIMES,
    LITTLE_NS,
    SOONER,
    WORK_NS,
    CheckpointTimes,
)

MS = 1_000_000


def long_since_started() -> CheckpointTimes:
    """Return the times of an analyzer that has taken many checkpoints, which took no time."""
    times = CheckpointTimes(0)
    for _ in range(10):
        times.taken(0, 0)
    return times


def test_the_first_are_due_after_little_work_so_that_a_short_life_keeps_half_of_it() -> None:
    times, taken_ns, slice_ns = CheckpointTimes(0), [0], 10 * MS
    for now_ns in range(slice_ns, 10 * WORK_NS, slice_ns):
        times.work(slice_ns)
        if times.due(now_ns):
            times.taken(now_ns, 0)
            taken_ns.append(now_ns)
    for before_ns, after_ns in pairwise(taken_ns):
        assert after_ns - before_ns <= min(before_ns + WORK_NS // SOONER, WORK_NS) + slice_ns
    pauses_ns = [after_ns - before_ns for before_ns, after_ns in pairwise(taken_ns)]
    assert pauses_ns == list(accumulate(pauses_ns, max)), "it is taken less and less often"
    assert pauses_ns[-1] == WORK_NS


def test_it_is_due_after_a_minute_with_a_little_work_or_after_much_work() -> None:
    times = long_since_started()
    times.work(LITTLE_NS - 1)
    assert not times.due(60 * EVERY_NS)
    times.work(1)
    assert not times.due(EVERY_NS - 1)
    assert times.due(EVERY_NS)
    times.work(WORK_NS - LITTLE_NS - 1)
    assert not times.due(10 * MS)
    times.work(1)
    assert times.due(10 * MS)


def test_one_that_was_taken_begins_both_again() -> None:
    times = long_since_started()
    times.work(WORK_NS)
    times.taken(11 * MS, 1 * MS)
    times.work(LITTLE_NS)
    assert not times.due(EVERY_NS)
    assert times.due(11 * MS + EVERY_NS)


def test_a_decision_is_written_as_soon_as_the_last_one_has_cost_little_enough() -> None:
    times = long_since_started()
    times.wanted = True
    assert times.due(0)
    times.taken(10 * MS, 10 * MS)
    times.wanted = True
    assert not times.due(10 * MS + LEAST_TIMES * 10 * MS - 1)
    assert times.due(10 * MS + LEAST_TIMES * 10 * MS)
