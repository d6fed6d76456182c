"""Everything that was received, and everything derived from it, in one DuckDB file.

One thread writes; each reader has a cursor of its own, in a read-only transaction. SQL from outside runs in a
forked child, which locks its DuckDB first (`confined_query`).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
from msgspec.structs import astuple

from analyzers.archive import schema
from analyzers.archive.frame_reader import FrameReader, Log
from analyzers.archive.memory_rows import read_checkpoint, read_memory
from analyzers.archive.open_file import OpenFile
from analyzers.archive.opening import (
    CHECKPOINT,
    NEVER,
    Connection,
    connect,
    damage,
    forget_freed,
    storing,
    why_not_stored,
)
from analyzers.archive.process.command_file import CommandFile
from analyzers.archive.rollups import instruction_rollup
from analyzers.archive.rollups.ended_runs import keep_ended
from analyzers.archive.rollups.retention import needed, prune
from analyzers.archive.rollups.rollup import add_hours
from analyzers.archive.row_writer import RowWriter
from analyzers.archive.seals.chain import Chain
from analyzers.archive.store import Received
from analyzers.results.memory import Memory
from analyzers.results.rows import CheckpointRow, Derived
from analyzers.results.table import Table
from zeus_stream.clock import anchor
from zeus_stream.errors import StorageError, without_passwords
from zeus_stream.settings import Settings, spelled

KEY_FILE = "seal.key"
"""Beside the archive: signs its seals."""

_log = logging.getLogger(__name__)


class DuckdbFile:
    """A `Store`: one DuckDB file. What raises StorageError has stored nothing and may be called again."""

    commands: CommandFile | None = None
    """None: rows that commands wait for are stored at once."""
    memory_mb: int
    """Of a file that is open for writing: the memory that DuckDB may use."""

    def __init__(self, file: OpenFile) -> None:
        """For `open` and `open_read_only`. Raises duckdb.Error."""
        self.file = file
        connection = file.connection
        [(self.archive_id, self.starts)] = connection.execute(
            "SELECT archive_id, starts FROM meta"
        ).fetchall()
        logs = {
            log_id: Log(host, next_offset, logged_ns)
            for log_id, host, next_offset, logged_ns in connection.execute(
                "SELECT log_id, host, next_offset, logged_ns FROM logs ORDER BY rowid"
            ).fetchall()
        }
        self.reader = FrameReader(file.cursor, logs, f"own-{self.archive_id}")
        chain = Chain(connection, self.archive_id, file.path.with_name(KEY_FILE))
        self.writer = RowWriter(connection, _FileTarget(file, logs, chain), self.reader, logs)
        self.position, self.replay = self.reader.position, self.reader.replay
        self.query, self.reading = file.query, file.reading

    @classmethod
    def open(cls, path: Path, settings: Settings, *, again: bool = False, checkpoints: bool = True) -> Self:
        """Open the archive for writing; make it if it is not there, migrate it from an earlier version.

        ``again``: this start is not counted twice. ``checkpoints``: in commits; else by `flush` alone. Raises
        StorageError: it is not ours, of another version, held by another process, or unreadable.
        """
        checkpoint = CHECKPOINT if checkpoints else NEVER
        connection = connect(path, settings, read_only=False, checkpoint=checkpoint)
        with ExitStack() as on_failure:
            on_failure.callback(connection.close)
            with storing(connection, f"{path}: could not be opened"):
                _make_or_migrate(connection, path)
                if not again:
                    connection.execute("UPDATE meta SET starts = starts + 1")
                    named = {name: without_passwords(text) for name, text in spelled(settings).items()}
                    connection.execute(
                        "INSERT INTO settings SELECT starts, unnest($1), unnest($2) FROM meta",
                        [list(named), list(named.values())],
                    )
            archive = cls._of(OpenFile(path, connection))
            archive.memory_mb = settings.memory_mb
            archive.put([])  # the settings of this start are chained
            on_failure.pop_all()
        return archive

    @classmethod
    def open_read_only(cls, path: Path, settings: Settings) -> Self:
        """Open an archive that no analyzer has open. Raises StorageError."""
        return cls._of(OpenFile.open_read_only(path, settings))

    @classmethod
    def _of(cls, file: OpenFile) -> Self:
        try:
            return cls(file)
        except duckdb.Error as wrong:
            file.close()
            raise StorageError(f"{file.path}: could not be opened: {damage(str(wrong))}") from wrong

    @property
    def path(self) -> Path:
        return self.file.path

    def wal_bytes(self) -> int:
        """Return how much `flush` would bring into the file."""
        try:
            return Path(f"{self.path}.wal").stat().st_size
        except FileNotFoundError:
            return 0

    def flush(self) -> None:
        """Bring the WAL into the file. No query child may live. Raises StorageError."""
        try:
            self.file.connection.execute("CHECKPOINT")
            forget_freed(self.file.connection, self.memory_mb)
        except duckdb.Error as wrong:
            raise StorageError(f"{self.path}: could not be written: {why_not_stored(str(wrong))}") from wrong

    def count_starts_from(self, least: int) -> None:
        """Count starts from at least this: collectors obey none with fewer than they know of this archive."""
        with storing(self.file.connection, f"{self.path}: could not be written") as connection:
            connection.execute("UPDATE meta SET starts = greatest(starts, $1)", [least])

    def keep_ended(self) -> None:
        """Store what is of the runs that ended since the last call. What fails is computed by each query."""
        if ended := self.writer.ended:
            try:
                with _transaction(self.file, {}) as connection:
                    keep_ended(connection, ended)
            except StorageError as wrong:
                _log.warning("%s Each query computes the waste of run %s.", wrong, ", ".join(sorted(ended)))
            ended.clear()

    # ---- a store ------------------------------------------------------------------------------------

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        self.writer.put(received, rows, interpreted, replaying=replaying)

    def memory(self, since: Mapping[str, int] | None = None, sessions: Sequence[str] = ()) -> Memory:
        return read_memory(self.reader, since, sessions)

    def checkpoint(self, name: str) -> CheckpointRow | None:
        with self.file.cursor() as cursor:
            return read_checkpoint(cursor, name)

    def prune(self, settings: Settings, wall_ns: int, code: str | None = None) -> dict[str, int]:
        return prune(lambda: _transaction(self.file, {}), settings, wall_ns, needed(self.reader, code))

    def close(self) -> None:
        """Close the file. Readers have to be done."""
        self.file.close()


class _FileTarget:
    """The database of a file, as rows are written into it."""

    def __init__(self, file: OpenFile, logs: Mapping[str, Log], chain: Chain) -> None:
        self._file = file
        self._logs = logs
        self._chain = chain
        self.name = str(file.path)

    @contextmanager
    def transaction(self, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
        with _transaction(self._file, tables) as connection:
            yield connection
            chained = self._chain.add(connection, tables, anchor().wall_ns)
        self._chain.state = chained

    def advance(
        self, connection: Connection, logs: Mapping[str, Log], interpreted: Mapping[str, int]
    ) -> None:
        for log_id, log in logs.items():
            row = [log_id, *astuple(log), interpreted.get(log_id, 0)]
            if log_id in self._logs:
                connection.execute(
                    "UPDATE logs SET host = $2, next_offset = $3, logged_ns = $4,"
                    " interpreted_offset = greatest(interpreted_offset, $5) WHERE log_id = $1",
                    row,
                )
            else:
                connection.execute("INSERT INTO logs VALUES ($1, $2, $3, $4, $5)", row)
        for log_id in interpreted.keys() - logs.keys():
            connection.execute(
                "UPDATE logs SET interpreted_offset = greatest(interpreted_offset, $2) WHERE log_id = $1",
                [log_id, interpreted[log_id]],
            )

    def add_rolled_up(self, connection: Connection, tables: Mapping[str, pa.Table]) -> None:
        if "minutes" in tables:
            add_hours(connection)
        if instruction_rollup.MINUTES in tables:
            instruction_rollup.merge(connection)

    def in_order(self, readings: pa.Table) -> pa.Table:
        return readings

    def bounds(self, table: Table, incoming: pa.Table) -> str:  # noqa: ARG002  (a file is read whole)
        return "true"


@contextmanager
def _transaction(file: OpenFile, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
    """Give the writer's connection in a transaction, with the tables there as ``incoming_NAME``."""
    with file.incoming.named(tables), storing(file.connection, f"{file.path}: could not be written"):
        yield file.connection


def _make_or_migrate(connection: Connection, path: Path) -> None:
    version = schema.found_version(connection, path)
    if version is None:
        schema.make(connection)
    elif version != schema.newest():
        schema.migrate(connection, version)
