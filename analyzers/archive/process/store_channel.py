"""Requests between the analyzer and the process that owns its archive, over a stream socket.

Both ends run this code under one user and one end has started the other: `multiprocessing.connection` carries
them. The descriptor of a query's pipe follows its request.
"""

from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from analyzers.archive.rows.event_rows import EventRows, event_rows
from analyzers.archive.sandbox.bounded_queries import Question
from analyzers.archive.store import Received
from zeus_stream.protocol.frames import Body, Break, Events, Frame, body_of
from zeus_stream.settings import Settings


class Call(Struct, frozen=True):
    """A method of the store to be called."""

    method: str
    arguments: tuple[Any, ...] = ()


class OpenStore(Struct, frozen=True):
    """Open the file. The first request."""

    path: Path
    settings: Settings
    again: bool
    """The analyzer has had it open since its start."""


class StartQuery(Struct, frozen=True):
    """Run a query; its pipe comes with the request. There is no reply but what the pipe carries."""

    number: int
    question: Question


class EndQuery(Struct, frozen=True):
    """End a query that waits or runs. There is no reply."""

    number: int


PackedFrames = list[tuple[tuple[Any, ...], EventRows | None]]
"""Frames as they are sent: the fields of each, which take a fraction of the time that an object takes, and
the rows of its events. None: it has no events."""
_values_of = attrgetter(*Frame.__struct_fields__)


def packed(part: Received) -> PackedFrames | Break:
    """Return what was received as it is sent; only events are sent as they were decoded."""
    if isinstance(part, Break):
        return part
    return [
        (_values_of(frame), event_rows(body) if isinstance(body, Events) else None) for frame, body in part
    ]


def unpacked(part: PackedFrames | Break) -> Received:
    """Return what `packed` was given, with the rows of events in place of events."""
    if isinstance(part, Break):
        return part
    received: list[tuple[Frame, Body | EventRows | None]] = []
    for (log_id, offset, host, t_ns, topic, body), rows in part:
        frame = Frame(log_id=log_id, offset=offset, host=host, t_ns=t_ns, topic=topic, body=body)
        received.append((frame, rows or body_of(frame)))
    return received


Request = Call | OpenStore | StartQuery | EndQuery | None
"""None: close the file. It is the last."""
