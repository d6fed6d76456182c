"""Channels over the broker: requests to a collector, the door of a collector, and the feed of a log.

Those who use them need not know: a message has the same parts as on a ZeroMQ socket.
"""

from msgspec import Struct

from zeus_stream.broker import batches, requests
from zeus_stream.broker.exchange import Exchange
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.transport.channel import Received


class Conversation:
    """Requests to one subject, and the replies."""

    def __init__(self, exchange: Exchange, subject: str) -> None:
        """For `SubjectAddress.open`."""
        self._exchange = exchange
        self._subject = subject
        self._inbox = exchange.new_inbox()

    @property
    def trouble(self) -> str | None:
        """Why nobody can be reached, in a sentence."""
        return self._exchange.trouble

    def send(self, *parts: bytes) -> bool:
        """Send a request. False: the broker is away."""
        return self._exchange.send(self._subject, requests.pack(parts), self._inbox.subject)

    async def receive(self) -> list[Received]:
        """Wait for replies and return those that are there."""
        found: list[Received] = []
        while not found:
            for message in await self._inbox.take():
                found += _received(message.reply, message.data, None)
        return found

    def close(self) -> None:
        """Receive no more replies."""
        self._exchange.forget(self._inbox)


class BatchFeed:
    """The frames of one host, as its relay sends them. What is lost is fetched."""

    def __init__(self, exchange: Exchange, site: str, host: str) -> None:
        """For `FeedAddress.open`."""
        self._exchange = exchange
        self._site = site
        self._inbox = exchange.listen(batches.subject_of(site, host))
        self.malformed = 0

    @property
    def trouble(self) -> str | None:
        """Why nothing can be received, in a sentence."""
        return self._exchange.trouble

    def send(self, *parts: bytes) -> bool:  # noqa: ARG002  (a feed takes nothing)
        """Return False: nothing is sent to a feed."""
        return False

    async def receive(self) -> list[Received]:
        """Wait for frames; each message has three parts a frame."""
        found: list[Received] = []
        while not found:
            for message in await self._inbox.take():
                try:
                    batch = batches.decode(message.data, message.subject, self._site)
                except MalformedError:
                    self.malformed += 1
                    continue
                parts = [part for frame in batch.frames for part in codec.encode_frame(frame)]
                found.append(Received(sender=b"", parts=parts, uid=None, pid=None))
        return found

    def close(self) -> None:
        """Receive no more frames."""
        self._exchange.forget(self._inbox)


class SubjectAddress(Struct, frozen=True):
    """The subject of requests to a collector."""

    exchange: Exchange
    subject: str

    @property
    def address(self) -> str:
        """Return its name for people."""
        return f"{self.subject} at {self.exchange.servers}"

    def open(self) -> Conversation:
        """Open a conversation."""
        return Conversation(self.exchange, self.subject)


class FeedAddress(Struct, frozen=True):
    """The batches of a host."""

    exchange: Exchange
    site: str
    host: str

    @property
    def address(self) -> str:
        """Return its name for people."""
        return f"the batches of {self.host} at {self.exchange.servers}"

    def open(self) -> BatchFeed:
        """Open the feed."""
        return BatchFeed(self.exchange, self.site, self.host)


class BrokeredHost(Struct, frozen=True):
    """A collector that is followed and commanded over the broker, without an address of its host."""

    exchange: Exchange
    site: str
    host: str
    role: requests.BrokerRole = "command"

    @property
    def feed(self) -> FeedAddress:
        """Return where its log is followed."""
        return FeedAddress(self.exchange, self.site, self.host)

    @property
    def control(self) -> SubjectAddress:
        """Return where it is commanded."""
        return SubjectAddress(self.exchange, requests.request_subject(self.site, self.host, self.role))


class BrokerDoor:
    """The requests that come to one collector over one subject: the subject is the role of the sender."""

    def __init__(self, exchange: Exchange, site: str, host: str, role: requests.BrokerRole) -> None:
        """Listen at the host's subject for those who have a role."""
        self._exchange = exchange
        self._role = role
        self._inbox = exchange.listen(requests.request_subject(site, host, role))
        self.malformed = 0

    async def receive(self) -> list[Received]:
        """Wait for requests and return those that are there."""
        found: list[Received] = []
        while not found:
            for message in await self._inbox.take():
                received = _received(message.reply, message.data, self._role) if message.reply else []
                self.malformed += not received
                found += received
        return found

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


def _received(sender: str, data: bytes, role: str | None) -> list[Received]:
    """Return a message; nothing, if it is none. Who sent nonsense gets no reply."""
    try:
        parts = requests.unpack(data)
    except MalformedError:
        return []
    return [Received(sender=sender.encode(), parts=parts, uid=None, pid=None, key=role)]
