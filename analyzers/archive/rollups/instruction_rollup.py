"""Instructions of pipelines, added up by minute of UTC in the commit of their frames.

    iterations that ran -> rows of ``instruction_minutes``, one for each session, kind, chunk and minute

An instruction counts in the minute in which it began. A frame is stored once, so its instructions are added
once. Those of a host whose UTC is not known yet are left out.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analyzers.archive.opening import Connection
from analyzers.archive.rollups.rollup import Ints, put_merged
from zeus_stream.protocol.pipelines import KINDS, ROW, IterationRan

MINUTE_US = 60_000_000
MINUTES = "instruction_minutes"
"""Name of the table."""
_ROW = np.dtype([("code", "<u4"), ("begin_us", "<u4"), ("length_us", "<u4")])

MERGED = """
SELECT session, kind, chunk, began_at, sum(instructions)::BIGINT AS instructions, sum(busy_s) AS busy_s,
    min(shortest_s) AS shortest_s, max(longest_s) AS longest_s
FROM (
    FROM incoming_instruction_minutes
    UNION ALL BY NAME
    SELECT known.* FROM instruction_minutes AS known SEMI JOIN incoming_instruction_minutes
        USING (session, kind, chunk, began_at)
    WHERE known.began_at >= (SELECT min(began_at) FROM incoming_instruction_minutes)
) GROUP BY session, kind, chunk, began_at
"""


def roll_up(ran: Sequence[tuple[str, IterationRan, int]]) -> dict[str, pa.Table]:
    """Return rows of ``instruction_minutes`` of sessions' iterations and their UTC minus host clock, ns."""
    sessions: dict[str, int] = {}
    parts = [
        _instructions(sessions.setdefault(session, len(sessions)), event, utc_ns)
        for session, event, utc_ns in ran
        if len(event.rows) >= ROW.size
    ]
    return {MINUTES: _table(np.concatenate(parts), list(sessions))} if parts else {}


def merge(connection: Connection) -> None:
    """Put the incoming minutes in the place of what they add to, within the caller's transaction."""
    put_merged(connection, MINUTES, MERGED, ("session", "kind", "chunk", "began_at"))


def _instructions(session: int, ran: IterationRan, utc_ns: int) -> Ints:
    """Return session, kind, chunk, minute and microseconds of each instruction, shape (n, 5)."""
    rows = np.frombuffer(ran.rows[: len(ran.rows) // ROW.size * ROW.size], _ROW)
    found = np.empty((len(rows), 5), np.int64)
    found[:, 0] = session
    found[:, 1] = rows["code"] & 3
    found[:, 2] = rows["code"] >> 2 & 255
    found[:, 3] = ((ran.t_ns + utc_ns) // 1000 + rows["begin_us"].astype(np.int64)) // MINUTE_US
    found[:, 4] = rows["length_us"]
    return found


def _table(found: Ints, sessions: Sequence[str]) -> pa.Table:
    keys, at = np.unique(found[:, :4], axis=0, return_inverse=True)
    order = np.argsort(at, kind="stable")
    lengths_us = found[order, 4]
    starts = np.searchsorted(at[order], np.arange(len(keys)))
    return pa.table(
        {
            "session": pa.array([sessions[each] for each in keys[:, 0]], pa.string()),
            "kind": pa.array([KINDS[each] for each in keys[:, 1]], pa.string()),
            "chunk": pa.array(keys[:, 2]),
            "began_at": pa.array((keys[:, 3] * MINUTE_US).view("datetime64[us]")),
            "instructions": pa.array(np.bincount(at)),
            "busy_s": pa.array(np.add.reduceat(lengths_us, starts) / 1e6),
            "shortest_s": pa.array(np.minimum.reduceat(lengths_us, starts) / 1e6),
            "longest_s": pa.array(np.maximum.reduceat(lengths_us, starts) / 1e6),
        }
    )
