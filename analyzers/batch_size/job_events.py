"""The events of jobs that recur: what ranks, windows and scripts say. Pure."""

from collections.abc import Sequence
from typing import TypeAlias

from analyzers.fleet.session import Session
from analyzers.power_limit.run import Run
from analyzers.results.rows import WindowRow
from zeus_stream.protocol.events import AskTry, TryBegan, TryEnded, TryWanted
from zeus_stream.records import record


@record
class RankJoined:
    """A rank has begun, perhaps of a training that is followed."""

    session: Session
    run: Run


@record
class SizeWanted:
    """A rank wants a batch size."""

    session: Session
    run: Run
    event: TryWanted


@record
class RankBegan:
    """A rank trains with a batch size."""

    session: Session
    event: TryBegan


@record
class RankDone:
    """A rank says how its try ended."""

    session: Session
    event: TryEnded


@record
class MetricSent:
    """A rank sent a metric: of its latest try, if that has not ended for it."""

    session: Session
    name: str
    value: float


@record
class EpochPassed:
    """A rank began an epoch, or ended it itself."""

    session: Session
    index: int
    began: bool


@record
class WindowsMeasured:
    """Windows were measured, each on all GPUs of its session: epochs among them, perhaps."""

    rows: Sequence[WindowRow]


@record
class RankEnded:
    """A session is over; if it was the last of its run, a try under way was lost."""

    session: Session
    t_ns: int
    how: str


@record
class AdviceAsked:
    """A script asks for a batch size, or whether to go on."""

    host: str
    ask: AskTry


@record
class JobForgotten:
    """A job begins again: its tries count no more."""

    job: str


@record
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
