"""Remove from the archive what is older than it is kept, once an hour."""

import logging

import anyio
from anyio.to_thread import run_sync

from analyzers.archive.store import Ages, Store
from analyzers.checkpoints import state_classes
from zeus_stream.clock import anchor
from zeus_stream.settings import Settings

_log = logging.getLogger(__name__)

FIRST_S = 60.0
"""After the start, which has other things to do."""
EVERY_S = 3600.0


async def prune(store: Store, settings: Settings) -> None:
    """Remove old rows until cancelled. Commits wait in the meantime. Raises StorageError."""
    await anyio.sleep(FIRST_S)
    while True:
        removed = await run_sync(store.prune, Ages.of(settings), anchor().wall_ns, state_classes.version())
        if removed:
            _log.info("archive: removed %s.", words(removed))
        await anyio.sleep(EVERY_S)


def words(removed: dict[str, int]) -> str:
    """Return the number of rows removed by table, in words."""
    return ", ".join(f"{count} rows of {table}" for table, count in removed.items())
