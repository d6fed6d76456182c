"""The events of pipelines: what ranks run, and what became of commands for clocks. Pure."""

from typing import TypeAlias

from msgspec import Struct

from analyzers.fleet.session import Session
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan


class StageBegan(Struct, frozen=True):
    """A rank runs one stage from here on."""

    session: Session
    began: PipelineBegan


class StageRan(Struct, frozen=True):
    """A rank has run one iteration."""

    session: Session
    ran: IterationRan


class StageEnded(Struct, frozen=True):
    """A rank has ended."""

    session: Session


class ClockSettled(Struct, frozen=True):
    """A command for a clock or a plan has its outcome."""

    host: str
    note: ControlApplied | ControlRefused


class ClockLost(Struct, frozen=True):
    """The lease on the graphics clock of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str


PipelineEvent: TypeAlias = StageBegan | StageRan | StageEnded | ClockSettled | ClockLost
