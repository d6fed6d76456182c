"""Store the savings and the waste of runs that have ended, and of runs whose steps are removed.

The views ``savings`` and ``waste`` read these rows, and compute only what is of runs that are open.
"""

from collections.abc import Collection, Mapping

import pyarrow as pa

from analyzers.archive.opening import Connection

_DECIDE = frozenset({"decisions", "trials", "sessions"})
"""Tables whose rows change what is stored of a run, besides its windows."""
_KEPT = {"ended_savings": "savings_of", "ended_waste": "waste_of_runs"}
"""By table, the macro that computes its rows for a list of runs."""
_ENDED = """
CREATE TEMP TABLE just_ended AS
SELECT runs.run, count(*) AS sessions FROM sessions AS runs
WHERE world_size > 0 AND run IN (SELECT unnest($1))
GROUP BY runs.run HAVING count(*) = (
    SELECT count(DISTINCT session) FROM windows
    WHERE windows.run = runs.run AND kind = 'run' AND run IN (SELECT unnest($1))
)
"""
_GONE_ON_FROM = """
SELECT earlier.run FROM sessions AS later JOIN sessions AS earlier ON earlier.job = later.job
    AND earlier.run <> later.run AND earlier.ended_how <> 'ended'
    AND earlier.began_wall_ns + earlier.ended_ns - earlier.began_ns <= later.began_wall_ns
WHERE later.run IN (SELECT unnest($1))
    AND earlier.run IN (SELECT run FROM ended_waste WHERE sessions IS NOT NULL)
QUALIFY row_number() OVER (PARTITION BY later.run ORDER BY earlier.began_wall_ns DESC) = 1
"""
"""The run of the same job before each of some runs, if it was killed: its last steps may have been redone."""
_FORGET = "DELETE FROM {table} WHERE sessions IS NOT NULL AND run IN (SELECT unnest($1))"
_KEEP = """
INSERT INTO {table} BY NAME SELECT made.*, sessions
FROM {macro}((SELECT list(run) FROM just_ended WHERE run NOT IN (SELECT run FROM {table}))) AS made
JOIN just_ended USING (run)
"""
_KEEP_REMOVED = """
DELETE FROM {table} WHERE run IN (SELECT run FROM old_runs) AND run NOT IN (SELECT run FROM {lasting});
INSERT INTO {table} BY NAME
FROM {macro}((SELECT list(run) FROM old_runs WHERE run NOT IN (SELECT run FROM {lasting})));
UPDATE {table} SET sessions = NULL WHERE run IN (SELECT run FROM old_runs)
"""


def forget_changed(connection: Connection, tables: Mapping[str, pa.Table]) -> list[str]:
    """Remove what is stored of runs that these rows change, in the transaction. Return these runs."""
    ended, changed = _touched(tables)
    if changed:  # only of a run that is stored: a command may wait for this commit
        stored = "SELECT run FROM ended_waste WHERE run IN (SELECT unnest($1))"
        ended |= {run for (run,) in connection.execute(stored, [sorted(changed)]).fetchall()}
    if not ended:
        return []
    ended |= {run for (run,) in connection.execute(_GONE_ON_FROM, [sorted(ended)]).fetchall()}
    runs = sorted(ended)
    for table in _KEPT:
        connection.execute(_FORGET.format(table=table), [runs])
    return runs


def keep_ended(connection: Connection, runs: Collection[str]) -> None:
    """Store what is of those of these runs that have ended, within the caller's transaction."""
    if not runs:
        return
    [(ended,)] = connection.execute(_ENDED, [sorted(runs)]).fetchall()
    for table, macro in _KEPT.items() if ended else ():  # to plan them takes 60 ms
        connection.execute(_KEEP.format(table=table, macro=macro))
    connection.execute("DROP TABLE just_ended")


def _touched(tables: Mapping[str, pa.Table]) -> tuple[set[str], set[str]]:
    """Return the runs that may have ended with these rows, and those that they change."""
    ended: set[str] = set()
    if "windows" in tables:
        columns = tables["windows"]["run"].chunks, tables["windows"]["kind"].chunks
        for runs, kinds in zip(*columns, strict=True):
            if "run" in kinds.dictionary.to_pylist():  # else they are steps by the thousand
                rows = zip(runs.to_pylist(), kinds.to_pylist(), strict=True)
                ended.update(run for run, kind in rows if kind == "run")
    changed = {run for name in _DECIDE & tables.keys() for run in tables[name]["run"].to_pylist()}
    return ended - {None}, changed - {None}


def keep_removed(connection: Connection) -> None:
    """Store what is of ``old_runs`` for ever, within the caller's transaction: their steps go next."""
    [(old,)] = connection.execute("SELECT count(*) FROM old_runs").fetchall()
    for table, macro in _KEPT.items() if old else ():  # to plan them takes 60 ms, and 1.2 s in a lake
        lasting = table.replace("ended", "lasting")
        connection.execute(_KEEP_REMOVED.format(table=table, macro=macro, lasting=lasting))
