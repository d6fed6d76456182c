"""NATS JetStream: the only module that speaks to the broker.

The broker is a feed that may lose, as the PUB socket is: the log of each host is the truth.
"""

import sys
from collections.abc import Callable, Sequence
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
    StreamInfo,
)

from zeus_stream.broker.batches import stream_of, subject_of, subjects_of
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import UnreachableError

CONNECT_S = 5.0
ACK_S = 10.0
"""Longest wait for the broker to say that it has a batch."""
FETCHED = 64
"""Messages that a reader asks for at a time."""
UNUSED_S = 60.0
"""A consumer that nobody asks is forgotten by the broker."""
DUPLICATES_S = 120.0
LEAST_BYTES = 16 << 20
"""Of a stream: with room for less, the broker has none."""
FULL = 10077
"""JetStream's error: a stream that discards new messages has its most bytes."""
NO_ROOM = (10023, 10028, 10047)
"""JetStream's errors: account or server has not so much room for a stream."""
WRONG = (nats.errors.Error, OSError, TimeoutError)
"""The errors that a call of the client may raise."""


class Message(Struct, frozen=True):
    """A message of a stream."""

    sequence: int
    subject: str
    data: bytes


async def connected(shown: str, refused: Callable[[str], None], **options: Any) -> Client:
    """Connect to one of the servers. The connection ends with its first error.

    Args:
        shown: the servers, for people.
        refused: called with the sentence of a permission that the broker refuses: nats-py reports it beside
            the call, which times out. Of all other errors the call that failed says what is wrong.
        options: of `nats.connect`, among them those of `SiteSettings.connection`.

    Raises:
        UnreachableError: none answers.
    """

    async def take_error(wrong: Exception) -> None:
        if (sentence := permission_refused(wrong)) is not None:
            refused(sentence)

    try:
        return await nats.connect(
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_S,
            error_cb=take_error,
            **options,
        )
    except (*WRONG, ValueError) as wrong:
        raise UnreachableError(
            f"broker {shown}: could not be reached: {wrong or type(wrong).__name__}. Start it, or"
            " correct --broker."
        ) from wrong


