"""Everything that was received, and everything derived from it, in one DuckDB file.

    frames --put--> readings, events, frames, ...   } one transaction with logs.next_offset
    Break  --put--> gaps                            } and logs.interpreted_offset
    rows   --put--> windows, runs, trials, ...      }

A frame is stored once, whatever is handed over again. Derived rows have keys: a repeat replaces. One
thread writes; each reader has a cursor of its own, in a read-only transaction. SQL from outside runs in a
forked child, which locks its DuckDB first (`query_process`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from msgspec.structs import astuple, replace

from analyzers.archive import schema
from analyzers.archive.open_file import OpenFile
from analyzers.archive.opening import (
    CHECKPOINT,
    NEVER,
    Connection,
    connect,
    damage,
    first_line,
    not_written,
    storing,
)
from analyzers.archive.replay_source import Log
from analyzers.archive.rollups import instruction_rollup
from analyzers.archive.rollups.ended_savings import keep_ended
from analyzers.archive.rollups.placing import Placing, add_hours, restore
from analyzers.archive.rollups.retention import Retained
from analyzers.archive.rows import columns
from analyzers.archive.rows.event_rows import EventRows, event_rows
from analyzers.archive.rows.tables import COLUMNS, COMPUTED, TABLES, Values, values_of
from analyzers.archive.store import Received
from analyzers.results.rows import Row, WindowRow
from analyzers.results.table import Table
from analyzers.results.windows.step_columns import Derived, each_row
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.frames import Body, Break, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.pipelines import IterationRan
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings, spelled


class Archive(OpenFile, Retained):
    """One DuckDB file of ours.

    Every method that stores raises StorageError when it could not, and then has stored nothing: the same
    may be handed over again.
    """

    archive_id: str
    """UUID."""
    starts: int
    """The number of times that the file was opened for writing, this time included."""

    def __init__(self, path: Path, connection: Connection) -> None:
        """For `open` and `open_read_only`. Raises duckdb.Error."""
        super().__init__(path, connection)
        [(self.archive_id, self.starts)] = connection.execute(
            "SELECT archive_id, starts FROM meta"
        ).fetchall()
        self._logs = {
            log_id: Log(host, next_offset, logged_ns)
            for log_id, host, next_offset, logged_ns in connection.execute(
                "SELECT log_id, host, next_offset, logged_ns FROM logs ORDER BY rowid"
            ).fetchall()
        }
        last = connection.execute("SELECT last(log_id ORDER BY rowid) FROM turns").fetchall()
        self._turn: str | None = last[0][0]
        """The log whose frames came last."""
        self._schemas = {
            name: connection.sql(f"FROM {name} LIMIT 0").to_arrow_table().schema
            for name in ("frames", "events", "hosts", "turns", *(table.name for table in TABLES.values()))
        }
        self.malformed = 0
        """Readings that were no rows; their bytes are in ``frames``."""
        self._placing: Placing | None = None
        """None: to be read from what is stored."""

    @classmethod
    def open(
        cls, path: Path, settings: Settings, *, again: bool = False, checkpoints: bool = True
    ) -> "Archive":
        """Open the archive for writing; make it if it is not there, migrate it from an earlier version.

        Args:
            path: of the file.
            settings: of this start.
            again: it was open before in this start: the start is not counted twice.
            checkpoints: by itself, in a commit; else by `checkpoint` alone.

        Raises:
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
                    names_and_values = [list(part) for part in zip(*spelled(settings).items(), strict=True)]
                    connection.execute(
                        "INSERT INTO settings SELECT starts, unnest($1), unnest($2) FROM meta",
                        names_and_values,
                    )
            try:
                archive = cls(path, connection)
            except duckdb.Error as wrong:
                raise StorageError(f"{path}: could not be opened: {damage(str(wrong))}") from wrong
            on_failure.pop_all()
        return archive

    def wal_bytes(self) -> int:
        """Return how much a checkpoint would bring into the file."""
        try:
            return Path(f"{self.path}.wal").stat().st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> None:
        """Bring the WAL into the file. No query child may live. Raises StorageError."""
        try:
            self._connection.execute("CHECKPOINT")
        except duckdb.Error as wrong:
            raise not_written(f"{self.path}: could not be written", wrong) from wrong

    # ---- what was received --------------------------------------------------------------------------

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] | Values = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Store what was received and what was derived from it, in one transaction.

        Args:
            received: frames, in order for each log, each with its body decoded (None for one that cannot
                be: its bytes are kept); and breaks in their place. Frames that are stored already are
                skipped.
            rows: of one key, the last counts; or their values.
            interpreted: for each log, the offset to be interpreted next; it is never lowered.
            replaying: rows of all kinds may be stored already; otherwise only those that have a state.

        Raises:
            RefusedError: a frame is missing before another; put the `Break` in its place that is gone for
                good.
        """
        logs: dict[str, Log] = {}
        fresh: list[tuple[Frame, Body | EventRows | None]] = []
        gaps = []
        for part in received:
            if isinstance(part, Break):
                gaps.append(self._gap(part, logs))
            else:
                fresh += self._fresh(part, logs)
        placing = self._placing or restore(self, self._logs)
        self._placing = None  # a commit that fails leaves the open bins as they were stored
        try:
            tables = self._received_tables(fresh, placing) if fresh else {}
            derived = self._derived_tables(rows, replaying=replaying)
        except (OverflowError, pa.ArrowException) as wrong:
            raise StorageError(
                f"{self.path}: could not be written: a value fits into no column, {first_line(str(wrong))}."
                " Report it: nothing that comes in should have such a value."
            ) from wrong
        turn = fresh[-1][0].log_id if fresh else self._turn
        with self._transaction(tables | derived) as connection:
            for gap in gaps:
                # A follower that was stopped right after a gap finds the same gap again.
                connection.execute("DELETE FROM gaps WHERE log_id = ? AND first_offset = ?", gap[-2:])
                connection.execute("INSERT INTO gaps VALUES ($1, 'frames', $2, $3, $4, $5, $6)", gap)
            for name in tables:
                if name != "instruction_minutes":
                    connection.execute(f"INSERT INTO {name} BY NAME FROM incoming_{name}")
            if "minutes" in tables:
                self._add_hours()
            if "instruction_minutes" in tables:
                self._add_instructions()
            self._put_derived(derived, replaying=replaying)
            keep_ended(connection, derived)
            self._advance(logs, interpreted or {})
        self._logs |= logs
        self._turn = turn
        self._placing = placing

    def put_frames(self, frames: Sequence[tuple[Frame, Body | EventRows | None]]) -> None:
        """Store frames; see `put`."""
        self.put([frames])

    def put_rows(self, rows: Sequence[Derived], interpreted: Mapping[str, int], *, replaying: bool) -> None:
        """Store derived rows, and how far each log is interpreted with them; see `put`."""
        self.put([], rows, interpreted, replaying=replaying)

    def _received_tables(
        self, fresh: Sequence[tuple[Frame, Body | EventRows | None]], placing: Placing
    ) -> dict[str, pa.Table]:
        """Return the rows of frames by the table that they go into."""
        placed = placing.place(fresh)
        readings: list[tuple[Frame, Readings]] = []
        utc_ns: list[int | None] = []
        kept: list[Frame] = []
        events: list[tuple[Frame, EventRows]] = []
        ran: list[tuple[str, IterationRan, int]] = []
        anchors: list[tuple[Any, ...]] = []
        for (frame, body), place in zip(fresh, placed, strict=True):
            match body:
                case Readings() if place.body is not None:
                    readings.append((frame, body))
                    utc_ns.append(place.utc_ns)
                    continue
                case Events() | EventRows():
                    of_frame = body if isinstance(body, EventRows) else _rows_of(body)
                    events.append((frame, of_frame))
                    if place.utc_ns is not None:
                        ran += [(body.session, each, place.utc_ns) for each in of_frame.iterations]
                case Notes():
                    anchors += columns.anchor_rows(frame, body)
                case Readings():
                    self.malformed += 1
                case None:
                    pass
            kept.append(frame)
        turns, turn = [], self._turn
        for frame, _ in fresh:
            if frame.log_id != turn:
                turn = frame.log_id
                turns.append((turn, frame.offset))
        incoming = {"hosts": anchors, "turns": turns}
        tables = {
            name: columns.columnar(self._schemas[name], rows) for name, rows in incoming.items() if rows
        }
        if kept:
            tables["frames"] = columns.from_frames(self._schemas["frames"], kept)
        if any(of_frame.end > of_frame.first for _, of_frame in events):
            tables["events"] = columns.from_events(self._schemas["events"], events)
        if readings:
            tables["readings"] = columns.from_readings(readings, utc_ns)
        tables |= instruction_rollup.roll_up(ran)
        return tables | placing.rollups.add(placed)

    def _gap(self, gap: Break, logs: dict[str, Log]) -> list[Any]:
        """Return the row of a break, and let its log go on after it."""
        known = logs.get(gap.log_id) or self._logs.get(gap.log_id, Log(None, gap.first_offset, None))
        end = gap.first_offset + gap.count
        logs[gap.log_id] = replace(known, next_offset=max(known.next_offset, end))
        return [known.host, known.logged_ns, gap.count, gap.reason, gap.log_id, gap.first_offset]

    def _fresh(
        self, frames: Sequence[tuple[Frame, Body | EventRows | None]], logs: dict[str, Log]
    ) -> list[tuple[Frame, Body | EventRows | None]]:
        """Return the frames that are not stored yet, and put into ``logs`` where they end."""
        fresh = []
        for frame, body in frames:
            log = logs.get(frame.log_id) or self._logs.get(frame.log_id)
            # Of a log never seen before, any frame may be the first: older ones had left the log.
            next_offset = frame.offset if log is None else log.next_offset
            if frame.offset < next_offset:
                continue
            if frame.offset > next_offset:
                raise RefusedError(
                    f"{self.path}: could not store frame {frame.offset} of log {frame.log_id}: frame"
                    f" {next_offset} comes next. Fetch what is missing, or store a gap in its place."
                )
            logs[frame.log_id] = Log(frame.host, frame.offset + 1, frame.t_ns)
            fresh.append((frame, body))
        return fresh

    def _advance(self, logs: Mapping[str, Log], interpreted: Mapping[str, int]) -> None:
        """Store how far logs are stored and interpreted, within the transaction of `put`."""
        for log_id, log in logs.items():
            row = [log_id, *astuple(log), interpreted.get(log_id, 0)]
            if log_id in self._logs:
                self._connection.execute(
                    "UPDATE logs SET host = $2, next_offset = $3, logged_ns = $4,"
                    " interpreted_offset = greatest(interpreted_offset, $5) WHERE log_id = $1",
                    row,
                )
            else:
                self._connection.execute("INSERT INTO logs VALUES ($1, $2, $3, $4, $5)", row)
        for log_id in interpreted.keys() - logs.keys():
            self._connection.execute(
                "UPDATE logs SET interpreted_offset = greatest(interpreted_offset, $2) WHERE log_id = $1",
                [log_id, interpreted[log_id]],
            )

    def _add_hours(self) -> None:
        """Add the incoming minutes to their hours, within the transaction of `put`."""
        add_hours(self._connection)

    def _add_instructions(self) -> None:
        """Add the incoming instructions to their minutes, within the transaction of `put`."""
        instruction_rollup.merge(self._connection)

    # ---- what was derived ---------------------------------------------------------------------------

    def _derived_tables(self, rows: Sequence[Derived] | Values, *, replaying: bool) -> dict[str, pa.Table]:
        """Return derived rows by the table that they go into."""
        tables, (values, steps) = {}, rows if isinstance(rows, Values) else values_of(rows)
        if replaying and steps:  # a row may replace one that is in columns
            values = {
                **values,
                WindowRow: [*values_of(each_row(steps)).of[WindowRow], *values.get(WindowRow, ())],
            }
            steps = ()
        for kind, table in TABLES.items():
            chosen = values.get(kind, ())
            if table.replaces or replaying:
                key = itemgetter(*map(COLUMNS[kind].index, table.key))
                chosen = list({key(row): row for row in chosen}.values())
            if chosen:
                tables[table.name] = columns.columnar(self._schema_of(kind), chosen)
        if steps:
            of_steps = columns.from_steps(self._schema_of(WindowRow), steps)
            others = tables.get("windows")
            tables["windows"] = of_steps if others is None else pa.concat_tables([others, of_steps])
        return tables

    def _schema_of(self, kind: type[Row]) -> pa.Schema:
        """Return the schema of rows of a class; of windows, which come by the thousand, with dictionaries."""
        schema = pa.schema([self._schemas[kind.TABLE.name].field(name) for name in COLUMNS[kind]])
        return columns.worded(schema) if kind is WindowRow else schema

    def _put_derived(self, tables: Mapping[str, pa.Table], *, replaying: bool) -> None:
        for table in TABLES.values():
            if (name := table.name) not in tables:
                continue
            if table.replaces or replaying:
                same = self._replaced(table, tables[name])
                self._connection.execute(
                    f"DELETE FROM {name} USING incoming_{name} AS incoming WHERE {same}"  # noqa: S608  (our own names)
                )
            self._connection.execute(
                f"INSERT INTO {name} BY NAME {COMPUTED.get(name, f'FROM incoming_{name}')}"
            )

    def _replaced(self, table: Table, incoming: pa.Table) -> str:  # noqa: ARG002  (of a lake it bounds what is read)
        """Return the condition for a stored row that one of ``incoming`` replaces."""
        same = (f"{table.name}.{part} IS NOT DISTINCT FROM incoming.{part}" for part in table.key)
        return " AND ".join(same)

    @contextmanager
    def _transaction(self, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
        """Give the writer's connection in a transaction, with the tables there as ``incoming_NAME``."""
        for name, table in tables.items():
            self._connection.register(f"incoming_{name}", table)
        try:
            with storing(self._connection, f"{self.path}: could not be written"):
                yield self._connection
        finally:
            for name in tables:
                self._connection.unregister(f"incoming_{name}")


def _make_or_migrate(connection: Connection, path: Path) -> None:
    version = schema.found_version(connection, path)
    if version is None:
        schema.make(connection)
    elif version != schema.newest():
        schema.migrate(connection, version)


def _rows_of(body: Events) -> EventRows:
    shared, [fields] = event_rows([body])
    assert fields is not None
    return EventRows(shared, *fields)
