"""The events of jobs that recur: what ranks, windows and scripts say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from analyzers.fleet.session import Session
from analyzers.power_limit.run import Run
from analyzers.results.rows import WindowRow
from zeus_stream.protocol.events import AskTry, TryBegan, TryEnded, TryWanted


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank has begun, perhaps of a training that is followed."""

    session: Session
    run: Run


@dataclass(frozen=True, slots=True)
class SizeWanted:
    """A rank wants a batch size."""

    session: Session
    run: Run
    event: TryWanted


@dataclass(frozen=True, slots=True)
class RankBegan:
    """A rank trains with a batch size."""

    session: Session
    event: TryBegan


@dataclass(frozen=True, slots=True)
class RankDone:
    """A rank says how its try ended."""

    session: Session
    event: TryEnded


@dataclass(frozen=True, slots=True)
class MetricSent:
    """A rank sent a metric: of its latest try, if that has not ended for it."""

    session: Session
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class EpochPassed:
    """A rank began an epoch, or ended it itself."""

    session: Session
    index: int
    began: bool


@dataclass(frozen=True, slots=True)
class WindowsMeasured:
    """Windows were measured, each on all GPUs of its session: epochs among them, perhaps."""

    rows: Sequence[WindowRow]


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A session is over; if it was the last of its run, a try under way was lost."""

    session: Session
    t_ns: int
    how: str


@dataclass(frozen=True, slots=True)
class AdviceAsked:
    """A script asks for a batch size, or whether to go on."""

    host: str
    ask: AskTry


@dataclass(frozen=True, slots=True)
class JobForgotten:
    """A job begins again: its tries count no more."""

    job: str


@dataclass(frozen=True, slots=True)
class FrameMeasured:
    """All events of a frame of this host have been measured."""

    host: str


JobEvent: TypeAlias = (
    RankJoined
    | SizeWanted
    | RankBegan
    | RankDone
    | MetricSent
    | EpochPassed
    | WindowsMeasured
    | RankEnded
    | AdviceAsked
    | JobForgotten
    | FrameMeasured
)
