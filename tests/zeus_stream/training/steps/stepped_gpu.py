"""A GPU's queue whose marks are reached when a test says so."""

import threading
from collections.abc import Callable

from zeus_stream.clock import monotonic_ns


class SteppedGpu:
    """A queue of events."""

    def __init__(self, now: Callable[[], int] = monotonic_ns) -> None:
        """``now``: its clock; that of the host."""
        self.marks: list[SteppedEvent] = []
        self._now = now
        self.reached = 0
        self.captures = self.is_lost = False

    def event(self) -> "SteppedEvent":
        self.check()
        return SteppedEvent(self)

    def check(self) -> None:
        if self.is_lost:
            raise RuntimeError("CUDA error: device lost")

    def capturing(self) -> bool:
        return self.captures

    def reach(self, count: int) -> list[int]:
        """Reach so many more marks. Return the instants at which that was."""
        for mark in self.marks[self.reached : self.reached + count]:
            mark.done_ns = self._now()
            mark.done.set()
        self.reached += count
        return [mark.done_ns for mark in self.marks[self.reached - count : self.reached]]


class SteppedEvent:
    """As `torch.cuda.Event` is."""

    def __init__(self, gpu: SteppedGpu) -> None:
        self.gpu, self.done, self.done_ns = gpu, threading.Event(), 0

    def record(self) -> None:
        self.done.clear()
        self.gpu.marks.append(self)

    def query(self) -> bool:
        self.gpu.check()
        return self.done.is_set()

    def synchronize(self) -> None:
        self.done.wait()

    def elapsed_time(self, end: "SteppedEvent", /) -> float:
        return (end.done_ns - self.done_ns) / 1e6
