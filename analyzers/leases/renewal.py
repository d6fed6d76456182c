"""Extend the leases of a process while it works, however slow a commit or the opening of a lake is.

A process that is suspended extends nothing. One step that takes longer than STEP_S is taken as hung: another
process may take the leases over then. Where renewals come late, as on a crowded machine, leases last longer.
"""

import threading
from collections.abc import Mapping

from analyzers.dispatch.lease_length import LeaseLength
from analyzers.leases.site_leases import SiteLeases
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import StorageError

TTL_S = 10.0
"""Least length of a lease that is renewed by a thread."""
STEP_S = 300.0
"""A step longer than this is taken as hung. A commit takes a second, and minutes on a crowded machine."""
END_S = 1.0
"""Time that the end waits for a renewal under way."""
LATE_TIMES = 6
"""A lease outlasts so many times the delay of the latest renewals."""
MOST_S = 100.0
"""Greatest length of a lease."""


class Renewal:
    """A thread that extends leases, over a connection of its own."""

    def __init__(self, leases: SiteLeases, *, ttl_s: float = TTL_S, step_s: float = STEP_S) -> None:
        """Begin at once.

        Args:
            leases: for this thread alone; closed at its end.
            ttl_s: least length, renewed four times in it.
            step_s: a step longer than this is taken as hung.
        """
        self._leases = leases
        self._held: Mapping[str, int] = {}
        self._wait_s, self._step_ns = ttl_s / 4, round(step_s * 1e9)
        self._length = LeaseLength(round(1e3 * ttl_s), factor=LATE_TIMES, most_ms=round(1e3 * MOST_S))
        self._ended = threading.Event()
        self._stepped_ns = monotonic_ns()
        self.lost: frozenset[tuple[str, int]] = frozenset()
        """Leases, by name and epoch, that other processes have taken."""
        self._thread = threading.Thread(target=self._run, name=f"renewal of {leases.holder}", daemon=True)
        self._thread.start()

    @property
    def ttl_s(self) -> float:
        """Return the length of leases now."""
        return self._length.ms(monotonic_ns()) / 1e3

    def hold(self, held: Mapping[str, int]) -> None:
        """Extend these leases from now on, given by name with their epochs."""
        self._held = dict(held)
        self.step()

    def step(self) -> None:
        """Say that the work goes on."""
        self._stepped_ns = monotonic_ns()

    def end(self) -> None:
        """Extend nothing any more."""
        self._ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        begun_ns = monotonic_ns()
        try:
            while not self._ended.wait(self._wait_s):
                if monotonic_ns() - self._stepped_ns <= self._step_ns:
                    self._renew()
                ended_ns = monotonic_ns()
                self._length.delayed(ended_ns, ended_ns - begun_ns - round(self._wait_s * 1e9))
                begun_ns = ended_ns
        finally:
            self._leases.close()

    def _renew(self) -> None:
        held = self._held
        if not held:
            return
        try:
            kept = self._leases.renew(held, self.ttl_s)
        except StorageError:
            return  # PostgreSQL is away: the work cannot commit either, and says so
        self.lost = frozenset((name, epoch) for name, epoch in held.items() if name not in kept)
