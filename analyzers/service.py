"""The shell of the analyzer: waits, archives, and lets the pure modules decide.

    follower -> archive (frames) -> interpreter -> archive (rows) -> link (instructions)
                                        ^                              |
    query socket -> SQL threads         +---- questions of scripts ----+

What was received is archived before it is interpreted. After a start, the stream since the oldest open
run is interpreted again from the archive, so that the machines know where they stood; nothing is
commanded until the last frame is under CAUGHT_UP_NS old.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from analyzers import selectors
from analyzers.archive import Archive
from analyzers.interpreter import Interpreter, Plan
from analyzers.link import Link
from analyzers.query import Queries
from analyzers.rows import GiveAnswer, Instruction, Row
from zeus_stream import sockets, wire
from zeus_stream.clock import monotonic_ns
from zeus_stream.config import Settings
from zeus_stream.errors import MalformedError, RefusedError
from zeus_stream.follower import Break, follow
from zeus_stream.messages import (
    Applied,
    Ask,
    AskStatus,
    Body,
    Events,
    Frame,
    LeaseEnded,
    No,
    Notes,
    Query,
    Readings,
    Status,
)
from zeus_stream.places import claim, places, prepare

CAUGHT_UP_NS = 1_000_000_000
BACKLOG = 64
"""Batches between follower and archive; then the follower waits, and holes are fetched later."""
MAX_QUERIES = 32
"""Queries under way or waiting; one more is refused."""


async def analyze(
    settings: Settings, *, environ: Mapping[str, str], started: Callable[[str], None]
) -> None:
    """Run the analyzer until cancelled.

    Raises:
        SettingsError, StorageError, RefusedError: it cannot start; the sentence says what to do.
    """
    where = places(environ)
    selector = selectors.parse(settings.select)
    prepare(where, settings.group)
    path = settings.archive or where.archive
    with claim(where.run / "analyzer.lock", "analyzer"):
        archive = Archive.open(path, settings)
        context = sockets.context()
        try:
            analyzer = Analyzer(archive, settings, Plan.of(settings, selector))
            link = Link(context, where, archive.archive_id, settings.lease_ms, archive.starts)
            mode = 0o660 if settings.group else 0o600
            channel = sockets.listen(context, where.query, mode=mode)
            started(f"archives into {path}, selects by {settings.select}, answers SQL at {where.query}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(analyzer.follow, context, where, link)
                tasks.start_soon(link.run, analyzer.ask(link))
                tasks.start_soon(analyzer.answer_queries, channel, link)
        finally:
            archive.close()
            context.destroy(linger=0)
