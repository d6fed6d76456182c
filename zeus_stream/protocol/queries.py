"""Requests on the query socket, and the replies on both request sockets.

any client --query--> analyzer    Query, Cancel, AskStatus, AskNow, AskResults, ForgetJob
"""

from typing import Annotated

from msgspec import Meta, Struct

from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.events import Advice, Answer, Ask, AskTry
from zeus_stream.protocol.events import No as No  # noqa: PLC0414  (publishers get one, and load no queries)
from zeus_stream.protocol.fields import Count, Milliseconds, Name, Text
from zeus_stream.protocol.notes import ControlApplied, ControlRefused
from zeus_stream.protocol.pipelines import SetPlan
from zeus_stream.protocol.snapshots import AskNow, Snapshot

StatusRows = list[tuple[str, str, str]]
"""Section, name and value."""


class AskStatus(Struct, frozen=True):
    pass


class Status(Struct, frozen=True):
    """One process's state for people: rows of (section, name, value)."""

    rows: Annotated[tuple[tuple[Text, Text, Text], ...], Meta(max_length=10_000)]


class Query(Struct, frozen=True):
    sql: Annotated[str, Meta(min_length=1, max_length=100_000)]
    max_rows: Annotated[int, Meta(ge=1, le=10_000_000)]
    timeout_ms: Milliseconds
    jobs: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=500)], ...], Meta(max_length=100)] = ()
    """Patterns of the jobs that the answer may be about; none: everything."""


class Cancel(Struct, frozen=True):
    """End a query of the same sender, which is refused then. A query of a closed connection ends as well."""

    correlation: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """With which the query was sent."""


class AskResults(Struct, frozen=True):
    """Ask for the results that the analyzer stored, from a place on. `ResultsPage` is the reply."""

    feed: Name | None
    """Of the last page; None: there was none."""
    after: Count | None
    """``next`` of the last page. None: 0, the oldest that is kept, or the end, as ``newest`` says."""
    newest: bool
    """Where to begin without a last page: with what is stored from now on."""
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)]
    """Wait so long for a result, if there is none yet."""


class ResultsPage(Struct, frozen=True, kw_only=True):
    """Results in the order in which they were stored. Records follow in the next message part."""

    feed: Name
    """Of one start of the analyzer."""
    first: Count
    """Number of the first result of the page."""
    next: Count
    """Number of the result after the page: where to go on."""
    missed: Count | None
    """Results between ``after`` and ``first`` that are kept no longer. None: the analyzer has started again,
    and it is not known."""
    replayed: bool
    """They were derived again when the analyzer started: they may have been handed out before."""


class ForgetJob(Struct, frozen=True):
    """Let a job that recurs start over. Its tries stay in the archive, and count no more."""

    job: Name


class Forgotten(Struct, frozen=True):
    tries: Count
    """That count no more."""


class QueryDone(Struct, frozen=True):
    """An Arrow IPC stream follows in the next message part."""

    rows: Count
    truncated: bool
    """There were more than ``max_rows``."""


Request = (
    Hello
    | Fetch
    | SetControl
    | SetPlan
    | ReleaseControl
    | RenewLeases
    | AskStatus
    | AskNow
    | AskResults
    | Query
    | Cancel
    | ForgetJob
    | Answer
    | Advice
)
Reply = (
    Welcome
    | Fetched
    | ControlApplied
    | ControlRefused
    | Status
    | Snapshot
    | QueryDone
    | ResultsPage
    | Forgotten
    | No
    | Ask
    | AskTry
)
