"""The question for power over time. Pure.

The mean of a bucket is the difference of the energy counter at its two edges over its width, so that the area
of the chart is the energy. The counter at an edge is interpolated between its changes. The difference of the
counter *inside* a bucket would miss the part of a refresh at each end and show spikes that never were.
"""

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from zeus_stream.questions.asking import Asking, Rows
from zeus_stream.questions.run_questions import PageGpu
from zeus_stream.quoting import quoted, quoted_list
from zeus_stream.views.site_view import HELD_S

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


class PowerPoint(Struct, frozen=True, kw_only=True):
    """One bucket of the chart over time. A figure that is not known is None."""

    begin_s: float
    end_s: float
    mean_w: float | None
    """From the energy counter: times the width, it is the energy."""
    least_w: float | None
    most_w: float | None
    """Of the power sensor in the bucket."""
    limit_w: float | None


class Power(Struct, frozen=True, kw_only=True):
    """Power over time: the sum of some GPUs."""

    begin_wall_ns: int
    bucket_s: float
    points: tuple[PowerPoint, ...]
    energy_j: float | None
    """Area of the means; None: part of the range has no counter."""
    counted: bool
    """False: no counter; the means are those of the power sensor."""
    gpus: int


_CLOCKS = """
SELECT log_id, max_by(wall_ns - monotonic_ns, monotonic_ns) AS shift_ns, any_value(logs.logged_ns) AS last_ns
FROM hosts JOIN logs USING (log_id) WHERE hosts.host IN ({hosts}) GROUP BY log_id ORDER BY log_id
"""
_POWER = """
WITH taken AS (
    SELECT gpu, log_id, t_hi_ns + {shift} AS read_ns, energy_mj, power_mw, limit_mw, seen,
        -- between its bounds; of a GPU that has rested since the first of them, at the last
        CASE WHEN seen = 'rested' THEN t_hi_ns ELSE (t_lo_ns + t_hi_ns) // 2 END + {shift} AS t_ns
    FROM readings
    WHERE gpu IN ({gpus}) AND logged_ns BETWEEN {first_ns} AND {last_ns} AND ({logs})
), changes AS (
    SELECT gpu, log_id, t_ns, energy_mj, seen FROM taken WHERE seen <> 'unchanged' AND energy_mj IS NOT NULL
), followed AS (
    SELECT gpu, t_ns, energy_mj, lead(t_ns) OVER one_gpu AS next_ns, lead(energy_mj) OVER one_gpu AS next_mj,
        lead(seen) OVER one_gpu IN ('first', 'reset') OR lead(log_id) OVER one_gpu <> log_id AS broken
    FROM changes WINDOW one_gpu AS (PARTITION BY gpu ORDER BY t_ns)
), pieces AS (  -- between two changes of one counter; the last one ends where it begins
    SELECT gpu, t_ns, energy_mj,
        CASE WHEN broken OR next_ns IS NULL THEN t_ns + 1 ELSE next_ns END AS next_ns,
        CASE WHEN broken OR next_ns IS NULL THEN energy_mj ELSE next_mj END AS next_mj
    FROM followed
), edged AS (  -- the edges that lie in a piece, without a join, which would compare each with each
    SELECT *, unnest(range((greatest(t_ns, {begin_ns}) - {begin_ns} + {width_ns} - 1) // {width_ns},
        least((next_ns - {begin_ns} - 1) // {width_ns}, {buckets}) + 1)) AS bucket
    FROM pieces WHERE next_ns > {begin_ns} AND next_ns > t_ns
), at_edges AS (
    SELECT gpu, bucket, energy_mj + (next_mj - energy_mj)
        * (({begin_ns} + bucket * {width_ns} - t_ns) / (next_ns - t_ns)::DOUBLE) AS at_mj
    FROM edged QUALIFY row_number() OVER (PARTITION BY gpu, bucket ORDER BY t_ns) = 1
), resets AS (
    SELECT DISTINCT gpu, unnest(range((greatest(t_ns, {begin_ns}) - {begin_ns}) // {width_ns},
        (next_ns - {begin_ns} - 1) // {width_ns} + 1)) AS bucket, true AS reset
    FROM followed WHERE broken AND next_ns > {begin_ns}
), means AS (
    SELECT gpu, bucket, CASE WHEN reset IS NULL AND lead(bucket) OVER later = bucket + 1
        THEN (lead(at_mj) OVER later - at_mj) * 1e6 / {width_ns} END AS mean_w
    FROM at_edges LEFT JOIN resets USING (gpu, bucket) WINDOW later AS (PARTITION BY gpu ORDER BY bucket)
), grid AS (
    SELECT gpu, bucket
    FROM (SELECT unnest([{gpus}]) AS gpu), (SELECT unnest(range({buckets})) AS bucket)
), sensed AS (
    SELECT gpu, (read_ns - {begin_ns}) // {width_ns} AS bucket, min(power_mw) / 1000 AS least_w,
        max(power_mw) / 1000 AS most_w, avg(power_mw) / 1000 AS sensed_w,
        arg_max(limit_mw, read_ns) / 1000 AS limit_w
    FROM taken WHERE read_ns >= {begin_ns} AND read_ns < {end_ns} GROUP BY ALL
), known AS (  -- a GPU at rest is read rarely, and keeps its limit
    SELECT * REPLACE (coalesce(limit_w, CASE WHEN mean_w IS NOT NULL
        THEN last_value(limit_w IGNORE NULLS) OVER (PARTITION BY gpu ORDER BY bucket
            ROWS BETWEEN {held} PRECEDING AND CURRENT ROW) END) AS limit_w)
    FROM grid LEFT JOIN means USING (gpu, bucket) LEFT JOIN sensed USING (gpu, bucket)
)
SELECT bucket, count(mean_w) AS counted,
    CASE WHEN count(mean_w) = count(*) THEN sum(mean_w) END AS mean_w,
    CASE WHEN count(sensed_w) = count(*) THEN sum(sensed_w) END AS sensed_w,
    CASE WHEN count(least_w) = count(*) THEN sum(least_w) END AS least_w,
    CASE WHEN count(most_w) = count(*) THEN sum(most_w) END AS most_w,
    CASE WHEN count(limit_w) = count(*) THEN sum(limit_w) END AS limit_w
FROM known GROUP BY bucket ORDER BY bucket
"""


