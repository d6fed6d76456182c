"""The events of a run: what its ranks, its GPUs and a power budget say. Pure."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from analyzers.fleet.session import Session
from zeus_stream.protocol.events import SearchWanted, StepBoundary
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause


class StepsPassed(NamedTuple):
    """A rank went on to its next step, or pauses, once or more."""

    session: Session
    boundaries: Sequence[StepBoundary]


class EpochPassed(Struct, frozen=True):
    """An epoch ended within a step, of a loop that goes on: the step belongs to no trial."""

    session: Session


class SearchAsked(Struct, frozen=True):
    """A script says how the limit is to be searched for."""

    wish: SearchWanted


class RankEnded(Struct, frozen=True):
    """A rank has ended; so has the machine that was about it."""

    session: Session


class PipelineJoined(Struct, frozen=True):
    """A rank runs a stage of a pipeline."""


class LimitSet(Struct, frozen=True):
    """A control of a GPU was set as asked."""

    host: str
    note: ControlApplied


class LimitRefused(Struct, frozen=True):
    """A control of a GPU was not set."""

    note: ControlRefused


class LimitLost(Struct, frozen=True):
    """A lease on a control of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str
    t_ns: int | None = None
    """On the clock of its host; None: that is not known."""
    control: Control = "power_limit"


class ShareChanged(Struct, frozen=True):
    """A power budget may allow its GPUs more or less than before."""


class ReadingsCame(Struct, frozen=True):
    """Readings came, or time has passed: trials may be measured by now."""


class SetAside(Struct, frozen=True):
    """Its events cannot be interpreted: every limit is given back, and the machine left."""


RunEvent: TypeAlias = (
    StepsPassed
    | EpochPassed
    | SearchAsked
    | PipelineJoined
    | RankEnded
    | LimitSet
    | LimitRefused
    | LimitLost
    | ShareChanged
    | ReadingsCame
    | SetAside
)
