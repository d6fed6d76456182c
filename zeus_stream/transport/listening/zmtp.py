"""ZMTP 3.0 of a listener: bytes of one client to messages, and back. Pure.

The protocol of ZeroMQ (rfc.zeromq.org/spec/23), the part that a DEALER or a SUB speaks. On this host:

    client    greeting of 64 bytes, READY, then messages of one or more frames
    listener  its greeting, as soon as a byte came; READY after the client's; then messages

A client on another host shows a key first, and each of its frames is sealed (`curve_server`).

A frame is flags, size and body: ``00 05 hello``. A size of over 255 bytes takes 8 bytes, and flag 2 says so.
A client that does not keep to this, or sends a part larger than it may, is refused with `MalformedError`.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from zeus_stream.errors import MalformedError

if TYPE_CHECKING:
    from zeus_stream.transport.listening.curve_server import CurveServer

Kind = Literal["ROUTER", "PUB"]
MAX_PARTS = 32
"""Of one message; requests have two."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of a message with too many bytes or parts the first part is taken; a client that sends more is cut off."""
MAX_FRAMES = 1_000
"""Read in a row; then others have their turn."""
MAX_COMMAND_BYTES = 8_192
_VERSION = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00"
GREETING = _VERSION + b"NULL".ljust(20, b"\0") + bytes(32)
CURVE_GREETING = _VERSION + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)
_SIGNATURE = GREETING[0:1], GREETING[9:10]
_MECHANISM = slice(12, 32)
_MORE, _LONG, _COMMAND = 1, 2, 4
OVERHEAD_BYTES = 33
"""Of a sealed frame: its name, nonce, flags and seal."""
_CLIENTS = {"ROUTER": (b"DEALER", b"REQ", b"ROUTER"), "PUB": (b"SUB", b"XSUB")}
_LONG_SIZE = struct.Struct(">Q")
_HEADER = struct.Struct(">BQ")
_SEALED_COMMAND = 2
"""Flag of a command within a seal."""
_PING_BYTES = 7
"""Of a PING before its context, which is sent back."""
_GREETING_BYTES = len(GREETING)
_JOINED_BYTES = 16_384
"""Larger parts are not copied to send them."""


