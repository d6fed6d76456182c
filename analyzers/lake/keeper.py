"""Keep a lake in shape: remove old rows, add up hours, write and merge files, forget old snapshots.

One process does it, as holder of ``keeper``. What it does may be done twice without harm. Archivers commit
before a step or after it: DuckLake refuses to delete from a table into which another commit has inserted in
the meantime. An archiver that has waited long enough goes on, and then the step is done again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TypeVar

import duckdb

from analyzers.archive.frame_reader import FrameReader
from analyzers.archive.opening import Connection, storing
from analyzers.archive.rollups.retention import Needed, prune
from analyzers.lake.catalog import LAKE, attach, check, why
from analyzers.leases.site_leases import KEEPER, SiteLeases
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings

T = TypeVar("T")
HELD_S = 600.0
"""A keeper that did not go on to its next step for so long is replaced."""
TRIES = 5
"""Of each step."""
MERGED_FILES = 1000
"""At a time."""
HOURS = """
DELETE FROM hours WHERE began_at >= {since};
INSERT INTO hours BY NAME
SELECT gpu, host, date_trunc('hour', began_at) AS began_at, sum(energy_j) AS energy_j,
    sum(covered_s) AS covered_s, max(peak_w) AS peak_w,
    sum(limit_w * readings) / sum(readings) FILTER (limit_w IS NOT NULL) AS limit_w,
    sum(clock_mhz * readings) / sum(readings) FILTER (clock_mhz IS NOT NULL) AS clock_mhz,
    max(temperature_c) AS temperature_c,
    sum(utilization_pct * readings) / sum(readings) FILTER (utilization_pct IS NOT NULL) AS utilization_pct,
    sum(readings)::BIGINT AS readings
FROM minutes WHERE began_at >= {since}
GROUP BY gpu, host, date_trunc('hour', began_at)
"""
"""Hours of the last two days, again: minutes that came late are in them then."""
LAST_DAYS = (
    "(SELECT date_trunc('hour', least(max(began_at), make_timestamp({wall_us}))) - INTERVAL 2 DAY"
    " FROM minutes)"
)
"""The begin of the last two days that have minutes. A host whose clock is ahead has some of the future."""
LAST_POSITIONS = """
DELETE FROM logs
WHERE next_offset < (SELECT max(next_offset) FROM logs AS others WHERE others.log_id = logs.log_id)
"""
HOUSEKEEPING = (
    f"CALL ducklake_flush_inlined_data('{LAKE}')",  # rows of small commits leave the catalog for files
    f"CALL ducklake_merge_adjacent_files('{LAKE}', max_compacted_files => {MERGED_FILES})",
    f"CALL ducklake_expire_snapshots('{LAKE}', older_than => now() - INTERVAL 1 DAY)",
    f"CALL ducklake_cleanup_old_files('{LAKE}', older_than => now() - INTERVAL 1 DAY)",
    f"CALL ducklake_delete_orphaned_files('{LAKE}', older_than => now() - INTERVAL 1 DAY)",
)


def keep(dsn: str, settings: Settings, *, holder: str, wall_ns: int) -> dict[str, int]:
    """Do all of it once; return the rows removed by table. Raises RefusedError: there is another keeper.

    Raises StorageError: something could not be done; what was done before it stays.
    """
    leases = SiteLeases(dsn, "", holder)
    try:
        taken = leases.take([KEEPER], HELD_S)
        if not taken:
            raise RefusedError(
                "lake: could not be kept: another process does so. Wait until it has ended; one that was"
                f" killed is replaced after {HELD_S / 60:.0f} minutes."
            )
        try:
            removed = _keep(dsn, settings, wall_ns, leases, {KEEPER: taken[0].epoch})
        finally:
            with suppress(StorageError):  # then it ends by its time
                leases.release(KEEPER, taken[0].epoch)
    finally:
        leases.close()
    return removed


def _needed(connection: Connection) -> Needed:
    """Return the sessions that may be open. A lake is not interpreted again."""
    reader = FrameReader(lambda: nullcontext(connection), {}, LAKE)
    return Needed({}, reader.sessions_to_replay(connection, {}))


def _keep(
    dsn: str, settings: Settings, wall_ns: int, leases: SiteLeases, held: Mapping[str, int]
) -> dict[str, int]:
    connection = attach(dsn, settings)

    @contextmanager
    def committing(could_not: str) -> Iterator[Connection]:
        with leases.committing(), storing(connection, could_not, why):
            yield connection

    try:
        check(connection)
        pruning = partial(committing, "lake: could not be pruned")
        removed = _tried(lambda: prune(pruning, settings, wall_ns, _needed(connection)))
        hours = HOURS.format(since=LAST_DAYS.format(wall_us=wall_ns // 1000))
        for statements in (hours, LAST_POSITIONS):
            _tried(partial(_run, partial(committing, "lake: hours could not be added up"), statements))
        for call in HOUSEKEEPING:
            if not leases.renew(held, HELD_S):
                raise RefusedError(
                    "lake: could not be kept to the end: another process does so now. Wait for its end."
                )
            _tried(partial(_tidy, connection, leases, call))
    finally:
        connection.close()
    return removed


def _tried(step: Callable[[], T]) -> T:
    """Return what a step gives, done again if a commit came between. Raises StorageError after TRIES."""
    for _ in range(TRIES - 1):
        with suppress(StorageError):
            return step()
    return step()


def _run(committing: Callable[[], AbstractContextManager[Connection]], statements: str) -> None:
    with committing() as connection:
        for statement in statements.split(";"):
            connection.execute(statement)


def _tidy(connection: Connection, leases: SiteLeases, call: str) -> None:
    try:
        with leases.committing():
            connection.execute(call)
    except duckdb.Error as wrong:
        raise StorageError(
            f"lake: could not be tidied: {why(str(wrong))} Run `zeus-stream lake keep` again."
        ) from wrong
