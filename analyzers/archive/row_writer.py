"""Write what was received and what was derived from it, in one transaction.

    frames --put--> readings, events, frames, ...   } one transaction with logs.next_offset
    Break  --put--> gaps                            } and logs.interpreted_offset
    rows   --put--> windows, runs, trials, ...      }

A frame is stored once, whatever is handed over again. Derived rows have keys: a repeat replaces. Files and
lakes differ in what a `Target` says.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa
from msgspec.structs import astuple, replace

from analyzers.archive.frame_reader import FrameReader, Log
from analyzers.archive.opening import Connection, first_line
from analyzers.archive.rollups import instruction_rollup
from analyzers.archive.rollups.ended_runs import forget_changed, keep_ended
from analyzers.archive.rollups.rollup import Placing, restore
from analyzers.archive.rows import columns
from analyzers.archive.rows.event_rows import EventRows, event_rows
from analyzers.archive.rows.tables import COLUMNS, TABLES, insertion, values_of
from analyzers.archive.store import Received
from analyzers.results.rows import Derived, Row, StepColumns, WindowRow, each_row
from analyzers.results.table import Table
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.frames import Body, Break, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.pipelines import IterationRan
from zeus_stream.protocol.readings import Readings

Fresh = Sequence[tuple[Frame, Body | EventRows | None]]
"""Frames that are not stored yet."""


class Target(Protocol):
    """The database that rows are written into."""

    @property
    def name(self) -> str:
        """The subject of an error's sentence."""

    def transaction(self, tables: Mapping[str, pa.Table]) -> AbstractContextManager[Connection]:
        """Give the connection in a transaction; the tables are ``incoming_NAME``. Raises StorageError."""

    def advance(
        self, connection: Connection, logs: Mapping[str, Log], interpreted: Mapping[str, int]
    ) -> None:
        """Store how far logs are stored and interpreted, within the transaction."""

    def add_rolled_up(self, connection: Connection, tables: Mapping[str, pa.Table]) -> None:
        """Add the incoming minutes to what they are a part of, within the transaction."""

    def in_order(self, readings: pa.Table) -> pa.Table:
        """Return readings in the order in which they are stored."""

    def bounds(self, table: Table, incoming: pa.Table) -> str:
        """Return a condition that stored rows meet which an incoming one replaces: it bounds what is read."""


