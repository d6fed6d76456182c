"""Frames of one log in one message of the broker, and the names of subjects and streams. Pure.

    relay of a host --batches of its log, in order--> stream of a part --> archiver

A site has a stream for each of its parts, and each host publishes to one of them. A batch says where the one
before it ended: so a reader tells frames that had left the log from batches that the broker lost.
"""

import zlib
from collections.abc import Sequence
from urllib.parse import quote

import msgpack
from msgspec import Struct

from zeus_stream.errors import MalformedError
from zeus_stream.protocol.frames import Frame, decode_frame, encode_frame

PARTS = 16
"""Of a site, unless it has more (`broker_parts`)."""
MAX_BYTES = 256_000
"""Of frames in a batch, unless a single frame is longer."""
MAX_FRAMES = 1_000
MAX_UNPACKED = 8_000_000
"""A message that unpacks to more is malformed."""


class FrameBatch(Struct, frozen=True, kw_only=True):
    """Frames of one log without a hole."""

    log_id: str
    host: str
    after: int
    """The offset at which the batch before it ended. Frames from there to the first had left the log."""
    frames: tuple[Frame, ...]

    @property
    def next_offset(self) -> int:
        """The offset after the last frame."""
        return self.frames[-1].offset + 1


def part_of(host: str, parts: int = PARTS) -> int:
    """Return the part that a host is in, of so many."""
    return zlib.crc32(host.encode()) % parts


def stream_of(site: str, part: int) -> str:
    """Return the name of the stream of a part."""
    return f"ZS-{token(site)}-{part}"


def subject_of(site: str, host: str, part: int | str) -> str:
    """Return the subject of a host's batches in a part; of ``*``: in whichever part they are."""
    return f"zs.{token(site)}.frames.{part}.{token(host)}"


def subjects_of(site: str, part: int) -> str:
    """Return the subjects of all hosts in a part."""
    return f"zs.{token(site)}.frames.{part}.*"


def token(name: str) -> str:
    """Return a name as one token of a subject: no dot, no wildcard, no space."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def encode(after: int, frames: Sequence[Frame]) -> bytes:
    """Return a message with frames of one log, at least one, without a hole."""
    packed = msgpack.packb([list(encode_frame(frame)) for frame in frames])
    first = frames[0]
    message: bytes = msgpack.packb([1, first.log_id, first.host, after, zlib.compress(packed, 1)])
    return message


def message_id(frames: Sequence[Frame]) -> str:
    """Return the name by which the broker knows a batch that is sent again."""
    return f"{frames[0].log_id}:{frames[0].offset}:{len(frames)}"


def decode(message: bytes, subject: str, site: str) -> FrameBatch:
    """Return the batch in a message. MalformedError: it is none, or of another host than the subject's."""
    try:
        version, log_id, host, after, body = msgpack.unpackb(message)
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(body, MAX_UNPACKED)
        if unpacking.unconsumed_tail or version != 1:
            raise MalformedError("batch: could not be read: it is too long, or of another version.")
        parts = msgpack.unpackb(packed)
        frames = tuple(decode_frame(*part) for part in parts)
    except (ValueError, TypeError, AttributeError, zlib.error, msgpack.UnpackException) as wrong:
        raise MalformedError(f"batch: could not be read: {wrong}. A relay of ours sends others.") from wrong
    if not frames or not isinstance(after, int) or isinstance(after, bool):
        raise MalformedError("batch: could not be read: it has no frames, or no offset.")
    if any((frame.log_id, frame.host) != (log_id, host) for frame in frames):
        raise MalformedError("batch: could not be read: a frame is of another log or host.")
    if any(frame.offset != frames[0].offset + place for place, frame in enumerate(frames)):
        raise MalformedError("batch: could not be read: its offsets have a hole.")
    begin, end = subject_of(site, host, "*").split("*")
    if not (subject.startswith(begin) and subject.endswith(end)):
        raise MalformedError(f"batch: could not be taken: {subject} is not the subject of host {host}.")
    return FrameBatch(log_id=log_id, host=host, after=after, frames=frames)
