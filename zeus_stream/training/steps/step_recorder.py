"""Records the steps of one publisher: numbers and stamps them, and queues their boundaries.

`loop` is the hot path: two clock reads and two appends for each step.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar, cast

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.training.outbox import Outbox, StepStamps
from zeus_stream.training.steps.step_boundaries import Boundaries, Output
from zeus_stream.training.steps.torch_events import TorchQueue

T = TypeVar("T")


class Loop(Generic[T]):
    """An iterable each of whose turns is recorded, as a step or an epoch. It has the iterable's length.

    Example:
        >>> len(zeus_stream.steps(range(3)))
        3
    """

    def __init__(self, iterable: Iterable[T], turns: Callable[[Iterable[T]], Iterator[T]]) -> None:
        self._iterable = iterable
        self._turns = turns

    def __len__(self) -> int:
        return len(cast("Sized", self._iterable))

    def __iter__(self) -> Iterator[T]:
        return self._turns(self._iterable)

    def __repr__(self) -> str:
        return f"Loop({self._iterable!r})"


def ready_output(value: Any) -> Output | None:
    """Return the first array in a tree of values, or None: outputs of one computation are ready at once."""
    tree: Any = getattr(sys.modules.get("jax"), "tree", None)
    leaves = [value] if tree is None else tree.leaves(value)
    return next((cast("Output", leaf) for leaf in leaves if callable(getattr(leaf, "is_ready", None))), None)


LOOK_AGAIN_S = 0.001


class StepRecorder:
    """The steps of a run, from 0 on. For one thread at a time."""

    def __init__(
        self,
        outbox: Outbox,
        boundaries: Boundaries,
        find_queue: Callable[[], TorchQueue | None],
        warn: Callable[[str, str], None],
    ) -> None:
        """``find_queue`` returns the device's queue. None: steps end when Python has dispatched them."""
        self._outbox = outbox
        self._boundaries = boundaries
        self._find_queue = find_queue
        self._warn = warn
        self._next = 0
        self._looping = self._stepping = False
        self._ended_ns: int | None = None
        """End of the last step, while it is not queued: it is queued with the beginning of the next."""
        self._stamps: StepStamps | None = None
        """Where a loop stamps its steps."""

    @property
    def last(self) -> int | None:
        """Return the number of the step that began last. None: none has begun."""
        stamps = self._stamps
        following = self._next if stamps is None else stamps.first + stamps.begun
        return following - 1 if following else None

    def begin(self) -> None:
        """Begin a step, and end the step before if it is open."""
        now_ns = monotonic_ns()
        if self._looping:
            self._warn_nested()
            return
        if self._stepping:
            self._mark_end(now_ns)
        elif self._ended_ns is None:
            self._boundaries.begin(self._find_queue())
            if self._boundaries.placing:
                self._boundaries.mark(now_ns)
        self._queue_end(now_ns)
        self._next += 1
        self._stepping = True

    def end(self, *, pauses: bool) -> None:
        """End the step that `begin` began. Unless it ``pauses``, its end waits for the next beginning."""
        now_ns = monotonic_ns()
        if self._stepping:
            self._mark_end(now_ns)
            self._stepping = False
        elif self._ended_ns is None:
            self._warn("step", "could not end a step: none is open. Call begin_step() before end_step().")
            return
        if pauses:
            self.pause()

    @property
    def stepping(self) -> bool:
        """Tell whether a step that `begin` began is open."""
        return self._stepping

    def cancel(self) -> None:
        """Forget the step that `begin` began, if it is open. The next step gets its number."""
        if self._stepping:
            self._outbox.put((StepBoundary, self._next, None, None))
            self._next -= 1
            self._stepping = False

    def continue_from(self, step: int) -> None:
        """Give the next step this number, unless it is lower than that of the next step."""
        if step > self._next and not self._looping:
            self.pause()
            self._next = step

    def pause(self) -> None:
        """Queue the end of the last step: none follows at once."""
        if self._ended_ns is not None:
            self._queue_end(None)

    def ends_with(self, output: Any) -> None:
        """Let the step under way end when this output of JAX is ready."""
        if (array := ready_output(output)) is None:
            what = f"ends_with(): {type(output).__name__} cannot say when it is ready"
            self._warn("output", f"{what}: it has no is_ready(). Give it an array of JAX, such as the loss.")
        else:
            self._boundaries.ends_with(array)
            if self._stamps is not None:
                self._stamps.stop = True

    def loop(self, iterable: Iterable[T]) -> Iterator[T]:
        """Yield the items of an iterable; the time that the caller has each is a step.

        Where steps end by dispatch, a step is two stamps and a flag, here and nowhere else (decision 08). A
        batch is its loop's alone: it is given away as it is yielded, so that its memory can be used again.
        """
        if self._looping or self._stepping:
            self._warn_nested()
            yield from iterable
            return
        self.pause()
        self._looping = True
        first = self._next
        self._boundaries.begin(self._find_queue())
        try:
            batches = iter(iterable)
            while not self._outbox.closed:
                if (stamps := self._stamp()) is None:
                    for batch in batches:
                        self._place_begin()
                        yield (batch, batch := None)[0]  # type: ignore[assignment]
                        self._mark_end(monotonic_ns())
                        break
                    else:
                        return
                else:
                    instants_ns, clock = stamps.instants_ns, monotonic_ns
                    for batch in batches:
                        instants_ns.append(clock())
                        yield (batch, batch := None)[0]
                        instants_ns.append(clock())
                        if stamps.stop:
                            break
                    else:
                        return
                    self._leave_stamps()
            yield from batches
        finally:
            self._leave_stamps()
            if self._next > first:
                if self._ended_ns is None:
                    self._mark_end(monotonic_ns())
                self._queue_end(None)
            self._looping = False

    def _stamp(self) -> StepStamps | None:
        """Return where the loop stamps its next steps. None: they are placed one by one, or find no room."""
        if not self._boundaries.placing:
            self._stamps = self._outbox.stamps(self._next, self._ended_ns)
            if self._stamps is not None:
                self._ended_ns = None
        return self._stamps

    def _leave_stamps(self) -> None:
        """Go on from what the loop stamped, if it did."""
        if (stamps := self._stamps) is not None:
            self._next, self._ended_ns = stamps.first + stamps.begun, stamps.last_ended_ns
            self._stamps, stamps.stop = None, True
            if self._boundaries.placing and self._ended_ns is not None:
                self._boundaries.mark(self._ended_ns)

    def _place_begin(self) -> None:
        """Queue the boundary at which a step of the loop begins."""
        now_ns, boundaries = monotonic_ns(), self._boundaries
        if boundaries.placing:
            if self._ended_ns is None:
                boundaries.mark(now_ns)
            self._outbox.put(boundaries.boundary(self._next, self._ended_ns, now_ns))
        else:
            self._outbox.put((StepBoundary, self._next, self._ended_ns, now_ns))
        self._next += 1
        self._ended_ns = None

    def wait_for_device(self, until_ns: int) -> None:
        """Wait until the device has ended the steps that are marked, or until then."""
        nap = threading.Event()
        while self._boundaries.look() and monotonic_ns() < until_ns:
            nap.wait(LOOK_AGAIN_S)

    def _warn_nested(self) -> None:
        self._warn(
            "nested",
            "steps within steps, or in two threads, are not counted: the outer ones are."
            " An iterator of steps that is left midway stays open: close() it.",
        )

    def _mark_end(self, now_ns: int) -> None:
        if self._boundaries.placing:
            self._boundaries.mark(now_ns)
        self._ended_ns = now_ns

    def _queue_end(self, began_ns: int | None) -> None:
        """Queue the end of the last step, if one ended, and the beginning of the next, if it began."""
        self._outbox.put(self._boundaries.boundary(self._next, self._ended_ns, began_ns))
        self._ended_ns = None
