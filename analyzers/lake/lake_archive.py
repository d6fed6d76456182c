"""Frames of the parts of a site and derived rows, archived in a lake exactly once.

    frames, batches of the outbox -> rows, as in a file -> one commit: rows in Parquet, positions of logs and
                                                           streams, epochs

One commit has all that a process holds. PostgreSQL stores all of it or nothing (`fencing.sql`). Another
process that takes a part over makes a later commit of it fail. After an error `recover` finds out whether
the commit was stored, connects again, and leaves the archive ready for the next try.

A host that changes its part sends its log again to another process. That knows from PostgreSQL how far it is
archived, and reads the open bins from the lake with the first commit of it.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from analyzers.archive.frame_reader import FrameReader, Log
from analyzers.archive.incoming import IncomingTables
from analyzers.archive.opening import THREADS, Connection, storing
from analyzers.archive.rollups import instruction_rollup
from analyzers.archive.rollups.rollup import Placing, restore
from analyzers.archive.row_writer import RowWriter
from analyzers.archive.rows import columns
from analyzers.archive.store import Received
from analyzers.lake.catalog import LAKE, attach, check, why
from analyzers.leases.site_leases import OutboxBatch, SiteLease, SiteLeases, unpack
from analyzers.results.rows import Row
from analyzers.results.table import Table
from zeus_stream.errors import MalformedError, RefusedError, StorageError
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.settings import Settings

BOUNDED = {"windows": "begin_ns", "metrics": "t_ns"}
"""Tables that grow with the steps, and a column by which files are skipped that have no row of a batch."""

_log = logging.getLogger(__name__)


def frames_of(part: int) -> str:
    """Return the name of the lease of a part's frames."""
    return f"frames-{part}"


