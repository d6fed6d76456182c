"""Opens ZeroMQ sockets with every limit written out. The only file that imports zmq, but for the courier.

ROUTER listens, DEALER asks; PUB is the feed, SUB follows it. A request on ``control`` and ``query``
is ``[8 bytes, message]``, its reply ``[the same 8 bytes, message, ...]``. A `Channel` is a socket in an
event loop: bounded in both directions and never blocking.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio
import zmq

from zeus_stream.places import endpoint
from zeus_stream.wire import MAX_BYTES

QUEUE = 1_000
"""Messages queued per peer and direction; past it a send is refused (PUB: dropped, followers fetch)."""
FEED_QUEUE = 1_000
"""Frames queued per follower, of up to 0.5 MB each."""
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
_CORRELATION = bytes(8)
DRAIN = 256
"""Messages taken from a socket before other tasks have their turn."""


@dataclass(frozen=True, slots=True)
class Received:
    """One message. ``sender`` is a ROUTER's address of the peer; uid and pid come from the kernel (ipc)."""

    sender: bytes
    parts: list[bytes]
    uid: int | None
    pid: int | None


class Channel:
    """A socket in an event loop. One task receives; any task of the same thread may send."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._routes = socket.get(zmq.TYPE) == zmq.ROUTER
        self._waiting: anyio.CancelScope | None = None

    def send(self, *parts: bytes) -> bool:
        """Hand over a message (to a ROUTER: address first). False: the queue is full or nobody is there."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as wrong:
            if wrong.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            # Sending may swallow the descriptor's edge for a message that came in meanwhile.
            if self._waiting is not None and self._readable():
                self._waiting.cancel()
        return True

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there: at least one, at most DRAIN."""
        while not (messages := self._drain()):
            with anyio.CancelScope() as self._waiting:
                # The descriptor is edge-triggered: look at EVENTS before each wait.
                if not self._readable():
                    await anyio.wait_readable(self._socket.fileno())
            self._waiting = None
        await anyio.lowlevel.checkpoint()
        return messages

    def _readable(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _drain(self) -> list[Received]:
        messages = []
        for _ in range(DRAIN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            uid, pid = _peer(frames[0])
            parts = [frame.bytes for frame in frames]
            sender = parts.pop(0) if self._routes else b""
            messages.append(Received(sender, parts, uid, pid))
        return messages

    def close(self) -> None:
        self._socket.close(linger=0)


def _peer(frame: zmq.Frame) -> tuple[int | None, int | None]:
    """Return uid and pid of an ipc peer, which the kernel vouches for: ``localhost:UID:GID:PID``."""
    try:
        fields = str(frame.get("Peer-Address")).split(":")
    except zmq.ZMQError:
        return None, None
    return (int(fields[1]), int(fields[3])) if len(fields) == 4 else (None, None)


def context() -> Context:
    """Return a new ZeroMQ context: one a process, ended with ``destroy(linger=0)``."""
    return zmq.Context()


def listen(context: Context, path: Path, *, feed: bool = False, mode: int = 0o600) -> Channel:
    """Open a ROUTER (or, for the feed, a PUB) at a socket file of ``mode``.

    Whoever calls has `places.claim`-ed the directory: binding takes over a socket file that is there.
    """
    socket = _open(context, zmq.PUB if feed else zmq.ROUTER, FEED_QUEUE if feed else QUEUE)
    if not feed:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    mask = os.umask(0o777 & ~mode)
    try:
        socket.bind(endpoint(path))
    finally:
        os.umask(mask)
    return Channel(socket)


def ask(context: Context, path: Path) -> Channel:
    """Open a DEALER to a listener. Nothing is queued for a peer that is not there."""
    socket = _open(context, zmq.DEALER, QUEUE)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.connect(endpoint(path))
    return Channel(socket)


def follow(context: Context, path: Path, topic: str = "") -> Channel:
    """Open a SUB to a feed."""
    socket = _open(context, zmq.SUB, FEED_QUEUE)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint(path))
    return Channel(socket)


def exchange(path: Path, payload: bytes, timeout_s: float) -> list[bytes] | None:
    """Ask a listener one thing, for programs without an event loop: its reply's parts, or None in time."""
    opened = context()
    try:
        socket = _open(opened, zmq.DEALER, QUEUE)
        socket.connect(endpoint(path))
        socket.send_multipart((_CORRELATION, payload))
        if not socket.poll(round(timeout_s * 1000)):
            return None
        return socket.recv_multipart()[1:]
    finally:
        opened.destroy(linger=0)


def _open(context: Context, kind: int, queue: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, queue),
        (zmq.RCVHWM, queue),
        (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.RECONNECT_IVL, 50),
        (zmq.RECONNECT_IVL_MAX, 1_000),
        (zmq.HANDSHAKE_IVL, 5_000),
        (zmq.BACKLOG, 256),
    ):
        socket.setsockopt(option, value)
    return socket
