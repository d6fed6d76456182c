"""Everything that was received, and everything derived from it, in one DuckDB file. The only file that
imports duckdb, but for the parser of others' SQL.

    frames  --put_frames-->  readings, events, frames, ...   } one transaction with logs.next_offset
    Break   --put_break-->   gaps                            }
    rows    --put_rows--->   windows, runs, trials, ...        one transaction with logs.interpreted_offset

A frame is stored once, whatever is handed over again. Derived rows have keys: a repeat replaces. One
thread writes; each reader has a cursor of its own, in a read-only transaction. SQL from outside runs in a
forked child, which locks its DuckDB first (`query_process`).
"""

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime
from importlib.resources import files
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import duckdb
import pyarrow as pa

from analyzers.archive import columns, query_process
from analyzers.archive.store import Begun, Question, Received
from analyzers.results.readings import well_formed
from analyzers.results.rows import (
    AtLimit,
    BudgetRow,
    CommandRow,
    DecisionRow,
    GapRow,
    GpuLimitRow,
    GpuRow,
    JobRow,
    MetricRow,
    ProfileRow,
    RationRow,
    RecallRow,
    Row,
    RunRow,
    SimulatedTryRow,
    SimulationRow,
    TrialRow,
    TryRow,
    WindowRow,
)
from zeus_stream.errors import MalformedError, RefusedError, StorageError
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings, read_back, spelled
from zeus_stream.transport.follower import Break

APPLICATION = "zeus-stream"
MIGRATIONS = ("schema.sql", "schema_2.sql")
"""Number n lifts a file from version n to n + 1; a new file is lifted from version 0, which is empty."""
REPLAYED_OFFSETS = 200
"""Frames of a log that are read at a time."""
LEAD_NS = 5_000_000_000
THREADS = 1
"""Of DuckDB: the writer and each query then work in the thread that calls. A second made a commit of 1000
readings slower by a fifth and no query faster, on two cores."""
_NO_THREADS = {"async_threads": 0} if int(duckdb.__version__.split(".")[0]) >= 2 else {}
"""A query runs in a fork: threads of DuckDB would not be there."""
CHECKPOINT = "16MiB"
"""The commit that passes it waits for the checkpoint: 0.1 s; for 256 MB it was 1 to 2 s."""
NEVER = "1024TiB"
_KEPT: tuple[type[Events | Notes], ...] = (Events, Notes)
"""Bodies that are kept as bytes."""

Connection = duckdb.DuckDBPyConnection
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Log:
    host: str | None
    next_offset: int
    logged_ns: int | None


