"""Where steps end on the device: marks put into its queue, looked at later, and placed on the host's clock.

    training thread                                  sender
      mark -> pending -> seen complete, by a look ->   clock fitted -> boundary settled, in order
                    \\-> too many, too late, no result -> boundary by dispatch

A look asks the oldest marks whether they are complete, and waits for nothing. It happens at boundaries, where
the script waits anyway, and when the sender nudges. It is made in the thread of the loop only, and never
while that captures a CUDA graph. A mark completed after the last look that found it incomplete, and before
the first that found it complete: these are its bounds. The sender narrows them by the device's own clock.

Boundaries alone are not enough. A full queue holds the host back until the device has reached the same place
in its work, so every look is equally late. Nudges come at any time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol

from zeus_stream.protocol.events import Placed, StepBoundary
from zeus_stream.protocol.fields import Ns
from zeus_stream.training.steps.device_clock import DeviceClock

MAX_PENDING = 1_000
"""Marks that are not complete; of more, the oldest boundary is given out by dispatch."""
HOLD_NS = 2_000_000_000
"""A boundary waits for its mark at most so long, or for two steps where these last longer,"""
MAX_HOLD_NS = 60_000_000_000
"""but never longer than this."""
NARROW_NS = 250_000
"""A boundary whose uncertainty is more waits for the clock's fit to become better,"""
NARROWING_NS = 1_000_000_000
"""but no longer than this after its mark was seen complete."""

Say = Callable[[str, str], None]


class TimingEvent(Protocol):
    """As `torch.cuda.Event` is."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None:
        """Wait until it has completed, without the GIL."""

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return milliseconds, by the device's clock."""


class Queue(Protocol):
    """Where a device's work waits."""

    def event(self) -> TimingEvent: ...

    def capturing(self) -> bool:
        """Return True if what is queued now is kept for later, and not run."""


class BoundaryNudge(Protocol):
    """Has the thread of the loop call something, soon."""

    def arm(self, call: Callable[[], object], /) -> None: ...

    def ask(self) -> None:
        """Ask for the call, from any thread."""

    def disarm(self) -> None: ...


