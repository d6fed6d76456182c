"""The power of the last hour by run, drawn as layers, with a row a run. Pure."""

from msgspec.structs import replace

from zeus_stream.questions.asking import Asking
from zeus_stream.questions.run_questions import find_last, find_savings
from zeus_stream.quoting import quoted_list
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, as_is, plain, quantity, table
from zeus_stream.screens.html.site_panels import run_link
from zeus_stream.screens.svg.series_chart import COLOURS
from zeus_stream.screens.svg.site_charts import power_layers, sparkline
from zeus_stream.views.quantity import Quantity
from zeus_stream.views.site_view import PowerView, RunPower, power_of_rows

HOUR_S = 3600
BUCKETS = 120
LAYERS = 7
"""Runs with a layer of their own: those that began last."""
MOST_BY_SECOND = 64
"""GPUs whose seconds are added up; of more, their minutes."""
_EXTENT = """
SELECT count(DISTINCT gpu) AS gpus, epoch_ns(min(began_at)) AS first_ns FROM power
WHERE NOT of_host(gpu) AND began_at >= make_timestamp({begin_us})
"""
_RUNS = """
WITH of_hour AS (
    SELECT run, job, unnest(gpus) AS gpu, began_wall_ns,
        CASE WHEN ended_ns IS NOT NULL THEN began_wall_ns + ended_ns - began_ns END AS ended_wall_ns
    FROM sessions WHERE world_size > 0
)
SELECT run, any_value(job) AS job, gpu, min(began_wall_ns) AS began_wall_ns,
    CASE WHEN count(ended_wall_ns) = count(*) THEN max(ended_wall_ns) END AS ended_wall_ns
FROM of_hour WHERE coalesce(ended_wall_ns, {begin_ns}) >= {begin_ns}
GROUP BY run, gpu QUALIFY dense_rank() OVER (ORDER BY max(began_wall_ns) DESC, run) <= {most}
ORDER BY began_wall_ns, run
"""
_POWER = """
WITH spans AS (
    -- Of runs that share a GPU the first has its energy.
    SELECT run, gpu, coalesce(make_timestamp(ended_wall_ns // 1000), 'infinity') AS ended_at,
        greatest(make_timestamp(began_wall_ns // 1000), max(ended_at) OVER (PARTITION BY gpu
            ORDER BY began_wall_ns, run ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS began_at
    FROM ({runs})
)
SELECT parts.gpu, ((epoch_ns(parts.began_at) - {begin_ns}) // {bucket_ns})::BIGINT AS bucket,
    coalesce(run, '') AS run, sum(energy_j) AS energy_j, sum(covered_s) AS own_s,
    sum(sum(covered_s)) OVER of_gpu AS covered_s, avg(avg(limit_w)) OVER of_gpu AS limit_w
FROM {parts} AS parts LEFT JOIN spans ON spans.gpu = parts.gpu
    AND parts.began_at + INTERVAL {half_ms} MILLISECONDS >= spans.began_at
    AND parts.began_at + INTERVAL {half_ms} MILLISECONDS < spans.ended_at
WHERE NOT of_host(parts.gpu) AND parts.began_at >= make_timestamp({begin_us})
GROUP BY parts.gpu, bucket, run WINDOW of_gpu AS (PARTITION BY parts.gpu, bucket)
"""
"""Each second, or minute, is of the run that has its middle: a bucket may be long beside a run."""

_SAVED = """
WITH steps AS (
    SELECT saved_j, (epoch_us(began_at) - {begin_us}) / {bucket_us} AS first,
        first + greatest(duration_s * 1e6 / {bucket_us}, 1e-9) AS last
    FROM saved_steps_of([{runs}], make_timestamp({from_us})) WHERE saved_j IS NOT NULL
), parts AS (
    SELECT *, unnest(range(floor(first)::BIGINT, ceil(last)::BIGINT)) AS bucket FROM steps
)
SELECT bucket, sum(saved_j * (least(last, bucket + 1) - greatest(first, bucket)) / (last - first)) AS saved_j
FROM parts GROUP BY bucket
"""
OLD_S = 90
"""GPUs at rest are read once a minute; a chart whose readings end earlier says so."""
LONGEST_STEP_NS = 120 * 10**9
"""A step that began so long before the hour is in it with its rest."""


