"""Loops of steps that stamp into lists, and the outbox that makes boundaries of them."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.zeus_stream.training.steps.queued_gpu import STARTED, Nudges
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import Ack, Event, EventsDropped, Metric, RunEnded, StepBoundary
from zeus_stream.protocol.fields import Unknown
from zeus_stream.training import outbox as outbox_module
from zeus_stream.training.outbox import BATCH, Outbox
from zeus_stream.training.steps.step_boundaries import Boundaries
from zeus_stream.training.steps.step_recorder import StepRecorder


class Script:
    """A script, its outbox, and what a collector has received."""

    def __init__(self, room: int = 10_000) -> None:
        self.box = Outbox(STARTED, lambda: "session", room)
        self.warnings: list[str] = []
        boundaries = Boundaries(monotonic_ns, self.warn, Nudges())
        self.recorder = StepRecorder(self.box, boundaries, lambda: None, self.warn)
        self.received: list[Event | Unknown] = []

    def warn(self, _cause: str, sentence: str) -> None:
        self.warnings.append(sentence)

    def deliver(self) -> None:
        """Hand over one batch."""
        self.box.watch()
        if (batch := self.box.batch(monotonic_ns())) is not None:
            self.received += batch.events
            self.box.acknowledge(Ack(batch.session, batch.sequence + len(batch.events)))

    def flush(self) -> None:
        while self.box.waiting:
            self.deliver()

    def order(self) -> list[int | float]:
        """Return the indices of boundaries and the values of metrics, as they arrived."""
        return [
            event.index if isinstance(event, StepBoundary) else event.value
            for event in self.received
            if isinstance(event, StepBoundary | Metric)
        ]

    def boundaries(self) -> list[StepBoundary]:
        return [event for event in self.received if isinstance(event, StepBoundary)]


actions = st.lists(st.sampled_from(["metric", "deliver", "watch", "leave", "nothing"]), max_size=6)


@given(st.lists(st.lists(actions, max_size=12), max_size=5), st.integers(1, 5))
def test_steps_and_what_is_put_between_them_arrive_in_the_order_in_which_they_happened(
    loops: list[list[list[str]]], long: int
) -> None:
    script, expected, following = Script(), list[int | float](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_module, "LONG", long)
        for bodies in loops:
            for body in script.recorder.loop(bodies):
                expected.append(following)
                following += 1
                assert script.recorder.last == following - 1
                if "leave" in body:
                    break
                for action in body:
                    if action == "metric":
                        expected.append(len(expected) + 0.5)
                        script.box.put((Metric, 0, "m", expected[-1], None, None))
                    elif action == "deliver":
                        script.deliver()
                    elif action == "watch":
                        script.box.watch()
            if bodies:
                expected.append(following)
        script.flush()
    assert script.order() == expected
    stamps = [t_ns for at in script.boundaries() for t_ns in (at.ended_ns, at.began_ns) if t_ns is not None]
    assert stamps == sorted(stamps)
    assert len(stamps) == 2 * following
    assert script.box.dropped == 0


def test_a_loop_that_finds_no_room_goes_on_and_its_loss_is_counted_and_its_numbers_stay() -> None:
    script = Script(room=5)
    assert sum(1 for _ in watched(script, 100, deliver=False)) == 100
    assert script.box.waiting == 1 + 5
    assert script.box.dropped == 101 - 5
    script.flush()
    for _ in watched(script, 3, deliver=True):
        pass
    script.flush()
    assert script.order() == [0, 1, 2, 3, 4, 100, 101, 102, 103]
    [lost] = [event.count for event in script.received if isinstance(event, EventsDropped)]
    assert lost == 96


def watched(script: Script, steps: int, *, deliver: bool) -> Iterator[int]:
    """Loop over steps; in each of them the sender comes by."""
    for step in script.recorder.loop(range(steps)):
        script.box.watch()
        if deliver:
            script.deliver()
        yield step


def test_many_stamps_go_in_batches_and_leave_no_long_list() -> None:
    script = Script(room=100_000)
    for step in script.recorder.loop(range(3 * outbox_module.LONG)):
        if step % (2 * BATCH) == 0:
            script.deliver()
    script.flush()
    assert script.order() == list(range(3 * outbox_module.LONG + 1))
    assert sum(len(stamps.instants_ns) for stamps in script.box._stamps) < 2 * outbox_module.LONG


@pytest.mark.parametrize("forked", [False, True], ids=["closed", "forked"])
def test_a_loop_goes_on_when_its_publisher_ends_and_stamps_nothing_more(*, forked: bool) -> None:
    script, seen = Script(), []
    for step in script.recorder.loop(range(50)):
        seen.append(step)
        if step == 2:
            script.box.empty() if forked else script.box.close((RunEnded, 9))
    script.flush()
    assert seen == list(range(50))
    assert script.order() == ([] if forked else [0, 1, 2])
    assert forked or isinstance(script.received[-1], RunEnded)
    assert all(len(stamps.instants_ns) <= 6 for stamps in script.box._stamps)


class Output:
    """Is ready."""

    def is_ready(self) -> bool:
        return True


def test_an_output_that_is_named_in_the_middle_of_a_loop_counts_from_that_step_on() -> None:
    script = Script()
    for step in script.recorder.loop(range(6)):
        if step >= 3:
            script.recorder.ends_with(Output())
    script.recorder.wait_for_device(0)
    script.recorder._boundaries.close()
    script.flush()
    placed = [at.placed for at in script.boundaries()]
    assert script.order() == list(range(7))
    assert placed == ["dispatch"] * 4 + ["ready"] * 3


def test_a_loop_that_is_asked_again_after_its_loader_failed_is_over() -> None:
    def loader() -> Iterator[int]:
        yield 1
        raise LookupError("the loader")

    script = Script()
    loop = script.recorder.loop(loader())
    assert next(loop) == 1
    with pytest.raises(LookupError):
        next(loop)
    assert list(loop) == []
    assert list(script.recorder.loop("ab")) == ["a", "b"]
    script.flush()
    assert script.order() == [0, 1, 1, 2, 3]