class Output(Protocol):
    """As `jax.Array` is."""

    def is_ready(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Mark:
    """Something that completes when a step does."""

    event: TimingEvent | None
    done: Callable[[], bool] | None
    """Asks. None: it has completed, and is let go."""
    low_ns: Ns
    """It was not complete."""
    until_ns: Ns
    """Nobody waits longer for it."""
    high_ns: Ns = 0
    """It was complete. 0: not yet. Written last: the sender reads it first."""
    device_ns: Ns | None = None
    """By the device's clock, from the first mark on. None: it has no stamp of it."""


@dataclass(slots=True, eq=False)
class Boundary:
    """A step's boundary in the outbox, whose stamps may still become better."""

    boundaries: "Boundaries"
    mark: Mark | None
    index: int
    ended_ns: Ns | None
    began_ns: Ns | None

    def settle(self, now_ns: Ns) -> tuple[Any, ...] | None:
        """Return the entry of the outbox. None: it may still become better."""
        return self.boundaries.settle(self, now_ns)


class Boundaries:
    """The boundaries of one publisher's steps."""

    def __init__(self, clock: Callable[[], Ns], say: Say, nudge: BoundaryNudge) -> None:
        self._now_ns = clock
        self._say = say
        self._nudge = nudge
        # Of the training thread:
        self.placing = False
        """Boundaries go through here, since there is, or was, something to mark them by."""
        self._queue: Queue | None = None
        self._thread = 0
        self._output: Output | None = None
        self._mark: Mark | None = None
        self._marked_ns = 0
        self._pending: deque[Mark] = deque()
        self._pool: list[TimingEvent] = []
        self._last: TimingEvent | None = None
        """Of the mark completed last: the next is so much later."""
        self._device_ns = 0
        self._busy = self._failed = self._over = False
        # From it to the sender; of what a sender without a collector does not fetch, the oldest goes.
        self._seen: deque[Mark] = deque(maxlen=10 * MAX_PENDING)
        # Of the sender:
        self._clock = DeviceClock()
        self._floor_ns = 0
        """Nothing is given out before what was given out."""
        self.unplaced = 0
        """Boundaries given out by dispatch because their marks did not complete in time."""

    # ---- the training thread

    def begin(self, queue: Queue | None) -> None:
        """A loop of steps begins, on this device; None: on none that has timing events."""
        self._queue = None if self._failed else queue
        self._thread, self._marked_ns = get_ident(), self._now_ns()
        if self._queue is not None:
            self._place()

    def ends_with(self, output: Output) -> None:
        """The step under way ends when this is ready."""
        if not self._failed:
            self._output = output
            self._place()

    def mark(self, now_ns: Ns) -> None:
        """Put a mark where a step has just ended, at ``now_ns``, and look at older ones."""
        self._busy = True
        try:
            self._mark = self._marked(now_ns)
        except Exception as wrong:  # noqa: BLE001  (whatever a device's library raises: training goes on)
            self._fail(wrong)
        finally:
            self._busy = False

    def boundary(self, index: int, ended_ns: Ns | None, began_ns: Ns | None) -> Boundary:
        """Return the boundary at the last `mark`."""
        mark, self._mark = self._mark, None
        return Boundary(self, mark, index, ended_ns, began_ns)

    def look(self) -> bool:
        """See what is complete by now. Returns whether this thread may see more by looking again."""
        if self._busy or not self._pending or get_ident() != self._thread:
            return False  # busy: a nudge came between
        self._busy = True
        try:
            if self._queue is not None and self._queue.capturing():
                return False
            self._look(self._now_ns())
        except Exception as wrong:  # noqa: BLE001  (nothing of ours may reach the training)
            self._fail(wrong)
        finally:
            self._busy = False
        return bool(self._pending)

    def close(self) -> None:
        """Look a last time, and wait for nothing more."""
        self.look()
        self._give_up()
        self._over = True
        self._nudge.disarm()

    def _place(self) -> None:
        self.placing = True
        self._nudge.arm(self.look)

    def _marked(self, now_ns: Ns) -> Mark | None:
        queue, output = self._queue, self._output
        if queue is not None and queue.capturing():
            return None
        if self._pending:
            self._look(now_ns)
        hold_ns = min(max(HOLD_NS, 2 * (now_ns - self._marked_ns)), MAX_HOLD_NS)
        self._marked_ns, self._output = now_ns, None
        if output is not None:
            mark = Mark(None, output.is_ready, now_ns, now_ns + hold_ns)
        elif queue is not None:
            event = self._pool.pop() if self._pool else queue.event()
            event.record()
            mark = Mark(event, event.query, now_ns, now_ns + hold_ns)
        else:
            return None
        self._pending.append(mark)
        if len(self._pending) > MAX_PENDING:
            self._pending.popleft().until_ns = 0
        return mark

    def _look(self, now_ns: Ns) -> None:
        """See which are complete, oldest first. ``now_ns``: read before."""
        while self._pending:
            mark = self._pending[0]
            if mark.done is not None and not mark.done():
                mark.low_ns = now_ns
                return
            del self._pending[0]
            if self._pending and self._pending[0].low_ns < mark.low_ns:
                self._pending[0].low_ns = mark.low_ns
            if (event := mark.event) is not None:
                if self._last is not None:
                    # Differences in a row: each is a 32-bit float of milliseconds.
                    self._device_ns += round(self._last.elapsed_time(event) * 1e6)
                    self._pool.append(self._last)
                self._last, mark.device_ns = event, self._device_ns
            mark.event = mark.done = None
            mark.high_ns = now_ns = self._now_ns()
            self._seen.append(mark)

    def _fail(self, wrong: Exception) -> None:
        self._failed = True
        self._queue = self._output = self._mark = self._last = None
        self._pool.clear()
        self._give_up()
        self._say(
            "device",
            f"could not ask the device where steps end: {wrong}. From here on they end where Python"
            " dispatched them. Set ZEUS_STREAM_BOUNDARY=dispatch to have it so from the start.",
        )

    def _give_up(self) -> None:
        for mark in self._pending:
            mark.until_ns = 0
        self._pending.clear()

    # ---- the sender

    def settle(self, boundary: Boundary, now_ns: Ns) -> tuple[Any, ...] | None:
        """Return a boundary as an entry of the outbox, in order. None: it may still become better."""
        if self._pending:
            self._nudge.ask()
        while self._seen:
            seen = self._seen.popleft()
            if seen.device_ns is not None:
                self._clock.observe(seen.device_ns, seen.low_ns, seen.high_ns)
        mark = boundary.mark
        if mark is None:
            return self._entry(boundary, 0, "dispatch", None)
        if not mark.high_ns:
            if now_ns < mark.until_ns:
                return None
            self.unplaced += 1
            return self._entry(boundary, 0, "dispatch", None)
        if mark.device_ns is None:
            placed: Placed = "ready"
            low_ns, high_ns = mark.low_ns, mark.high_ns
        else:
            placed = "device"
            low_ns, high_ns = self._clock.place(mark.device_ns, mark.low_ns, mark.high_ns)
            narrowing = now_ns < mark.high_ns + NARROWING_NS and not self._over
            if high_ns - low_ns > 2 * NARROW_NS and narrowing:
                return None
        at_ns = max((low_ns + high_ns) // 2, self._floor_ns)
        return self._entry(boundary, at_ns, placed, max(high_ns - at_ns, at_ns - low_ns))

    def _entry(
        self, boundary: Boundary, at_ns: Ns, placed: Placed, uncertainty_ns: Ns | None
    ) -> tuple[Any, ...]:
        """A step ends when its mark completes; the next begins then, or once Python has dispatched it."""
        ended_ns, began_ns = boundary.ended_ns, boundary.began_ns
        if ended_ns is not None:
            self._floor_ns = ended_ns = max(ended_ns, at_ns, self._floor_ns)
        if began_ns is not None:
            self._floor_ns = began_ns = max(began_ns, at_ns, self._floor_ns)
        return StepBoundary, boundary.index, ended_ns, began_ns, placed, uncertainty_ns
