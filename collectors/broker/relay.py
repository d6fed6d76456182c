"""Relay this host's log to the broker: batches in order, one in flight.

    log on disk -> batch -> broker says that it has it -> the next batch

The log stays the truth. The relay keeps nothing on disk: when it starts, or the broker was away, it asks the
broker for the last batch it has of this host, and goes on after that. Without one it goes on where it was, if
the stream is at least as long as it was then: archivers have taken all of it. Else it begins again. So a
broker that lost its end, or everything, gets it again, and so does the stream of another part. While the
broker refuses or is away, the log holds what comes in, by its own bounds.
"""

import logging

import anyio

from collectors.log.sqlite import SqliteLog
from zeus_stream.broker import batches
from zeus_stream.broker.jetstream import JetstreamClient
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.errors import MalformedError, StorageError, UnreachableError

LINGER_S = 0.5
"""Frames wait for others for so long, unless a batch is full."""
RETRY_S = 1.0

_log = logging.getLogger(__name__)


class Relay:
    """The relay of one collector. For its event loop."""

    def __init__(self, log: SqliteLog, host: str, site: SiteSettings) -> None:
        """Remember what to relay, and to where; `run` does it."""
        self._log = log
        self._host = host
        self._site = site
        self._part = batches.part_of(host, site.broker_parts)
        self._stream_bytes = 0
        self._next = 0
        self._sequence = 0
        """The number in the stream of the last batch that the broker has taken."""
        self.trouble: str | None = "not connected yet"
        """Why nothing can be relayed now."""

    @property
    def behind(self) -> int:
        """The number of frames that the broker does not have yet."""
        return max(self._log.extent.next_offset - self._next, 0)

    def status(self) -> list[tuple[str, str, str]]:
        """Return what the status shows of it."""
        return [
            ("broker", "servers", self._site.shown),
            ("broker", "stream of this part", f"at most {self._stream_bytes >> 20} MB"),
            ("broker", "behind", f"{self.behind} frames"),
            ("broker", "trouble", self.trouble or "none"),
        ]

    async def run(self) -> None:
        """Relay until cancelled."""
        while True:
            try:
                broker = await JetstreamClient.connect(self._site)
                try:
                    await self._relay(broker)
                finally:
                    with anyio.CancelScope(shield=True):
                        await broker.close()
            except (UnreachableError, StorageError) as wrong:
                if self.trouble != str(wrong):
                    _log.warning("%s", wrong)
                self.trouble = str(wrong)
            await anyio.sleep(RETRY_S)

    async def _relay(self, broker: JetstreamClient) -> None:
        part, site = self._part, self._site
        self._stream_bytes = await broker.make_stream(
            part,
            max_bytes=site.broker_mb << 20,
            max_hours=site.broker_hours,
            replicas=site.broker_replicas,
        )
        last, ended = await broker.last(self._host, part), await broker.last_sequence(part)
        if last is not None or not self._sequence or (ended or 0) < self._sequence:
            self._next = self._resume(last)
        after = self._next
        while True:
            frames = self._log.fetch(self._next, batches.MAX_FRAMES, batches.MAX_BYTES)
            if frames:
                data = batches.encode(after, frames)
                self._sequence = await broker.publish(self._host, data, batches.message_id(frames), part)
                after = self._next = frames[-1].offset + 1
            self.trouble = None
            if len(frames) < batches.MAX_FRAMES and self._next >= self._log.extent.next_offset:
                await anyio.sleep(LINGER_S)

    def _resume(self, last: bytes | None) -> int:
        """Return the offset to go on with: after the last batch, if it is one of this log."""
        if last is None:
            return 0
        site = self._site.site
        try:
            batch = batches.decode(last, batches.subject_of(site, self._host, self._part), site)
        except MalformedError:
            return 0
        return batch.next_offset if batch.log_id == self._log.log_id else 0
