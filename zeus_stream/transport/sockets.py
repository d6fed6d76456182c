"""Opens sockets that speak ZeroMQ to a `listener`: DEALER asks, SUB follows the feed.

On its host a listener is a socket file whose mode says who may come. It may listen on TCP as well, where
CURVE keys say that (`access`).
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, overload

import anyio
import zmq

from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError
from zeus_stream.paths import endpoint
from zeus_stream.transport.channel import (
    BROKEN_OFF,
    QUEUE,
    Channel,
    Context,
    MessageWay,
    Opener,
    Received,
    monitor_event,
    open_socket,
    over_tcp,
)
from zeus_stream.transport.endpoints import Address, Tcp

__all__ = [
    "Asking", "Channel", "Context", "Received", "ask", "context", "exchange", "follow", "once_possible",
]  # fmt: skip

C = TypeVar("C", bound=MessageWay)

OPEN_S = 0.05
"""Between two tries to open a socket when this process may open no more files."""
FOLLOWED = 200
"""Frames queued at a follower."""
_CORRELATION = bytes(8)
LOOK_MS = 50
"""Between two looks at whether a handshake failed, for who waits without an event loop."""


class Asking(Channel):
    """A DEALER. To another host, ``trouble`` says why it is not let in."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: Address) -> None:
        super().__init__(socket)
        self._address = address
        self._trouble: str | None = None
        self._handshakes = None
        if isinstance(address, Tcp):
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | BROKEN_OFF
            self._handshakes = socket.get_monitor_socket(events)

    @property
    def trouble(self) -> str | None:
        """Why the last handshake failed, in a sentence."""
        while self._handshakes is not None and self._handshakes.poll(0):
            event = zmq.Event(monitor_event(self._handshakes.recv_multipart())["event"])
            self._trouble = _why(event, self._address)
        return self._trouble

    def close(self) -> None:
        if self._handshakes is not None:
            self._socket.disable_monitor()
            self._handshakes.close(linger=0)
            self._handshakes = None
        super().close()


def _why(event: zmq.Event, address: Address) -> str | None:
    if event == zmq.Event.HANDSHAKE_SUCCEEDED or not isinstance(address, Tcp):
        return None
    ticket = address.ticket
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        return (
            f"{address.address}: refused the key {ticket.name} of {ticket.path}: it was revoked, or has not"
            " the role for this. Make another on that host with `zeus-stream keys create`, put it there, and"
            " start this again."
        )
    return (
        f"{address.address}: could not agree on keys: that is not the zeus-stream which {ticket.path} was"
        " made for. Make a key on that host with `zeus-stream keys create`, put it there, and start this"
        " again; or correct the address."
    )


def context() -> Context:
    """Return a new ZeroMQ context: one a process, ended with ``destroy(linger=0)``."""
    return zmq.Context()


@overload
def ask(context: Context, address: Address) -> Asking: ...
@overload
def ask(context: Context, address: Address | Opener) -> MessageWay: ...
def ask(context: Context, address: Address | Opener) -> MessageWay:
    """Open a DEALER to a listener. Nothing is queued for a peer that is not there."""
    if not isinstance(address, Path | Tcp):
        return address.open()
    socket = open_socket(context, zmq.DEALER, QUEUE)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    channel = Asking(socket, address)
    _connect(socket, address)
    return channel


@overload
def follow(context: Context, address: Address, topic: str = "") -> Channel: ...
@overload
def follow(context: Context, address: Address | Opener, topic: str = "") -> MessageWay: ...
def follow(context: Context, address: Address | Opener, topic: str = "") -> MessageWay:
    """Open a SUB to a feed."""
    if not isinstance(address, Path | Tcp):
        return address.open()
    socket = open_socket(context, zmq.SUB, FOLLOWED)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    _connect(socket, address)
    return Channel(socket)


async def once_possible(open_one: Callable[[], C]) -> C:
    """Open a socket as soon as this process may open one more file: connections that are cut free some."""
    while True:
        try:
            return open_one()
        except zmq.ZMQError as wrong:
            if wrong.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
        await anyio.sleep(OPEN_S)


def exchange(address: Address, payload: bytes, timeout_s: float) -> list[bytes] | None:
    """Ask a listener once, without an event loop. None: no reply in time. Raises RefusedError."""
    opened = context()
    try:
        socket = open_socket(opened, zmq.DEALER, QUEUE)
        channel = Asking(socket, address)
        _connect(socket, address)
        socket.send_multipart((_CORRELATION, payload))
        until_ns = monotonic_ns() + round(timeout_s * 1e9)
        while not socket.poll(LOOK_MS):
            if channel.trouble is not None:
                raise RefusedError(channel.trouble)
            if monotonic_ns() > until_ns:
                return None
        return socket.recv_multipart()[1:]
    finally:
        opened.destroy(linger=0)


def _connect(socket: "zmq.Socket[bytes]", address: Address) -> None:
    if isinstance(address, Tcp):
        socket.setsockopt(zmq.CURVE_PUBLICKEY, address.ticket.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, address.ticket.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, address.ticket.server.encode())
        over_tcp(socket, address.address)
        socket.connect(address.address)
    else:
        socket.connect(endpoint(address))
