"""Instants at which a device reaches marks in its queue: a thread waits for one event after the other.

    training thread                                    thread of the watch
      mark(call) -> timing event, in the queue   ->      it completes: call(instant), in order

Without a queue, as on a CPU, a mark is reached when Python passes it. A mark that is made while work is
captured into a graph is left out: nothing runs then. The thread calls the device's library while a script
may capture a graph in another thread; `torch.cuda.graph(..., capture_error_mode="thread_local")` allows that.
"""

import threading
from collections import deque
from collections.abc import Callable

from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.fields import Ns
from zeus_stream.training.steps.device_clock import DeviceClock
from zeus_stream.training.steps.step_boundaries import Queue, Say, TimingEvent

MAX_MARKS = 20_000
"""Marks that the device has not reached; with more, marks are those of Python from then on."""
CLOSING_S = 2.0
"""The end of a run waits so long for marks that the device has not reached."""

Reached = Callable[[Ns], object]


class EventWatch:
    """The marks of one publisher. Marks are made by one thread at a time."""

    def __init__(self, find_queue: Callable[[], Queue | None], say: Say) -> None:
        """``find_queue`` returns the device's queue; None: there is none yet."""
        self._find_queue, self._say = find_queue, say
        self._queue: Queue | None = None
        self._failed = False
        self._marks: deque[tuple[TimingEvent | None, Ns, Reached]] = deque()
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False
        # Of the thread:
        self._clock, self._device_ns = DeviceClock(), 0
        self._last: TimingEvent | None = None
        self._floor_ns = 0

    @property
    def by_device(self) -> bool:
        """Tell whether marks are reached when the device reaches them."""
        return self._queue is not None

    def look(self) -> None:
        """Look for a queue, unless there is one or it has failed."""
        if self._queue is None and not self._failed:
            self._queue = self._find_queue()

    def mark(self, call: Reached, *, timed: bool = True) -> bool:
        """Have the watch's thread call with the instant at which the device reaches this place in its queue.

        Without a queue it is called at once. ``timed`` False: with the instant of the mark before. Returns
        False: work is being captured, and the call is not made.
        """
        queue, now_ns = self._queue, monotonic_ns()
        event = None
        if timed and queue is not None:
            try:
                if queue.capturing():
                    return False
                event = queue.event()
                event.record()
            except Exception as wrong:  # noqa: BLE001  (whatever a device's library raises: training goes on)
                self._fail(str(wrong))
                event = None
        with self._bell:
            waits = event is not None or bool(self._marks)
            if waits:
                self._marks.append((event, now_ns, call))
                self._bell.notify()
        if not waits:
            call(now_ns)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="zeus-stream events", daemon=True)
            self._thread.start()
        if len(self._marks) > MAX_MARKS:
            self._fail(f"it has not reached {MAX_MARKS} marks")
        return True

    def close(self) -> None:
        """Wait a little for the marks that are left. Those that are not reached by then are lost."""
        self._over = True
        with self._bell:
            self._bell.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)

    def _fail(self, why: str) -> None:
        self._queue, self._failed = None, True
        self._say(
            "events",
            f"could not ask the device where instructions and phases end: {why}. From here on they end where"
            " Python dispatched them. Set ZEUS_STREAM_BOUNDARY=dispatch to have it so from the start.",
        )

    def _wait(self) -> None:
        while True:
            with self._bell:
                while not self._marks:
                    if self._over:
                        return
                    self._bell.wait()
                event, made_ns, call = self._marks[0]
            if event is not None:
                made_ns = self._reached_ns(event, made_ns)
            self._floor_ns = max(self._floor_ns, made_ns)
            call(self._floor_ns)
            with self._bell:
                self._marks.popleft()

    def _reached_ns(self, event: TimingEvent, made_ns: Ns) -> Ns:
        """Wait until an event completes, and return when that was, on the host's clock."""
        low_ns = made_ns
        try:
            if not event.query():
                low_ns = monotonic_ns()
            event.synchronize()
            high_ns = monotonic_ns()
            if self._last is not None:
                # Differences in a row: each is a 32-bit float of milliseconds.
                self._device_ns += round(self._last.elapsed_time(event) * 1e6)
        except Exception as wrong:  # noqa: BLE001  (whatever a device's library raises: training goes on)
            self._fail(str(wrong))
            return monotonic_ns()
        self._last = event
        self._clock.observe(self._device_ns, low_ns, high_ns)
        # the upper bound: this thread wakes soon after the device, the lower one may be that of the dispatch
        return self._clock.place(self._device_ns, low_ns, high_ns)[1]
