"""Sessions of a benchmark in the archive, which is its history."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from zeus_stream.bench.energy_bench import calls_metric, window_name
from zeus_stream.transport.client import quoted

if TYPE_CHECKING:
    import pyarrow as pa

SESSIONS = 20
"""The latest sessions that count."""
_SESSIONS = """
WITH repeats AS (
    SELECT run, index, min(began_at) AS began_at, sum(energy_j) AS energy_j,
        string_agg(gpu, ' ' ORDER BY gpu) AS gpus,
        CASE WHEN min(power_limit_w) = max(power_limit_w) THEN min(power_limit_w) END AS power_limit_w
    FROM windows WHERE kind = 'window' AND name = {window} AND NOT of_host(gpu)
    GROUP BY run, index HAVING count(energy_j) = count(*) AND sum(energy_j) > 0
)
SELECT run, CAST(min(repeats.began_at) AS VARCHAR) AS began_at,
    exp(avg(ln(energy_j / calls.value))) AS energy_j, count(*) AS repeats, any_value(gpus) AS gpus,
    any_value(power_limit_w) AS power_limit_w
FROM repeats JOIN metrics AS calls USING (run) WHERE calls.name = {calls}
GROUP BY run ORDER BY began_at
"""


class BenchSession(Struct, frozen=True, kw_only=True):
    """One session of one function."""

    run: str
    began_at: str
    """UTC."""
    energy_j: float
    """Of one call: the geometric mean of the repeats."""
    repeats: int
    gpus: str
    power_limit_w: float | None
    """None: it changed."""


def read_sessions(ask: "Callable[[str], pa.Table]", name: str) -> list[BenchSession]:
    """Return all sessions of a function, the oldest first."""
    query = _SESSIONS.format(window=quoted(window_name(name)), calls=quoted(calls_metric(name)))
    return convert(ask(query).to_pylist(), list[BenchSession])


def comparable_sessions(sessions: Sequence[BenchSession], latest: BenchSession) -> list[BenchSession]:
    """Return the latest sessions before this one, on the same GPUs at the same power limit."""
    alike = [
        each
        for each in sessions
        if each.began_at < latest.began_at
        and (each.gpus, each.power_limit_w) == (latest.gpus, latest.power_limit_w)
    ]
    return alike[-SESSIONS:]
