"""Archive parts of a site: from the broker's streams, and the outbox of the analyzers, into the lake.

    streams of parts -> frames, each once, in order for each log --+-> one commit a period, or when
    outbox -> derived rows ----------------------------------------+   COMMIT_BYTES wait -> lake
                                                                        -> streams keep what is not archived

One commit has all parts of the process: commits of one lake race for its snapshot. While a commit goes on,
what comes next is read, up to COMMIT_BYTES; then the broker waits. A commit that fails is tried again with
what was read: nothing is read twice because a server was away.

A batch that is there twice is ignored. Where frames are missing, the batch says whether they had left the
host's log: then `gaps` has a row. If not, the broker has lost batches, or has them under earlier numbers: the
stream is read again from its first message, once. What is missing then is a gap as well.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.archive.store import Received
from analyzers.lake.lake_archive import LakeArchive, frames_of
from analyzers.leases.renewal import ARCHIVING, Renewal
from analyzers.leases.site_leases import ROWS, OutboxBatch, SiteLease, SiteLeases
from zeus_stream.broker import batches
from zeus_stream.broker.jetstream import JetstreamClient, StreamReader
from zeus_stream.broker.site_settings import SiteSettings
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError, RefusedError, StorageError, UnreachableError, leaves
from zeus_stream.protocol.frames import Break, body_of
from zeus_stream.settings import Settings

LEFT = "they had left the log"
LOST = "the broker lost them"


class BatchesMissingError(Exception):
    """The stream has to be read again from its first message."""


@dataclass(slots=True)
class BatchIntake:
    """Frames that were read of a stream and are not stored yet.

    a batch that goes on where its log is        its frames
    one that begins before                       what is new of it
    one of a log that is not known yet           its frames, if it is the first that was sent of this log;
                                                 else as below
    one that begins later, and says that the     `Break`, and its frames
      frames between had left the log
    one that begins later, and does not          `BatchesMissingError`: the stream is read again;
                                                 while it is read again: `Break`, and its frames
    what is no batch of that host                counted, and left out
    """

    next_of: dict[str, int]
    """The offset that comes next, by log."""
    again: bool = False
    """The stream is read again: what is missing now is gone."""
    parts: list[Received] = field(default_factory=list)
    """Messages that wait to be stored."""
    message_bytes: int = 0
    """Of the messages that it came in."""
    malformed: int = 0

    def take(self, message: bytes, subject: str, site: str) -> None:
        """Take in a message. Raises BatchesMissingError: batches before it are missing."""
        try:
            batch = batches.decode(message, subject, site)
        except MalformedError:
            self.malformed += 1
            return
        known = self.next_of.get(batch.log_id)
        if known is None and batch.after:
            known = 0  # batches of this log were sent before, and none is stored
        first = batch.frames[0].offset
        if known is not None and first > known:
            if batch.after > known and not self.again:
                raise BatchesMissingError
            reason = LOST if batch.after > known else LEFT
            self.parts.append(Break(batch.log_id, known, first - known, reason))
            known = first
        fresh = [frame for frame in batch.frames if known is None or frame.offset >= known]
        if fresh:
            self.parts.append([(frame, body_of(frame)) for frame in fresh])
            self.next_of[batch.log_id] = batch.next_offset
            self.message_bytes += len(message)

    def taken(self) -> Sequence[Received]:
        """Return what is to be stored, once."""
        parts, self.parts, self.message_bytes = self.parts, [], 0
        return parts


COMMIT_S = 5.0
"""Between two commits of a process, at least."""
DAILY_SNAPSHOTS = 20_000
"""Of the lake, by time: with more processes each commits more seldom."""
COMMIT_BYTES = 64 << 20
"""Of messages; more are committed at once."""
ROWS_BYTES = 16 << 20
"""Of batches of the outbox in one commit, at most; while more wait, commits follow each other."""
WAIT_S = 1.0
LOOK_S = 0.2
RETRY_S = 1.0
MOST_RETRY_S = 10.0
"""Longest wait before a commit is tried again."""
ABSENT_S = 5.0
PURGE_S = 5.0
"""Between two looks at what the streams may let go of."""
WINDOW_S = 600.0
"""Archived frames stay in a stream for so long, for late readers and for relays that start again."""

_log = logging.getLogger(__name__)


class ArchiverWork(Struct, frozen=True, kw_only=True):
    """The work of an archiver process."""

    dsn: str
    site: SiteSettings
    parts: tuple[int, ...]
    holder: str
    settings: Settings


@dataclass(slots=True, eq=False)
class PartStream:
    """A part that is held, and what was read of its stream and is not stored yet."""

    number: int
    lease: SiteLease
    intake: BatchIntake
    until: int
    """The sequence number that is read next."""
    stored: int
    """The sequence number that is stored next."""
    lost: bool = False
    """Another process has it."""
    commits: deque[tuple[int, int]] = field(default_factory=deque)
    """When (CLOCK_MONOTONIC) and up to which sequence number it was archived."""


async def archive(work: ArchiverWork, started: Callable[[str], None]) -> None:
    """Archive parts until cancelled. ``started``: called once, with a sentence for people."""
    started(f"archives parts {', '.join(map(str, work.parts))} of {work.site.site} from {work.site.shown}")
    warnings = _Warnings()
    while True:
        leases = SiteLeases(work.dsn, work.site.site, work.holder)
        try:
            lake = await run_sync(LakeArchive, work.dsn, work.settings, leases)
            try:
                await Archiver(work, lake, leases, warnings).run()
            finally:
                with anyio.CancelScope(shield=True):
                    await run_sync(lake.close)
        except* (StorageError, RefusedError) as group:
            warnings.warn(group)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(leases.close)
        await anyio.sleep(RETRY_S)


class _Warnings:
    """Warnings: one that repeats the last is left out."""

    def __init__(self) -> None:
        self._last = ""

    def warn(self, wrong: BaseException) -> None:
        sentence = str(leaves(wrong)[0])
        if sentence != self._last:
            _log.warning("%s", sentence)
        self._last = sentence


class Archiver:
    """The parts that one process holds."""

    def __init__(
        self, work: ArchiverWork, lake: LakeArchive, leases: SiteLeases, warnings: _Warnings
    ) -> None:
        """For `archive`."""
        self._work, self._lake, self._leases, self._warnings = work, lake, leases, warnings
        self._renewal = Renewal(SiteLeases(work.dsn, work.site.site, work.holder), ARCHIVING)
        self._parts: dict[str, PartStream] = {}
        self._wanted = [ROWS, *map(frames_of, work.parts)]
        self._period_s = COMMIT_S
        self._committed_ns = monotonic_ns()
        self._one_at_a_time = anyio.Lock()
        """For the lake and its leases: each has one connection."""
        self._room = anyio.Event()
        """Set when less is waiting to be stored."""

    async def run(self) -> None:
        """Archive until cancelled. Raises StorageError: the lake has to be opened again."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_leases)
                tasks.start_soon(self._keep_reading)
                tasks.start_soon(self._keep_storing)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self._renewal.end)
                await run_sync(self._release)

    def _release(self) -> None:
        with suppress(StorageError):  # they end by their time
            for lease in self._lake.held.values():
                self._leases.release(lease.name, lease.epoch)

    # ---- leases

    async def _keep_leases(self) -> None:
        """Take what is free, and drop what others have taken."""
        while True:
            async with self._one_at_a_time:
                self._drop_lost()
                await self._take_free()
                self._renewal.hold({lease.name: lease.epoch for lease in self._lake.held.values()})
            await anyio.sleep(ARCHIVING.every_s)

    def _drop_lost(self) -> None:
        held = self._lake.held
        lost = [name for name, epoch in self._renewal.lost if name in held and held[name].epoch == epoch]
        self._lake.drop(lost)
        for name in self._parts.keys() - held.keys():
            _log.warning("%s: another process has taken it.", name)
            self._parts.pop(name).lost = True

    async def _take_free(self) -> None:
        wanted = [name for name in self._wanted if name not in self._lake.held]
        try:
            taken = await run_sync(self._leases.take, wanted, self._renewal.ttl_s) if wanted else []
            if taken:
                self._renewal.hold({lease.name: lease.epoch for lease in (*self._lake.held.values(), *taken)})
                await run_sync(self._lake.hold, taken)
            archivers = await run_sync(self._leases.archivers)
        except StorageError as wrong:
            self._warnings.warn(wrong)
            return
        self._period_s = max(COMMIT_S, archivers * 86_400 / DAILY_SNAPSHOTS)
        for lease in taken:
            if lease.name != ROWS:
                intake = BatchIntake(self._lake.next_offsets())
                number = int(lease.name.rpartition("-")[2])
                self._parts[lease.name] = PartStream(number, lease, intake, lease.next, lease.next)

    # ---- streams

    async def _keep_reading(self) -> None:
        """Read the streams of what is held; connect again whenever the broker was away."""
        while True:
            try:
                broker = await JetstreamClient.connect(self._work.site)
                try:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._purge_streams, broker)
                        reading = set[PartStream]()
                        while True:
                            for part in self._parts.values():
                                if part not in reading:
                                    reading.add(part)
                                    tasks.start_soon(self._read, part, broker)
                            await anyio.sleep(LOOK_S)
                finally:
                    with anyio.CancelScope(shield=True):
                        await broker.close()
            except* UnreachableError as group:
                self._warnings.warn(group)
            await anyio.sleep(RETRY_S)

    async def _read(self, part: PartStream, broker: JetstreamClient) -> None:
        while not part.lost:
            last = await broker.last_sequence(part.number)
            if last is None:
                await anyio.sleep(ABSENT_S)  # no host of this part has sent anything yet
                continue
            if last + 1 < part.until:
                await self._begin_again(part, again=False)
            try:
                await self._take_in(part, await broker.reader(part.number, part.until), last)
            except BatchesMissingError:
                _log.warning(
                    "part %d: batches are missing; its stream is read again from the first.", part.number
                )
                await self._begin_again(part, again=True)

    async def _take_in(self, part: PartStream, reader: StreamReader, last: int) -> None:
        """Take in messages. ``last``: of the stream when the reader was made."""
        while not part.lost:
            while self._waiting_bytes() >= COMMIT_BYTES:
                await self._room.wait()
            for message in await reader.next(WAIT_S):
                malformed = part.intake.malformed
                part.intake.take(message.data, message.subject, self._work.site.site)
                if part.intake.malformed > malformed == 0:
                    _log.warning(
                        "part %d: a message of %s is no batch of that host, and is left out. Look at the"
                        " credential of who sends there; more of them are not named.",
                        part.number, message.subject,
                    )  # fmt: skip
                part.until = message.sequence + 1
                part.intake.again = part.intake.again and part.until <= last

    def _waiting_bytes(self) -> int:
        return sum(part.intake.message_bytes for part in self._parts.values())

    async def _begin_again(self, part: PartStream, *, again: bool) -> None:
        """Read a stream again from its first message; what is stored is known by the positions of logs."""
        async with self._one_at_a_time:
            if not part.lost and part.lease.name in self._lake.held:
                await run_sync(self._lake.move, part.lease.name, 1)
                await run_sync(self._lake.look_up)
                part.intake = BatchIntake(self._lake.next_offsets(), again=again)
                part.until = part.stored = 1
                part.commits.clear()

    async def _purge_streams(self, broker: JetstreamClient) -> None:
        """Let the streams go of what is archived, after a window; those that are half full, at once."""
        while True:
            await anyio.sleep(PURGE_S)
            for part in tuple(self._parts.values()):
                full = await broker.is_half_full(part.number)
                until = None
                while part.commits and (full or monotonic_ns() - part.commits[0][0] >= WINDOW_S * 1e9):
                    _, until = part.commits.popleft()
                if until is not None:
                    await broker.purge(part.number, until)

    # ---- commits

    async def _keep_storing(self) -> None:
        more = False
        while True:
            await anyio.sleep(LOOK_S)
            self._renewal.step()
            due = (monotonic_ns() - self._committed_ns) / 1e9 >= self._period_s
            if due or more or self._waiting_bytes() >= COMMIT_BYTES:
                async with self._one_at_a_time:
                    more = await self._store()

    async def _store(self) -> bool:
        """Commit once, however often it has to be tried. Return True if more rows wait."""
        self._committed_ns = monotonic_ns()
        taken = {name: (part, part.intake.taken(), part.until) for name, part in self._parts.items()}
        taken = {name: each for name, each in taken.items() if each[2] > each[0].stored}
        self._room.set()
        self._room = anyio.Event()
        wait_s, failed, batches = RETRY_S, False, list[OutboxBatch]()
        while True:
            try:
                if failed and await run_sync(self._lake.recover):
                    break  # the last try was stored after all
                self._drop_lost()
                batches = await self._outbox()
                taken = {name: each for name, each in taken.items() if name in self._lake.held}
                if not taken and not batches:
                    return False
                await self._commit(taken, batches)
                break
            except StorageError as wrong:
                self._warnings.warn(wrong)
            failed = True
            await anyio.sleep(wait_s)
            self._renewal.step()
            wait_s = min(2 * wait_s, MOST_RETRY_S)
        now_ns = monotonic_ns()
        for part, _, end in taken.values():
            part.stored = end
            part.commits.append((now_ns, end))
        return sum(len(batch.body) for batch in batches) >= ROWS_BYTES // 2

    async def _outbox(self) -> list[OutboxBatch]:
        """Return rows that wait; none if they cannot be read in time: frames are stored all the same."""
        if ROWS not in self._lake.held:
            return []
        try:
            return await run_sync(self._leases.outbox, ROWS_BYTES)
        except StorageError as wrong:
            self._warnings.warn(wrong)
            return []

    async def _commit(
        self, taken: Mapping[str, tuple[PartStream, Sequence[Received], int]], batches: Sequence[OutboxBatch]
    ) -> None:
        """Store what was taken of parts, and batches of the outbox. Raises StorageError."""
        until = {name: end for name, (_, _, end) in taken.items()}
        received = [part for _, parts, _ in taken.values() for part in parts]
        if batches:
            until[ROWS] = self._lake.held[ROWS].next + 1
        if received or batches:
            await run_sync(self._lake.put_stream, received, until, batches)
        else:  # repeats, or no batches of ours: no row is stored with the positions
            for name, end in until.items():
                await run_sync(self._lake.move, name, end)
