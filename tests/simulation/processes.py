"""Processes of a simulated host, and the connections between them: both end at any moment."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.virtual_time import VirtualTime

MS = 1_000_000
S = 1_000_000_000


class Process:
    """Something that can be killed: what it had planned does not happen then."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.alive = True

    def after(self, wait_ns: float, action: Callable[[], None]) -> None:
        self._time.at(self._time.now_ns + round(wait_ns), lambda: action() if self.alive else None)


class Stream:
    """A connection: ordered, with delays. Once cut, what was under way is lost, either way."""

    def __init__(self, time: VirtualTime, rng: Random) -> None:
        self._time, self._rng = time, rng
        self.open = True
        self._arrives_ns = [0, 0]

    def send(self, way: int, deliver: Callable[[Any], None], message: Any) -> None:
        """``way`` is 0 or 1: there or back."""
        delay_ns = self._rng.expovariate(1 / (2 * MS))
        at_ns = max(self._arrives_ns[way] + 1, self._time.now_ns + round(delay_ns))
        self._arrives_ns[way] = at_ns
        self._time.at(at_ns, lambda: deliver(message) if self.open else None)
