"""The events of pipelines: what ranks run, and what became of commands for clocks. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from analyzers.fleet.session import Session
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan


@dataclass(frozen=True, slots=True)
class StageBegan:
    """A rank runs one stage from here on."""

    session: Session
    began: PipelineBegan


@dataclass(frozen=True, slots=True)
class StageRan:
    """A rank has run one iteration."""

    session: Session
    ran: IterationRan


@dataclass(frozen=True, slots=True)
class StageEnded:
    """A rank has ended."""

    session: Session


@dataclass(frozen=True, slots=True)
class ClockSettled:
    """A command for a clock or a plan has its outcome."""

    host: str
    note: ControlApplied | ControlRefused


@dataclass(frozen=True, slots=True)
class ClockLost:
    """The lease on the graphics clock of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str


PipelineEvent: TypeAlias = StageBegan | StageRan | StageEnded | ClockSettled | ClockLost
