"""Archive derived rows of all shards: from the outbox of the analyzers into the lake.

    zs.outbox -> batches, in their order -> one commit every COMMIT_S, which takes them out of the outbox

One process of a site does it, as holder of ``rows``.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from anyio.to_thread import run_sync

from analyzers.archive.rollups.placing import Placing
from analyzers.lake.holders import ROWS, TTL_S, Batch, Held, Holders
from analyzers.lake.lake_archive import LakeArchive
from analyzers.lake.outbox import unpack
from analyzers.results.rows import Row
from analyzers.results.table import Table
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import MalformedError, StorageError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from analyzers.archive.opening import Connection
    from analyzers.archive.replay_source import Log

COMMIT_S = 3.0
"""Between two commits."""
COMMIT_BYTES = 16 << 20
"""Of batches in one commit, at most; while more wait, commits follow each other."""
RETRY_S = 1.0
BOUNDED = {"windows": "begin_ns", "metrics": "t_ns"}
"""Tables that grow with the steps, and a column by which files are skipped that have no row of a batch."""

_log = logging.getLogger(__name__)


class RowArchive(LakeArchive):
    """A lake, as the holder of the outbox writes it."""

    def __init__(self, connection: "Connection", holders: Holders, held: Held) -> None:
        """For `take`."""
        super().__init__(connection, holders, held)
        self._placing = Placing()  # it stores no frames
        self._batches: list[int] = []
        self.malformed_batches = 0

    def waiting(self) -> list[Batch]:
        """Return the first batches of the outbox. Raises StorageError."""
        return self._holders.outbox(COMMIT_BYTES)

    def put_batches(self, batches: Sequence[Batch]) -> None:
        """Store the rows of batches, and take these out of the outbox, in one commit.

        Raises:
            StorageError: it could not be stored, or another process has taken the outbox over.
        """
        rows: list[Row] = []
        for batch in batches:
            try:
                rows += unpack(batch.body)
            except MalformedError as wrong:
                self.malformed_batches += 1
                _log.warning("rows: a batch of shard %d is left out: %s", batch.shard, wrong)
        self._batches = [batch.number for batch in batches]
        self._until = self.held.next + 1
        self.put([], rows, replaying=True)

    def _advance(self, logs: "Mapping[str, Log]", interpreted: Mapping[str, int]) -> None:  # noqa: ARG002  (it has none)
        self._declared = {"batches": self._batches}

    def _replaced(self, table: Table, incoming: pa.Table) -> str:
        same = super()._replaced(table, incoming)
        if (column := BOUNDED.get(table.name)) is None:
            return same
        ends = pc.min_max(incoming[column]).as_py()
        return f"{same} AND {table.name}.{column} BETWEEN {ends['min']} AND {ends['max']}"


async def keep_archiving_rows(dsn: str, holder: str, settings: Settings) -> None:
    """Hold the outbox whenever it is free, and archive it until cancelled."""
    trouble: str | None = None
    while True:
        try:
            archive = await run_sync(
                partial(RowArchive.take, dsn, settings, part=ROWS, holder=holder, renewing=True)
            )
            if archive is not None:
                trouble = None
                await _archive(archive)
        except StorageError as wrong:
            if str(wrong) != trouble:
                _log.warning("rows: %s", wrong)
            trouble = str(wrong)
        await anyio.sleep(RETRY_S)


async def _archive(archive: RowArchive) -> None:
    """Archive the outbox until another process has taken it."""
    renewed_ns = monotonic_ns()
    try:
        while True:
            batches = await run_sync(archive.waiting)
            if batches:
                await run_sync(archive.put_batches, batches)
            if sum(len(batch.body) for batch in batches) < COMMIT_BYTES // 2:
                await anyio.sleep(COMMIT_S)
            if (monotonic_ns() - renewed_ns) / 1e9 >= TTL_S / 4:
                if not await run_sync(archive.renew):
                    return
                renewed_ns = monotonic_ns()
    finally:
        with anyio.CancelScope(shield=True):
            await run_sync(archive.close)
