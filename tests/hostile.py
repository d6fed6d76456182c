"""What nobody should send: for tests, fuzzers and benchmarks over live sockets."""

import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgpack
from msgspec import Struct
from msgspec.structs import replace

from tests.extreme_values import any_of
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol import codec
from zeus_stream.protocol.commands import (
    Fetch,
    Fetched,
    Hello,
    ReleaseControl,
    RenewLeases,
    SetControl,
    Welcome,
)
from zeus_stream.protocol.events import Ack, Advice, Answer, Ask, AskTry, Batch, Event, RunStarted
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import DeviceGone, Lost, Notes, RunAdmitted, SessionEnded
from zeus_stream.protocol.queries import AskStatus, Cancel, ForgetJob, Forgotten, No, Query
from zeus_stream.protocol.readings import READING_STRUCT, Readings
from zeus_stream.protocol.snapshots import AskNow

COMMANDS = (Hello, Fetch, SetControl, ReleaseControl, RenewLeases, AskStatus, AskNow, Answer, Advice)
REQUESTS = (Query, Cancel, AskStatus, AskNow, ForgetJob)
SMALL_NOTES = DeviceGone | Lost | RunAdmitted | SessionEnded
REPLIES = (Welcome, Fetched, No, Ack, Answer, Ask, AskTry, Forgotten)
EXTREMES: tuple[object, ...] = (
    *(0, 1, -1, 255, 2**31, 2**53, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.0, -0.0, 1e308, -1e308, float("inf"), float("nan")),
    *(None, True, "", "x", "x" * 200, "x" * 201, "\0", "\x1b[2J", "\U0010ffff" * 200, "../../etc/passwd"),
    *(b"", b"\xff" * 48, b"\xff" * 47, bytes(48), [], {}, [[]] * 100, ["Batch", {}], {"a": {}}),
)
SQL = (
    "SELECT 1",
    "SELECT",
    "\0",
    "SELECT '\0'",
    "WITH a AS (" * 10,
    "SELECT " + "(" * 5_000,
    "SELECT " + "NOT " * 20_000 + "true",
    "SELECT " + "x" * 90_000,
    "SELECT error('" + "y" * 90_000 + "')",
    "SELECT 1;" * 10_000,
    "/*" * 40_000,
    "DROP TABLE runs",
    "COPY runs TO '/tmp/x'",
    "FROM read_text('/etc/passwd')",
    "SELECT count(*) FROM range(1e9::BIGINT) a, range(1e9::BIGINT) b",
    "SELECT 1 AS a, 2 AS a, NULL, INTERVAL 1 DAY, {'a': [1]}, MAP {1: 2}, uuid(), 1::BIT",
    "SET memory_limit = '1TB'",
)


def _some(rng: random.Random, kinds: object) -> tuple[Any, ...]:
    """Return a few messages of a union."""
    return tuple(any_of(rng, rng.choice(get_args(kinds))) for _ in range(rng.choice((0, 1, 5, 40))))


def said(rng: random.Random) -> Struct:
    """Return what a training process sends: often of a session that may be one."""
    if rng.random() < 0.2:
        return any_of(rng, rng.choice((Ask, AskTry)))
    began = replace(any_of(rng, RunStarted), t_ns=monotonic_ns(), boot_id="b")
    events = _some(rng, Event)
    return Batch(f"s{rng.randrange(2_000)}", 0, (began, *events) if rng.random() < 0.5 else events)


def commanded(rng: random.Random) -> Struct:
    return any_of(rng, rng.choice(COMMANDS))


def asked(rng: random.Random) -> Struct:
    kind = rng.choice(REQUESTS)
    return Query(rng.choice(SQL), rng.choice((1, 10_000_000)), 100) if kind is Query else any_of(rng, kind)


def _row(rng: random.Random) -> bytes:
    numbers = [rng.choice((0, 1, -1, 10**9, 2**62, 2**63 - 1, -(2**63))) for _ in range(3)]
    small = [rng.choice((0, -1, 250_000, 2**31 - 1, -(2**31))) for _ in range(4)]
    rest = (rng.choice((-1, 40, 32_767)), -1, rng.choice((0, 1, 65_535)), rng.choice((0, 1, 4, 65_535)))
    return struct.pack(READING_STRUCT, *numbers, *small, *rest)


def logged(rng: random.Random) -> Struct:
    rows = b"".join(_row(rng) for _ in range(20))
    readings = Readings(("GPU-1",) * rng.choice((0, 1, 256)), rows)
    return rng.choice((readings, Events("s", 0, 1, 1, _some(rng, Event)), Notes(_some(rng, SMALL_NOTES))))


def replied(rng: random.Random) -> Struct:
    return any_of(rng, rng.choice(REPLIES))


def bent(rng: random.Random, data: bytes) -> bytes:
    """Return a message with one value somewhere in it exchanged."""
    content: Any = msgpack.unpackb(data)
    places: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        inner = todo.pop()
        for key in inner if isinstance(inner, dict) else range(len(inner)):
            places.append((inner, key))
            if isinstance(inner[key], list | dict):
                todo.append(inner[key])
    inner, key = rng.choice(places)
    inner[key] = rng.choice(EXTREMES)
    return bytes(msgpack.packb(content))


def spoilt(rng: random.Random, data: bytes) -> bytes:
    """Return something that came from a message."""
    match rng.randrange(6):
        case 0:
            return data
        case 1 | 2:
            return bent(rng, data)
        case 3:
            return data[: rng.randrange(len(data))]
        case 4:
            flipped = bytearray(data)
            for _ in range(rng.randrange(1, 8)):
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
            return bytes(flipped)
        case _:
            return rng.choice((rng.randbytes(rng.randrange(200)), b"\x93" * 3_000, bytes(500_000), b""))


def _parts(rng: random.Random, data: bytes) -> list[bytes]:
    """Return a request on control or query."""
    return rng.choice(
        ([bytes(8), data], [bytes(8), data], [data], [b"", b""], [data[:400]] * 2_000, [b"x" * 900_000] * 2)
    )


def publish(rng: random.Random) -> list[bytes]:
    data = spoilt(rng, codec.encode(said(rng)))
    return [data] if rng.random() < 0.95 else [data[:400]] * rng.choice((2, 2_000))


def control(rng: random.Random) -> list[bytes]:
    return _parts(rng, spoilt(rng, codec.encode(commanded(rng))))


def query(rng: random.Random) -> list[bytes]:
    return _parts(rng, spoilt(rng, codec.encode(asked(rng))))


def frame(rng: random.Random) -> list[bytes]:
    """Return the three parts of a frame, or what looks like them."""
    offset = rng.choice((0, 1, 2, 3, 4, 5, 2**53, 2**62))
    envelope = bytes(msgpack.packb([rng.choice(("l", "k")), offset, "h", rng.choice((0, 10**12, 2**62))]))
    parts = [b"events/h/j", envelope, codec.encode(logged(rng))]
    if rng.random() < 0.6:
        spoil = rng.randrange(3)
        parts[spoil] = spoilt(rng, parts[spoil]) if spoil else rng.randbytes(20)
    return parts if rng.random() < 0.95 else parts * rng.choice((2, 700))


def reply(rng: random.Random) -> list[bytes]:
    """Return the parts of an answer of a collector, without who it is for and to what."""
    head = spoilt(rng, codec.encode(replied(rng)))
    return [head, *(part for _ in range(rng.choice((0, 0, 1, 5))) for part in frame(rng))]


SENT: dict[str, Callable[[random.Random], list[bytes]]] = {
    "publish": publish,
    "control": control,
    "query": query,
}
"""By socket, what a client may send to it."""


# ---- below ZeroMQ --------------------------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4


def raw(path: Path) -> socket.socket:
    """Return a connection to a socket file, on which nothing has been said."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def zmtp(flags: int, body: bytes) -> bytes:
    """Return a ZMTP 3.0 frame (rfc.zeromq.org/spec/23)."""
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return struct.pack(">BQ", flags | LONG, len(body)) + body


def ready(**properties: bytes) -> bytes:
    """Return the command that ends a handshake."""
    body = b"\x05READY"
    for name, value in properties.items():
        key = name.replace("_", "-").encode()
        body += bytes([len(key)]) + key + struct.pack(">I", len(value)) + value
    return zmtp(COMMAND, body)


def dealer(path: Path, **properties: bytes) -> socket.socket:
    """Return a connection that has shaken hands as a DEALER."""
    connection = raw(path)
    connection.sendall(GREETING + ready(Socket_Type=b"DEALER", **properties))
    heard = b""
    while b"\x05READY" not in heard:  # ZeroMQ takes nothing more in before it has answered
        heard += connection.recv(1_000)
    return connection
