"""Keys and the judge: who is let in over TCP, where CURVE keys say so."""

import zmq
from msgspec import Struct
from zmq.utils import z85

from zeus_stream.transport.channel import Channel, Context, open_socket
from zeus_stream.transport.keys import Pair

_ZAP = "inproc://zeromq.zap.01"
QUEUE = 1_000
"""Handshakes that wait for the judge."""


class Knock(Struct, frozen=True):
    """Somebody on another host wants to be let in."""

    door: str
    address: str
    """IP address."""
    public: str
    _reply: tuple[bytes, ...]


class Judge:
    """Answers, for all sockets of a context, who is let in over TCP (ZAP, ZeroMQ's RFC 27)."""

    def __init__(self, context: Context) -> None:
        socket = open_socket(context, zmq.ROUTER, QUEUE)
        socket.bind(_ZAP)
        self._channel = Channel(socket)

    async def knocks(self) -> list[Knock]:
        """Wait for somebody. Each has to be answered; until then its handshake waits."""
        knocks = []
        for asked in await self._channel.receive():
            empty, version, request, door, address, _, mechanism, *credentials = asked.parts
            reply = (asked.sender, empty, version, request)
            if mechanism != b"CURVE":  # by the socket file: a port takes CURVE only
                self._channel.send(*reply, b"200", b"", b"", b"")
                continue
            (public,) = credentials
            knocks.append(Knock(door.decode(), address.decode(), z85.encode(public).decode(), reply))
        return knocks

    def answer(self, knock: Knock, name: str | None) -> None:
        """Let somebody in under a name (`Received.key`); None: not."""
        verdict = (b"400", b"", b"", b"") if name is None else (b"200", b"", name.encode(), b"")
        self._channel.send(*knock._reply, *verdict)  # noqa: SLF001  (of this module)


def new_keys() -> Pair:
    """Return a new pair of CURVE keys."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())
