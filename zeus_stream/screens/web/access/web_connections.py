"""Bounds on connections to the page that have shown no token.

Every user of a host reaches a port on loopback. A connection whose requests were all refused, or which has
sent none, is one of at most `MOST_UNKNOWN`: one more, and the oldest is closed. So idle connections take no
place from those who have the token, whatever their number.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_UNKNOWN = 100
GRANTED = "zeus_stream.granted"
"""Key of the scope of a request that showed the token."""
Client = tuple[str, int]
"""Address and port of a client."""


class WebConnections:
    """The connections that have shown no token, oldest first."""

    def __init__(self) -> None:
        self.closed = 0
        """Connections that were closed to make room."""
        self._unknown: dict[Client, Callable[[], None]] = {}

    def __len__(self) -> int:
        """Return the number of connections that have shown no token."""
        return len(self._unknown)

    def open(self, client: Client, close: Callable[[], None]) -> None:
        """Take in a new connection, and what closes it."""
        self._unknown[client] = close
        if len(self._unknown) > MOST_UNKNOWN:
            oldest = next(iter(self._unknown))
            self.closed += 1
            self._unknown.pop(oldest)()

    def leave(self, client: Client) -> None:
        """Take in that a connection has shown the token, or is closed."""
        self._unknown.pop(client, None)

    def bound(self, protocol: Any) -> "type[asyncio.Protocol]":
        """Return a server's protocol whose connections are taken in here."""
        connections = self

        class Bound(protocol):  # type: ignore[misc]
            client_address: Client | None = None

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                if (address := _client(transport.get_extra_info("peername"))) is not None:
                    self.client_address = address
                    assert isinstance(transport, asyncio.Transport)
                    connections.open(address, transport.abort)

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client_address is not None:
                    connections.leave(self.client_address)
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
