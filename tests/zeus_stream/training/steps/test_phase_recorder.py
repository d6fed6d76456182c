"""Phases as a script marks them."""

import threading
from typing import Any

import pytest

from tests.waiting import until
from tests.zeus_stream.training.steps.stepped_gpu import SteppedGpu
from zeus_stream.protocol.events import MAX_NAMES, PhasesRan, unpack_marks
from zeus_stream.training.steps.event_watch import EventWatch
from zeus_stream.training.steps.phase_recorder import MAX_HELD, PhaseRecorder


class Script:
    """The events and warnings of a recorder."""

    def __init__(self, gpu: SteppedGpu | None = None) -> None:
        self.gpu = gpu
        self.entries: list[tuple[Any, ...]] = []
        self.warnings: list[str] = []
        self.recorder = PhaseRecorder(
            self.entries.append,
            lambda _, sentence: self.warnings.append(sentence),
            EventWatch(lambda: self.gpu, lambda _, sentence: self.warnings.append(sentence)),
        )

    def marked(self) -> list[str | None]:
        """Return what was under way after each mark."""
        self.recorder.hand_over()
        found: list[str | None] = []
        for make, *fields in self.entries:
            event = make(*fields)
            assert isinstance(event, PhasesRan)
            marks = list(unpack_marks(event))
            assert [t_ns for t_ns, _ in marks] == sorted(t_ns for t_ns, _ in marks)
            found += [event.names[place - 1] if place else None for _, place in marks]
        return found


def test_of_phases_within_each_other_the_inner_one_counts() -> None:
    script = Script()
    phase = script.recorder.phase
    with phase("forward"), phase("communication"):
        pass
    with phase("backward"):
        pass
    assert script.marked() == ["forward", "communication", "forward", None, "backward", None]


def test_phases_are_those_of_the_gpu_where_it_has_a_queue() -> None:
    gpu = SteppedGpu()
    script = Script(gpu)
    for name in ("forward", "backward"):
        with script.recorder.phase(name):
            pass
    assert script.marked() == []
    first = gpu.reach(2)
    until(lambda: len(script.recorder.marks) == 2)
    last = gpu.reach(2)
    until(lambda: len(script.recorder.marks) == 4)
    assert [number for _, number in script.recorder.marks] == [1, 0, 2, 0]
    for (t_ns, _), done_ns in zip(script.recorder.marks, first + last, strict=True):
        assert t_ns >= done_ns - 2_000
    assert script.marked() == ["forward", None, "backward", None]


def test_a_phase_ends_with_an_exception_too() -> None:
    script = Script()
    with pytest.raises(ValueError, match="loss"), script.recorder.phase("forward"):
        raise ValueError("loss")
    assert script.marked() == ["forward", None]


def test_marks_of_a_framework_follow_each_other() -> None:
    script = Script()
    for name in ("forward", "backward", None):
        script.recorder.mark(name)
    assert script.marked() == ["forward", "backward", None]


def test_marks_are_handed_over_while_they_come_and_memory_is_bounded() -> None:
    script = Script()
    for _ in range(MAX_HELD):
        with script.recorder.phase("forward"):
            pass
    assert len(script.entries) >= 1
    assert len(script.recorder.marks) <= MAX_HELD
    assert script.marked() == ["forward", None] * MAX_HELD


def test_phases_of_another_thread_and_one_name_too_many_are_left_out_and_said_once() -> None:
    script = Script()
    with script.recorder.phase("forward"):
        pass

    def elsewhere() -> None:
        with script.recorder.phase("forward"):
            pass

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    for number in range(MAX_NAMES):
        with script.recorder.phase(f"phase {number}"):
            pass
    assert len(script.marked()) == 2 * MAX_NAMES
    assert script.warnings == [
        "phases are marked by one thread: those of others are left out.",
        f"phase 'phase {MAX_NAMES - 1}': is not marked: there are {MAX_NAMES} names. Use fewer.",
    ]