class LakeArchive:
    """A lake, as the holder of some parts of a site writes it. A `Target` of its row writer."""

    name = LAKE

    def __init__(self, dsn: str, settings: Settings, leases: SiteLeases) -> None:
        """Open a lake for leases that are taken later. Raises StorageError."""
        self._dsn, self._settings, self._leases = dsn, settings, leases
        self._logs: dict[str, Log] = {}
        self._connection = _connect(dsn, settings)
        self._incoming = IncomingTables(self._connection)
        reader = FrameReader(self.cursor, self._logs, LAKE)
        try:
            self.writer = RowWriter(self._connection, self, reader, self._logs)
        except duckdb.Error as wrong:
            self.close()
            raise StorageError(f"{LAKE}: could not be opened: {why(str(wrong))}") from wrong
        self.writer.placing = Placing()
        self._placed: set[str] = set()
        """Logs whose open bins are known."""
        self.held: dict[str, SiteLease] = {}
        self._until: dict[str, int] = {}
        """Of the commit under way: where the streams of parts go on."""
        self._batches: list[int] = []
        self._declared: dict[str, object] = {}
        """What the commit under way changes beside rows: positions of logs, and batches of the outbox."""
        self.malformed_batches = 0

    def close(self) -> None:
        self._connection.close()

    # ---- leases

    def hold(self, taken: Sequence[SiteLease]) -> None:
        """Write for these leases too from now on. Raises StorageError."""
        self.look_up()
        self.held |= {lease.name: lease for lease in taken}

    def look_up(self) -> None:
        """Take in how far each log of the site is archived, by whatever process. Raises StorageError."""
        for log_id, position in self._leases.log_positions().items():
            log = Log(*position)
            if self._logs.get(log_id) != log:
                self._logs[log_id] = log
                self._placed.discard(log_id)

    def drop(self, names: Iterable[str]) -> None:
        """Write for these leases no more: other processes have them."""
        for name in names:
            self.held.pop(name, None)

    def move(self, name: str, following: int) -> None:
        """Let the stream of a part go on at another message, without a row. Raises StorageError."""
        held = self.held[name]
        self._leases.move(name, held.epoch, following)
        self.held[name] = SiteLease(name, held.epoch, following)

    def next_offsets(self) -> dict[str, int]:
        return {log_id: log.next_offset for log_id, log in self._logs.items()}

    # ---- commits

    def put_stream(
        self, received: Sequence[Received], until: Mapping[str, int], batches: Sequence[OutboxBatch] = ()
    ) -> None:
        """Store what was received and derived, and where the streams of parts go on, in one commit.

        ``until``: by the lease of a part, the next sequence number. ``batches``: of the outbox; they leave
        it. Raises StorageError: it could not be stored, or a part was taken; call `recover`. RefusedError: a
        frame is missing before another.
        """
        self._until, self._batches = dict(until), [batch.number for batch in batches]
        assert self.writer.placing is not None
        if any(isinstance(part, Break) for part in received):
            self.look_up()
            received = [part for each in received for part in self._still_missing(each)]
        self._place([frame for part in received if not isinstance(part, Break) for frame, _ in part])
        before = deepcopy(self.writer.placing)
        try:
            self.writer.put(received, self._rows(batches), replaying=True)
        except BaseException:
            self.writer.placing = before
            raise

    def _still_missing(self, part: Received) -> Iterator[Received]:
        """Yield what was received; of a break, what no other process has archived since."""
        if not isinstance(part, Break) or (log := self._logs.get(part.log_id)) is None:
            yield part
        elif (count := part.first_offset + part.count - max(part.first_offset, log.next_offset)) > 0:
            yield Break(part.log_id, part.first_offset + part.count - count, count, part.reason)

    def _place(self, frames: Sequence[Frame]) -> None:
        """Read the open bins of these frames' hosts from the lake, unless they are known."""
        hosts, logs = {frame.host for frame in frames}, {frame.log_id for frame in frames}
        fresh = {
            log_id: log
            for log_id, log in self._logs.items()
            if (log.host in hosts or log_id in logs) and log_id not in self._placed
        }
        if fresh:
            assert self.writer.placing is not None
            self.writer.placing.include(restore(FrameReader(self.cursor, fresh, LAKE)))
        self._placed |= fresh.keys() | logs

    def recover(self) -> bool:
        """Be ready again after a commit that failed. Leases that were lost are dropped.

        Return True if it was stored, and only its answer was lost. Raises StorageError: call it again.
        """
        with suppress(duckdb.Error):
            self._connection.close()
        self._leases.close()  # its connection may have ended with the server
        self._connection = _connect(self._dsn, self._settings)
        self._incoming = IncomingTables(self._connection)
        positions = self._leases.positions_of({name: lease.epoch for name, lease in self.held.items()})
        self.drop([name for name in self.held if name not in positions])
        stored = any(positions.get(name) == end for name, end in self._until.items())
        self.look_up()
        self.held = {name: SiteLease(name, lease.epoch, positions[name]) for name, lease in self.held.items()}
        return stored

    def _rows(self, batches: Sequence[OutboxBatch]) -> list[Row]:
        rows: list[Row] = []
        for batch in batches:
            try:
                rows += unpack(batch.body)
            except MalformedError as wrong:
                self.malformed_batches += 1
                _log.warning("rows: a batch of shard %d is left out: %s", batch.shard, wrong)
        return rows

    # ---- the target of the writer

    def in_order(self, readings: pa.Table) -> pa.Table:
        """Return readings by GPU and time, as the lake has them."""
        return columns.by_gpu(readings)

    def bounds(self, table: Table, incoming: pa.Table) -> str:
        """Return a condition by which files are skipped that have no row of a commit."""
        if (column := BOUNDED.get(table.name)) is None:
            return "true"
        ends = pc.min_max(incoming[column]).as_py()
        return f"{table.name}.{column} BETWEEN {ends['min']} AND {ends['max']}"

    def advance(
        self, connection: Connection, logs: Mapping[str, Log], interpreted: Mapping[str, int]
    ) -> None:
        """Store how far logs are stored, and declare it."""
        if interpreted:
            raise RefusedError(
                "lake: could not store what was interpreted: a part holds frames only. Report it."
            )
        positions = [
            {
                "log_id": log_id,
                "host": log.host,
                "first": self._logs[log_id].next_offset if log_id in self._logs else 0,
                "next": log.next_offset,
                "logged_ns": log.logged_ns,
            }
            for log_id, log in logs.items()
        ]
        self._declared = {"logs": positions, "batches": self._batches}
        # As one text: DuckDB asks of each value in a list whether it is one of pandas, and looks for pandas
        # in all of sys.path if it is not there.
        connection.execute(
            "INSERT INTO logs SELECT each ->> 'log_id', each ->> 'host', (each ->> 'next')::BIGINT,"
            " (each ->> 'logged_ns')::BIGINT, 0 FROM (SELECT unnest($1::JSON[]) AS each)",
            [json.dumps(positions)],
        )

    def add_rolled_up(self, connection: Connection, tables: Mapping[str, pa.Table]) -> None:
        """Leave the hours to the keeper: two writers of one hour would refuse each other."""
        if (name := instruction_rollup.MINUTES) in tables:
            connection.execute(f"INSERT INTO {name} BY NAME FROM incoming_{name}")

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        """Give a cursor in its own transaction. Raises StorageError."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"USE {LAKE}")
            cursor.execute("BEGIN")
            yield cursor
        except duckdb.Error as wrong:
            raise StorageError(f"{LAKE}: could not be read: {why(str(wrong))}") from wrong
        finally:
            cursor.close()

    @contextmanager
    def transaction(self, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
        """Give the connection in a transaction, with the tables there as ``incoming_NAME``."""
        could_not = f"{LAKE}: could not be written"
        try:
            with (
                self._incoming.named(tables),
                ExitStack() as until_stored,
                storing(self._connection, could_not, _why_not_stored) as connection,
            ):
                yield connection
                connection.execute(
                    f"CALL {LAKE}.set_commit_message($1, 'frames', extra_info => $2)",
                    [self._leases.holder, self._words()],
                )
                until_stored.enter_context(self._leases.committing())
        except duckdb.Error as wrong:  # DuckDB asks the catalog for the name of each incoming table
            raise StorageError(f"{could_not}: {_why_not_stored(str(wrong))}") from wrong
        for name, until in self._until.items():
            self.held[name] = SiteLease(name, self.held[name].epoch, until)
        self._until, self._batches = {}, []

    def _words(self) -> str:
        """Return what the fence reads. It knows a commit of ours by the first key."""
        parts = [
            {"name": name, "epoch": self.held[name].epoch, "from": self.held[name].next, "until": until}
            for name, until in self._until.items()
        ]
        declared = {"site": self._leases.site, "parts": parts, **self._declared}
        return json.dumps(declared, separators=(",", ":"))


def _why_not_stored(says: str) -> str:
    if "fenced off" in says:
        return (
            "another process has taken a part, or has stored the same. Nothing was stored twice; what is"
            " still held is tried again."
        )
    return f"{why(says)} What was received is not lost."


def _connect(dsn: str, settings: Settings) -> Connection:
    connection = attach(dsn, settings, threads=THREADS)
    try:
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection
