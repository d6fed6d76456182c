"""Frames: what the log stores and the feed carries.

collector --feed--> analyzer      Frame(Readings | Events | Notes)
"""

from typing import Annotated

import msgpack
from msgspec import Meta, Struct

from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
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


def body_of(frame: Frame) -> Body | None:
    """Return what a frame holds. None: it cannot be decoded; its bytes are kept."""
    try:
        return codec.decode(frame.body, Readings, Events, Notes)
    except MalformedError:
        return None


def encode_frame(frame: Frame) -> tuple[bytes, bytes, bytes]:
    """Return a frame's message parts: topic (what subscribers match), envelope, body as it is."""
    envelope: bytes = msgpack.packb([frame.log_id, frame.offset, frame.host, frame.t_ns])
    return frame.topic.encode(), envelope, frame.body


def decode_frame(topic: bytes, envelope: bytes, body: bytes) -> Frame:
    """Return the frame in three message parts. Raises MalformedError."""
    outer = codec.unpack(envelope)
    if not isinstance(outer, list) or len(outer) != 4:
        raise MalformedError("frame: could not be read: its envelope is not [log, offset, host, time].")
    log_id, offset, host, t_ns = outer
    words = topic.decode(errors="replace")
    content = {"log_id": log_id, "offset": offset, "host": host, "t_ns": t_ns, "topic": words, "body": body}
    return codec.build(Frame, content, "frame")


class Break(Struct, frozen=True):
    """``count`` frames of a log, or more if it was left for another, are gone from ``first_offset`` on."""

    log_id: str
    first_offset: int
    count: int
    reason: str


Part = Frame | Break