class ZmtpReader:
    """The messages of one client, out of the bytes that it sends."""

    __slots__ = ("_at", "_bytes", "_greeted", "_kind", "_max_bytes", "_message_bytes", "_parts", "behind",
                 "curve", "ready", "replies")  # fmt: skip

    def __init__(self, kind: Kind, max_bytes: int, curve: "CurveServer | None" = None) -> None:
        """``max_bytes``: of one message, with all its parts. ``curve``: of a client on another host."""
        self.ready = False
        """The client has completed its handshake: messages may be sent to it."""
        self.curve = curve
        self.replies: list[bytes] = []
        """Of the protocol, to be sent to the client."""
        self.behind = False
        """The last `next` ended although there were more frames: it is to be called again."""
        self._kind: Kind = kind
        self._max_bytes = max_bytes
        self._bytes = bytearray()
        self._at = 0
        """Bytes before this one are read."""
        self._greeted = False
        self._parts: list[bytes] = []
        self._message_bytes = 0
        """Of all its parts, also of those that are not kept."""

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept until their message is complete."""
        return len(self._bytes) - self._at + sum(map(len, self._parts))

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        if self._at:
            del self._bytes[: self._at]
            self._at = 0
        elif not self._bytes and not self._greeted:
            self.replies.append(GREETING if self.curve is None else CURVE_GREETING)
        self._bytes += data

    def next(self) -> list[bytes] | None:
        """Return the parts of the next message. None: more bytes are needed, or it is `behind`.

        Of one with too many bytes or parts only the first is returned. Raises MalformedError.
        """
        if not self._greeted and not self._greet():
            return None
        self.behind = False
        for _ in range(MAX_FRAMES):
            if (frame := self._frame()) is None:
                return None
            flags, body = frame
            if self.ready and self.curve is not None:
                sealed, body = self.curve.open(body)
                flags = sealed & _MORE | (_COMMAND if sealed & _SEALED_COMMAND else 0)
            if flags & _COMMAND:
                self._command(body)
                continue
            if not self.ready:
                raise MalformedError("connection: could not be read: a message came before READY.")
            self._message_bytes += len(body) + 2
            if self._message_bytes > MAX_MESSAGE_BYTES:
                raise MalformedError(f"message: could not be read: it has over {MAX_MESSAGE_BYTES} bytes.")
            if self._message_bytes <= self._max_bytes + 2 * MAX_PARTS and len(self._parts) < MAX_PARTS:
                self._parts.append(body)
            else:
                self._message_bytes = max(self._message_bytes, self._max_bytes + 2 * MAX_PARTS + 1)
                del self._parts[1:]
            if not flags & _MORE:
                parts, self._parts, self._message_bytes = self._parts, [], 0
                return parts
        self.behind = True
        return None

    def _greet(self) -> bool:
        """Read the greeting; return whether it is complete."""
        if len(self._bytes) < _GREETING_BYTES:
            if self._bytes and self._bytes[:1] != _SIGNATURE[0]:
                raise MalformedError("connection: could not be read: it is not ZeroMQ's protocol.")
            return False
        greeting = bytes(self._bytes[:_GREETING_BYTES])
        known = (greeting[0:1], greeting[9:10]) == _SIGNATURE and greeting[10] >= 3
        ours = GREETING if self.curve is None else CURVE_GREETING
        if not known or greeting[_MECHANISM] != ours[_MECHANISM]:
            raise MalformedError("connection: could not be read: it is not ZMTP 3 as it is due here.")
        self._at, self._greeted = _GREETING_BYTES, True
        return True

    def _frame(self) -> tuple[int, bytes] | None:
        """Return flags and body of the next frame. None: more bytes are needed."""
        begin, there = self._at, len(self._bytes)
        if there - begin < 2:
            return None
        flags = self._bytes[begin]
        if flags & _LONG:
            if there - begin < _HEADER.size:
                return None
            (size,) = _LONG_SIZE.unpack_from(self._bytes, begin + 1)
            begin += _HEADER.size
        else:
            size = self._bytes[begin + 1]
            begin += 2
        if size > self._most_bytes(flags):
            raise MalformedError(f"message: could not be read: a part of it has {size} bytes.")
        end = begin + size
        if end > there:
            return None
        with memoryview(self._bytes) as view:
            body = bytes(view[begin:end])
        self._at = end
        return flags, body

    def _most_bytes(self, flags: int) -> int:
        """Return the size that a frame may have: before the handshake is over, all are commands."""
        if not self.ready or (flags & _COMMAND and self.curve is None):
            return MAX_COMMAND_BYTES
        return self._max_bytes + (0 if self.curve is None else OVERHEAD_BYTES)

    def _command(self, body: bytes) -> None:
        """Take in a command: those of the handshake, then PING; all others mean nothing here."""
        if self.ready:
            if self.curve is not None and body.startswith(b"\x04PING"):
                pong = self.curve.seal(_SEALED_COMMAND, b"\x04PONG" + body[_PING_BYTES:])
                self.replies += encode((pong,))
        elif self.curve is not None:
            reply, metadata = self.curve.answer(body, _metadata(self._kind))
            self.replies.append(bytes((_COMMAND, len(reply))) + reply)
            self._complete(metadata)
        elif body.startswith(b"\x05READY"):
            ready = b"\x05READY" + _metadata(self._kind)
            self.replies.append(bytes((_COMMAND, len(ready))) + ready)
            self._complete(body[6:])

    def _complete(self, metadata: bytes) -> None:
        """End the handshake, if there is the client's metadata."""
        if not metadata and self.curve is not None:
            return
        if _properties(metadata).get(b"socket-type") not in _CLIENTS[self._kind]:
            raise MalformedError(f"connection: could not be read: no client of a {self._kind}.")
        self.ready = True

    def encode(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return the bytes of a message to this client, in pieces."""
        if self.curve is None:
            return encode(parts)
        sealed = [self.curve.seal(_MORE, part) for part in parts[:-1]] + [self.curve.seal(0, parts[-1])]
        return [piece for frame in sealed for piece in encode((frame,))]


def _properties(data: bytes) -> dict[bytes, bytes]:
    """Return the properties of a READY, by names in small letters. Raises MalformedError."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        if value_at > len(data):
            raise MalformedError("connection: could not be read: a property is cut off.")
        value_end = value_at + int.from_bytes(data[name_end:value_at], "big")
        if value_end > len(data):
            raise MalformedError("connection: could not be read: a property is cut off.")
        found[data[at + 1 : name_end].lower()] = data[value_at:value_end]
        at = value_end
    return found


def _metadata(kind: Kind) -> bytes:
    """Return a listener's properties."""
    return b"".join(
        bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
        for name, value in ((b"Socket-Type", kind.encode()), (b"Identity", b""))
    )


def encode(parts: Sequence[bytes]) -> list[bytes]:
    """Return the bytes of a message, in pieces: large parts are pieces of their own."""
    pieces: list[bytes] = []
    joined = bytearray()
    last = len(parts) - 1
    for number, part in enumerate(parts):
        size = len(part)
        more = _MORE if number < last else 0
        joined += bytes((more, size)) if size < 256 else _HEADER.pack(more | _LONG, size)
        if size < _JOINED_BYTES:
            joined += part
        else:
            pieces += (bytes(joined), part)
            joined.clear()
    if joined:
        pieces.append(bytes(joined))
    return pieces


def follows(topics: Iterable[bytes], topic: bytes) -> bool:
    """Tell whether a message of a topic is for a client that subscribed to prefixes of topics."""
    return any(topic.startswith(each) for each in topics)
