"""The form of all that the machines give: ``handle(event, now) -> (rows, instructions)``. Pure.

Rows are stored; instructions are carried out by the shells. An outcome comes back as an event of the log.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from analyzers.results.rows import Derived
from zeus_stream.protocol.events import Advice, Answer
from zeus_stream.protocol.fields import Control


class ApplyControl(Struct, frozen=True, kw_only=True):
    """Set a control of one GPU. ``command`` is the same when the same stream is interpreted again."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control
    value: int
    """mW of a power limit, MHz of a clock."""


class ApplyPlan(Struct, frozen=True, kw_only=True):
    """Have the graphics clock of one GPU follow a plan: see `zeus_stream.protocol.pipelines.SetPlan`."""

    command: str
    run: str
    host: str
    gpu: str
    plan: str
    number: int
    """The number of the plan, as in ``plans``."""
    first_iteration: int | None
    iteration_ms: int
    codes: tuple[int, ...]
    clocks_mhz: tuple[int, ...]
    raise_after_us: tuple[int, ...]

    @property
    def control(self) -> Control:
        return "graphics_clock"


class RestoreControl(Struct, frozen=True, kw_only=True):
    """Give a control of one GPU back: the collector restores the value it found."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control


class GiveAnswer(Struct, frozen=True):
    """Answer a script's question about the energy of a window."""

    host: str
    answer: Answer


class GiveAdvice(Struct, frozen=True):
    """Answer a script's question about the batch size of a try."""

    host: str
    advice: Advice


Command = ApplyControl | ApplyPlan | RestoreControl
Instruction = Command | GiveAnswer | GiveAdvice


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
