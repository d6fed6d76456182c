"""Read the `Memory` of an archive: the rows that an analyzer needs at its start beyond what it replays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from analyzers.archive.frame_reader import FrameReader, as_row
from analyzers.archive.opening import Connection
from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.limit_rows import AtLimit
from analyzers.results.memory import Begun, KnownOwners, Memory
from analyzers.results.rows import (
    CheckpointRow,
    GpuRow,
    InstructionRow,
    JobRow,
    ProfileRow,
    RecallRow,
    TryRow,
)

R = TypeVar("R", bound=Struct)
LATEST_JOBS = "FROM jobs QUALIFY row_number() OVER (PARTITION BY job ORDER BY version DESC) = 1"
MAX_NAMES = 10_000
"""Of jobs, runs and sessions whose owners are known."""
MAX_TRIES = 1_000
"""Of each job."""


def read_memory(
    reader: FrameReader, since: Mapping[str, int] | None = None, sessions: Sequence[str] = ()
) -> Memory:
    """Return the memory of an archive; see `Store.memory`."""
    with reader.cursor() as cursor:
        known = tuple(dict.fromkeys([*sessions, *reader.sessions_to_replay(cursor, since)]))
        begun = read_begun(cursor, known)
        return Memory(
            sessions=known,
            interpreted=reader.interpreted(cursor),
            begun=begun,
            settings=read_settings(cursor, {each.start for each in begun}),
            profiles=_rows(cursor, ProfileRow, "FROM profiles"),
            recalled=read_recalled(cursor, known),
            instructions=_rows(cursor, InstructionRow, "FROM known_instructions"),
            gpus=_rows(cursor, GpuRow, "FROM gpus"),
            uses=_read_uses(cursor, known),
            jobs=_rows(cursor, JobRow, LATEST_JOBS),
            tries=_rows(
                cursor,
                TryRow,
                f"FROM tries QUALIFY row_number() OVER (PARTITION BY job ORDER BY number DESC) <= {MAX_TRIES}"
                " ORDER BY job, number",
            ),
            owners=read_owners(cursor),
        )


def _rows(cursor: Connection, kind: type[R], source: str, values: Sequence[Any] = ()) -> tuple[R, ...]:
    names = ", ".join(f'"{name}"' for name in kind.__struct_fields__)
    found = cursor.execute(f"SELECT {names} {source}", values).fetchall()
    return tuple(as_row(kind, row) for row in found)


def read_checkpoint(cursor: Connection, name: str) -> CheckpointRow | None:
    found = _rows(cursor, CheckpointRow, "FROM checkpoints WHERE name = $1", [name])
    return found[0] if found else None


def read_begun(cursor: Connection, sessions: Sequence[str] | None = None) -> tuple[Begun, ...]:
    """Return which runs began under which settings, the first to begin first, maybe of some sessions."""
    rows = cursor.execute(
        """
        SELECT session, run, start, ended_ns IS NOT NULL FROM sessions
        WHERE $1 IS NULL OR list_contains($1, session) ORDER BY start, began_wall_ns, session
        """,
        [sessions],
    ).fetchall()
    return tuple(Begun(*row) for row in rows)


def read_settings(cursor: Connection, starts: Iterable[int]) -> dict[int, dict[str, str]]:
    rows = cursor.execute(
        "SELECT start, name, value FROM settings WHERE list_contains($1, start) ORDER BY start",
        [list(starts)],
    ).fetchall()
    then: dict[int, dict[str, str]] = {}
    for start, name, value in rows:
        then.setdefault(start, {})[name] = value
    return then


def read_recalled(
    cursor: Connection, sessions: Sequence[str] | None = None
) -> dict[tuple[str, int], RecallRow]:
    """Return what runs remembered as their profiling began, by session of their lead and round."""
    rows = cursor.execute(
        """
        SELECT session, run, round, profile_run, profile_round, measured_wall_ns, limits FROM recalls
        WHERE $1 IS NULL OR list_contains($1, session)
        """,
        [sessions],
    ).fetchall()
    return {
        (row[0], row[2]): as_row(RecallRow, (*row, tuple(AtLimit(**limit) for limit in limits)))
        for *row, limits in rows
    }


def read_owners(cursor: Connection, most: int = MAX_NAMES) -> KnownOwners:
    users = (
        "SELECT name, arg_min(uid, began_wall_ns), max(began_wall_ns) AS latest FROM ({}) JOIN sessions"
        " USING (session) WHERE uid IS NOT NULL GROUP BY name"
    )
    jobs = users.format("SELECT job AS name, session FROM sessions UNION SELECT job, session FROM tries")
    runs = users.format("SELECT run AS name, session FROM sessions")
    hosts = "SELECT session, host, began_wall_ns AS latest FROM sessions"
    found = (
        [row[:2] for row in cursor.execute(f"{sql} ORDER BY latest DESC LIMIT {most}").fetchall()]
        for sql in (jobs, runs, hosts)
    )
    of_jobs, of_runs, of_sessions = (dict(reversed(rows)) for rows in found)
    return KnownOwners(jobs=of_jobs, runs=of_runs, hosts=of_sessions)


def _read_uses(cursor: Connection, sessions: Sequence[str]) -> tuple[EarlierUse, ...]:
    """Return other uses of GPUs that ended after the first of these sessions of their host began.

    A host's clock begins again at a boot, so the time of day is compared as well.
    """
    rows = cursor.execute(
        """
        WITH again AS (
            SELECT host, min(began_ns) AS first_ns, min(began_wall_ns) AS first_wall_ns
            FROM sessions WHERE list_contains($1, session) GROUP BY host
        )
        SELECT host, run, gpus, began_ns, ended_ns FROM sessions JOIN again USING (host)
        WHERE NOT list_contains($1, session) AND world_size > 0 AND ended_ns > first_ns
            AND began_wall_ns + (ended_ns - began_ns) + 2 * wall_error_ns > first_wall_ns
        ORDER BY began_ns
        """,
        [list(sessions)],
    ).fetchall()
    return tuple(as_row(EarlierUse, row) for row in rows)


def read_removed_runs(cursor: Connection) -> set[str]:
    """Return the runs that began before the oldest reading that retention has left."""
    rows = cursor.execute(
        """
        SELECT DISTINCT run FROM sessions
        WHERE began_at < (SELECT max(before) FROM removed WHERE "table" IN ('readings', 'frames'))
        """
    ).fetchall()
    return {run for (run,) in rows}
