"""Store the savings of runs that have ended, and of runs whose steps are removed.

The view ``savings`` reads these rows, and computes only the savings of runs that are open.
"""

from collections.abc import Mapping

import pyarrow as pa

from analyzers.archive.opening import Connection

_DECIDE = frozenset({"decisions", "trials", "runs"})
"""Tables whose rows change the savings of a run, besides its windows."""
_ENDED = """
CREATE TEMP TABLE just_ended AS
SELECT runs.run, count(*) AS sessions FROM runs
WHERE world_size > 0 AND run IN (SELECT unnest($1)) AND run IN (SELECT run FROM decisions)
GROUP BY runs.run HAVING count(*) = (
    SELECT count(DISTINCT session) FROM windows
    WHERE windows.run = runs.run AND kind = 'run' AND run IN (SELECT unnest($1))
)
"""
_KEEP = """
INSERT INTO ended_savings
SELECT savings.*, sessions FROM savings_of((
    SELECT list(run) FROM just_ended WHERE run NOT IN (SELECT run FROM ended_savings)
)) AS savings JOIN just_ended USING (run)
"""
_KEEP_OLD = """
INSERT INTO ended_savings
SELECT savings.*, NULL FROM savings_of((
    SELECT list(run) FROM old_runs WHERE run NOT IN (SELECT run FROM lasting_savings)
)) AS savings
"""


def keep_ended(connection: Connection, tables: Mapping[str, pa.Table]) -> None:
    """Store the savings of runs that end with these rows, within the caller's transaction.

    Args:
        connection: the rows are stored in it already.
        tables: the rows of the transaction, by table.
    """
    ended, changed = _touched(tables)
    if changed:  # only of a run that is stored: a command may wait for this commit
        stored = "SELECT run FROM ended_savings WHERE run IN (SELECT unnest($1))"
        ended |= {run for (run,) in connection.execute(stored, [sorted(changed)]).fetchall()}
    if not ended:
        return
    runs = sorted(ended)
    connection.execute(_ENDED, [runs])
    connection.execute(
        "DELETE FROM ended_savings WHERE sessions IS NOT NULL AND run IN (SELECT unnest($1))", [runs]
    )
    connection.execute(_KEEP)
    connection.execute("DROP TABLE just_ended")


def _touched(tables: Mapping[str, pa.Table]) -> tuple[set[str], set[str]]:
    """Return the runs that may have ended with these rows, and those whose savings they change."""
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
    """Store the savings of ``old_runs`` for ever, within the caller's transaction: their steps go next."""
    connection.execute(
        "DELETE FROM ended_savings"
        " WHERE run IN (SELECT run FROM old_runs) AND run NOT IN (SELECT run FROM lasting_savings)"
    )
    connection.execute(_KEEP_OLD)
    connection.execute("UPDATE ended_savings SET sessions = NULL WHERE run IN (SELECT run FROM old_runs)")
