"""The events of a run: what its ranks, its GPUs and a power budget say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from analyzers.fleet.session import Session
from zeus_stream.protocol.events import SearchWanted, StepBoundary
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause


class StepPassed(NamedTuple):
    """A rank went on to its next step, or pauses."""

    session: Session
    boundary: StepBoundary


class StepsPassed(NamedTuple):
    """A rank went on to its next step, several times."""

    session: Session
    boundaries: Sequence[StepBoundary]
    """Each ends a step and begins one."""


@dataclass(frozen=True, slots=True)
class EpochPassed:
    """An epoch ended within a step, of a loop that goes on: the step belongs to no trial."""

    session: Session


@dataclass(frozen=True, slots=True)
class SearchAsked:
    """A script says how the limit is to be searched for."""

    wish: SearchWanted


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank has ended; so has the machine that was about it."""

    session: Session


@dataclass(frozen=True, slots=True)
class PipelineJoined:
    """A rank runs a stage of a pipeline."""


@dataclass(frozen=True, slots=True)
class LimitSet:
    """A control of a GPU was set as asked."""

    host: str
    note: ControlApplied


@dataclass(frozen=True, slots=True)
class LimitRefused:
    """A control of a GPU was not set."""

    note: ControlRefused


@dataclass(frozen=True, slots=True)
class LimitLost:
    """A lease on a control of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str
    t_ns: int | None = None
    """On the clock of its host; None: that is not known."""
    control: Control = "power_limit"


@dataclass(frozen=True, slots=True)
class ShareChanged:
    """A power budget may allow its GPUs more or less than before."""


@dataclass(frozen=True, slots=True)
class ReadingsCame:
    """Readings came, or time has passed: trials may be measured by now."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Its events cannot be interpreted: every limit is given back, and the machine left."""


RunEvent: TypeAlias = (
    StepPassed
    | StepsPassed
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
