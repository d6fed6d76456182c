"""Bounds on connections to the page that have shown no token.

Every user of a host reaches a port on loopback. A connection whose requests were all refused, or which has
sent none, is closed after `MOST_S`, or once it has sent `MOST_BYTES`. It is one of at most `MOST_UNKNOWN`:
one more, and the oldest is closed. Those of our own user count apart: no other user takes their place.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_UNKNOWN = 100
"""Of our own user, and as many of all others."""
MOST_S = 10.0
MOST_BYTES = 200_000
"""That a connection without a token may send: the head of a request, with a long query."""
GRANTED = "zeus_stream.granted"
"""Key of the scope of a request that showed the token."""
Client = tuple[str, int]
"""Address and port of a client."""
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
WAIT_S = 0.1
"""For the kernel; it answers at once."""
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_ANY_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_UID_AT = _HEAD.size + 4 + 48 + 12
"""Offset of ``idiag_uid`` in an answer (linux/inet_diag.h): after the state, the address and three timers."""


class WebConnections:
    """The connections that have shown no token, oldest first."""

    def __init__(self) -> None:
        self.closed = 0
        """Connections that were closed: to make room, after too long, or with too many bytes."""
        self._unknown: dict[bool, dict[Client, Callable[[], None]]] = {True: {}, False: {}}
        """What closes them; ``True``: of our own user."""

    def __len__(self) -> int:
        """Return the number of connections that have shown no token."""
        return sum(map(len, self._unknown.values()))

    def knows(self, client: Client) -> bool:
        """Tell whether a connection has shown the token."""
        return not any(client in some for some in self._unknown.values())

    def open(self, client: Client, close: Callable[[], None], *, own: bool = False) -> None:
        """Take in a new connection, and what closes it. ``own``: it is of our own user."""
        unknown = self._unknown[own]
        unknown[client] = close
        if len(unknown) > MOST_UNKNOWN:
            self.shut(next(iter(unknown)))

    def shut(self, client: Client) -> None:
        """Close a connection, unless it has shown the token."""
        for some in self._unknown.values():
            if (close := some.pop(client, None)) is not None:
                self.closed += 1
                close()

    def leave(self, client: Client) -> None:
        """Take in that a connection has shown the token, or is closed."""
        for some in self._unknown.values():
            some.pop(client, None)

    def bound(self, protocol: Any) -> "type[asyncio.Protocol]":
        """Return a server's protocol whose connections are taken in here."""
        connections = self

        class Bound(protocol):  # type: ignore[misc]
            client_address: Client | None = None
            received = 0
            deadline: asyncio.TimerHandle | None = None

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                peer = transport.get_extra_info("peername")
                if (address := _client(peer)) is not None:
                    self.client_address = address
                    assert isinstance(transport, asyncio.Transport)
                    own = peer_user(transport.get_extra_info("sockname"), peer) == os.geteuid()
                    connections.open(address, transport.abort, own=own)
                    self.deadline = asyncio.get_running_loop().call_later(MOST_S, connections.shut, address)

            def data_received(self, data: bytes) -> None:
                self.received += len(data)
                address = self.client_address
                if self.received > MOST_BYTES and address is not None and not connections.knows(address):
                    connections.shut(address)
                else:
                    super().data_received(data)

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client_address is not None:
                    connections.leave(self.client_address)
                if self.deadline is not None:
                    self.deadline.cancel()
                super().connection_lost(exc)

        return Bound

    def note_granted(self, app: ASGIApp) -> ASGIApp:
        """Return an application that notes which connections have shown the token."""

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            async def note(message: Message) -> None:
                if message["type"] == "http.response.start" and scope.get(GRANTED):
                    self.leave(scope["client"])
                await send(message)

            await app(scope, receive, note)

        return noting


def _client(address: Any) -> Client | None:
    """Return address and port of a peer; None: it is one of a Unix socket, whose file says who may come."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) and len(address) > 1 else None


def peer_user(ours: Any, peer: Any) -> int | None:
    """Return the uid at the other end. None: of another host. Ends are as ``getsockname`` gives them."""
    mapped = "::ffff:"
    here, there = (str(each[0]).removeprefix(mapped) for each in (ours, peer))
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    try:
        addresses = [socket.inet_pton(family, each).ljust(16, b"\0") for each in (there, here)]
        asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
        asked += _PORTS.pack(peer[1], ours[1]) + b"".join(addresses) + _ANY_COOKIE
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(WAIT_S)
            head = _HEAD.pack(_HEAD.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
            kernel.sendto(head + asked, (0, 0))
            answer = kernel.recv(4_096)
    except OSError:
        return None
    if len(answer) < _UID_AT + 4 or _HEAD.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    (uid,) = struct.unpack_from("=I", answer, _UID_AT)
    return int(uid)
