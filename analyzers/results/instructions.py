"""Instructions of the analyzer to others: commands for devices, and answers for scripts. Pure."""

from msgspec import Struct

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
