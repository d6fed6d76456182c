"""Step boundaries in a row, as columns: an object each would take most of their time. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from zeus_stream.protocol.events import StepBoundary


class PlainSteps(Struct, frozen=True):
    """Boundaries that each end a step and begin one, at least one; all columns have the same length."""

    boundaries: Sequence[StepBoundary]
    index: list[int]
    """Of the step that begins."""
    ended_ns: list[int]
    began_ns: list[int]

    @classmethod
    def of(cls, events: Sequence[object]) -> "PlainSteps | None":
        """Return the columns of events; None if some are no such boundary."""
        if set(map(type, events)) != {StepBoundary}:
            return None
        boundaries: Sequence[StepBoundary] = events  # type: ignore[assignment]  # mypy does not see the types
        ended_ns = [boundary.ended_ns for boundary in boundaries]
        began_ns = [boundary.began_ns for boundary in boundaries]
        if None in ended_ns or None in began_ns:
            return None
        index = [boundary.index for boundary in boundaries]
        return cls(boundaries, index, ended_ns, began_ns)  # type: ignore[arg-type]  # no None is in them