class Reader:
    """A cursor that sees one snapshot and can change nothing. For one thread; others may interrupt it."""

    def __init__(self, cursor: Connection) -> None:
        self._cursor = cursor

    def batches(self, sql: str, rows: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema of an answer, and the answer, ``rows`` at a time. Both raise RefusedError."""
        with _refusing("query"):
            relation = self._cursor.sql(sql)
            reader = relation.to_arrow_reader(rows)

        def stream() -> Iterator[pa.RecordBatch]:
            with reader:
                while True:
                    with _refusing("query"):
                        try:
                            batch = reader.read_next_batch()
                        except StopIteration:
                            return
                    yield batch

        return reader.schema, stream()

    def interrupt(self) -> None:
        """End what is under way with a RefusedError. Does nothing when nothing is."""
        self._cursor.interrupt()


class Archive:
    """One DuckDB file of ours.

    Every method that stores raises StorageError when it could not, and then has stored nothing: the same
    may be handed over again.
    """

    archive_id: str
    """UUID."""
    starts: int
    """The number of times that the file was opened for writing, this time included."""
    path: Path

    def __init__(self, path: Path, connection: Connection) -> None:
        """For `open` and `open_read_only`."""
        self.path = path
        self._connection = connection
        [(self.archive_id, self.starts)] = connection.execute(
            "SELECT archive_id, starts FROM meta"
        ).fetchall()
        self._logs = {
            log_id: _Log(host, next_offset, logged_ns)
            for log_id, host, next_offset, logged_ns in connection.execute(
                "SELECT log_id, host, next_offset, logged_ns FROM logs ORDER BY rowid"
            ).fetchall()
        }
        last = connection.execute("SELECT last(log_id ORDER BY rowid) FROM turns").fetchall()
        self._turn: str | None = last[0][0]
        """The log that was heard last."""
        self._schemas = {
            name: connection.sql(f"FROM {name} LIMIT 0").to_arrow_table().schema
            for name in ("frames", "events", "hosts", "turns", *(table for table, _, _ in _DERIVED.values()))
        }
        self.malformed = 0
        """Readings that were no rows; their bytes are in ``frames``."""

    @classmethod
    def open(
        cls, path: Path, settings: Settings, *, again: bool = False, checkpoints: bool = True
    ) -> "Archive":
        """Open the archive for writing, make it if it is not there, lift it if it is of an older version.

        Args:
            path: of the file.
            settings: of this start.
            again: it was open before in this start: the start is not counted twice.
            checkpoints: by itself, in a commit; else by `checkpoint` alone.

        Raises:
            StorageError: it is not ours, of a newer version, held by another process, or unreadable.
        """
        checkpoint = CHECKPOINT if checkpoints else NEVER
        connection = _connect(path, settings, read_only=False, checkpoint=checkpoint)
        with ExitStack() as on_failure:
            on_failure.callback(connection.close)
            with _storing(connection, f"{path}: could not be opened"):
                _lift(connection, path)
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
                raise StorageError(f"{path}: could not be opened: {_damage(str(wrong))}") from wrong
            on_failure.pop_all()
        return archive

    @classmethod
    def open_read_only(cls, path: Path, settings: Settings) -> "Archive":
        """Open an archive that no analyzer has open. Raises StorageError."""
        if not path.exists():
            raise StorageError(
                f"{path}: could not be read: there is no such file."
                " Start `zeus-stream analyze` to make it, or name another with --archive."
            )
        connection = _connect(path, settings, read_only=True)
        with ExitStack() as on_failure:
            on_failure.callback(connection.close)
            version = _version(connection, path)
            if version != len(MIGRATIONS):
                raise StorageError(
                    f"{path}: could not be read: its schema is of version {version}, not {len(MIGRATIONS)}."
                    " Run `zeus-stream analyze` on it once, which lifts it."
                )
            try:
                archive = cls(path, connection)
            except duckdb.Error as wrong:
                raise StorageError(f"{path}: could not be opened: {_damage(str(wrong))}") from wrong
            on_failure.pop_all()
        return archive

    def close(self) -> None:
        """Close the file. Readers have to be done."""
        self._connection.close()

    def read_whole(self) -> list[tuple[str, datetime]]:
        """Read every table; return each host with the UTC of its last clock reading. Raises StorageError."""
        with self._cursor() as cursor:
            tables = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall()
            for (name,) in tables:
                cursor.execute(f"SELECT bit_xor(hash(t)) FROM {name} AS t").fetchall()  # noqa: S608  (our own)
            return cursor.execute(
                "SELECT host, make_timestamp(max(wall_ns) // 1000) FROM hosts GROUP BY host ORDER BY host"
            ).fetchall()

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
            raise _not_written(f"{self.path}: could not be written", wrong) from wrong

    def fork_query(self, question: Question, out: int) -> int:
        """Fork a child that answers a query into a pipe; return its pid (see `query_process`)."""
        return query_process.start(self._connection, self.path, question, out)

    def start_query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe by a child of this process; return what ends it."""
        pid = self.fork_query(question, out)
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                query_process.remove_scratch(self.path, pid)

        return end

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Give a reader, in its own read-only transaction. For any thread."""
        with self._cursor() as cursor:
            yield Reader(cursor)

    @contextmanager
    def _cursor(self) -> Iterator[Connection]:
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        except duckdb.Error as wrong:
            raise StorageError(f"{self.path}: could not be read: {_damage(str(wrong))}") from wrong
        finally:
            cursor.close()

    # ---- what was received --------------------------------------------------------------------------

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Row] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Store what was received and what was derived from it, in one transaction.

        Args:
            received: frames, in order for each log, each with its body decoded (None for one that cannot
                be: its bytes are kept); and breaks in their place. Frames that are stored already are
                skipped.
            rows: of one key, the last counts.
            interpreted: for each log, the offset to be interpreted next; it is never lowered.
            replaying: rows of all kinds may be stored already; otherwise only those that have a state.

        Raises:
            RefusedError: a frame is missing before another; put the `Break` in its place that is gone for
                good.
        """
        logs: dict[str, _Log] = {}
        fresh: list[tuple[Frame, Body | None]] = []
        gaps = []
        for part in received:
            if isinstance(part, Break):
                gaps.append(self._gap(part, logs))
            else:
                fresh += self._fresh(part, logs)
        try:
            tables = self._received_tables(fresh) if fresh else {}
            derived = self._derived_tables(rows, replaying=replaying)
        except (OverflowError, pa.ArrowException) as wrong:
            raise StorageError(
                f"{self.path}: could not be written: a value fits into no column, {_first_line(str(wrong))}."
                " Report it: nothing that comes in should have such a value."
            ) from wrong
        turn = fresh[-1][0].log_id if fresh else self._turn
        with self._transaction(tables | derived) as connection:
            for gap in gaps:
                # A follower that was stopped right after a gap finds the same gap again.
                connection.execute("DELETE FROM gaps WHERE log_id = ? AND first_offset = ?", gap[-2:])
                connection.execute("INSERT INTO gaps VALUES ($1, 'frames', $2, $3, $4, $5, $6)", gap)
            for name in tables:
                connection.execute(f"INSERT INTO {name} BY NAME FROM incoming_{name}")
            self._put_logs(logs)
            self._put_derived(derived, replaying=replaying)
            for log_id, offset in (interpreted or {}).items():
                connection.execute(
                    "UPDATE logs SET interpreted_offset = greatest(interpreted_offset, $2) WHERE log_id = $1",
                    [log_id, offset],
                )
        self._logs |= logs
        self._turn = turn

    def put_frames(self, frames: Sequence[tuple[Frame, Body | None]]) -> None:
        """Store frames; see `put`."""
        self.put([frames])

    def put_break(self, gap: Break) -> None:
        """Store that frames of a log are gone for good; see `put`."""
        self.put([gap])

    def put_rows(self, rows: Sequence[Row], interpreted: Mapping[str, int], *, replaying: bool) -> None:
        """Store derived rows, and how far each log is interpreted with them; see `put`."""
        self.put([], rows, interpreted, replaying=replaying)

    def _received_tables(self, fresh: Sequence[tuple[Frame, Body | None]]) -> dict[str, pa.Table]:
        """Return the rows of frames by the table that they go into."""
        readings: list[tuple[Frame, Readings]] = []
        kept: list[Frame] = []
        events: list[tuple[Any, ...]] = []
        anchors: list[tuple[Any, ...]] = []
        for frame, body in fresh:
            match body:
                case Readings() if well_formed(body):
                    readings.append((frame, body))
                    continue
                case Events():
                    events += columns.event_rows(frame, body)
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
        incoming = {
            "frames": [astuple(frame) for frame in kept], "events": events, "hosts": anchors, "turns": turns
        }  # fmt: skip
        tables = {
            name: columns.columnar(self._schemas[name], rows) for name, rows in incoming.items() if rows
        }
        if readings:
            tables["readings"] = columns.from_readings(readings)
        return tables

    def _gap(self, gap: Break, logs: dict[str, _Log]) -> list[Any]:
        """Return the row of a break, and let its log go on after it."""
        known = logs.get(gap.log_id) or self._logs.get(gap.log_id, _Log(None, gap.first_offset, None))
        end = gap.first_offset + gap.count
        logs[gap.log_id] = replace(known, next_offset=max(known.next_offset, end))
        return [known.host, known.logged_ns, gap.count, gap.reason, gap.log_id, gap.first_offset]

    def _fresh(
        self, frames: Sequence[tuple[Frame, Body | None]], logs: dict[str, _Log]
    ) -> list[tuple[Frame, Body | None]]:
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
            logs[frame.log_id] = _Log(frame.host, frame.offset + 1, frame.t_ns)
            fresh.append((frame, body))
        return fresh

    def _put_logs(self, logs: Mapping[str, _Log]) -> None:
        for log_id, log in logs.items():
            if log_id in self._logs:
                self._connection.execute(
                    "UPDATE logs SET host = $2, next_offset = $3, logged_ns = $4 WHERE log_id = $1",
                    [log_id, *astuple(log)],
                )
            else:
                self._connection.execute(
                    "INSERT INTO logs VALUES ($1, $2, $3, $4, 0)", [log_id, *astuple(log)]
                )

    # ---- what was derived ---------------------------------------------------------------------------

    def _derived_tables(self, rows: Sequence[Row], *, replaying: bool) -> dict[str, pa.Table]:
        """Return derived rows by the table that they go into."""
        tables = {}
        for kind, (name, key, repeats) in _DERIVED.items():
            chosen = [row for row in rows if isinstance(row, kind)]
            if repeats or replaying:
                chosen = list({tuple(getattr(row, part) for part in key): row for row in chosen}.values())
            if chosen:
                names = [field.name for field in fields(kind)]
                schema = pa.schema([self._schemas[name].field(column) for column in names])
                values = [tuple(getattr(row, column) for column in names) for row in chosen]
                tables[name] = columns.columnar(schema, values)
        return tables

    def _put_derived(self, tables: Mapping[str, pa.Table], *, replaying: bool) -> None:
        for name, key, repeats in _DERIVED.values():
            if name not in tables:
                continue
            if repeats or replaying:
                same = " AND ".join(f"{name}.{part} IS NOT DISTINCT FROM incoming.{part}" for part in key)
                self._connection.execute(
                    f"DELETE FROM {name} USING incoming_{name} AS incoming WHERE {same}"  # noqa: S608  (our own names)
                )
            self._connection.execute(
                f"INSERT INTO {name} BY NAME {_WITH_UTC.get(name, f'FROM incoming_{name}')}"
            )

    # ---- what it gives back -------------------------------------------------------------------------

    def position(self, host: str) -> tuple[str, int] | tuple[None, None]:
        """Return the log of a host that was followed last, and the offset it goes on with."""
        logs = [(log_id, log.next_offset) for log_id, log in self._logs.items() if log.host == host]
        return logs[-1] if logs else (None, None)

    def own_log(self) -> tuple[str, int]:
        """Return the log of the analyzer's own words, and the offset of the next."""
        log_id = f"own-{self.archive_id}"
        return log_id, self._logs[log_id].next_offset if log_id in self._logs else 0

    def to_replay(self) -> Iterator[list[tuple[Frame, Body]]]:
        """Yield what has to be interpreted, again or for the first time, a page at a time, as it was heard.

        Of each log what no rows were derived from yet, and everything since the oldest run began that is open
        or not measured to its end in a host's last log: of all its sessions, in whatever log. Before that,
        what it stands on: the collector's notes since its start, for the devices it has, and LEAD_NS of
        readings, for what a counter said before the first window began. Sessions that began before that are
        over: their events are left out. Of the analyzer's own words all: they are few.
        """
        with self._cursor() as cursor:
            since = self._heard_again_since(cursor)
        own, _ = self.own_log()
        since |= {own: 0} if own in since else {}
        frames = self._in_turn({log_id: self._since(log_id, since[log_id]) for log_id in self._logs})
        yield from iter(lambda: list(islice(frames, REPLAYED_OFFSETS)), [])

    def _heard_again_since(self, cursor: Connection) -> dict[str, int]:
        """Return by log the offset from which on `to_replay` has everything heard again."""
        last = {log.host: log_id for log_id, log in self._logs.items()}
        return dict(
            cursor.execute(
                """
                WITH began AS (FROM events JOIN runs USING (session) WHERE events.kind = 'run_started'),
                unfinished AS (
                    FROM began WHERE list_contains($1, log_id)
                        AND session NOT IN (SELECT session FROM windows WHERE kind = 'run')
                ), wanted AS (
                    SELECT log_id, interpreted_offset AS "offset" FROM logs UNION ALL
                    SELECT log_id, "offset" FROM began WHERE run IN (SELECT run FROM unfinished)
                )
                SELECT log_id, min("offset") FROM wanted GROUP BY log_id
                """,
                [list(last.values())],
            ).fetchall()
        )

    def _since(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        """Yield a log's frames from an offset on, and before them what they stand on."""
        over = self._begun_before(log_id, offset)
        lead = self._lead(log_id, offset)
        yield from self._notes_before(log_id, lead)
        for frame, body in self.frames_since(log_id, lead):
            if not (isinstance(body, Events) and body.session in over):
                yield frame, body

    def _in_turn(self, logs: Mapping[str, Iterator[tuple[Frame, Body]]]) -> Iterator[tuple[Frame, Body]]:
        """Yield frames of several logs in the order in which they were heard the first time."""
        with self._cursor() as cursor:
            turns = cursor.execute(
                """
                SELECT log_id, lead("offset") OVER (PARTITION BY log_id ORDER BY rowid)
                FROM turns ORDER BY rowid
                """
            ).fetchall()
        heads = {log_id: next(frames, None) for log_id, frames in logs.items()}
        for log_id, end in turns:
            while (head := heads[log_id]) is not None and (end is None or head[0].offset < end):
                yield head
                heads[log_id] = next(logs[log_id], None)

    def _begun_before(self, log_id: str, offset: int) -> set[str]:
        with self._cursor() as cursor:
            rows = cursor.execute(
                "SELECT session FROM events WHERE kind = 'run_started' AND log_id = $1 AND \"offset\" < $2",
                [log_id, offset],
            ).fetchall()
        return {session for (session,) in rows}

    def _lead(self, log_id: str, offset: int) -> int:
        with self._cursor() as cursor:
            [(lead,)] = cursor.execute(
                """
                WITH before AS (FROM readings WHERE log_id = $1 AND "offset" < $2)
                SELECT min("offset") FROM before WHERE logged_ns >= (SELECT max(logged_ns) FROM before) - $3
                """,
                [log_id, offset, LEAD_NS],
            ).fetchall()
        return offset if lead is None else int(lead)

    def _notes_before(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        with self._cursor() as cursor:
            [(started,)] = cursor.execute(
                'SELECT max("offset") FROM hosts WHERE log_id = $1 AND "offset" < $2 AND boot_id IS NOT NULL',
                [log_id, offset],
            ).fetchall()
            kept = [] if started is None else list(_kept_frames(cursor, log_id, started, offset))
        yield from ((frame, body) for frame, body in kept if isinstance(body, Notes))

    def frames_since(self, log_id: str, offset: int) -> Iterator[tuple[Frame, Body]]:
        """Yield what is stored of a log from ``offset`` on, in order, until there is no more.

        Readings are built again from their columns: the same rows for the same GPUs, in the same order;
        the frame's own body is empty. Frames whose bodies could not be decoded are left out.
        """
        while True:
            with self._cursor() as cursor:
                [(first,)] = cursor.execute(
                    """
                    SELECT min("offset") FROM (
                        SELECT log_id, "offset" FROM frames UNION ALL SELECT log_id, "offset" FROM readings
                    ) WHERE log_id = $1 AND "offset" >= $2
                    """,
                    [log_id, offset],
                ).fetchall()
                if first is None:
                    return
                offset = first + REPLAYED_OFFSETS
                page = [
                    *_kept_frames(cursor, log_id, first, offset),
                    *_readings_frames(cursor, log_id, first, offset),
                ]
            yield from sorted(page, key=lambda decoded: decoded[0].offset)

    def heard(self) -> Iterator[tuple[Frame, Body]]:
        """Yield all that rows were derived from, of all logs, as it was heard; bodies as `frames_since`."""
        with self._cursor() as cursor:
            interpreted = dict(cursor.execute("SELECT log_id, interpreted_offset FROM logs").fetchall())

        def until(log_id: str) -> Iterator[tuple[Frame, Body]]:
            frames = self.frames_since(log_id, 0)
            return takewhile(lambda decoded: decoded[0].offset < interpreted[log_id], frames)

        return self._in_turn({log_id: until(log_id) for log_id in self._logs})

    def profiles(self) -> list[ProfileRow]:
        """Return what rounds of profiling have left for later runs."""
        with self._cursor() as cursor:
            names = ", ".join(column.name for column in fields(ProfileRow))
            rows = cursor.execute(f"SELECT {names} FROM profiles").fetchall()  # noqa: S608  (our own names)
        return [ProfileRow(*row) for row in rows]

    def heard_again(self) -> list[str]:
        """Return the sessions whose beginning is in `to_replay`."""
        with self._cursor() as cursor:
            since = self._heard_again_since(cursor)
            begun = cursor.execute(
                """
                SELECT DISTINCT session FROM events JOIN (
                    SELECT unnest($1) AS log_id, unnest($2) AS since
                ) USING (log_id) WHERE kind = 'run_started' AND "offset" >= since
                """,
                [list(since), list(since.values())],
            ).fetchall()
        return [session for (session,) in begun]

    def begun(self, sessions: Sequence[str] | None = None) -> list[Begun]:
        """Return which runs began under which settings, the first to begin first.

        ``sessions``: only of these.
        """
        with self._cursor() as cursor:
            rows = cursor.execute(
                """
                SELECT session, run, start, ended_ns IS NOT NULL FROM runs
                WHERE $1 IS NULL OR list_contains($1, session) ORDER BY start, began_wall_ns, session
                """,
                [sessions],
            ).fetchall()
        return [Begun(*row) for row in rows]

    def settings_then(self, starts: Iterable[int]) -> dict[int, Settings]:
        """Return the settings of the analyzer at these starts, as far as they are known.

        Raises:
            SettingsError: some are none of this version.
        """
        with self._cursor() as cursor:
            rows = cursor.execute(
                "SELECT start, name, value FROM settings WHERE list_contains($1, start) ORDER BY start",
                [list(starts)],
            ).fetchall()
        then: dict[int, dict[str, str]] = {}
        for start, name, value in rows:
            then.setdefault(start, {})[name] = value
        return {start: read_back(values, f"{self.path}") for start, values in then.items()}

    def recalled(self, sessions: Sequence[str] | None = None) -> dict[tuple[str, int], RecallRow]:
        """Return what runs remembered as their profiling began, by session of their lead and round.

        ``sessions``: only of these.
        """
        with self._cursor() as cursor:
            rows = cursor.execute(
                """
                SELECT session, run, round, profile_run, profile_round, measured_wall_ns, limits FROM recalls
                WHERE $1 IS NULL OR list_contains($1, session)
                """,
                [sessions],
            ).fetchall()
        return {
            (row[0], row[2]): replace(RecallRow(*row), limits=tuple(AtLimit(**limit) for limit in limits))
            for *row, limits in rows
        }

    def known_jobs(self, most_tries: int) -> tuple[tuple[JobRow, ...], tuple[TryRow, ...]]:
        """Return the latest version of every job that recurs, and its latest tries of all versions.

        Args:
            most_tries: of each job.
        """
        job_columns, try_columns = (
            ", ".join(field.name for field in fields(kind)) for kind in (JobRow, TryRow)
        )
        with self._cursor() as cursor:
            jobs = cursor.execute(
                f"SELECT {job_columns} FROM jobs"  # noqa: S608  (names of our own columns)
                " QUALIFY row_number() OVER (PARTITION BY job ORDER BY version DESC) = 1"
            ).fetchall()
            tries = cursor.execute(
                f"SELECT {try_columns} FROM tries"  # noqa: S608  (likewise)
                " QUALIFY row_number() OVER (PARTITION BY job ORDER BY number DESC) <= $1"
                " ORDER BY job, number",
                [most_tries],
            ).fetchall()
        return tuple(_as(JobRow, row) for row in jobs), tuple(_as(TryRow, row) for row in tries)

    @contextmanager
    def _transaction(self, tables: Mapping[str, pa.Table]) -> Iterator[Connection]:
        """Give the writer's connection in a transaction, with the tables there as ``incoming_NAME``."""
        for name, table in tables.items():
            self._connection.register(f"incoming_{name}", table)
        try:
            with _storing(self._connection, f"{self.path}: could not be written"):
                yield self._connection
        finally:
            for name in tables:
                self._connection.unregister(f"incoming_{name}")


# ---- opening ----------------------------------------------------------------------------------------


def _connect(path: Path, settings: Settings, *, read_only: bool, checkpoint: str = CHECKPOINT) -> Connection:
    if path.exists() and not _is_database(path):
        raise StorageError(
            f"{path}: could not be opened: it is no DuckDB database. Name another file with --archive."
        )
    try:
        connection = duckdb.connect(
            path,
            read_only=read_only,
            config={
                "storage_compatibility_version": "v1.5.0",
                "memory_limit": f"{settings.memory_mb}MiB",
                "threads": THREADS,
                "temp_directory": f"{path}.tmp",
                "max_temp_directory_size": f"{4 * settings.memory_mb}MiB",
                "checkpoint_threshold": checkpoint,
                # An ASOF join whose left side is small becomes a nested loop otherwise: minutes, not seconds.
                "asof_loop_join_threshold": 0,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
                **_NO_THREADS,
            },
        )
    except duckdb.Error as wrong:
        raise StorageError(_why_not_opened(path, str(wrong))) from wrong
    return connection


def _is_database(path: Path) -> bool:
    """Tell by the file's head; DuckDB itself would look for an extension that reads, say, SQLite."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except OSError as wrong:
        raise StorageError(
            f"{path}: could not be opened: {wrong.strerror}. Name another file with --archive."
        ) from wrong
    return not head or head[8:] == b"DUCK"


def _why_not_opened(path: Path, says: str) -> str:
    if "Could not set lock" in says:
        pid = re.search(r"PID (\d+)", says)
        who = f"process {pid[1]}" if pid else "another process"
        return (
            f"{path}: could not be opened: {who} holds it. If that is the analyzer, ask it with"
            " `zeus-stream sql`; else stop it, or name another file with --archive."
        )
    if "version number" in says:
        return f"{path}: could not be opened: a newer DuckDB wrote it. Install that version of duckdb."
    return f"{path}: could not be opened: {_damage(says)}"


def _damage(says: str) -> str:
    """Return what is wrong with a file that DuckDB cannot read, and what to do about it."""
    return (
        f"it is damaged, {_first_line(says)}. `zeus-stream set-aside` moves the damaged part away and says"
        " what is lost; or name another file with --archive."
    )


def _version(connection: Connection, path: Path) -> int | None:
    """Return the schema's version, None for an empty database; raises StorageError when it is not ours."""
    if connection.execute("SELECT 1 FROM information_schema.tables LIMIT 1").fetchone() is None:
        return None
    try:
        rows = connection.execute("SELECT application, schema_version FROM meta").fetchall()
    except duckdb.Error:
        rows = []
    match rows:
        case [(str(application), int(version))] if application == APPLICATION:
            pass
        case _:
            raise StorageError(
                f"{path}: could not be opened: it is another program's database."
                " Name another file with --archive."
            )
    if version > len(MIGRATIONS):
        raise StorageError(
            f"{path}: could not be opened: its schema is of version {version}, this zeus-stream knows"
            f" {len(MIGRATIONS)}. Install the newer zeus-stream that wrote it, or name another file."
        )
    tables = connection.execute("SELECT count(*) FROM information_schema.tables WHERE table_name = 'recalls'")
    if version == len(MIGRATIONS) and tables.fetchone() == (0,):
        raise StorageError(
            f"{path}: could not be opened: a zeus-stream from before its first release wrote it."
            " Move it away, or name another file with --archive."
        )
    return version


def _lift(connection: Connection, path: Path) -> None:
    """Bring the schema to this version, within the caller's transaction."""
    version = _version(connection, path)
    if version is None:
        version = 0
        connection.execute(
            "CREATE TABLE meta"
            " (application VARCHAR, schema_version INTEGER, archive_id VARCHAR, starts BIGINT)"
        )
        connection.execute("INSERT INTO meta VALUES ($1, 0, $2, 0)", [APPLICATION, str(uuid4())])
    for migration in MIGRATIONS[version:]:
        connection.execute(files("analyzers.archive").joinpath(migration).read_text(encoding="utf-8"))
    connection.execute("UPDATE meta SET schema_version = $1", [len(MIGRATIONS)])


# ---- trouble ----------------------------------------------------------------------------------------


@contextmanager
def _storing(connection: Connection, could_not: str) -> Iterator[None]:
    """Commit what is done inside, all of it or nothing. Raises StorageError."""
    try:
        connection.execute("BEGIN")
        yield
        connection.execute("COMMIT")
    except BaseException as wrong:
        _roll_back(connection)
        if isinstance(wrong, duckdb.Error):
            raise _not_written(could_not, wrong) from wrong
        raise


def _not_written(could_not: str, wrong: Exception) -> StorageError:
    return StorageError(
        f"{could_not}: {_first_line(str(wrong))}. Make room on its disk, or move the file away and start"
        " again."
    )


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        return  # a COMMIT that failed has ended it already; what went wrong is on its way to the caller


@contextmanager
def _refusing(who: str) -> Iterator[None]:
    """Turn DuckDB's errors into refusals that say what DuckDB says.

    Errors in the middle of an answer come through Arrow, which makes OSError or ValueError of them.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as wrong:
        raise RefusedError(f"{who}: could not be answered: {str(wrong).strip()}") from wrong


def _as(kind: type[R], row: Sequence[Any]) -> R:
    """Return a row of the archive, its lists as tuples."""
    return kind(*(tuple(value) if isinstance(value, list) else value for value in row))


def _first_line(says: str) -> str:
    return says.strip().split("\n", 1)[0].rstrip(".")


# ---- stored frames ------------------------------------------------------------------------------


def _kept_frames(cursor: Connection, log_id: str, first: int, until: int) -> Iterator[tuple[Frame, Body]]:
    rows = cursor.execute(
        'SELECT log_id, "offset", host, t_ns, topic, body FROM frames'
        ' WHERE log_id = $1 AND "offset" >= $2 AND "offset" < $3 ORDER BY "offset"',
        [log_id, first, until],
    ).fetchall()
    for row in rows:
        frame = Frame(*row)
        try:
            body: Body = codec.decode(frame.body, *_KEPT)
        except MalformedError:
            continue  # it was counted when it was received
        yield frame, body


def _readings_frames(cursor: Connection, log_id: str, first: int, until: int) -> Iterator[tuple[Frame, Body]]:
    table = cursor.sql(
        'FROM readings WHERE log_id = $1 AND "offset" >= $2 AND "offset" < $3 ORDER BY "offset", rowid',
        params=[log_id, first, until],
    ).to_arrow_table()
    [(host,)] = cursor.execute("SELECT host FROM logs WHERE log_id = $1", [log_id]).fetchall()
    for offset, logged_ns, body in columns.to_readings(table):
        yield Frame(log_id, offset, host, logged_ns, f"readings/{host}", b""), body


# ---- derived rows ------------------------------------------------------------------------

_DERIVED: dict[type, tuple[str, tuple[str, ...], bool]] = {
    RunRow: ("runs", ("session",), True),
    GpuRow: ("gpus", ("gpu",), True),
    TrialRow: ("trials", ("run", "number"), True),
    DecisionRow: ("decisions", ("run", "number"), True),
    ProfileRow: ("profiled", ("session", "round", "power_limit_w"), True),
    RecallRow: ("recalls", ("session", "round"), True),
    GpuLimitRow: ("gpu_limits", ("run", "round", "gpu"), True),
    CommandRow: ("commands", ("command",), True),
    BudgetRow: ("budgets", ("budget", "set_ns"), True),
    RationRow: ("rations", ("gpu",), True),
    WindowRow: ("windows", ("session", "kind", "index", "gpu"), False),
    MetricRow: ("metrics", ("session", "name", "t_ns", "step"), False),
    JobRow: ("jobs", ("job", "version"), True),
    TryRow: ("tries", ("job", "number"), True),
    GapRow: ("gaps", ("host", "what", "t_ns", "count", "reason"), False),
    SimulationRow: ("simulations", ("game",), True),
    SimulatedTryRow: ("simulated_tries", ("game", "number"), True),
}
"""Kind of row: its table, its key, and whether it repeats though nothing is interpreted again.
Runs come first: windows take their UTC from them."""

_WITH_UTC = {
    "tries": "SELECT *, make_timestamp(began_wall_ns // 1000) AS began_at,"
    " make_timestamp(ended_wall_ns // 1000) AS ended_at FROM incoming_tries",
    "runs": "SELECT * REPLACE (coalesce(start, (SELECT starts FROM meta)) AS start),"
    " utc(began_wall_ns, began_ns, began_ns) AS began_at, utc(began_wall_ns, began_ns, ended_ns) AS ended_at"
    " FROM incoming_runs",
    "budgets": "SELECT *, make_timestamp(set_ns // 1000) AS set_at,"
    " make_timestamp(begin_ns // 1000) AS began_at, make_timestamp(end_ns // 1000) AS ended_at"
    " FROM incoming_budgets",
    "windows": "SELECT incoming.*, utc(runs.began_wall_ns, runs.began_ns, incoming.begin_ns) AS began_at"
    " FROM incoming_windows AS incoming LEFT JOIN runs USING (session)",
}