_MINUTES = """
SELECT (epoch_us(began_at) * 1000 - {begin_ns}) // {width_ns} AS bucket, sum(energy_j) AS energy_j,
    sum(energy_j) / (sum(covered_s) / {gpus_count}) AS mean_w, max(peak_w) AS peak_w, avg(limit_w) AS limit_w,
    count(DISTINCT gpu) AS gpus
FROM minutes WHERE gpu IN ({gpus}) AND began_at >= make_timestamp({begin_ns} // 1000)
    AND began_at < make_timestamp({end_ns} // 1000)
GROUP BY ALL ORDER BY bucket
"""
MINUTES_FROM_NS = 2 * 3600 * S
"""Ranges from here on are drawn from the energy of whole minutes, which outlives the readings."""
MINUTE_NS = 60 * S


def bucket_ns(begin_wall_ns: int, end_wall_ns: int, px: int, period_ms: float) -> int:
    """Return the width of a bucket: a share of the range, but never so narrow that timing errors show."""
    least = max(round(LEAST_PERIODS * period_ms * 1e6), LEAST_NS)
    return max(ceil((end_wall_ns - begin_wall_ns) / max(1, min(px, MAX_PX))), least)


def find_power(gpus: Sequence[PageGpu], begin_wall_ns: int, end_wall_ns: int, px: int) -> Asking[Power]:
    """Ask for the power of some GPUs together, between two instants of UTC, in ``px`` buckets at most.

    The range of a bucket is that of the sums of the extremes.
    """
    if end_wall_ns - begin_wall_ns > MINUTES_FROM_NS:
        return (yield from _find_minutes(gpus, begin_wall_ns, end_wall_ns, px))
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
            held=ceil(HELD_S * S / width_ns),
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
        begin_wall_ns=begin_wall_ns, bucket_s=width_ns / S, points=points, counted=counted, gpus=len(gpus),
        energy_j=sum(means) * width_ns / S if whole else None,
    )  # fmt: skip


def _find_minutes(gpus: Sequence[PageGpu], begin_wall_ns: int, end_wall_ns: int, px: int) -> Asking[Power]:
    """Ask for the power of a long range, by whole minutes. The least of the sensor is not known of them."""
    begin_ns = begin_wall_ns // MINUTE_NS * MINUTE_NS
    minutes = ceil((end_wall_ns - begin_ns) / MINUTE_NS)
    width_ns = ceil(minutes / max(1, min(px, MAX_PX))) * MINUTE_NS
    buckets = ceil(minutes * MINUTE_NS / width_ns)
    rows = yield _MINUTES.format(
        begin_ns=begin_ns, end_ns=begin_ns + buckets * width_ns, width_ns=width_ns, gpus_count=len(gpus) or 1,
        gpus=quoted_list([gpu.gpu for gpu in gpus]),
    )  # fmt: skip
    known = {row["bucket"]: row for row in rows if row["gpus"] == len(gpus)}
    none: dict[str, None] = dict.fromkeys(("mean_w", "peak_w", "limit_w"))
    points = tuple(
        PowerPoint(
            begin_s=bucket * width_ns / S, end_s=(bucket + 1) * width_ns / S,
            mean_w=known.get(bucket, none)["mean_w"], least_w=None,
            most_w=known.get(bucket, none)["peak_w"] if len(gpus) == 1 else None,
            limit_w=_times(known.get(bucket, none)["limit_w"], len(gpus)),
        )
        for bucket in range(buckets if rows else 0)
    )  # fmt: skip
    energies = [row["energy_j"] for row in known.values()]
    whole = bool(points) and len(energies) == len(points) and None not in energies
    return Power(
        begin_wall_ns=begin_ns, bucket_s=width_ns / S, points=points, counted=True, gpus=len(gpus),
        energy_j=sum(energies) if whole else None,
    )  # fmt: skip


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor
