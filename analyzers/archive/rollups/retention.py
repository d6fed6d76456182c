"""Remove what is older than it is kept. What a restart would interpret again stays, however old it is: what
came since the last checkpoint, or all of a run that is open if no checkpoint of this version is there.

| kept for | what |
|---|---|
| `keep_readings_days` | readings, and the bytes of events: a replay needs both |
| `keep_seconds_days`, `keep_minutes_days` | roll-ups |
| `keep_steps_days`, after the run's last window | windows of steps and names; metrics but an epoch's last |
| `keep_steps_days` | events of steps |
| for ever | hours; runs, epochs, trials, decisions, commands, savings, tries, gaps, notes |

Frames are removed by the log's offsets: those before the host's last clock reading that is old enough, and
that no younger one precedes. The steps of a run are removed together, and its row of ``savings`` is kept as
it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from analyzers.archive.frame_reader import FrameReader
from analyzers.archive.opening import Connection
from analyzers.archive.rollups.ended_runs import keep_removed
from zeus_stream.settings import Settings

DAY_NS = 86_400_000_000_000
LASTING_EVENTS = (
    "run_started",
    "run_ended",
    "pipeline_began",
    "epoch_began",
    "epoch_ended",
    "try_wanted",
    "try_began",
    "try_ended",
)
"""Kinds that are kept for ever: they are few."""

CHECKPOINTS = "SELECT code, sessions, log_ids, offsets FROM checkpoints"
BEGINNINGS = """SELECT (log_id, "offset") FROM events WHERE kind = 'run_started'"""
"""Frames that are kept for ever: without them, nothing of a run can be interpreted."""


_OLD = """
WITH recent AS (
    SELECT log_id, min("offset") AS first FROM hosts WHERE wall_ns BETWEEN $1 AND $2 GROUP BY log_id
)
SELECT log_id, max("offset") FROM hosts LEFT JOIN recent USING (log_id)
WHERE wall_ns < $1 AND "offset" < coalesce(first, "offset" + 1) GROUP BY log_id
"""
"""The last clock reading of each log that is old, and before those that are not: a clock may have been set
back for a while."""

Transaction = Callable[[], AbstractContextManager[Connection]]
"""Gives the writer's connection in a transaction. Raises StorageError."""


class Needed(Struct, frozen=True):
    """The rows that a restart interprets again: they stay, however old they are."""

    offsets: Mapping[str, int]
    """By log, the first offset."""
    sessions: Sequence[str]


def needed(reader: FrameReader, code: str | None) -> Needed:
    """Return what a restart interprets again. ``code``: see `Store.prune`."""
    with reader.cursor() as cursor:
        offsets = reader.replay_since(cursor)
        known: list[str] = []
        for row_code, of_row, log_ids, firsts in cursor.execute(CHECKPOINTS).fetchall():
            if code is not None and row_code == code:
                known += of_row
                for log_id, offset in zip(log_ids, firsts, strict=True):
                    offsets[log_id] = max(offsets.get(log_id, offset), offset)
        sessions = [*known, *reader.sessions_to_replay(cursor, offsets)]
    return Needed({log_id: reader.lead(log_id, offset) for log_id, offset in offsets.items()}, sessions)


def prune(transaction: Transaction, settings: Settings, wall_ns: int, keep: Needed) -> dict[str, int]:
    """Remove what is older than it is kept; return the rows removed by table. Raises StorageError."""
    removed: dict[str, int] = {}
    now = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(microseconds=wall_ns // 1000)
    with transaction() as connection:
        for table, before, condition in _old(connection, settings, wall_ns, now, keep):
            [(count,)] = connection.execute(f"DELETE FROM {table} WHERE {condition}").fetchall()  # noqa: S608  (our own)
            if count:
                removed[table] = removed.get(table, 0) + count
                _note(connection, table, before, count, now)
    return removed


def _old(
    connection: Connection,
    settings: Settings,
    wall_ns: int,
    now: datetime,
    keep: Needed,
) -> Iterator[tuple[str, datetime, str]]:
    """Yield tables, the time before which rows of them are removed, and the condition for it."""
    if settings.keep_readings_days:
        _cut(connection, "cut_readings", settings.keep_readings_days, wall_ns, keep.offsets)
        before = now - timedelta(days=settings.keep_readings_days)
        old = f"read_at < TIMESTAMP '{before}' OR read_at IS NULL"
        yield "readings", before, f"({old}) AND {_before('cut_readings')}"
        events = f"starts_with(topic, 'events/') AND {_before('cut_readings')}"
        yield "frames", before, f'{events} AND (log_id, "offset") NOT IN ({BEGINNINGS})'
    rolled_up = {
        "seconds": settings.keep_seconds_days,
        "minutes": settings.keep_minutes_days,
        "instruction_minutes": settings.keep_minutes_days,
    }
    for table, days in rolled_up.items():
        if days:
            before = (now - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
            yield table, before, f"began_at < TIMESTAMP '{before}'"
    if settings.keep_steps_days:
        before = now - timedelta(days=settings.keep_steps_days)
        _cut(connection, "cut_events", settings.keep_steps_days, wall_ns, keep.offsets)
        kinds = ", ".join(f"'{kind}'" for kind in LASTING_EVENTS)
        yield "events", before, f"kind NOT IN ({kinds}) AND {_before('cut_events')}"
        _keep_savings(connection, before, keep.sessions)
        old = "run IN (SELECT run FROM old_runs)"
        yield "metrics", before, f"{old} AND rowid NOT IN (FROM last_metrics)"
        yield "windows", before, f"kind IN ('step', 'window') AND {old}"


def _cut(
    connection: Connection, variable: str, kept_days: float, wall_ns: int, first: Mapping[str, int]
) -> None:
    """Set a variable to the offset of each log before which frames are old and not needed."""
    rows = connection.execute(_OLD, [round(wall_ns - kept_days * DAY_NS), wall_ns]).fetchall()
    cut = {log_id: min(offset, first.get(log_id, offset)) for log_id, offset in rows}
    names, offsets = list(cut), list(cut.values())
    connection.execute(f"SET VARIABLE {variable} = map($1::VARCHAR[], $2::BIGINT[])", [names, offsets])


def _before(variable: str) -> str:
    return f"\"offset\" < getvariable('{variable}')[log_id]"


def _keep_savings(connection: Connection, before: datetime, open_sessions: Sequence[str]) -> None:
    """Find runs whose windows are all old. Keep their savings, and the last metrics of their epochs."""
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE old_runs AS
        SELECT run FROM windows GROUP BY run
        HAVING max(began_at) < $1 AND bool_or(kind IN ('step', 'window'))
            AND NOT bool_or(list_contains($2, session))
        """,
        [before, list(open_sessions)],
    )
    connection.execute(
        """
        CREATE OR REPLACE TEMP TABLE last_metrics AS
        SELECT arg_max(rowid, t_ns) FROM metrics WHERE run IN (SELECT run FROM old_runs)
        GROUP BY session, name, epoch
        """
    )
    keep_removed(connection)


def _note(connection: Connection, table: str, before: datetime, count: int, now: datetime) -> None:
    """Note what was removed of a table: one row a table."""
    known = connection.execute('SELECT sum(rows) FROM removed WHERE "table" = $1', [table]).fetchall()
    connection.execute('DELETE FROM removed WHERE "table" = $1', [table])
    connection.execute(
        "INSERT INTO removed VALUES ($1, $2, $3, $4)", [table, before, (known[0][0] or 0) + count, now]
    )