def find_hour(now_ns: int = 0) -> Asking[PowerView | None]:
    """Ask for the power of the hour until now, or until the end of the archive. None: it has none."""
    last_ns = max((yield from find_last()), now_ns)
    begin_ns = max(last_ns - HOUR_S * 10**9, 0)
    (extent,) = yield _EXTENT.format(begin_us=begin_ns // 1000)
    if extent["first_ns"] is None:
        return None
    by_second = extent["gpus"] <= MOST_BY_SECOND
    # In the first second, a part of the energy is of the time before the first reading.
    begin_ns = max(begin_ns, extent["first_ns"] + (10**9 if by_second else 0))
    bucket_s = max(-(-(last_ns - begin_ns) // (BUCKETS * 10**9)), 1 if by_second else 60)
    of_hour = _RUNS.format(begin_ns=begin_ns, most=LAYERS)
    rows = yield _POWER.format(
        runs=of_hour, begin_ns=begin_ns, begin_us=begin_ns // 1000, bucket_ns=bucket_s * 10**9,
        parts="seconds" if by_second else "minutes", half_ms=500 if by_second else 30_000,
    )  # fmt: skip
    runs = yield of_hour
    names = list(dict.fromkeys(row["run"] for row in runs))
    savings = yield from find_savings(names)
    saved = yield _SAVED.format(
        runs=quoted_list(names), begin_us=begin_ns // 1000, bucket_us=bucket_s * 10**6,
        from_us=(begin_ns - LONGEST_STEP_NS) // 1000,
    )  # fmt: skip
    buckets = max((row["bucket"] for row in rows), default=-1) + 1
    saved_j = {row["bucket"]: row["saved_j"] for row in saved if row["saved_j"] is not None}
    power = power_of_rows(rows, runs, begin_ns, bucket_s, buckets, savings, saved_j)
    return replace(power, span_s=max((last_ns - begin_ns) / 1e9, buckets * bucket_s))


def hour(now_ns: int = 0) -> Asking[PagePanel | None]:
    """Ask for the power of the last hour, and draw it: until now, also if the last reading is older."""
    power = yield from find_hour(now_ns)
    if power is None or not power.layers:
        return None
    total_j = sum(layer.energy.known or 0.0 for layer in power.layers)
    text = f"{Quantity(total_j, 'J')} of all GPUs"
    since_s = power.span_s - len(power.limit_w) * power.bucket_s
    if since_s > max(OLD_S, power.bucket_s):
        text += f"; no reading of the last {Quantity(since_s, 's')} is in the archive"
    saves = any(power.saved_w)
    keys = [
        *([("hatch", f"saved: {power.saved}")] if saves else []),
        ("limit", "limits of all GPUs"),
    ]
    spans = [element("span", words, class_=f"key {kind}") for kind, words in keys]
    legend = element("p", spans, class_="legend", aria_hidden="true")
    rows = [_row(number, layer) for number, layer in enumerate(power.layers)]
    columns: Columns = {
        "run": ("run", as_is), "job": ("job", plain), "spark": ("", as_is), "power": ("mean power", quantity),
        "energy": ("energy in the hour", quantity), "saved": ("saved", quantity),
    }  # fmt: skip
    chart = element("figure", power_layers(power, text), class_="wide")
    body = element("div", chart, legend, table(rows, columns, "Power by run", ("job", "spark", "power")))
    return PagePanel(name="hour", title="Power of the last hour", body=body, text=f"{text}.")


def _row(number: int, layer: RunPower) -> dict[str, object]:
    colour = COLOURS[number % len(COLOURS)] if layer.run else None
    dot = element("circle", cx="5", cy="5", r="5", fill=colour, class_=None if colour else "free")
    name = run_link(layer.run) if layer.run else "no run"
    return {
        "run": Markup(element("svg", dot, viewBox="0 0 10 10", class_="swatch", aria_hidden="true") + name),
        "job": layer.job,
        "spark": sparkline(layer.watts),
        "power": layer.power,
        "energy": layer.energy,
        "saved": layer.saving.energy
        if layer.saving is not None and layer.saving.applied
        else Quantity(None, "%"),
    }