class JetstreamClient:
    """A connection to the streams of the broker. After an error open another one: it does not by itself."""

    def __init__(self, client: Client, site: str, refusals: list[str]) -> None:
        """For `connect`."""
        self._client = client
        self._refusals = refusals
        """Permissions that the broker refused since the last call that failed."""
        self._streams = client.jetstream(timeout=ACK_S)
        self._site = site

    @classmethod
    async def connect(cls, site: SiteSettings) -> "JetstreamClient":
        """Connect to one of the servers. Raises UnreachableError, SettingsError."""
        refusals: list[str] = []
        client = await connected(site.shown, refusals.append, **site.connection("broker"))
        return cls(client, site.site, refusals)

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*WRONG):
            await self._client.close()

    async def make_stream(self, part: int, *, max_bytes: int, max_hours: float, replicas: int) -> int:
        """Make the stream of a part, or let a smaller one grow. Return its bytes, fewer if there is no room.

        Raises UnreachableError: it could not be made.
        """
        name = stream_of(self._site, part)
        try:
            try:
                known = (await self._streams.stream_info(name)).config
            except nats.js.errors.NotFoundError:
                known = None
            if known is not None and (known.max_bytes or 0) >= max_bytes:
                return known.max_bytes or max_bytes
            while True:
                config = StreamConfig(
                    name=name,
                    subjects=[subjects_of(self._site, part)],
                    retention=RetentionPolicy.LIMITS,
                    discard=DiscardPolicy.NEW,
                    max_bytes=max_bytes,
                    max_age=max_hours * 3600,
                    num_replicas=replicas,
                    duplicate_window=DUPLICATES_S,
                )
                try:
                    await (self._streams.add_stream if known is None else self._streams.update_stream)(config)
                except nats.js.errors.APIError as wrong:
                    if wrong.err_code not in NO_ROOM or max_bytes <= LEAST_BYTES:
                        raise
                    max_bytes //= 2
                    if known is not None and max_bytes <= (known.max_bytes or 0):
                        return known.max_bytes or max_bytes
                else:
                    return max_bytes
        except WRONG as wrong:
            raise self._explained(f"stream {name}", "made", wrong) from wrong

    async def is_half_full(self, part: int) -> bool:
        """Tell whether a stream has half of what it may have. Raises UnreachableError."""
        info = await self._info(part)
        return info is not None and 2 * info.state.bytes >= (info.config.max_bytes or sys.maxsize)

    async def purge(self, part: int, until: int) -> None:
        """Let a stream go of the messages before a sequence number. Raises UnreachableError."""
        try:
            await self._streams.purge_stream(stream_of(self._site, part), seq=until)
        except nats.js.errors.NotFoundError:
            return
        except WRONG as wrong:
            raise self._explained(f"part {part}", "purged", wrong) from wrong

    async def publish(self, host: str, data: bytes, message_id: str, part: int) -> int:
        """Hand over a batch. Return its sequence number, when the broker has it. Raises UnreachableError."""
        try:
            acknowledged = await self._streams.publish(
                subject_of(self._site, host, part),
                data,
                timeout=ACK_S,
                stream=stream_of(self._site, part),
                headers={"Nats-Msg-Id": message_id},
            )
        except nats.js.errors.APIError as wrong:
            if wrong.err_code != FULL:
                raise self._explained(f"batch {message_id}", "handed over", wrong) from wrong
            raise UnreachableError(
                f"broker: the stream of part {part} is full: it takes no more until archivers have stored"
                " what it has. The log of this host keeps the rest. Start archivers, or raise broker_mb."
            ) from wrong
        except WRONG as wrong:
            raise self._explained(f"batch {message_id}", "handed over", wrong) from wrong
        return acknowledged.seq

    async def last(self, host: str, part: int) -> bytes | None:
        """Return the last batch that the broker has of a host; None: it has none. Raises UnreachableError."""
        try:
            found = await self._streams.get_last_msg(
                stream_of(self._site, part), subject_of(self._site, host, part)
            )
        except nats.js.errors.NotFoundError:
            return None
        except WRONG as wrong:
            raise _lost(f"host {host}", "looked up", wrong) from wrong
        return found.data

    async def last_sequence(self, part: int) -> int | None:
        """Return the sequence number of the stream's last message; None: there is no stream yet."""
        info = await self._info(part)
        return None if info is None else info.state.last_seq

    async def _info(self, part: int) -> StreamInfo | None:
        try:
            return await self._streams.stream_info(stream_of(self._site, part))
        except nats.js.errors.NotFoundError:
            return None
        except WRONG as wrong:
            raise _lost(f"part {part}", "read", wrong) from wrong

    async def reader(self, part: int, sequence: int) -> "StreamReader":
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
        return StreamReader(subscribed, self._client, f"part {part}")

    def _explained(self, what: str, done: str, wrong: BaseException) -> UnreachableError:
        """Return the error of a call, with the refusal if there was one."""
        refused = self._refusals[-1:]
        self._refusals.clear()
        return UnreachableError(*refused) if refused else _lost(what, done, wrong)


class StreamReader:
    """A reader of one stream, in order. What the broker forgets of it is an error: open another one."""

    def __init__(self, subscribed: Any, client: Client, what: str) -> None:
        """For `JetstreamClient.reader`."""
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


async def ends_of_parts(site: SiteSettings) -> dict[str, int]:
    """Return the last sequence number of each part's stream, by the part's name. Raises UnreachableError."""
    broker = await JetstreamClient.connect(site)
    try:
        ends = {f"frames-{part}": await broker.last_sequence(part) for part in range(site.broker_parts)}
    finally:
        await broker.close()
    return {name: end for name, end in ends.items() if end is not None}


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
