"""The state of the search for limits of single GPUs. Pure."""

from msgspec import Struct

from analyzers.fleet.session import Span
from analyzers.power_limit.per_gpu.per_gpu_messages import Effect, Instruction
from analyzers.power_limit.profiler import StepBegan

FIRST = 4
"""Levels that a group falls by at first."""


class Group(Struct, frozen=True, kw_only=True):
    """GPUs that fall together."""

    members: tuple[int, ...]
    gap: int
    """Levels to fall by next, while it never failed."""
    kept: int = 0
    """The lowest level that is free."""
    failed: int | None = None
    """The highest that is not."""
    saves: bool = False
    """Whether ``kept`` does."""
    why: str = ""
    """It failed."""
    grain: int = 1
    """Levels that are worth a trial."""

    def next(self, last: int) -> int | None:
        """Return the level to try, of 0 to ``last``; None: it can fall no further."""
        if self.failed is None:
            return None if self.kept == last else min(self.kept + self.gap, last)
        return None if self.failed - self.kept <= self.grain else (self.kept + self.failed) // 2

    def halves(self) -> tuple["Group", ...]:
        """Return the groups to go on with: none where all of it did not fail, or it is a single GPU."""
        if self.failed is None or len(self.members) == 1:
            return ()
        middle = len(self.members) // 2
        halves = self.members[:middle], self.members[middle:]
        few = FIRST // 2
        return tuple(
            Group(members=half, gap=few, kept=self.kept, failed=None, saves=self.saves, grain=few)
            for half in halves
        )


Arm = tuple[tuple[float, int], ...]
"""Blocks at one setting: the logarithm of a step's time, and how many steps."""


class Block(Struct, frozen=True):
    """Whole steps, measured."""

    energy_mj: tuple[int, ...]
    duration_ns: int
    steps: int


class Trial(Struct, frozen=True, kw_only=True):
    """A group at a level, compared with the job at its limit."""

    number: int
    group: Group
    level: int
    leg: int = 0
    blocks: int = 0
    """Measured in this leg."""
    base: tuple[Block, ...] = ()
    lowered: tuple[Block, ...] = ()

    @property
    def lowers(self) -> bool:
        """Tell whether the group is lowered in the leg under way."""
        return self.leg % 4 in (1, 2)


class Asked(Struct, frozen=True):
    """A block that is being measured: of which leg of which trial."""

    number: int
    trial: int
    leg: int
    lowers: bool
    steps: int


class Applying(Struct, frozen=True):
    attempt: int
    since_ns: int | None
    """Begin of the step at which it was asked for; None in a pause, until the next."""


class Warming(Struct, frozen=True):
    since: StepBegan


class Measuring(Struct, frozen=True):
    opened: StepBegan | None
    """First step of the span at hand; None in a pause."""
    spans: tuple[Span, ...] = ()
    whole_ns: int = 0
    """Time of the spans that are closed."""


class Over(Struct, frozen=True):
    pass


class State(Struct, frozen=True, kw_only=True):
    """The machine. It begins with `start`."""

    phase: Applying | Warming | Measuring | Over
    levels: tuple[int, ...]
    """Of each GPU, as known by now."""
    why: tuple[str, ...]
    queue: tuple[Group, ...]
    """To be tried."""
    step: StepBegan | None
    """The step under way; None in a pause."""
    trial: Trial | None = None
    """None: what was found is being set."""
    first_too: bool = False
    """Whether the GPU that was left out at first is tried as well."""
    steps: int = 0
    attempts: int = 0
    trials: int = 0
    numbers: int = 0
    awaited: tuple[Asked, ...] = ()
    effect: Effect | None = None
    scatter: tuple[Arm, ...] = ()
    """Of earlier trials: steps vary in one as much as in another."""

    @property
    def over(self) -> bool:
        return isinstance(self.phase, Over)


Answer = tuple[State, tuple[Instruction, ...]]
