"""A connection to the broker for requests, replies and feeds. It connects again by itself.

Sending never waits. While the broker is away nothing is sent and nothing is kept: what is meant for one
process must not reach its successor. Subscriptions are made again on the next connection.
"""

import logging
import secrets
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg

from zeus_stream.broker.jetstream import WRONG, connected
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import UnreachableError

RETRY_S = 0.5
PING_S = 1
"""A broker that answers no two pings is gone."""
MAX_LEAVING = 2_000
"""Messages on their way out; one more is refused."""
MAX_WAITING = 2_000
"""Messages that wait in an inbox; the oldest are dropped, as a feed may."""
MAX_BYTES = 64 << 20
"""Of messages of one subscription that wait in the client."""

_log = logging.getLogger(__name__)


class Delivered(NamedTuple):
    """A message of a subject."""

    subject: str
    reply: str
    data: bytes


class Inbox:
    """The messages that were received of a subject. One task takes them."""

    def __init__(self, subject: str) -> None:
        """For `Exchange.listen`."""
        self.subject = subject
        self._waiting: deque[Delivered] = deque(maxlen=MAX_WAITING)
        self._some = anyio.Event()

    async def put(self, message: Msg) -> None:
        """Take in a message of the broker."""
        self._waiting.append(Delivered(message.subject, message.reply, message.data))
        self._some.set()

    async def take(self) -> list[Delivered]:
        """Wait for messages; return all that are there."""
        await anyio.lowlevel.checkpoint()
        while not self._waiting:
            self._some = anyio.Event()
            await self._some.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class Exchange:
    """The connection of one process. Its `run` has to run."""

    def __init__(self, site: SiteSettings, who: str) -> None:
        """``who``: needs it. Raises SettingsError: no broker is named, or a certificate cannot be read."""
        self.servers = site.shown
        """For people."""
        self._options = site.connection(who)
        self._client: Client | None = None
        self._subscribed: dict[Inbox, Any] = {}
        """With the subscription on this connection; None: none yet."""
        self._ended: list[Any] = []
        """Subscriptions that nobody wants any more."""
        self._leaving: deque[tuple[str, bytes, str]] = deque()
        self._wake = anyio.Event()
        self._name = secrets.token_hex(12)
        self._numbers = 0
        self.connections = 0
        """The number of times that it was connected."""
        self.trouble: str | None = f"broker {self.servers}: is not connected yet. It is tried again."
        """Why nothing can be sent now."""

    @property
    def connected(self) -> bool:
        """A message can be sent now."""
        return self._client is not None and self._client.is_connected

    def listen(self, subject: str) -> Inbox:
        """Receive the messages of a subject from now on."""
        inbox = Inbox(subject)
        self._subscribed[inbox] = None
        self._wake.set()
        return inbox

    def new_inbox(self) -> Inbox:
        """Receive the messages of a subject of this process alone, for replies."""
        self._numbers += 1
        return self.listen(f"_INBOX.{self._name}.{self._numbers}")

    def forget(self, inbox: Inbox) -> None:
        """Receive no more messages of an inbox."""
        if (subscription := self._subscribed.pop(inbox, None)) is not None:
            self._ended.append(subscription)
            self._wake.set()

    def send(self, subject: str, data: bytes, reply: str = "") -> bool:
        """Hand over a message. False: the broker is away, or too much is on its way."""
        if not self.connected or len(self._leaving) >= MAX_LEAVING:
            return False
        self._leaving.append((subject, data, reply))
        self._wake.set()
        return True

    async def run(self) -> None:
        """Be connected until cancelled."""
        while True:
            try:
                await self._be_connected()
            except UnreachableError as wrong:
                self._warn(str(wrong))
            await anyio.sleep(RETRY_S)

    async def _be_connected(self) -> None:
        """Send and subscribe until the connection ends."""
        client = await connected(
            self.servers,
            self._warn,
            ping_interval=PING_S,
            pending_size=0,
            closed_cb=self._ring,
            **self._options,
        )
        self._client, self.trouble = client, None
        self.connections += 1
        try:
            with suppress(*WRONG):  # the connection ends with it
                while not client.is_closed:
                    self._wake = anyio.Event()
                    await self._pump(client)
                    await self._wake.wait()
        finally:
            self._client = None
            self._leaving.clear()
            self._ended.clear()
            self._subscribed = dict.fromkeys(self._subscribed)
            with anyio.CancelScope(shield=True), suppress(*WRONG):
                await client.close()
        self.trouble = f"broker {self.servers}: ended the connection. It is tried again."

    async def _pump(self, client: Client) -> None:
        """Do what waits: subscribe first, so that no reply is missed."""
        for inbox, subscription in tuple(self._subscribed.items()):
            if subscription is None:
                made = await client.subscribe(
                    inbox.subject,
                    cb=inbox.put,
                    pending_msgs_limit=MAX_WAITING,
                    pending_bytes_limit=MAX_BYTES,
                )
                if inbox in self._subscribed:
                    self._subscribed[inbox] = made
                else:
                    self._ended.append(made)
        while self._ended:
            with suppress(*WRONG):
                await self._ended.pop().unsubscribe()
        while self._leaving:
            subject, data, reply = self._leaving.popleft()
            await client.publish(subject, data, reply=reply)

    async def _ring(self) -> None:
        self._wake.set()

    def _warn(self, sentence: str) -> None:
        """Log why nothing can be sent, once."""
        if self.trouble != sentence:
            _log.warning("%s", sentence)
        self.trouble = sentence
