"""Events that the search for limits of single GPUs receives, and its instructions. Pure."""

from msgspec import Struct

from analyzers.fleet.session import Span
from analyzers.power_limit.profiler import LimitApplied, LimitRefused, StepBegan, StepsPaused, TrialMissing


class Plan(Struct, frozen=True):
    """Constants of a job. A GPU is known by its place in ``gpus``."""

    gpus: tuple[str, ...]
    """UUIDs, two or more; the one that draws most at the job's limit is the first."""
    limits_mw: tuple[int, ...]
    """Levels that a GPU may have, descending; the first is the job's limit."""
    settle_ns: int
    window_ns: int
    """A leg holds at least so much."""
    outcome_ns: int
    """Wait this long for the outcome of a command."""


class BlockMeasured(Struct, frozen=True):
    number: int
    energy_mj: tuple[int, ...]
    """Of each GPU."""
    duration_ns: int
    """The slowest rank's."""


Event = StepBegan | StepsPaused | LimitApplied | LimitRefused | BlockMeasured | TrialMissing


class Set(Struct, frozen=True):
    """Set each GPU's limit; most have it already."""

    attempt: int
    limits_mw: tuple[int, ...]


class Measure(Struct, frozen=True):
    """Tell the energy of each GPU, and the slowest rank's time, over these spans."""

    number: int
    spans: tuple[Span, ...]


class Effect(Struct, frozen=True):
    """The effect of lowered limits on the job, as shares of a step's energy and time at its own limit."""

    energy: float
    time: float


class Found(Struct, frozen=True):
    """Each GPU's limit for the time to come, and why it is that; they are in force from ``step`` on."""

    limits_mw: tuple[int, ...]
    why: tuple[str, ...]
    effect: Effect | None
    """None: nothing was lowered."""
    steps: int
    """That it took."""
    step: StepBegan


class GiveUp(Struct, frozen=True):
    """Limits could not be set, for this reason; which of them are in force is not known."""

    reason: str


Instruction = Set | Measure | Found | GiveUp
