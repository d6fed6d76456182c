"""The form of all that the machines give: ``handle(event, now) -> (rows, instructions)``. Pure.

Rows are stored; instructions are carried out by the shells. An outcome comes back as an event of the log.
"""

from collections.abc import Iterable
from typing import NamedTuple

from analyzers.results.instructions import Instruction
from analyzers.results.windows.step_columns import Derived

OWN = ""
"""Host of the frames that are the analyzer's own; no collector can speak for it."""


class Result(NamedTuple):
    """Rows to be stored and instructions to be carried out, each in its order."""

    rows: tuple[Derived, ...] = ()
    instructions: tuple[Instruction, ...] = ()

    def __or__(self, later: "Result") -> "Result":
        if later is NOTHING:
            return self
        if self is NOTHING:
            return later
        return Result(self.rows + later.rows, self.instructions + later.instructions)


NOTHING = Result()


def in_order(results: Iterable[Result]) -> Result:
    results = [result for result in results if result is not NOTHING]
    if len(results) < 2:
        return results[0] if results else NOTHING
    rows: list[Derived] = []
    instructions: list[Instruction] = []
    for result in results:
        rows += result.rows
        instructions += result.instructions
    return Result(tuple(rows), tuple(instructions))


def rows_only(rows: Iterable[Derived]) -> Result:
    """Return rows that ask for nothing."""
    return Result(tuple(rows))
