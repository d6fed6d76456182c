"""The question for power over time. Pure.

The mean of a bucket is the difference of the energy counter at its two edges over its width, so that the area
of the chart is the energy. The counter at an edge is interpolated between its changes. The difference of the
counter *inside* a bucket would miss the part of a refresh at each end and show spikes that never were.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from zeus_stream.reports.html.questions import Asking, Gpu, Rows, quoted, quoted_list
from zeus_stream.reports.svg.run_charts import PowerPoint

MAX_PX = 4000
"""Largest number of buckets."""
LEAST_PERIODS = 2
"""Narrowest bucket, in periods of the counter."""
LEAST_NS = 100_000_000
"""Narrowest bucket: on a busy host a change of the counter is seen some ms late."""
REACH_NS = 2_000_000_000
"""Readings before and after the range that the edges need."""
LOGGED_NS = 60_000_000_000
"""Longest time from a reading to its log."""
S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Power over time: the sum of some GPUs."""

    begin_wall_ns: int
    bucket_s: float
    points: tuple[PowerPoint, ...]
    energy_j: float | None
    """Area of the means; None: part of the range has no counter."""
    counted: bool
    """False: no counter; the means are those of the power sensor."""


_CLOCKS = """
SELECT log_id, max_by(wall_ns - monotonic_ns, monotonic_ns) AS shift_ns, any_value(logs.logged_ns) AS last_ns
FROM hosts JOIN logs USING (log_id) WHERE hosts.host IN ({hosts}) GROUP BY log_id ORDER BY log_id
"""
_POWER = """
WITH taken AS (
    SELECT gpu, log_id, (t_lo_ns + t_hi_ns) // 2 + {shift} AS t_ns, t_hi_ns + {shift} AS read_ns,
        energy_mj, power_mw, limit_mw, seen
    FROM readings
    WHERE gpu IN ({gpus}) AND logged_ns BETWEEN {first_ns} AND {last_ns} AND ({logs})
), changes AS (
    SELECT gpu, log_id, t_ns, energy_mj, count(*) FILTER (seen IN ('first', 'reset')) OVER (
        PARTITION BY gpu, log_id ORDER BY t_ns ROWS UNBOUNDED PRECEDING) AS counter
    FROM taken WHERE seen <> 'unchanged' AND energy_mj IS NOT NULL
), pieces AS (
    SELECT *, lead(t_ns) OVER one_counter AS next_ns, lead(energy_mj) OVER one_counter AS next_mj
    FROM changes WINDOW one_counter AS (PARTITION BY gpu, log_id, counter ORDER BY t_ns)
), edges AS (
    SELECT gpu, bucket, {begin_ns} + bucket * {width_ns} AS t_ns
    FROM (SELECT unnest([{gpus}]) AS gpu), (SELECT unnest(range({buckets} + 1)) AS bucket)
), at_edges AS (
    SELECT edges.gpu, bucket, log_id, counter, CASE WHEN edges.t_ns = pieces.t_ns THEN energy_mj
        WHEN edges.t_ns <= next_ns THEN energy_mj
        + (next_mj - energy_mj) * ((edges.t_ns - pieces.t_ns) / (next_ns - pieces.t_ns)::DOUBLE) END AS at_mj
    FROM edges ASOF LEFT JOIN pieces ON edges.gpu = pieces.gpu AND edges.t_ns >= pieces.t_ns
), means AS (
    SELECT gpu, bucket, CASE WHEN log_id = lead(log_id) OVER later AND counter = lead(counter) OVER later
        THEN (lead(at_mj) OVER later - at_mj) * 1e6 / {width_ns} END AS mean_w
    FROM at_edges WINDOW later AS (PARTITION BY gpu ORDER BY bucket)
), sensed AS (
    SELECT gpu, (read_ns - {begin_ns}) // {width_ns} AS bucket, min(power_mw) / 1000 AS least_w,
        max(power_mw) / 1000 AS most_w, avg(power_mw) / 1000 AS sensed_w,
        arg_max(limit_mw, read_ns) / 1000 AS limit_w
    FROM taken WHERE read_ns >= {begin_ns} AND read_ns < {end_ns} GROUP BY ALL
)
SELECT bucket, count(mean_w) AS counted,
    CASE WHEN count(mean_w) = count(*) THEN sum(mean_w) END AS mean_w,
    CASE WHEN count(sensed_w) = count(*) THEN sum(sensed_w) END AS sensed_w,
    CASE WHEN count(least_w) = count(*) THEN sum(least_w) END AS least_w,
    CASE WHEN count(most_w) = count(*) THEN sum(most_w) END AS most_w,
    CASE WHEN count(limit_w) = count(*) THEN sum(limit_w) END AS limit_w
FROM means LEFT JOIN sensed USING (gpu, bucket) WHERE bucket < {buckets} GROUP BY bucket ORDER BY bucket
"""


