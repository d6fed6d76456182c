"""Instructions: what the machines want done, and the form of all that they give. Pure.

    handle(event, now) -> Result(rows, instructions)

Rows are stored; instructions are carried out by the shells. An outcome comes back as an event of the log.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from analyzers.results.rows import Row
from zeus_stream.protocol.events import Advice, Answer
from zeus_stream.protocol.fields import Control


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyControl:
    """Set a control of one GPU. ``command`` is the same when the same stream is interpreted again."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control
    value: int
    """mW of a power limit, MHz of a clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreControl:
    """Give a control of one GPU back: the collector restores the value it found."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """Answer a script's question about the energy of a window."""

    host: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class GiveAdvice:
    """Answer a script's question about the batch size of a try."""

    host: str
    advice: Advice


Command = ApplyControl | RestoreControl
Instruction = Command | GiveAnswer | GiveAdvice


class Result(NamedTuple):
    """Rows to be stored and instructions to be carried out, each in its order."""

    rows: tuple[Row, ...] = ()
    instructions: tuple[Instruction, ...] = ()

    def __or__(self, later: "Result") -> "Result":
        """Return both, this one first."""
        if later is NOTHING:
            return self
        if self is NOTHING:
            return later
        return Result(self.rows + later.rows, self.instructions + later.instructions)


NOTHING = Result()


def in_order(results: Iterable[Result]) -> Result:
    """Return all of these in one."""
    rows: list[Row] = []
    instructions: list[Instruction] = []
    for result in results:
        rows += result.rows
        instructions += result.instructions
    return Result(tuple(rows), tuple(instructions))


def rows_only(rows: Iterable[Row]) -> Result:
    """Return rows that ask for nothing."""
    return Result(tuple(rows))
