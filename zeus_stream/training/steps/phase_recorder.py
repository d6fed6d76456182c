"""Records the phases of steps: forward, backward and what else a script or a framework marks.

A mark is one clock read and one append, or, where the GPU has a queue, one event in it. Marks are handed over
about four times a second, packed by the sender's thread. For the thread that marks first; marks of others are
left out.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import MAX_NAMES, PhasesRan, pack_marks
from zeus_stream.training.identity import named
from zeus_stream.training.steps.event_watch import EventWatch

HAND_OVER_NS = 250_000_000
MAX_HELD = 10_000
"""Marks that are handed over at once, at most."""


class PhaseContext:
    """A context that is one phase. The same object serves it in every step, also within itself."""

    __slots__ = ("_recorder", "name", "number")

    def __init__(self, recorder: "PhaseRecorder", name: str, number: int) -> None:
        self._recorder, self.name, self.number = recorder, name, number

    def __repr__(self) -> str:
        return f"<Phase {self.name!r}>"

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.put(self.number)
        recorder.open.append(self.number)

    def __exit__(self, *_: object) -> None:
        recorder = self._recorder
        recorder.open.pop()
        recorder.put(recorder.open[-1] if recorder.open else 0)


Marking: TypeAlias = PhaseContext | nullcontext[None]
"""A context without a number marks nothing: it is of another thread, or of one phase too many."""


class PhaseRecorder:
    """The phases of one publisher."""

    def __init__(
        self, put: Callable[[tuple[Any, ...]], None], warn: Callable[[str, str], None], watch: EventWatch
    ) -> None:
        self._put, self._warn, self._watch = put, warn, watch
        self._contexts: dict[str, PhaseContext] = {}
        self._thread: int | None = None
        self.marks: list[tuple[int, int]] = []
        """Instant and number of the phase from there on, that are not handed over."""
        self.open: list[int] = []
        """Phases under way, the innermost last."""

    def phase(self, name: str) -> Marking:
        """Return the context of a phase."""
        known = self._contexts.get(name)
        return known if known is not None and get_ident() == self._thread else self._add(name)

    def _add(self, name: str) -> Marking:
        self._thread = self._thread or get_ident()
        if get_ident() != self._thread:
            self._warn("phase thread", "phases are marked by one thread: those of others are left out.")
            return nullcontext()
        name = named(name)
        if name not in self._contexts:
            self._watch.look()
            if len(self._contexts) == MAX_NAMES:
                sentence = f"phase {name!r}: is not marked: there are {MAX_NAMES} names. Use fewer."
                self._warn("phases", sentence)
                return nullcontext()
            self._contexts[name] = PhaseContext(self, name, len(self._contexts) + 1)
        return self._contexts[name]

    def mark(self, name: str | None) -> None:
        """Let a phase be under way from here on, until the next mark; None: no phase."""
        context = None if name is None else self.phase(name)
        if isinstance(context, nullcontext):
            return
        number = 0 if context is None else context.number
        self.open[:] = [number] if number else []
        self.put(number)

    def put(self, number: int) -> None:
        """Let the phase of a number be under way from here in the device's queue on; 0: none."""
        if self._watch.by_device:
            self._watch.mark(partial(self._reach, number))
        else:
            self._reach(number, monotonic_ns())

    def _reach(self, number: int, t_ns: int) -> None:
        marks = self.marks
        marks.append((t_ns, number))
        if t_ns - marks[0][0] > HAND_OVER_NS or len(marks) > MAX_HELD:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand over the marks that the device has reached."""
        self._watch.look()
        marks, self.marks = self.marks, []
        if marks:
            self._put((_event, marks, tuple(self._contexts)))


def _event(marks: list[tuple[int, int]], names: tuple[str, ...]) -> Any:
    return PhasesRan(marks[0][0], names, pack_marks(marks[0][0], marks))
