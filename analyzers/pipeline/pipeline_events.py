"""The events of pipelines: what ranks run, and what became of commands for clocks. Pure."""

from typing import TypeAlias

from analyzers.fleet.session import Session
from zeus_stream.protocol.notes import ControlApplied, ControlRefused, LeaseCause
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan
from zeus_stream.records import record


@record
class StageBegan:
    """A rank runs one stage from here on."""

    session: Session
    began: PipelineBegan


@record
class StageRan:
    """A rank has run one iteration."""

    session: Session
    ran: IterationRan


@record
class StageEnded:
    """A rank has ended."""

    session: Session


@record
class ClockSettled:
    """A command for a clock or a plan has its outcome."""

    host: str
    note: ControlApplied | ControlRefused


@record
class ClockLost:
    """The lease on the graphics clock of a GPU has ended."""

    gpu: str
    cause: LeaseCause
    reason: str


PipelineEvent: TypeAlias = StageBegan | StageRan | StageEnded | ClockSettled | ClockLost
