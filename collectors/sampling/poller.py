"""The thread that reads all devices: one wake-up reads each of them that is due, or almost.

A read takes a fraction of what it takes to wake for it, so devices share wake-ups: those that are due within
`TOGETHER_NS` are read now. A device may not hold up the others, though. So a device whose driver hangs, or
is slow again and again, is left to a thread of its own:

    a read that takes HANG_NS             seen by `check`: its thread keeps this device, a new one takes the
                                          others over
    SLOW_READS in a row of SLOW_NS        seen by its thread, which does the same
    ALONE_NS later                        read with the others again

A device that is known to be slow has a thread of its own for good, without real-time priority.

A read is early by at most `TOGETHER_NS`, never late: looks at a counter come no farther apart.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from queue import Empty, Queue
from typing import Protocol

from collectors.real_time import take_real_time_priority
from zeus_stream.clock import monotonic_ns

TOGETHER_NS = 200_000
"""Half of the distance of two close looks."""
SHORT_NS = 2_000_000
"""Shorter waits are not cut short by a ring: to wait for either takes half as much processor time again."""
HANG_NS = 100_000_000
SLOW_NS = 2_000_000
SLOW_READS = 8
ALONE_NS = 60_000_000_000
_LONGEST_NS = 3_600_000_000_000
_NEVER_NS = 2**63


class Polled(Protocol):
    """A device that says when it is to be read."""

    def poll(self) -> int | None:
        """Read it; return when to read it next, ns. None: it is not read any more. Must not raise."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A device and what its thread knows of it."""

    polled: Polled
    number: int
    """Its own: it orders devices that are due at the same time."""
    slow: int = 0
    """Slow reads in a row."""
    alone_until_ns: int = 0
    at_once: bool = False
    """To be read again after the read that is under way."""


_Due = tuple[int, int, _Entry]
"""When a device is due, ns, its number, and the device: tuples are compared without a call of Python code."""


class _Turns:
    """One thread, and the devices that it reads. All but the reads themselves happens under the mutex."""

    def __init__(
        self,
        mutex: threading.Lock,
        entries: list[_Due],
        after: Callable[["_Turns", _Entry, int | None, int], None],
        *,
        in_time: bool,
    ) -> None:
        """``after``: called after each read with when the next is due, and the end of this one.

        ``in_time``: with real-time priority.
        """
        self._mutex, self._after, self._in_time = mutex, after, in_time
        self.entries = entries
        """A heap, without the one that is being read."""
        self.reading: _Entry | None = None
        self.since_ns = 0
        """When that read began."""
        self.ended = False
        self._bell: Queue[None] = Queue()
        self.thread = threading.Thread(target=self._run, name="poller")

    def ring(self) -> None:
        """Have the thread look again what is due."""
        self._bell.put(None)

    def _run(self) -> None:
        if self._in_time:
            take_real_time_priority()
        entry: _Entry | None = None
        due_ns: int | None = None
        now_ns = until_ns = monotonic_ns()
        while True:
            with self._mutex:
                if entry is not None:
                    self.reading = None
                    self._after(self, entry, due_ns, now_ns)
                if self.ended:
                    return
                due_ns = entry = None
                if self.entries:
                    due_ns = self.entries[0][0]
                    if due_ns <= until_ns:
                        entry = heappop(self.entries)[2]
                self.reading, self.since_ns = entry, now_ns
            if entry is not None:
                due_ns = entry.polled.poll()
            else:
                self._wait(due_ns)
            now_ns = monotonic_ns()
            until_ns = now_ns + TOGETHER_NS

    def _wait(self, due_ns: int | None) -> None:
        wait_ns = _LONGEST_NS if due_ns is None else min(due_ns - monotonic_ns(), _LONGEST_NS)
        if 0 < wait_ns < SHORT_NS:
            time.sleep(wait_ns / 1e9)
        elif wait_ns > 0:
            try:
                self._bell.get(timeout=wait_ns / 1e9)
            except Empty:
                return


class Poller:
    """All devices, and the threads that read them: one, and one for each device that holds up others."""

    def __init__(self, alone_ns: int = ALONE_NS) -> None:
        """``alone_ns``: for how long a device that was slow has a thread of its own."""
        self._alone_ns = alone_ns
        self._mutex = threading.Lock()
        self._added = 0
        self._threads: list[_Turns] = []
        """First the one that all devices share."""

    @property
    def alone(self) -> int:
        """The number of devices that are read by a thread of their own."""
        return max(len(self._threads) - 1, 0)

    def add(self, polled: Polled, *, alone: bool = False) -> None:
        """Read a device from now on. ``alone``: in a thread of its own, since each read may take seconds."""
        with self._mutex:
            if not self._threads:
                self._threads.append(self._start([]))
            self._added += 1
            entry = _Entry(polled, self._added, alone_until_ns=_NEVER_NS if alone else 0)
            if alone:
                self._threads.append(self._start([(0, self._added, entry)], in_time=False))
                return
            shared = self._threads[0]
            heappush(shared.entries, (0, self._added, entry))
        shared.ring()

    def read_now(self, polled: Polled) -> None:
        """Read a device at once, instead of when it is due."""
        with self._mutex:
            for each in self._threads:
                if each.reading is not None and each.reading.polled is polled:
                    each.reading.at_once = True
                each.entries = [
                    (0 if entry.polled is polled else due_ns, number, entry)
                    for due_ns, number, entry in each.entries
                ]
                heapify(each.entries)
                each.ring()

    def check(self, now_ns: int) -> int | None:
        """Leave a device that hangs to its thread, others to a new one. Return when to check again."""
        with self._mutex:
            if not self._threads or self._threads[0].reading is None:
                return None
            if now_ns - self._threads[0].since_ns < HANG_NS:
                return self._threads[0].since_ns + HANG_NS
            self._part()
            return None

    def stop(self, timeout_s: float) -> bool:
        """End the threads. False: a read does not return."""
        with self._mutex:
            threads = self._threads[:]
            for each in threads:
                each.ended = True
                each.ring()
        for each in threads:
            each.thread.join(timeout_s)
        return not any(each.thread.is_alive() for each in threads)

    def _start(self, entries: Iterable[_Due], *, in_time: bool = True) -> _Turns:
        turns = _Turns(self._mutex, list(entries), self._after, in_time=in_time)
        turns.thread.start()
        return turns

    def _part(self) -> None:
        """Leave a device to the thread that reads it, and the others to a new one."""
        shared = self._threads[0]
        entries, shared.entries = shared.entries, []
        self._threads.insert(0, self._start(entries))

    def _after(self, turns: _Turns, entry: _Entry, due_ns: int | None, now_ns: int) -> None:
        """Give a device that was read to the thread that reads it next."""
        shared = turns is self._threads[0]
        took_ns = now_ns - turns.since_ns
        entry.slow = entry.slow + 1 if took_ns >= SLOW_NS else 0
        if entry.slow >= SLOW_READS or took_ns >= HANG_NS:
            entry.slow = 0
            if shared:
                self._part()
            entry.alone_until_ns = max(entry.alone_until_ns, now_ns + self._alone_ns)
        elif not shared and (due_ns is None or now_ns >= entry.alone_until_ns):
            turns.ended = True
            self._threads.remove(turns)
            turns = self._threads[0]
            turns.ring()
        if due_ns is not None:
            heappush(turns.entries, (0 if entry.at_once else due_ns, entry.number, entry))
            entry.at_once = False
