"""The ways to a listener: what a socket and a subject of a broker have in common."""

from typing import Protocol

from zeus_stream.transport.channel import Received
from zeus_stream.transport.endpoints import Address


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
