"""Stamps of steps in a row, as the thread of a loop appends them and the courier reads them. Pure.

The loop appends the instant at which each step began and the one at which it ended, and asks one flag. All
else about a step is worked out by the courier: its number, its boundary, the room that it takes.
"""

from collections.abc import Iterator

from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.fields import Ns


class StepStamps:
    """Steps of one loop without a pause in between. One thread appends, another reads."""

    __slots__ = ("before", "ended_ns", "first", "instants_ns", "stop")

    def __init__(self, first: int, ended_ns: Ns | None, before: int) -> None:
        self.first = first
        """Number of the first step."""
        self.ended_ns = ended_ns
        """End of the step before the first, if that is of the same loop."""
        self.before = before
        """Steps of this process that began before and were stamped so."""
        self.instants_ns: list[Ns] = []
        """Began, ended, began, ...: only ever appended to."""
        self.stop = False
        """The loop is to take its next stamps elsewhere. Any thread may say so."""

    @property
    def begun(self) -> int:
        """Return the number of steps that began."""
        return (len(self.instants_ns) + 1) // 2

    @property
    def last_ended_ns(self) -> Ns | None:
        """Return the end of the step that ended last. None: one is open."""
        instants_ns = self.instants_ns
        if len(instants_ns) % 2:
            return None
        return instants_ns[-1] if instants_ns else self.ended_ns

    def boundaries(self, start: int, end: int) -> Iterator[StepBoundary]:
        """Return the boundaries at which its steps from ``start`` to before ``end`` began."""
        instants_ns = self.instants_ns[max(0, 2 * start - 1) : 2 * end - 1]
        began_ns = instants_ns[1::2] if start else instants_ns[::2]
        ended_ns = instants_ns[::2] if start else [self.ended_ns, *instants_ns[1::2]]
        return map(StepBoundary, range(self.first + start, self.first + end), ended_ns, began_ns)
