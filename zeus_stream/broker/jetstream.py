"""NATS JetStream: the only module that speaks to the broker.

The broker is a feed that may lose, as the PUB socket is: the log of each host is the truth.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import nats
import nats.errors
import nats.js.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StreamConfig,
)

from zeus_stream.broker.batches import PARTS, stream_of, subject_of, subjects_of
from zeus_stream.errors import UnreachableError

CONNECT_S = 5.0
ACK_S = 10.0
"""Longest wait for the broker to say that it has a batch."""
FETCHED = 64
"""Messages that a reader asks for at a time."""
UNUSED_S = 60.0
"""A consumer that nobody asks is forgotten by the broker."""
DUPLICATES_S = 120.0
WRONG = (nats.errors.Error, OSError, TimeoutError)
"""The errors that a call of the client may raise."""


class Message(Struct, frozen=True):
    """A message of a stream."""

    sequence: int
    subject: str
    data: bytes


class Broker:
    """A connection to the broker. It does not connect again by itself: after an error, open another one."""

    def __init__(self, client: Client, site: str, refusals: "_Refusals") -> None:
        """For `connect`."""
        self._client = client
        self._refusals = refusals
        self._streams = client.jetstream(timeout=ACK_S)
        self._site = site

    @classmethod
    async def connect(cls, servers: str, site: str, credentials: str | None = None) -> "Broker":
        """Connect to one of some servers, separated by commas. Raises UnreachableError."""
        more: dict[str, Any] = {} if credentials is None else {"user_credentials": credentials}
        refusals = _Refusals()
        try:
            client = await nats.connect(
                servers.split(","),
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_S,
                error_cb=refusals.take,
                **more,
            )
        except (*WRONG, ValueError) as wrong:
            raise UnreachableError(
                f"broker {servers}: could not be reached: {wrong or type(wrong).__name__}. Start it, or"
                " correct --broker."
            ) from wrong
        return cls(client, site, refusals)

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*WRONG):
            await self._client.close()

    async def make_stream(self, part: int, *, max_bytes: int, max_hours: float, replicas: int) -> None:
        """Make the stream of a part, unless it is there. Raises UnreachableError."""
        name = stream_of(self._site, part)
        try:
            with suppress(nats.js.errors.NotFoundError):
                await self._streams.stream_info(name)
                return
            await self._streams.add_stream(
                StreamConfig(
                    name=name,
                    subjects=[subjects_of(self._site, part)],
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.NEW,
                    max_bytes=max_bytes,
                    max_age=max_hours * 3600,
                    num_replicas=replicas,
                    duplicate_window=DUPLICATES_S,
                )
            )
        except WRONG as wrong:
            raise _lost(f"stream {name}", "made", wrong) from wrong

    async def publish(self, host: str, data: bytes, message_id: str, part: int) -> None:
        """Hand over a batch; return when the broker has it. Raises UnreachableError."""
        try:
            await self._streams.publish(
                subject_of(self._site, host),
                data,
                timeout=ACK_S,
                stream=stream_of(self._site, part),
                headers={"Nats-Msg-Id": message_id},
            )
        except WRONG as wrong:
            raise self._refusals.explain(f"batch {message_id}", "handed over", wrong) from wrong

    async def last(self, host: str, part: int) -> bytes | None:
        """Return the last batch that the broker has of a host; None: it has none. Raises UnreachableError."""
        try:
            found = await self._streams.get_last_msg(
                stream_of(self._site, part), subject_of(self._site, host)
            )
        except nats.js.errors.NotFoundError:
            return None
        except WRONG as wrong:
            raise _lost(f"host {host}", "looked up", wrong) from wrong
        return found.data

    async def last_sequence(self, part: int) -> int | None:
        """Return the sequence number of the stream's last message; None: there is no stream yet."""
        try:
            info = await self._streams.stream_info(stream_of(self._site, part))
        except nats.js.errors.NotFoundError:
            return None
        except WRONG as wrong:
            raise _lost(f"part {part}", "read", wrong) from wrong
        return info.state.last_seq

    async def reader(self, part: int, sequence: int) -> "Reader":
        """Return a reader of a stream from a sequence number on. Raises UnreachableError."""
        name = stream_of(self._site, part)
        try:
            info = await self._streams.add_consumer(
                name,
                ConsumerConfig(
                    ack_policy=AckPolicy.NONE,
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=max(sequence, 1),
                    inactive_threshold=UNUSED_S,
                    mem_storage=True,
                    num_replicas=1,
                ),
            )
            subscribed = await self._streams.pull_subscribe_bind(consumer=info.name, stream=name)
        except WRONG as wrong:
            raise _lost(f"part {part}", "read", wrong) from wrong
        return Reader(subscribed, self._client, f"part {part}")


class Reader:
    """A reader of one stream, in order. What the broker forgets of it is an error: open another one."""

    def __init__(self, subscribed: Any, client: Client, what: str) -> None:
        """For `Broker.reader`."""
        self._subscribed = subscribed
        self._client = client
        self._what = what

    async def next(self, wait_s: float) -> Sequence[Message]:
        """Return what there is, after at most ``wait_s``. Raises UnreachableError."""
        try:
            messages = await self._subscribed.fetch(FETCHED, timeout=wait_s)
        except (nats.errors.TimeoutError, TimeoutError):
            if self._client.is_closed:
                raise _lost(self._what, "read", OSError("no connection")) from None
            return ()
        except WRONG as wrong:
            raise _lost(self._what, "read", wrong) from wrong
        return [
            Message(message.metadata.sequence.stream, message.subject, message.data) for message in messages
        ]


async def ends_of_parts(servers: str, site: str) -> dict[str, int]:
    """Return the last sequence number of each part's stream, by the part's name. Raises UnreachableError."""
    broker = await Broker.connect(servers, site)
    try:
        ends = {f"frames-{part}": await broker.last_sequence(part) for part in range(PARTS)}
    finally:
        await broker.close()
    return {name: end for name, end in ends.items() if end is not None}


class _Refusals:
    """The permission that the broker refused last. nats-py reports it beside the call, which times out."""

    def __init__(self) -> None:
        self._last: str | None = None

    async def take(self, wrong: Exception) -> None:
        """Take in an error; of all others the call that failed says what is wrong."""
        self._last = permission_refused(wrong) or self._last

    def explain(self, what: str, done: str, wrong: BaseException) -> UnreachableError:
        """Return the error of a call, with the refusal if there was one."""
        refused, self._last = self._last, None
        return _lost(what, done, wrong) if refused is None else UnreachableError(refused)


def permission_refused(wrong: Exception) -> str | None:
    """Return the sentence of a permission that the broker refuses, None: it is another error."""
    says = str(wrong)
    if "permissions violation" not in says.lower():
        return None
    return (
        f"broker: refused: {says.removeprefix('nats: ')}. Give this process the credential of its own host"
        " and site."
    )


def _lost(what: str, done: str, wrong: BaseException) -> UnreachableError:
    return UnreachableError(
        f"broker: {what} could not be {done}: {wrong or type(wrong).__name__}. It is tried again."
    )