class RowWriter:
    """Writes rows into one database. For one thread."""

    def __init__(
        self, connection: Connection, target: Target, reader: FrameReader, logs: dict[str, Log]
    ) -> None:
        """``target``: the database of ``connection``. ``logs``: where each goes on; changed by each `put`."""
        self._target = target
        self._reader = reader
        self._logs = logs
        last = connection.execute("SELECT last(log_id ORDER BY rowid) FROM turns").fetchall()
        self._turn: str | None = last[0][0]
        """The log whose frames came last."""
        self._schemas = {
            name: connection.sql(f"FROM {name} LIMIT 0").to_arrow_table().schema
            for name in ("frames", "events", "hosts", "turns", *(table.name for table in TABLES.values()))
        }
        self.malformed = 0
        """Readings that were no rows; their bytes are in ``frames``."""
        self.ended: set[str] | None = None
        """Runs that ended, to be kept after the commit. None: they are kept in it."""
        self.placing: Placing | None = None
        """None: to be read from what is stored."""

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Store all of it or nothing; see `Store.put`."""
        logs: dict[str, Log] = {}
        fresh: list[tuple[Frame, Body | EventRows | None]] = []
        gaps = []
        for part in received:
            if isinstance(part, Break):
                gaps.append(self._gap(part, logs))
            else:
                fresh += self._fresh(part, logs)
        placing = self.placing
        self.placing = None  # a commit that fails leaves the open bins as they were stored
        try:
            tables: dict[str, pa.Table] = {}
            if fresh:
                placing = placing or restore(self._reader)
                tables = self._received_tables(fresh, placing)
            derived = self._derived_tables(rows, replaying=replaying)
        except (OverflowError, pa.ArrowException) as wrong:
            raise StorageError(
                f"{self._target.name}: could not be written: a value fits into no column,"
                f" {first_line(str(wrong))}. Report it: nothing that comes in should have such a value."
            ) from wrong
        turn = fresh[-1][0].log_id if fresh else self._turn
        with self._target.transaction(tables | derived) as connection:
            for gap in gaps:
                # A follower that was stopped right after a gap finds the same gap again.
                connection.execute("DELETE FROM gaps WHERE log_id = ? AND first_offset = ?", gap[-2:])
                connection.execute("INSERT INTO gaps VALUES ($1, 'frames', $2, $3, $4, $5, $6)", gap)
            for name in tables:
                if name != instruction_rollup.MINUTES:
                    connection.execute(f"INSERT INTO {name} BY NAME FROM incoming_{name}")
            self._target.add_rolled_up(connection, tables)
            self._put_derived(connection, derived, replaying=replaying)
            changed = forget_changed(connection, derived)
            if self.ended is None:
                keep_ended(connection, changed)
            self._target.advance(connection, logs, interpreted or {})
        if self.ended is not None:
            self.ended.update(changed)
        self._logs |= logs
        self._turn = turn
        self.placing = placing

    # ---- what was received --------------------------------------------------------------------------

    def _gap(self, gap: Break, logs: dict[str, Log]) -> list[Any]:
        """Return the row of a break, and let its log go on after it."""
        known = logs.get(gap.log_id) or self._logs.get(gap.log_id, Log(None, gap.first_offset, None))
        end = gap.first_offset + gap.count
        logs[gap.log_id] = replace(known, next_offset=max(known.next_offset, end))
        return [known.host, known.logged_ns, gap.count, gap.reason, gap.log_id, gap.first_offset]

    def _fresh(self, frames: Fresh, logs: dict[str, Log]) -> Fresh:
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
                    f"{self._target.name}: could not store frame {frame.offset} of log {frame.log_id}: frame"
                    f" {next_offset} comes next. Fetch what is missing, or store a gap in its place."
                )
            logs[frame.log_id] = Log(frame.host, frame.offset + 1, frame.t_ns)
            fresh.append((frame, body))
        return fresh

    def _received_tables(self, fresh: Fresh, placing: Placing) -> dict[str, pa.Table]:
        placed = placing.place(fresh)
        readings: list[tuple[Frame, Readings]] = []
        utc_ns: list[int | None] = []
        kept: list[Frame] = []
        events: list[tuple[Frame, EventRows]] = []
        ran: list[tuple[str, IterationRan, int]] = []
        anchors: list[tuple[Any, ...]] = []
        for (frame, body), place in zip(fresh, placed, strict=True):
            match body:
                case Readings() if place.body is not None and body.rows:
                    readings.append((frame, body))
                    utc_ns.append(place.utc_ns)
                    continue
                case Events() | EventRows():
                    of_frame = body if isinstance(body, EventRows) else event_rows(body)
                    events.append((frame, of_frame))
                    if place.utc_ns is not None:
                        ran += [(body.session, each, place.utc_ns) for each in of_frame.iterations]
                case Notes():
                    anchors += columns.anchor_rows(frame, body)
                case Readings():
                    self.malformed += place.body is None
                case None:
                    pass
            kept.append(frame)
        incoming = {"hosts": anchors, "turns": self._turns(fresh)}
        tables = {
            name: columns.columnar(self._schemas[name], rows) for name, rows in incoming.items() if rows
        }
        if kept:
            tables["frames"] = columns.columnar(self._schemas["frames"], list(map(astuple, kept)))
        if any(of_frame.rows for _, of_frame in events):
            tables["events"] = columns.from_events(self._schemas["events"], events)
        if readings:
            tables["readings"] = self._target.in_order(columns.from_readings(readings, utc_ns))
        tables |= instruction_rollup.roll_up(ran)
        return tables | placing.rollups.add(placed)

    def _turns(self, fresh: Fresh) -> list[tuple[str, int]]:
        """Return where frames of another log begin than those before."""
        turns, turn = [], self._turn
        for frame, _ in fresh:
            if frame.log_id != turn:
                turn = frame.log_id
                turns.append((turn, frame.offset))
        return turns

    # ---- what was derived ---------------------------------------------------------------------------

    def _derived_tables(self, rows: Sequence[Derived], *, replaying: bool) -> dict[str, pa.Table]:
        # a row that comes again may replace one that was in columns
        steps = () if replaying else [each for each in rows if isinstance(each, StepColumns)]
        values = values_of(each_row(each for each in rows if replaying or not isinstance(each, StepColumns)))
        tables = {}
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

    def _put_derived(
        self, connection: Connection, tables: Mapping[str, pa.Table], *, replaying: bool
    ) -> None:
        for table in TABLES.values():
            if (name := table.name) not in tables:
                continue
            if table.replaces or replaying:
                same = " AND ".join(
                    [f"{name}.{part} IS NOT DISTINCT FROM incoming.{part}" for part in table.key]
                )
                connection.execute(
                    f"DELETE FROM {name} USING incoming_{name} AS incoming"  # noqa: S608  (our own names)
                    f" WHERE {same} AND {self._target.bounds(table, tables[name])}"
                )
            connection.execute(insertion(table))
