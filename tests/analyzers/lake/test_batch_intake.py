"""Batches of a stream in order: what is new of them, and what is missing."""

from random import Random

import pytest

from analyzers.archive.store import Received
from analyzers.lake.archiver import LEFT, LOST, BatchesMissingError, BatchIntake
from zeus_stream.broker import batches
from zeus_stream.protocol.frames import Break, Frame

SUBJECT = batches.subject_of("site", "alpha", 0)


def batch(after: int, first: int, count: int, log: str = "log") -> bytes:
    frames = [
        Frame(log_id=log, offset=first + n, host="alpha", t_ns=0, topic="notes/alpha", body=b"")
        for n in range(count)
    ]
    return batches.encode(after, frames)


def take(intake: BatchIntake, *messages: bytes) -> list[tuple[str, int, int] | str]:
    """Return offsets of frames taken, and reasons of breaks."""
    for message in messages:
        intake.take(message, SUBJECT, "site")
    return [_plain(part) for part in intake.taken()]


def _plain(part: Received) -> tuple[str, int, int] | str:
    if isinstance(part, Break):
        return f"{part.first_offset}+{part.count} {part.reason}"
    return part[0][0].log_id, part[0][0].offset, part[-1][0].offset + 1


def test_batches_in_order_are_taken_and_repeats_are_not() -> None:
    intake = BatchIntake({})
    first, second = batch(0, 0, 5), batch(5, 5, 5)
    assert take(intake, first, second, first, second) == [("log", 0, 5), ("log", 5, 10)]
    assert take(intake, batch(3, 3, 9)) == [("log", 10, 12)]
    assert take(intake) == []


def test_of_a_log_never_seen_any_batch_may_be_the_first() -> None:
    assert take(BatchIntake({"log": 9}), batch(0, 40, 2, "another")) == [("another", 40, 42)]


def test_batches_of_a_new_log_that_the_broker_lost_before_they_were_stored_are_missed() -> None:
    """It forgot everything, and the number of the next message fits by chance."""
    with pytest.raises(BatchesMissingError):
        take(BatchIntake({"log": 9}), batch(40, 40, 2, "another"))
    again = BatchIntake({"log": 9}, again=True)
    assert take(again, batch(40, 40, 2, "another")) == [f"0+40 {LOST}", ("another", 40, 42)]


def test_what_had_left_the_log_is_a_break() -> None:
    assert take(BatchIntake({"log": 5}), batch(5, 8, 2)) == [f"5+3 {LEFT}", ("log", 8, 10)]
    assert take(BatchIntake({"log": 7}), batch(5, 8, 2)) == [f"7+1 {LEFT}", ("log", 8, 10)]


def test_what_the_broker_lost_is_read_again_once_and_is_then_a_break() -> None:
    with pytest.raises(BatchesMissingError):
        take(BatchIntake({"log": 5}), batch(8, 8, 2))
    assert take(BatchIntake({"log": 5}, again=True), batch(8, 8, 2)) == [f"5+3 {LOST}", ("log", 8, 10)]


def test_messages_that_are_no_batches_are_counted_and_left_out() -> None:
    intake = BatchIntake({"log": 0})
    intake.take(b"anything", SUBJECT, "site")
    intake.take(batch(0, 0, 1), batches.subject_of("site", "beta", 0), "site")
    intake.take(batch(0, 0, 1), SUBJECT, "another site")
    assert intake.malformed == 3
    assert not intake.parts


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_repeated_each_frame_is_taken_once(seed: int) -> None:
    """A relay that was killed sends from any earlier end on; a reader that was killed reads again."""
    rng, messages, end = Random(seed), list[bytes](), 0
    for _ in range(30):
        begin = rng.randint(0, end) if rng.random() < 0.3 else end
        count = rng.randint(1, 9)
        messages.append(batch(begin, begin, count))
        end = max(end, begin + count)
    intake, taken = BatchIntake({}), list[int]()
    for number, message in enumerate(messages):
        intake.take(message, SUBJECT, "site")
        if rng.random() < 0.2:
            intake = BatchIntake(dict(intake.next_of), parts=intake.parts)
            for earlier in messages[rng.randint(0, number) : number]:
                intake.take(earlier, SUBJECT, "site")
        for part in intake.taken():
            assert not isinstance(part, Break)
            taken += [frame.offset for frame, _ in part]
    assert taken == list(range(end))