def bucket_ns(begin_wall_ns: int, end_wall_ns: int, px: int, period_ms: float) -> int:
    """Return the width of a bucket: a share of the range, but never so narrow that timing errors show."""
    least = max(round(LEAST_PERIODS * period_ms * 1e6), LEAST_NS)
    return max(ceil((end_wall_ns - begin_wall_ns) / max(1, min(px, MAX_PX))), least)


def find_power(gpus: Sequence[Gpu], begin_wall_ns: int, end_wall_ns: int, px: int) -> Asking[Power]:
    """Ask for the power of some GPUs together, between two instants of UTC.

    Args:
        gpus: whose power is added up. The range of a bucket is that of the sums of the extremes.
        begin_wall_ns, end_wall_ns: ns since 1970.
        px: buckets wanted; fewer where the counter is slower.
    """
    width_ns = bucket_ns(begin_wall_ns, end_wall_ns, px, max((gpu.period_ms for gpu in gpus), default=100))
    buckets = max(1, ceil((end_wall_ns - begin_wall_ns) / width_ns))
    end_wall_ns = begin_wall_ns + buckets * width_ns
    clocks = yield _CLOCKS.format(hosts=quoted_list(sorted({gpu.host for gpu in gpus})))
    spans = [
        (row["log_id"], row["shift_ns"], begin_wall_ns - row["shift_ns"] - REACH_NS,
         end_wall_ns - row["shift_ns"] + REACH_NS + LOGGED_NS)
        for row in clocks
        if row["last_ns"] >= begin_wall_ns - row["shift_ns"]
    ]  # fmt: skip
    rows: Rows = ()
    if spans and gpus:
        shifts = " ".join(f"WHEN {quoted(log)} THEN {shift}" for log, shift, *_ in spans)
        rows = yield _POWER.format(
            shift=f"CASE log_id {shifts} END",
            gpus=quoted_list([gpu.gpu for gpu in gpus]),
            first_ns=min(span[2] for span in spans), last_ns=max(span[3] for span in spans),
            logs=" OR ".join(
                f"log_id = {quoted(log)} AND logged_ns BETWEEN {first} AND {last}"
                for log, _, first, last in spans
            ),
            begin_ns=begin_wall_ns, end_ns=end_wall_ns, width_ns=width_ns, buckets=buckets,
        )  # fmt: skip
    counted = any(row["counted"] for row in rows)
    points = tuple(
        PowerPoint(
            begin_s=row["bucket"] * width_ns / S, end_s=(row["bucket"] + 1) * width_ns / S,
            mean_w=row["mean_w" if counted else "sensed_w"], least_w=row["least_w"], most_w=row["most_w"],
            limit_w=row["limit_w"],
        )
        for row in rows
    )  # fmt: skip
    means = [point.mean_w for point in points if point.mean_w is not None]
    whole = counted and points and len(means) == len(points)
    return Power(
        begin_wall_ns=begin_wall_ns, bucket_s=width_ns / S, points=points, counted=counted,
        energy_j=sum(means) * width_ns / S if whole else None,
    )  # fmt: skip
