"""Instructions of the analyzer to others: commands for devices, and answers for scripts. Pure."""

from zeus_stream.protocol.events import Advice, Answer
from zeus_stream.protocol.fields import Control
from zeus_stream.records import record


@record(kw_only=True)
class ApplyControl:
    """Set a control of one GPU. ``command`` is the same when the same stream is interpreted again."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control
    value: int
    """mW of a power limit, MHz of a clock."""


@record(kw_only=True)
class ApplyPlan:
    """Have the graphics clock of one GPU follow a plan: see `zeus_stream.protocol.pipelines.SetPlan`."""

    command: str
    run: str
    host: str
    gpu: str
    plan: str
    number: int
    """Of the plan, as in ``plans``."""
    first_iteration: int | None
    iteration_ms: int
    codes: tuple[int, ...]
    clocks_mhz: tuple[int, ...]
    raise_after_us: tuple[int, ...]

    @property
    def control(self) -> Control:
        return "graphics_clock"


@record(kw_only=True)
class RestoreControl:
    """Give a control of one GPU back: the collector restores the value it found."""

    command: str
    run: str
    host: str
    gpu: str
    control: Control


@record
class GiveAnswer:
    """Answer a script's question about the energy of a window."""

    host: str
    answer: Answer


@record
class GiveAdvice:
    """Answer a script's question about the batch size of a try."""

    host: str
    advice: Advice


Command = ApplyControl | ApplyPlan | RestoreControl
Instruction = Command | GiveAnswer | GiveAdvice
