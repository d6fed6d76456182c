"""Time that is a number: it goes on from one due action to the next, in one thread."""

import heapq
from collections.abc import Callable
from itertools import count


class VirtualTime:
    """The actions that are due. Those of one instant keep their order."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, t_ns: int, action: Callable[[], None]) -> None:
        """Have something done at a time."""
        heapq.heappush(self._due, (t_ns, next(self._order), action))

    def do_next(self) -> None:
        """Do what is due next, at its time."""
        self.now_ns, _, action = heapq.heappop(self._due)
        action()

    def sleep(self, until_ns: int) -> None:
        """Do what is due before a time only then, in its order, as after a suspend of the host."""
        self._due = [
            (max(t_ns, until_ns), next(self._order), action) for t_ns, _, action in sorted(self._due)
        ]
