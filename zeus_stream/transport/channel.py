"""A ZeroMQ socket in an event loop: bounded in both directions, never blocking.

A request on ``control`` and ``query`` is ``[8 bytes, message]``, its reply ``[the same 8 bytes, message,
...]``. The limits of all sockets are set here.
"""

from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
import zmq
from msgspec import Struct

from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.transport.endpoints import Address

if TYPE_CHECKING:
    from zmq.utils.monitor import _MonitorMessage

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
DRAIN = 256
"""Messages taken from a socket before other tasks have their turn."""
DRAIN_BYTES = 1_000_000
"""About the same in bytes."""
MESSAGE_BYTES = 16 * 1024 * 1024
"""Of a larger message only the first part is taken, which means nothing by itself. The largest are replies to
fetches, of a few MB. (SQL answers are read whole, by `exchange`.)"""
QUEUE = 1_000
"""Messages (frames are of up to 0.5 MB) queued per peer and direction. Past it a send is refused, or, on the
feed, dropped: followers fetch."""
HANDSHAKE_MS = 2_000
"""A connection that has not shown its key by then is closed."""
HEARTBEAT_MS = 2_000
"""A host that is gone says nothing: over TCP it is asked so often,"""
SILENCE_MS = 6_000
"""and after so long without a sign of life the connection is over."""
BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class PeerConnection(Protocol):
    """The connection over which a message came."""

    @property
    def open(self) -> bool:
        """Tell whether the peer is still connected."""


class Received(Struct, frozen=True, kw_only=True):
    """One message. A listener names the ``sender``: uid and pid on this host, a key's name on another."""

    sender: bytes
    parts: list[bytes]
    uid: int | None
    pid: int | None
    key: str | None = None
    connection: PeerConnection | None = None


def monitor_event(parts: list[bytes]) -> "_MonitorMessage":
    """Return what a monitor socket reports: ``event``, ``value`` and ``endpoint``."""
    from zmq.utils.monitor import parse_monitor_message  # noqa: PLC0415  (it imports asyncio)

    return parse_monitor_message(parts)


class Channel:
    """A socket in an event loop. One task receives; any task of the same thread may send."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._waiting: anyio.CancelScope | None = None

    @property
    def trouble(self) -> str | None:
        """Why nobody is reached, in a sentence; None: that is not known."""
        return None

    def send(self, *parts: bytes) -> bool:
        """Hand over a message. False: the queue is full or nobody is there."""
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError) as wrong:
            if wrong.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        finally:
            # Sending may swallow the descriptor's edge for a message that came in the meantime.
            if self._waiting is not None and self.readable:
                self._waiting.cancel()
        return True

    async def receive(self) -> list[Received]:
        """Wait for messages and return those there: 1 to DRAIN. Cancelled, it has taken none."""
        others_ran = False
        while True:
            if self.readable:
                if not others_ran:
                    await anyio.lowlevel.checkpoint()
                if messages := self.take():
                    return messages
            with anyio.CancelScope() as self._waiting:
                # The descriptor is edge-triggered: look at EVENTS before each wait.
                if not self.readable:
                    others_ran = True
                    await anyio.wait_readable(self._socket.fileno())
            self._waiting = None

    @property
    def readable(self) -> bool:
        """Tell whether there is a message."""
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def take(self) -> list[Received]:
        """Return the messages that are there, at most DRAIN."""
        messages: list[Received] = []
        drained = 0
        while len(messages) < DRAIN and drained < DRAIN_BYTES:
            try:
                frames = [self._socket.recv(zmq.NOBLOCK, copy=False)]
                while frames[-1].more:
                    frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                break  # before a first part: the others of a message are there with it
            size = sum(map(len, frames))
            drained += size
            if size > MESSAGE_BYTES:
                del frames[1:]
            messages.append(Received(sender=b"", parts=[frame.bytes for frame in frames], uid=None, pid=None))
        return messages

    def close(self) -> None:
        self._socket.close(linger=0)


def over_tcp(socket: "zmq.Socket[bytes]", address: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in address))
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)


def open_socket(context: Context, kind: int, queue: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, queue),
        (zmq.RCVHWM, queue),
        (zmq.MAXMSGSIZE, MAX_BYTES),
        (zmq.RECONNECT_IVL, 50),
        (zmq.RECONNECT_IVL_MAX, 1_000),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.BACKLOG, 256),
    ):
        socket.setsockopt(option, value)
    return socket


class MessageWay(Protocol):
    """A way to a listener: messages of several parts, in both directions. One task receives."""

    @property
    def trouble(self) -> str | None:
        """Why nobody is reached, in a sentence."""

    def send(self, *parts: bytes) -> bool:
        """Hand over a message. False: nobody is there, or too much is on its way."""

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there."""

    def close(self) -> None:
        """End it."""


class Opener(Protocol):
    """An address that opens its own way there, such as a subject of a broker."""

    def open(self) -> MessageWay:
        """Open a way to the listener."""


class FollowedSource(Protocol):
    """A collector that can be followed and commanded: `Places` of this host, or a `Distant` one."""

    @property
    def feed(self) -> Address | Opener: ...
    @property
    def control(self) -> Address | Opener: ...
