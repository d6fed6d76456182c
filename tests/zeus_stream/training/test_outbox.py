import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.zeus_stream.training.steps.queued_gpu import STARTED
from zeus_stream.protocol.events import (
    Ack,
    Ask,
    Batch,
    EpochBegan,
    Event,
    EventsDropped,
    Metric,
    RunEnded,
    StepBoundary,
)
from zeus_stream.protocol.fields import Unknown
from zeus_stream.training.outbox import ASK_AGAIN_NS, BATCH, OpenQuestion, Outbox


def outbox(room: int = 1000) -> Outbox:
    numbers = itertools.count()
    return Outbox(STARTED, lambda: f"session-{next(numbers)}", room)


def flush(box: Outbox) -> list[Event | Unknown]:
    """Acknowledge everything, and return it."""
    out: list[Event | Unknown] = []
    while (batch := box.batch(0)) is not None:
        out += batch.events
        assert box.acknowledge(Ack(batch.session, batch.sequence + len(batch.events)))
    return out


def metrics(events: list[Event | Unknown]) -> list[int]:
    return [event.t_ns for event in events if isinstance(event, Metric)]


class Log:
    """What a collector keeps of the sessions: each event once, in order, none left out."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[Event | Unknown]] = {}

    def take(self, batch: Batch) -> Ack:
        have = self.sessions.setdefault(batch.session, [])
        if batch.sequence <= len(have):
            have.extend(batch.events[len(have) - batch.sequence :])
        return Ack(batch.session, len(have))


@given(st.lists(st.sampled_from(["put", "lost", "ack lost", "late ack", "sent"]), max_size=150))
def test_through_any_loss_each_event_arrives_once_and_in_order(actions: list[str]) -> None:
    box, log, late, put = outbox(), Log(), [], 0
    for action in actions:
        batch = box.batch(0)
        if action == "put":
            box.put((Metric, put, "loss", 0.5))
            put += 1
        elif batch is not None and action != "lost":
            ack = log.take(batch)
            if action == "late ack":
                late.append(ack)
            elif action == "sent":
                box.acknowledge(ack)
    while (batch := box.batch(0)) is not None:
        box.acknowledge(log.take(batch))
    [session] = log.sessions.values() or [[]]
    assert session[0] == STARTED
    assert metrics(session) == list(range(put))
    assert box.waiting == 0


@given(st.lists(st.sampled_from(["put", "sent", "ack lost", "forget"]), max_size=150))
def test_a_collector_that_lost_its_log_gets_a_new_session_with_a_beginning(actions: list[str]) -> None:
    box, put = outbox(), 0
    logs = [Log()]
    for action in actions:
        batch = box.batch(0)
        if action == "put":
            box.put((Metric, put, "loss", 0.5))
            put += 1
        elif action == "forget":
            logs.append(Log())
        elif batch is not None:
            ack = logs[-1].take(batch)
            if action == "sent":
                box.acknowledge(ack)
    while (batch := box.batch(0)) is not None:
        box.acknowledge(logs[-1].take(batch))
    sessions = [events for log in logs for events in log.sessions.values() if events]
    assert all(events[0] == STARTED for events in sessions)
    everything = [t_ns for events in sessions for t_ns in metrics(events)]
    assert sorted(set(everything)) == list(range(put)), "nothing is lost on the way to some log"
    for events in sessions:
        assert metrics(events) == sorted(set(metrics(events))), "in one session nothing comes twice"


def test_a_batch_stays_the_same_until_it_is_acknowledged_in_part_or_whole() -> None:
    box = outbox()
    first = box.batch(0)
    box.put((Metric, 1, "loss", 0.5))
    assert box.batch(0) == first
    assert first is not None
    assert first.events == (STARTED,)
    assert not box.acknowledge(Ack("another session", 1))
    assert box.acknowledge(Ack(first.session, 1))
    assert box.batch(0) == Batch(first.session, 1, (Metric(1, "loss", 0.5),))
    assert not box.acknowledge(Ack(first.session, 7)), "more than was sent is no acknowledgement"
    assert box.waiting == 1


def test_what_is_in_flight_grows_at_its_end_where_events_may_come_together() -> None:
    box = outbox()
    first = box.batch(0)
    assert first is not None
    box.acknowledge(Ack(first.session, 1))
    box.put((Metric, 1, "loss", 0.5))
    assert metrics(list(box.batch(0).events)) == [1]  # type: ignore[union-attr]
    box.put((Metric, 2, "loss", 0.5))
    box.gather(0)
    assert metrics(flush(box)) == [1, 2]


def test_a_full_outbox_drops_what_is_new_and_says_how_much_where_there_is_room_again() -> None:
    box = outbox(room=600)
    for t_ns in range(1000):
        box.put((Metric, t_ns, "loss", 0.5))
    assert (box.dropped, box.waiting) == (400, 601)
    out: list[Event | Unknown] = []
    for t_ns in (2000, 2001):  # the start of the run; then the first batch makes room
        batch = box.batch(t_ns)
        assert batch is not None
        out += batch.events
        box.acknowledge(Ack(batch.session, batch.sequence + len(batch.events)))
    assert len(out) == 1 + BATCH
    box.put((Metric, 3000, "loss", 0.5))
    out += flush(box)
    assert metrics(out) == [*range(600), 3000]
    assert [event for event in out if isinstance(event, EventsDropped)] == [
        EventsDropped(2001, 400, "no collector took them in time")
    ]
    assert out.index(EventsDropped(2001, 400, "no collector took them in time")) == 601


def test_a_question_waits_for_what_was_put_before_it_and_is_asked_again_until_it_is_answered() -> None:
    box = outbox()
    box.put((StepBoundary, 0, None, 5))
    box.put((OpenQuestion, "q", Ask, (7,), 10 * ASK_AGAIN_NS))
    box.put((StepBoundary, 1, 6, 7))
    for _ in range(2):
        batch = box.batch(0)
        assert batch is not None
        assert box.asks(0) == ()
        box.acknowledge(Ack(batch.session, batch.sequence + len(batch.events)))
    assert box.batch(0) is not None
    assert box.asks(0) == (Ask("q", box.session, 7),)
    assert box.asks(ASK_AGAIN_NS - 1) == ()
    assert box.asks(ASK_AGAIN_NS) == (Ask("q", box.session, 7),)
    box.answered("q")
    assert box.asks(5 * ASK_AGAIN_NS) == ()


def test_a_question_is_given_up_when_nobody_waits_for_it_any_more() -> None:
    box = outbox()
    box.put((OpenQuestion, "q", Ask, (7,), 100))
    flush(box)
    assert box.asks(99) != ()
    assert box.asks(ASK_AGAIN_NS) == ()


def test_the_end_of_the_run_finds_room_even_in_a_full_outbox_and_nothing_comes_after_it() -> None:
    box = outbox(room=1)
    box.put((Metric, 1, "loss", 0.5))
    box.close((RunEnded, 9))
    box.put((Metric, 10, "loss", 0.5))
    assert flush(box) == [STARTED, Metric(1, "loss", 0.5), RunEnded(9)]
    assert box.batch(0) is None


def test_the_beginning_waits_for_a_batch_size_for_a_while_and_is_what_it_was_from_then_on() -> None:
    box = Outbox(STARTED, lambda: "session", hold_ns=100)
    box.put((EpochBegan, 1, 0))
    assert box.batch(99) is None
    assert box.waiting == 2
    box.know(64)
    batch = box.batch(99)
    assert batch is not None
    assert batch.events == (replace(STARTED, batch_size=64),)
    box.know(32)
    assert box.batch(100) == batch
    assert box.waiting == 2


@pytest.mark.parametrize(
    ("puts", "now_ns"), [(0, 100), (3, 0)], ids=["its time is over", "steps are under way"]
)
def test_the_beginning_goes_without_a_batch_size_when(puts: int, now_ns: int) -> None:
    box = Outbox(STARTED, lambda: "session", hold_ns=100)
    for t_ns in range(puts):
        box.put((Metric, t_ns, "loss", 0.5))
    batch = box.batch(now_ns)
    assert batch is not None
    assert batch.events == (STARTED,)


def test_a_run_that_ends_at_once_has_a_beginning() -> None:
    box = Outbox(STARTED, lambda: "session", hold_ns=100)
    box.close((RunEnded, 1))
    assert flush(box) == [STARTED, RunEnded(1)]


def test_a_batch_size_that_was_said_first_stays() -> None:
    box = Outbox(replace(STARTED, batch_size=8), lambda: "session", hold_ns=100)
    box.know(64)
    batch = box.batch(0)
    assert batch is not None
    assert batch.events == (replace(STARTED, batch_size=8),)
