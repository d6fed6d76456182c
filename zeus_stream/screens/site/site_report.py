"""The report of a site: the runs that began in a period, as a page, as drawings and as JSON. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from zeus_stream.questions.asking import Asking, Row, Rows, answered
from zeus_stream.screens.html.document import Report, ask_panels, report_of, sources
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, PagePanel, facts, plain, table
from zeus_stream.screens.html.site_panels import (
    BY_JOB,
    CAUSES,
    JOBS,
    JOBS_PANEL,
    JOBS_WASTE,
    SAVED,
    causes,
    saved,
)
from zeus_stream.screens.site.period import Period
from zeus_stream.screens.svg.site_charts import time_chart
from zeus_stream.views.costs import amount_words
from zeus_stream.views.quantity import ABSENT, figure, joules, seconds, with_bounds, within_half

if TYPE_CHECKING:
    import pyarrow as pa

Answer = Callable[[str], "pa.Table"]
VERSION = 1
"""Of the JSON form; it changes when a field changes its meaning or goes."""
MOST_ROWS = 10_000
"""Of one list in the JSON form."""
COLUMNS = 60
"""Largest number of columns of the chart over time."""
_SPANS_S = {
    60: "1 minute", 300: "5 minutes", 900: "15 minutes", 3600: "1 hour", 6 * 3600: "6 hours", 86_400: "1 day",
    7 * 86_400: "7 days",
}  # fmt: skip
_TOTALS = """
SELECT count(*) AS runs, count(energy_j) AS measured, sum(energy_j) AS energy_j, sum(gpu_s) / 3600 AS gpu_h
FROM (
    SELECT run, sum(duration_s) AS gpu_s, sum_of_all(energy_j) AS energy_j
    FROM ({runs}) LEFT JOIN counted_wholes() USING (run) GROUP BY run
)
"""
_EXTENT = """
SELECT epoch(ended_at) - epoch(begin_at) AS length_s, strftime(ended_at, '%Y-%m-%d %H:%M:%S') AS ended_at
FROM (
    SELECT min(began_at) AS begin_at, max(began_at + to_seconds(length_s)) AS ended_at FROM power
    WHERE {within}
)
"""
_OVER_TIME = """
SELECT to_timestamp(span * {span_s})::TIMESTAMP AS began_at, sum(energy_j) AS energy_j,
    sum(covered_s) AS covered_gpu_s
