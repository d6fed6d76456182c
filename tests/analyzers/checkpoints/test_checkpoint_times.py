"""When the state is written: after a decision, after work, after a minute, and never too often."""

from analyzers.checkpoints.checkpoint_times import EVERY_NS, LEAST_TIMES, WORK_NS, CheckpointTimes

MS = 1_000_000


def test_it_is_due_after_a_minute_or_after_so_much_work() -> None:
    times = CheckpointTimes(0)
    assert not times.due(EVERY_NS - 1)
    assert times.due(EVERY_NS)
    times.work(WORK_NS - 1)
    assert not times.due(10 * MS)
    times.work(1)
    assert times.due(10 * MS)


def test_one_that_was_taken_begins_both_again() -> None:
    times = CheckpointTimes(0)
    times.work(WORK_NS)
    times.taken(10 * MS, 11 * MS)
    assert not times.due(EVERY_NS)
    assert times.due(11 * MS + EVERY_NS)


def test_a_decision_is_written_as_soon_as_the_last_one_has_cost_little_enough() -> None:
    times = CheckpointTimes(0)
    times.wanted = True
    assert times.due(0)
    times.taken(0, 10 * MS)
    times.wanted = True
    assert not times.due(10 * MS + LEAST_TIMES * 10 * MS - 1)
    assert times.due(10 * MS + LEAST_TIMES * 10 * MS)
