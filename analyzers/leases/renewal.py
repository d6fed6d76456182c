"""Extend the leases of a process while it works, however slow a commit or the opening of a lake is.

A process that is suspended extends nothing. One step that takes longer than `RenewalRule.step_s` is taken as
hung: another process may take the leases over then. Where renewals come late again and again, as on a crowded
machine, leases last longer. One that is late alone, as after a cut of the network, changes nothing.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from analyzers.leases.site_leases import SiteLeases
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import StorageError

END_S = 1.0
"""Time that the end waits for a renewal under way."""
REMEMBERED = 40
"""Renewals whose delays say how long a lease is."""
MARGIN_S = 0.75
"""So long before the end of a lease its holder stops by itself."""

Extend = Callable[[SiteLeases, Mapping[str, int], float], Collection[str]]
"""Extends leases, given by name with their epochs, by so many seconds. Returns those that are still held."""


def valid_until_ns(ttl_s: float) -> int:
    """Return when (CLOCK_MONOTONIC) a holder stops by itself that asks now for a lease of this length."""
    return monotonic_ns() + round((ttl_s - MARGIN_S) * 1e9)


class RenewalRule(Struct, frozen=True, kw_only=True):
    """The length of leases, and how often they are extended."""

    ttl_s: float
    """Least length."""
    every_s: float
    late_times: float
    """A lease outlasts so many times the second longest delay of the latest renewals."""
    most_s: float
    """Greatest length."""
    step_s: float = 300.0
    """A step longer than this is taken as hung. A commit takes a second, and minutes on a crowded machine."""


ARCHIVING = RenewalRule(ttl_s=10.0, every_s=2.5, late_times=6, most_s=100.0)
"""Of parts of a stream: what an archiver has read is read again by the next."""
DECIDING = RenewalRule(ttl_s=2.2, every_s=0.25, late_times=3, most_s=7.0, step_s=60.0)
"""Of shards: a take-over is to be over in 10 s also on a crowded machine."""


def length_s(rule: RenewalRule, delays_s: Collection[float]) -> float:
    """Return the length of leases after renewals that came so much too late."""
    second = sorted(delays_s)[-2] if len(delays_s) > 1 else 0.0
    return max(rule.ttl_s, min(rule.late_times * second, rule.most_s))


class Renewal:
    """A thread that extends leases, over a connection of its own."""

    def __init__(self, leases: SiteLeases, rule: RenewalRule, extend: Extend = SiteLeases.renew) -> None:
        """Begin at once. ``leases``: for this thread alone, closed at its end. ``extend``: called by it."""
        self._leases, self._rule, self._extend = leases, rule, extend
        self._held: Mapping[str, int] = {}
        self._until_ns: dict[tuple[str, int], int] = {}
        """By lease and epoch: when this process stops, before the database's clock ends the lease."""
        self._delays_s: deque[float] = deque(maxlen=REMEMBERED)
        """Of renewals that were answered: a lease cannot outlast a database that is away."""
        self._ended = threading.Event()
        self._stepped_ns = monotonic_ns()
        self.ttl_s = rule.ttl_s
        """The length of leases now."""
        self.lost: frozenset[tuple[str, int]] = frozenset()
        """Leases, by name and epoch, that other processes have taken."""
        self.times = 0
        """The number of renewals so far."""
        self.trouble: str | None = None
        """Why the last one failed."""
        self._thread = threading.Thread(target=self._run, name=f"renewal of {leases.holder}", daemon=True)
        self._thread.start()

    def hold(self, held: Mapping[str, int], until_ns: int = 0) -> None:
        """Extend these leases, by name with their epochs. ``until_ns``: new ones are valid so long."""
        known = self._until_ns
        self._until_ns = {lease: known.get(lease, until_ns) for lease in held.items()}
        self._held = dict(held)
        self.step()

    def valid(self, name: str, epoch: int) -> bool:
        """Tell whether a lease is still held, as far as this process can know."""
        return monotonic_ns() < self._until_ns.get((name, epoch), 0) and (name, epoch) not in self.lost

    def step(self) -> None:
        """Say that the work goes on."""
        self._stepped_ns = monotonic_ns()

    def end(self) -> None:
        """Extend nothing any more."""
        self._ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        every_s, begun_ns = self._rule.every_s, monotonic_ns()
        try:
            while not self._ended.wait(every_s):
                if monotonic_ns() - self._stepped_ns <= self._rule.step_s * 1e9:
                    self._renew()
                ended_ns = monotonic_ns()
                if self.trouble is None:
                    self._delays_s.append((ended_ns - begun_ns) / 1e9 - every_s)
                self.ttl_s, begun_ns = length_s(self._rule, self._delays_s), ended_ns
        finally:
            self._leases.close()

    def _renew(self) -> None:
        held, until_ns = self._held, valid_until_ns(self.ttl_s)
        try:
            kept = self._extend(self._leases, held, self.ttl_s)
        except StorageError as wrong:  # PostgreSQL is away: the work cannot commit either
            self.trouble = str(wrong)
            return
        self.trouble, self.times = None, self.times + 1
        self.lost = frozenset((name, epoch) for name, epoch in held.items() if name not in kept)
        for lease in held.items():
            if lease[0] in kept and lease in self._until_ns:
                self._until_ns[lease] = until_ns
