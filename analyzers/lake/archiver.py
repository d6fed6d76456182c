"""Archive parts of a site: from the broker's streams into the lake.

    stream of a part -> frames, each once, in order for each log -> one commit every COMMIT_S -> lake
    outbox of the analyzers -> derived rows (`row_archiver`)                                  -> lake

A batch that is there twice is ignored. Where frames are missing, the batch says whether they had left the
host's log: then `gaps` has a row. If not, the broker has lost batches, or has them under earlier numbers: the
stream is read again from its first message, once; what is missing then is a gap as well.
"""

import logging
from collections.abc import Callable
from functools import partial

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from analyzers.lake.batch_intake import BatchesMissingError, BatchIntake
from analyzers.lake.holders import TTL_S
from analyzers.lake.lake_archive import LakeArchive
from analyzers.lake.row_archiver import keep_archiving_rows
from zeus_stream.broker.jetstream import Broker, Reader
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, StorageError, UnreachableError
from zeus_stream.settings import Settings

COMMIT_S = 5.0
"""Between two commits of a part."""
COMMIT_BYTES = 32 << 20
"""Of messages; more are committed at once."""
WAIT_S = 1.0
RETRY_S = 1.0
ABSENT_S = 5.0

_log = logging.getLogger(__name__)


class Work(Struct, frozen=True, kw_only=True):
    """The work of an archiver process."""

    dsn: str
    servers: str
    site: str
    parts: tuple[int, ...]
    holder: str
    settings: Settings


async def archive(work: Work, started: Callable[[str], None]) -> None:
    """Archive parts until cancelled. ``started``: called once, with a sentence for people."""
    started(f"archives parts {', '.join(map(str, work.parts))} of {work.site} from {work.servers}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_archiving_rows, work.dsn, work.holder, work.settings)
        for part in work.parts:
            tasks.start_soon(_keep_archiving, work, part)


async def _keep_archiving(work: Work, part: int) -> None:
    """Hold a part whenever it is free, and archive it. After any error go on from the last commit."""
    trouble: str | None = None
    again = False
    while True:
        wait_s = RETRY_S
        try:
            broker = await Broker.connect(work.servers, work.site)
            try:
                wait_s = await _take_turn(work, part, broker, again=again)
                again = False
            except BatchesMissingError:
                _log.warning("part %d: batches are missing; its stream is read again from the first.", part)
                again = True
            finally:
                with anyio.CancelScope(shield=True):
                    await broker.close()
        except (StorageError, UnreachableError, RefusedError) as wrong:
            if str(wrong) != trouble:
                _log.warning("part %d: %s", part, wrong)
            trouble = str(wrong)
        await anyio.sleep(wait_s)


async def _take_turn(work: Work, part: int, broker: Broker, *, again: bool) -> float:
    """Archive a part until another process has taken it. Return how long to wait before the next turn, s.

    Raises:
        BatchesMissingError: the stream has to be read again; its position is its first message already.
    """
    last = await broker.last_sequence(part)
    if last is None:
        return ABSENT_S  # no host of this part has sent anything yet
    name = f"frames-{part}"
    taken = await run_sync(
        partial(LakeArchive.take, work.dsn, work.settings, part=name, holder=work.holder, renewing=True)
    )
    if taken is None:
        return TTL_S / 4
    try:
        if last + 1 < taken.held.next:
            await run_sync(taken.rewind)
        else:
            reader = await broker.reader(part, taken.held.next)
            await _archive_part(work, taken, reader, last, again=again)
    except BatchesMissingError:
        await run_sync(taken.rewind)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(taken.close)
    return RETRY_S


async def _archive_part(work: Work, taken: LakeArchive, reader: Reader, last: int, *, again: bool) -> None:
    """Read a stream into the lake until another process has taken the part. ``last``: of its messages."""
    intake = BatchIntake(taken.next_offsets(), again=again)
    until = taken.held.next
    stored_ns = renewed_ns = monotonic_ns()
    while True:
        for message in await reader.next(WAIT_S):
            intake.take(message.data, message.subject, work.site)
            until = message.sequence + 1
            intake.again = intake.again and until <= last
        waited_s = (monotonic_ns() - stored_ns) / 1e9
        if intake.parts and (waited_s >= COMMIT_S or intake.message_bytes >= COMMIT_BYTES):
            await run_sync(taken.put_stream, intake.taken(), until)
            stored_ns = monotonic_ns()
        if (monotonic_ns() - renewed_ns) / 1e9 >= TTL_S / 4:
            if not await run_sync(taken.renew):
                return
            renewed_ns = monotonic_ns()
