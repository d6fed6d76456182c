"""Frames: what the log stores and the feed carries.

collector --feed--> analyzer      Frame(Readings | Events | Notes)
"""

from typing import Annotated

from msgspec import Meta, Struct

from zeus_stream.protocol.events import Event
from zeus_stream.protocol.fields import Count, Name, Ns, Unknown
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings


class Events(Struct, frozen=True):
    """A `Batch` as the collector logged it: what was new in it, and who the kernel says sent it."""

    session: Name
    sequence: Count
    uid: int | None
    pid: int | None
    events: Annotated[tuple[Event | Unknown, ...], Meta(max_length=1000)]


Body = Readings | Events | Notes


class Frame(Struct, frozen=True, kw_only=True):
    """One entry of a log. Offsets count 0, 1, 2, ... within a ``log_id``. ``body`` is encoded."""

    log_id: Name
    offset: Count
    host: Name
    t_ns: Ns
    """When it was logged."""
    topic: Name
    """``readings/<host>``, ``events/<host>/<job>`` or ``notes/<host>``."""
    body: bytes


class Break(Struct, frozen=True):
    """``count`` frames of a log, or more if it was left for another, are gone from ``first_offset`` on."""

    log_id: str
    first_offset: int
    count: int
    reason: str


Part = Frame | Break
