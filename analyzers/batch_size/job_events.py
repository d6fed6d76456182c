"""The events of jobs that recur: what ranks, windows and scripts say. Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from analyzers.fleet.session import Session
from analyzers.results.rows import WindowRow
from zeus_stream.protocol.events import AskTry, TryBegan, TryEnded, TryWanted


class JobRun(Protocol):
    """The run of a job: all that batch sizes depend on of it."""

    @property
    def name(self) -> str: ...

    @property
    def sessions(self) -> Mapping[str, Session]: ...

    @property
    def over(self) -> bool: ...


class RankJoined(Struct, frozen=True):
    """A rank has begun, perhaps of a training that is followed."""

    session: Session
    run: JobRun


class SizeWanted(Struct, frozen=True):
    """A rank wants a batch size."""

    session: Session
    run: JobRun
    event: TryWanted


class RankBegan(Struct, frozen=True):
    """A rank trains with a batch size."""

    session: Session
    event: TryBegan


class RankDone(Struct, frozen=True):
    """A rank says how its try ended."""

    session: Session
    event: TryEnded


class MetricSent(Struct, frozen=True):
    """A rank sent a metric: of its latest try, if that has not ended for it."""

    session: Session
    name: str
    value: float


class TryEpochPassed(Struct, frozen=True):
    """A rank began an epoch, or ended it itself."""

    session: Session
    index: int
    began: bool


class WindowsMeasured(Struct, frozen=True):
    """Windows were measured, each on all GPUs of its session: epochs among them, perhaps."""

    rows: Sequence[WindowRow]


class TryRankEnded(Struct, frozen=True):
    """A session is over; if it was the last of its run, a try under way was lost."""

    session: Session
    t_ns: int
    how: str


class AdviceAsked(Struct, frozen=True):
    """A script asks for a batch size, or whether to go on."""

    host: str
    ask: AskTry


class TriesForgotten(Struct, frozen=True):
    """A job begins again: its tries count no more."""

    job: str


class FrameMeasured(Struct, frozen=True):
    """All events of a frame of this host have been measured."""

    host: str


JobEvent: TypeAlias = (
    RankJoined
    | SizeWanted
    | RankBegan
    | RankDone
    | MetricSent
    | TryEpochPassed
    | WindowsMeasured
    | TryRankEnded
    | AdviceAsked
    | TriesForgotten
    | FrameMeasured
)
