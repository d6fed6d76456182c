"""Requests on the query socket, and the replies on both request sockets.

any client --query--> analyzer    Query, AskStatus, AskNow, ForgetJob
"""

from dataclasses import dataclass
from typing import Annotated

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
from zeus_stream.protocol.fields import Count, Milliseconds, Name, Text, Within
from zeus_stream.protocol.notes import ControlApplied, ControlRefused
from zeus_stream.protocol.snapshots import AskNow, Snapshot


@dataclass(frozen=True, slots=True)
class AskStatus:
    pass


@dataclass(frozen=True, slots=True)
class Status:
    """One process's state for people: rows of (section, name, value)."""

    rows: Annotated[tuple[tuple[Text, Text, Text], ...], Within(0, 10_000)]


@dataclass(frozen=True, slots=True)
class No:
    """Reply to a request that was understood and refused, or not understood."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Query:
    sql: Annotated[str, Within(1, 100_000)]
    max_rows: Annotated[int, Within(1, 10_000_000)]
    timeout_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Let a job that recurs begin anew. Its tries stay in the archive, and count no more."""

    job: Name


@dataclass(frozen=True, slots=True)
class Forgotten:
    tries: Count
    """That count no more."""


@dataclass(frozen=True, slots=True)
class QueryDone:
    """An Arrow IPC stream follows in the next message part."""

    rows: Count
    truncated: bool
    """There were more than ``max_rows``."""


Request = (
    Hello
    | Fetch
    | SetControl
    | ReleaseControl
    | RenewLeases
    | AskStatus
    | AskNow
    | Query
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
    | Forgotten
    | No
    | Ask
    | AskTry
)
