"""The store of one shard: a file of this take-over, and the memory of the shard in PostgreSQL.

    put: epoch checked, memory kept and rows left for the lake in PostgreSQL, then everything in the file

The file begins empty with each take-over. What earlier runs left (profiles, tries of jobs) and the last
checkpoint are read from PostgreSQL; from there on the hosts' logs are interpreted. An analyzer that was
replaced cannot store, so none of its commands leaves.
"""

from collections.abc import Mapping, Sequence

from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.rows.tables import TABLES
from analyzers.archive.store import Received
from analyzers.leases.outbox import pack
from analyzers.leases.site_leases import Memory, SiteLeases
from analyzers.results.rows import CheckpointRow, GapRow, JobRow, ProfileRow, RecallRow, Row, TryRow
from analyzers.results.windows.step_columns import Derived
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol import codec

REMEMBERED: tuple[type[ProfileRow | RecallRow | JobRow | TryRow | CheckpointRow], ...] = (
    ProfileRow,
    RecallRow,
    JobRow,
    TryRow,
    CheckpointRow,
)
"""Rows that a run needs of earlier runs, or that a run which goes on elsewhere needs of itself."""


class ShardStore(StoreClient):
    """The store of a shard under one epoch. It is opened before it is known for which."""

    _lease: tuple[SiteLeases, int, int] | None = None
    _checkpoint: CheckpointRow | None = None
    """The last of the holder before; the file has nothing from before it."""
    _lost: Sequence[Row] = ()
    """Says what the lake will miss."""

    def bind(self, leases: SiteLeases, shard: int, epoch: int) -> None:
        """Read the memory of a shard into the file, which is new; store for it from now on.

        Raises:
            StorageError: the lease database or the file cannot be used.
        """
        rows = _rows(leases.remembered(shard))
        self._checkpoint = next((row for row in rows if isinstance(row, CheckpointRow)), None)
        if kept := [row for row in rows if not isinstance(row, CheckpointRow)]:
            super().put([], kept)
        self._lease = leases, shard, epoch

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Store all of it or nothing, as `Store.put` says.

        Raises:
            RefusedError: another analyzer has taken the shard over.
            StorageError: the lease database or the file cannot be written.
        """
        if self._lease is not None:
            leases, shard, epoch = self._lease
            lost, self._lost = self._lost, []
            gone = leases.remember(shard, epoch, _memories(rows), list(pack([*rows, *lost])))
            if gone:
                self._lost = [_gap(shard, gone)]
        super().put(received, rows, interpreted, replaying=replaying)

    def latest_checkpoint(self, name: str) -> CheckpointRow | None:
        """Return the last checkpoint of the holder before, if it has that name."""
        return self._checkpoint if self._checkpoint is not None and self._checkpoint.name == name else None

    def interpreted(self) -> dict[str, int]:
        """Return how far each log is interpreted: to the checkpoint."""
        row = self._checkpoint
        return super().interpreted() if row is None else dict(zip(row.log_ids, row.offsets, strict=True))

    def unfinished(self) -> tuple[str, ...]:
        """Return the sessions that were not measured to their end at the checkpoint."""
        return () if self._checkpoint is None else self._checkpoint.sessions

    def recalled(self, sessions: Sequence[str] | None = None) -> dict[tuple[str, int], RecallRow]:
        """Return what all runs remembered: it is not known which of them go on."""
        del sessions
        return super().recalled()


def _gap(shard: int, rows: int) -> GapRow:
    reason = "no archiver took them into the lake"
    return GapRow(f"shard-{shard}", "rows", monotonic_ns(), rows, reason)


def _memories(rows: Sequence[Derived]) -> list[Memory]:
    """Return the rows to be remembered; of one key the last."""
    found: dict[tuple[str, str], Memory] = {}
    for row in rows:
        if isinstance(row, REMEMBERED):
            kind, key = (
                type(row).__name__,
                "/".join(str(getattr(row, part)) for part in TABLES[type(row)].key),
            )
            found[kind, key] = Memory(kind, key, codec.encode_records([row]))
    return list(found.values())


def _rows(memories: Sequence[Memory]) -> list[Row]:
    """Return the rows of a memory; those of another version are left out."""
    rows: list[Row] = []
    for memory in memories:
        rows += [row for row in codec.decode_records(memory.body, REMEMBERED) if isinstance(row, REMEMBERED)]
    return rows