FROM (
    SELECT (epoch(began_at) // {span_s})::BIGINT AS span, energy_j, covered_s FROM power
    WHERE {within}
) GROUP BY span ORDER BY span
"""
_COSTS = """
SELECT name, unit, sum(amount) AS amount, count(*) AS runs, count(*) - count(amount) AS unknown
FROM costs WHERE run IN ({runs}) GROUP BY name, unit ORDER BY name, unit
"""
_BALANCE = """
SELECT host, sum(covered_s) AS covered_s, sum(gpu_j) AS gpu_j, sum(cpu_j) AS cpu_j, sum(memory_j) AS memory_j,
    sum(rest_j) AS rest_j, sum(wall_j) AS wall_j, sum(wall_j) / nullif(sum(gpu_j), 0) AS wall_per_gpu,
    CASE WHEN count(rest_within_j) = count(*) THEN sum(rest_within_j) END AS rest_within_j
FROM balance WHERE began_at >= make_timestamp({begin_us}) AND began_at < make_timestamp({end_us})
GROUP BY host ORDER BY wall_j DESC
"""
_COLUMNS: Columns = {
    "host": ("host", plain), "covered_s": ("time", seconds), "gpu_j": ("GPUs", joules),
    "cpu_j": ("CPUs", joules), "memory_j": ("memory", joules), "rest": ("rest", with_bounds),
    "wall_j": ("wall", joules), "wall_per_gpu": ("wall / GPUs", figure),
}  # fmt: skip


def whole_hosts(period: Period) -> Asking[PagePanel | None]:
    """Ask for the energy of the hosts with a meter. Hours count that began in the period."""
    rows = yield _BALANCE.format(begin_us=period.begin_ns // 1000, end_us=period.end_ns // 1000)
    if not rows:
        return None
    shown = [{**row, "rest": within_half(row["rest_j"], "J", row["rest_within_j"])} for row in rows]
    return PagePanel(
        name="hosts", title="Whole hosts", body=table(shown, _COLUMNS, "Whole hosts"),
        text="GPUs + CPUs + memory + rest = wall, by the meters of the hosts.", rows=rows,
    )  # fmt: skip


def site_report(answer: Answer, period: Period, version: str) -> Report:
    """Return the page and the drawings of a period."""
    panels = ask_panels(answer, (
        totals(period), over_time(period), JOBS_PANEL.ask(None, runs=period.runs), saved(period.runs),
        causes(period.runs), JOBS_WASTE.ask(runs=period.runs), whole_hosts(period),
    ))  # fmt: skip
    begin, end = (f"{_utc(wall_ns):%Y-%m-%d %H:%M}" for wall_ns in (period.begin_ns, period.end_ns))
    under = f"Runs that began from {begin} to {end} UTC."
    if not panels:
        under += " There are none."
    (archive,) = answer("SELECT any_value(archive_id) AS archive_id FROM meta").to_pylist()
    made = sources([("zeus-stream", version), ("archive", archive["archive_id"])])
    return report_of("Energy of the site", under, panels, made)


def totals(period: Period) -> Asking[PagePanel | None]:
    """Ask for the sums of a period."""
    (row,) = yield _TOTALS.format(runs=period.runs)
    if not row["runs"]:
        return None
    unmeasured = row["runs"] - row["measured"]
    note = f"{unmeasured} not measured to the end" if unmeasured else ""
    pairs: list[tuple[str, str | Markup, str | Markup]] = [
        ("energy of runs", joules(row["energy_j"]), note),
        ("runs", plain(row["runs"]), ""),
        ("GPU time", seconds(None if row["gpu_h"] is None else 3600 * row["gpu_h"]), ""),
    ]
    prices = yield _COSTS.format(runs=period.runs)
    for each in prices:
        missing = f"{each['unknown']} of {each['runs']} runs not known" if each["unknown"] else ""
        text = ABSENT if each["amount"] is None else amount_words(each)
        pairs.append((each["name"], text, missing))
    return PagePanel(name="totals", title="In all", body=facts(pairs), text="", rows=[row])


def over_time(period: Period) -> Asking[PagePanel | None]:
    """Ask for the energy of all GPUs by equal spans of time, with a chart."""
    span_s, ended_at, rows = yield from find_over_time(period)
    if not rows:
        return None
    columns = _columns(rows, span_s)
    total = sum(row["energy_j"] for row in rows if row["energy_j"] is not None)
    most = max(columns, key=lambda column: column[1] or 0)
    alternative = f"{joules(total)} of all GPUs; most at {most[0]}: {joules(most[1])}."
    chart = time_chart(columns, alternative)
    text = f"All GPUs until {ended_at} UTC, with and without runs: {joules(total)}"
    body = element("figure", chart, class_="wide")
    return PagePanel(
        name="time", title="Energy over time", body=body, text=f"{text}, in spans of {_SPANS_S[span_s]}.",
        rows=rows, charts={"time": chart},
    )  # fmt: skip


def find_over_time(period: Period) -> Asking[tuple[int, str, Rows]]:
    """Ask for the energy of all GPUs by equal spans, at most `COLUMNS`; return their length, s, and end.

    The last two seconds before a stop of the services are in it after their next start.
    """
    begin, end = (f"make_timestamp({wall_ns // 1000})" for wall_ns in (period.begin_ns, period.end_ns))
    within = f"NOT of_host(gpu) AND began_at >= {begin} AND began_at < {end}"
    (extent,) = yield _EXTENT.format(within=within)
    length_s = extent["length_s"] or 0.0
    span_s = next((each for each in _SPANS_S if length_s / each <= COLUMNS), max(_SPANS_S))
    rows = yield _OVER_TIME.format(span_s=span_s, within=within)
    return span_s, extent["ended_at"], rows


def _columns(rows: Sequence[Row], span_s: int) -> list[tuple[str, float | None]]:
    """Return the columns of the chart, with empty ones where nothing was measured."""
    first = rows[0]["began_at"].replace(tzinfo=UTC).timestamp()
    known = {round((row["began_at"].replace(tzinfo=UTC).timestamp() - first) / span_s): row for row in rows}
    form = "%m-%d" if span_s >= 86_400 else "%m-%d %H:%M"
    return [
        (
            f"{datetime.fromtimestamp(first + at * span_s, UTC):{form}}",
            known[at]["energy_j"] if at in known else None,
        )
        for at in range(max(known) + 1)
    ]


def site_summary(answer: Answer, period: Period, version: str) -> dict[str, Any]:
    """Return the figures of a period as one JSON object; docs/reference/report.schema.json describes it."""
    runs = {"runs": period.runs, "limit": MOST_ROWS}
    (total,) = answer(_TOTALS.format(runs=period.runs)).to_pylist()
    (archive,) = answer("SELECT any_value(archive_id) AS archive_id FROM meta").to_pylist()
    span_s, _, over = answered(find_over_time(period), answer)
    return {
        "report": "site",
        "version": VERSION,
        "made_by": f"zeus-stream {version}",
        "archive_id": archive["archive_id"],
        "begin": _utc(period.begin_ns).isoformat(),
        "end": _utc(period.end_ns).isoformat(),
        **total,
        "costs": answer(_COSTS.format(runs=period.runs)).to_pylist(),
        "jobs": answer(JOBS.format(**runs)).to_pylist(),
        "savings": answer(SAVED.format(more="", **runs)).to_pylist(),
        "waste": answer(CAUSES.format(**runs)).to_pylist(),
        "waste_by_job": answer(BY_JOB.format(**runs)).to_pylist(),
        "span_s": span_s,
        "over_time": [{**row, "began_at": f"{row['began_at']:%Y-%m-%dT%H:%M:%SZ}"} for row in over],
    }


def _utc(wall_ns: int) -> datetime:
    return datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
