"""Channels over the broker: requests to a collector, the door of a collector, and the feed of a log.

Those who use them need not know: a message has the same parts as on a ZeroMQ socket.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from zeus_stream.broker import batches, requests
from zeus_stream.broker.exchange import Delivered, Exchange, Inbox
from zeus_stream.errors import MalformedError
from zeus_stream.protocol.frames import encode_frame
from zeus_stream.transport.channel import Received

Read = Callable[[Delivered], list[list[bytes]]]
"""Returns the parts of each message of ours in one of the broker. Raises MalformedError."""


class BrokerChannel:
    """The messages of one inbox, and those to one subject."""

    def __init__(
        self,
        exchange: Exchange,
        inbox: Inbox,
        read: Read,
        *,
        subject: str | None = None,
        role: str | None = None,
    ) -> None:
        """For `BrokerAddress.open`. ``subject``: of what is sent; None: nothing can be."""
        self._exchange = exchange
        self._inbox = inbox
        self._read = read
        self._subject = subject
        self._role = role
        self.malformed = 0

    @property
    def trouble(self) -> str | None:
        """Why nobody can be reached, in a sentence."""
        return self._exchange.trouble

    def send(self, *parts: bytes) -> bool:
        """Send a request. False: the broker is away, or this is a feed."""
        if self._subject is None:
            return False
        return self._exchange.send(self._subject, requests.pack(parts), self._inbox.subject)

    async def receive(self) -> list[Received]:
        """Wait for messages and return those that are there. Who sent nonsense gets no reply."""
        found: list[Received] = []
        while not found:
            for message in await self._inbox.take():
                try:
                    read = self._read(message)
                except MalformedError:
                    self.malformed += 1
                    continue
                sender = message.reply.encode()
                found += [
                    Received(sender=sender, parts=parts, uid=None, pid=None, key=self._role) for parts in read
                ]
        return found

    def close(self) -> None:
        """Receive no more."""
        self._exchange.forget(self._inbox)


class BrokerAddress(Struct, frozen=True):
    """A way to a collector."""

    address: str
    """Its name for people."""
    open: Callable[[], BrokerChannel]


class BrokeredHost(Struct, frozen=True):
    """A collector that is followed and commanded over the broker, without an address of its host."""

    exchange: Exchange
    site: str
    host: str
    role: requests.BrokerRole = "command"

    @property
    def feed(self) -> BrokerAddress:
        """Return where its log is followed. What is lost there is fetched."""

        def listen() -> BrokerChannel:
            inbox = self.exchange.listen(batches.subject_of(self.site, self.host, "*"))
            return BrokerChannel(self.exchange, inbox, partial(_frames, self.site))

        return BrokerAddress(f"the batches of {self.host} at {self.exchange.servers}", listen)

    @property
    def control(self) -> BrokerAddress:
        """Return where it is commanded."""
        subject = requests.request_subject(self.site, self.host, self.role)

        def converse() -> BrokerChannel:
            return BrokerChannel(self.exchange, self.exchange.new_inbox(), _reply, subject=subject)

        return BrokerAddress(f"{subject} at {self.exchange.servers}", converse)


class BrokerDoor:
    """The requests that come to one collector over one subject: the subject is the role of the sender."""

    def __init__(self, exchange: Exchange, site: str, host: str, role: requests.BrokerRole) -> None:
        """Listen at the host's subject for those who have a role."""
        self._exchange = exchange
        self._role = role
        inbox = exchange.listen(requests.request_subject(site, host, role))
        self._channel = BrokerChannel(exchange, inbox, _request, role=role)

    @property
    def malformed(self) -> int:
        """The number of messages that were no requests."""
        return self._channel.malformed

    async def receive(self) -> list[Received]:
        """Wait for requests and return those that are there."""
        return await self._channel.receive()

    def send(self, sender: bytes, *parts: bytes) -> bool:
        """Reply to a sender. False: the broker is away."""
        return self._exchange.send(sender.decode(), requests.pack(parts))

    def objection(self, message: Received, role: str) -> str | None:  # noqa: ARG002  (all come over one subject)
        """Return why a sender may not do what needs a role, or None."""
        if self._role in {"command", role}:
            return None
        return (
            f"broker: could not do that: it came over the subject of those who only {self._role}."
            f" Use a credential of the broker that may send on the subjects {requests.SUBJECTS['command']}."
        )


def _reply(message: Delivered) -> list[list[bytes]]:
    return [requests.unpack(message.data)]


def _request(message: Delivered) -> list[list[bytes]]:
    if not message.reply:
        raise MalformedError("request: could not be answered: it names no inbox.")
    return [requests.unpack(message.data)]


def _frames(site: str, message: Delivered) -> list[list[bytes]]:
    batch = batches.decode(message.data, message.subject, site)
    return [[part for frame in batch.frames for part in encode_frame(frame)]]
