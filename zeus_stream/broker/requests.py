"""Requests and replies in messages of the broker, and the announcements of hosts. Pure.

    analyzer --request--> zs.SITE.control.HOST   what the control socket takes
    analyzer --roll call---> zs.SITE.roll        every collector replies with `Announced`
    collector --reply--> inbox of the sender
    collector --Announced--> zs.SITE.hosts.HOST  when its runs have changed

Permissions of the broker say who may send on which subject: an analyzer alone may command.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgpack
from msgspec import Meta, Struct

from zeus_stream.broker.batches import token
from zeus_stream.errors import MalformedError
from zeus_stream.protocol.fields import Count, Name

MAX_PARTS = 8_000
"""Of a message: a reply to a fetch has three a frame."""
MAX_ENDED = 32
"""Ended sessions that an announcement names. Of earlier ones it has the jobs."""
_EARLIER = struct.Struct("<IQQ")
MAX_EARLIER = 1_000
"""Jobs; a collector knows no more sessions."""
MAX_UNPACKED = 16_000_000
COMPRESSED_BYTES = 16_000
"""Shorter messages go as they are."""


class AnnouncedRun(Struct, frozen=True, kw_only=True):
    """A session that is open on a host."""

    session: Name
    run: Name
    job: Name
    first_offset: Count
    """Of the host's log, at the session's beginning or a little before."""


class EndedRun(Struct, frozen=True, kw_only=True):
    """A session that is over. An analyzer that was away interprets it to its end."""

    session: Name
    job: Name
    first_offset: Count
    """Of the host's log, at the session's beginning or a little before."""
    next_offset: Count
    """The one after its last event, or a little later."""


class Announced(Struct, frozen=True, kw_only=True):
    """The runs of a host, as its collector announces them. An index: the truth is in the host's log."""

    host: Name
    log_id: Name
    incarnation: Name
    standing: Annotated[bytes, Meta(max_length=500_000)]
    """Notes that hold now: its start, its clock, its devices. One encoded `Notes`."""
    runs: Annotated[tuple[AnnouncedRun, ...], Meta(max_length=2000)]
    ended: Annotated[tuple[EndedRun, ...], Meta(max_length=100)] = ()
    """Those that ended last, at most MAX_ENDED. Older collectors name none."""
    earlier: Annotated[bytes, Meta(max_length=MAX_EARLIER * _EARLIER.size)] = b""
    """The jobs of those that ended before. Encoded by `pack_earlier`."""


class EarlierJob(NamedTuple):
    """The sessions of one job that ended before the named ones. Short: a host may have hundreds of jobs."""

    job_hash: int
    """`hash_of` its name."""
    first_offset: int
    """Of the host's log, at the beginning of the first, or a little before."""
    next_offset: int
    """The one after the last event of the last, or a little later."""


def pack_earlier(jobs: Iterable[EarlierJob]) -> bytes:
    """Return jobs as bytes."""
    return b"".join(_EARLIER.pack(*job) for job in jobs)


def unpack_earlier(packed: bytes) -> list[EarlierJob]:
    """Return the jobs of `pack_earlier`; what is too short at the end is left out."""
    whole = len(packed) // _EARLIER.size * _EARLIER.size
    return [EarlierJob(*each) for each in _EARLIER.iter_unpack(packed[:whole])]


def request_subject(site: str, host: str) -> str:
    """Return the subject of requests to a host's collector."""
    return f"zs.{token(site)}.control.{token(host)}"


def announcement_subject(site: str, host: str | None = None) -> str:
    """Return the subject of a host's announcements. None: of all hosts."""
    return f"zs.{token(site)}.hosts.{'*' if host is None else token(host)}"


def roll_subject(site: str) -> str:
    """Return the subject of roll calls: which hosts are there, and which runs."""
    return f"zs.{token(site)}.roll"


def pack(parts: Sequence[bytes]) -> bytes:
    """Return message parts as one message."""
    packed: bytes = msgpack.packb(list(parts))
    return b"\x01" + zlib.compress(packed, 1) if len(packed) > COMPRESSED_BYTES else b"\x00" + packed


def unpack(message: bytes) -> list[bytes]:
    """Return the parts in a message. Raises MalformedError."""
    try:
        body = message[1:]
        if message[:1] == b"\x01":
            unpacking = zlib.decompressobj()
            body = unpacking.decompress(body, MAX_UNPACKED)
            if unpacking.unconsumed_tail:
                raise MalformedError("message: could not be read: it is too long.")
        elif message[:1] != b"\x00":
            raise MalformedError("message: could not be read: it is no message of zeus-stream.")
        parts = msgpack.unpackb(body, max_array_len=MAX_PARTS, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as wrong:
        raise MalformedError(f"message: could not be read: {wrong}.") from wrong
    if not isinstance(parts, list) or not all(isinstance(part, bytes) for part in parts):
        raise MalformedError("message: could not be read: its parts are no bytes.")
    return parts
