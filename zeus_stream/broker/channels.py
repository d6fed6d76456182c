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
    ) -> None:
        """For `BrokerAddress.open`. ``subject``: of what is sent; None: nothing can be."""
        self._exchange = exchange
        self._inbox = inbox
        self._read = read
        self._subject = subject
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
                    Received(sender=sender, parts=parts, uid=None, pid=None, key=None) for parts in read
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
        subject = requests.request_subject(self.site, self.host)

        def converse() -> BrokerChannel:
            return BrokerChannel(self.exchange, self.exchange.new_inbox(), _reply, subject=subject)

        return BrokerAddress(f"{subject} at {self.exchange.servers}", converse)


class BrokerDoor:
    """The requests that come to one collector over the broker."""

    def __init__(self, exchange: Exchange, site: str, host: str) -> None:
        """Listen at the host's subject."""
        self._exchange = exchange
        self.channel = BrokerChannel(
            exchange, exchange.listen(requests.request_subject(site, host)), _request
        )
        self.receive = self.channel.receive

    def send(self, sender: bytes, *parts: bytes) -> bool:
        """Reply to a sender. False: the broker is away."""
        return self._exchange.send(sender.decode(), requests.pack(parts))

    def objection(self, message: Received, role: str) -> str | None:  # noqa: ARG002  (the broker has permissions)
        """Return None: who may send on this subject may do everything."""
        return None


def _reply(message: Delivered) -> list[list[bytes]]:
    return [requests.unpack(message.data)]


def _request(message: Delivered) -> list[list[bytes]]:
    if not message.reply:
        raise MalformedError("request: could not be answered: it names no inbox.")
    return [requests.unpack(message.data)]


def _frames(site: str, message: Delivered) -> list[list[bytes]]:
    batch = batches.decode(message.data, message.subject, site)
    return [[part for frame in batch.frames for part in encode_frame(frame)]]
