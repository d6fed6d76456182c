"""A collector that is followed and commanded over the broker.

An analyzer that decides on all jobs follows the whole log. One that decides on a share of the jobs begins
where the first of its runs on that host began. In place of earlier frames it gets the notes that hold now;
the events of other shards' jobs reach it as frames without content.
"""

from collections.abc import AsyncIterator, Callable

from msgspec import Struct
from msgspec.structs import replace

from analyzers.archive.store import Store
from analyzers.dispatch.collector_link import Commander
from analyzers.service.collectors import Collector
from zeus_stream.broker.channels import BrokeredHost
from zeus_stream.broker.requests import Announced
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.protocol.notes import CollectorStarted, Notes
from zeus_stream.settings import Settings
from zeus_stream.transport import sockets

NOTHING = codec.encode(Notes(()))
NOT_OURS = "no run of this shard was on the host"

Part = list[Frame] | Break


class Begin(Struct, frozen=True):
    """Where a log begins for a shard."""

    announced: Announced
    """By the host."""
    first: int
    """Offset of the first frame that is followed."""
    known: bool = False
    """The checkpoint knows what was before."""


class BrokeredCollector(Collector):
    """A host's collector, for all jobs or for those of one shard."""

    def __init__(
        self,
        context: sockets.Context,
        source: BrokeredHost,
        archive: Store,
        settings: Settings,
        *,
        commander: Commander | None = None,
        ours: Callable[[str], bool] = lambda _: True,
        begin: Begin | None = None,
    ) -> None:
        """Prepare to follow it. ``ours``: tells of a job whether its events are taken in."""
        name = f"{source.host} over the broker"
        super().__init__(context, name, source, archive, settings, host=source.host, commander=commander)
        self._host = source.host
        self._ours = ours
        self._begin = begin

    async def follow(
        self, log_id: str | None, next_offset: int | None, *, pause_s: Callable[[], float]
    ) -> AsyncIterator[Part]:
        """Yield frames from where the archive ends, or from the beginning of the first of our runs."""
        if self._begin is not None:
            for part in lead_in(self._begin, log_id, next_offset):
                yield part
            announced, first = self._begin.announced, self._begin.first
            if log_id != announced.log_id or next_offset is None or next_offset < first:
                log_id, next_offset = announced.log_id, first
        async for part in super().follow(log_id, next_offset, pause_s=pause_s):
            yield part if isinstance(part, Break) else [self._emptied(frame) for frame in part]

    def _emptied(self, frame: Frame) -> Frame:
        """Return a frame, without content if its events are of a job that is not ours."""
        prefix = f"events/{self._host}/"
        if not frame.topic.startswith(prefix) or self._ours(frame.topic.removeprefix(prefix)):
            return frame
        return replace(frame, topic=f"notes/{self._host}", body=NOTHING)


def lead_in(begin: Begin, log_id: str | None, next_offset: int | None) -> list[Part]:
    """Return what stands for the frames of a log before it begins, after what the archive has of it."""
    announced, first = begin.announced, begin.first
    known = next_offset if log_id == announced.log_id and next_offset is not None else None
    if begin.known or first == 0 or (known is not None and known >= first):
        return []
    notes = codec.decode(announced.standing, Notes).notes
    standing = Frame(
        log_id=announced.log_id,
        offset=first - 1,
        host=announced.host,
        t_ns=max((note.t_ns for note in notes if isinstance(note, CollectorStarted)), default=0),
        topic=f"notes/{announced.host}",
        body=announced.standing,
    )
    if known is None or known == first - 1:
        return [[standing]]
    return [Break(announced.log_id, known, first - 1 - known, NOT_OURS), [standing]]
