"""Panels of the site: the latest runs, jobs, GPUs. Pure."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import Columns, Panel, bars, plain, table
from zeus_stream.screens.html.questions import Asking, Rows, quoted
from zeus_stream.screens.svg.site_charts import bar_chart
from zeus_stream.views.quantity import ABSENT, figure, joules, percent, seconds, watts

RECENT = """
WITH latest AS (
    SELECT run, any_value(job) AS job, min(began_at) AS began_at, min(began_wall_ns) AS began_wall_ns,
        count(ended_ns) = count(*) AS ended,
        len(list_distinct(flatten(list(gpus)))) AS gpus
    FROM runs WHERE world_size > 0 {which} GROUP BY run ORDER BY began_wall_ns DESC, run LIMIT {limit}
), used AS (
    SELECT run, max(duration_s) AS duration_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows WHERE kind = 'run' AND NOT of_host(gpu) AND run IN (SELECT run FROM latest) GROUP BY run
), decided AS (
    SELECT run, power_limit_w, default_limit_w, applied,
        100 * (1 - energy_per_step_j / default_energy_per_step_j) AS saved_percent,
        100 * (step_s / default_step_s - 1) AS added_percent
    FROM decisions WHERE run IN (SELECT run FROM latest)
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY power_limit_w IS NULL, number DESC) = 1
)
SELECT run, job, began_at, ended, gpus, duration_s, energy_j, power_limit_w, default_limit_w, applied,
    saved_percent, added_percent
FROM latest LEFT JOIN used USING (run) LEFT JOIN decided USING (run) ORDER BY began_wall_ns DESC, run
"""
RUNS_SHOWN = 25
SitePanel = Callable[[], Asking[Panel | None]]


def run_link(run: str, up: str = "") -> Markup:
    """Return a link to the page of a run."""
    return element("a", run, href=f"{up}runs/{quote(run, safe='')}")


def runs_table(rows: Rows, up: str = "") -> Markup:
    """Return runs as a table with links."""
    drawn = [
        {**row, "run": run_link(row["run"], up), "state": "ended" if row["ended"] else "running",
         "limit": _limit(row["power_limit_w"], row["applied"])}
        for row in rows
    ]  # fmt: skip
    columns: dict[str, tuple[str, Callable[[Any], str | Markup]]] = {
        "run": ("run", as_is), "job": ("job", plain), "began_at": ("began, UTC", plain),
        "duration_s": ("time", seconds), "gpus": ("GPUs", plain), "energy_j": ("energy", joules),
        "limit": ("limit", plain), "saved_percent": ("energy saved", percent),
        "added_percent": ("time added", percent), "state": ("state", plain),
    }  # fmt: skip
    return table(drawn, columns, "Latest runs")


def as_is(value: Markup) -> Markup:
    return value


def _limit(limit_w: float | None, applied: bool | None) -> str:  # noqa: FBT001  (a column of the archive)
    if limit_w is None:
        return ABSENT
    return watts(limit_w) + ("" if applied else ", not set")


def recent_runs() -> Asking[Panel | None]:
    """Ask for the latest runs."""
    rows = yield RECENT.format(which="", limit=RUNS_SHOWN)
    body = runs_table(rows) if rows else element("p", _NO_RUN, class_="under")
    return Panel(name="runs", title="Latest runs", body=body, text="", rows=rows)


_NO_RUN = "No run is in the archive yet. A training with zeus_stream.steps(loader) appears here."
RECENT_RUNS: SitePanel = recent_runs

JOBS = """
WITH ran AS (
    SELECT job, run, max(duration_s) AS duration_s, sum(duration_s) AS gpu_s,
        CASE WHEN count(energy_j) = count(*) THEN sum(energy_j) END AS energy_j
    FROM windows WHERE kind = 'run' AND NOT of_host(gpu) AND run IN ({runs}) GROUP BY job, run
)
SELECT job, count(*) AS runs, sum(energy_j) AS energy_j, count(*) - count(energy_j) AS unmeasured,
    sum(gpu_s) / 3600 AS gpu_h
FROM ran GROUP BY job ORDER BY energy_j DESC NULLS LAST, job LIMIT {limit}
"""
_RECURRING = """
SELECT job, setup, recurrences, tries, default_batch_size, best_batch_size, energy_j, saved_j,
    saved_percent, time_added_percent FROM job_savings {which} ORDER BY job, setup LIMIT {limit}
"""
_SIZES = """
SELECT setup, batch_size, tries, converged, failed, lost, epochs, energy_j, duration_s
FROM job_sizes WHERE job = {job} ORDER BY setup, batch_size
"""
_TRIES = """
SELECT number, recurrence, run, batch_size, policy, reason, epochs, energy_j, cost_j, ended FROM tries
WHERE job = {job} ORDER BY number DESC LIMIT {limit}
"""
CAUSES = """
SELECT cause, sum(energy_j) AS energy_j, count(DISTINCT run) AS runs FROM waste
WHERE run IN ({runs}) GROUP BY cause ORDER BY energy_j DESC NULLS LAST, cause LIMIT {limit}
"""
BY_JOB = """
SELECT job, cause, sum(energy_j) AS energy_j FROM waste
WHERE run IN ({runs}) AND cause <> 'steps' GROUP BY job, cause
ORDER BY energy_j DESC NULLS LAST, job, cause LIMIT {limit}
"""
SAVED = """
SELECT run, job, default_limit_w, power_limit_w, energy_saved_percent, time_added_percent, saved_j
FROM savings
WHERE applied AND saved_j IS NOT NULL AND run IN ({runs}) ORDER BY saved_j DESC, run LIMIT {limit}
"""
LATEST = "SELECT run FROM runs GROUP BY run ORDER BY max(began_wall_ns) DESC LIMIT 200"
"""The runs that the pages add up."""
SHOWN = 60


def jobs(runs: str = LATEST, job_up: str | None = "") -> Asking[Panel | None]:
    """Ask for the energy of each job, with bars. ``job_up`` leads to the pages of jobs; None: to none."""
    rows = yield JOBS.format(runs=runs, limit=SHOWN)
    if not rows:
        return None
    more: Columns = {
        "runs": ("runs", plain),
        "unmeasured": ("not measured", plain),
        "gpu_h": ("GPU hours", figure),
    }
    drawn = rows if job_up is None else [{**row, "job": job_link(row["job"], job_up)} for row in rows]
    body = bars(drawn, "job", "job", more)
    text = "Energy of the runs of each job. Runs that were not measured to their end are not in it."
    charts = {"jobs": _chart("Energy by job", rows, "job")}
    return Panel(name="jobs", title="Energy by job", body=body, text=text, rows=rows, charts=charts)


def _chart(title: str, rows: Rows, name: str) -> Markup:
    """Return rows as a drawing of their energies, for a file of its own."""
    bars = [(plain(row[name]), row["energy_j"]) for row in rows]
    first = ", ".join(f"{each} {joules(energy_j)}" for each, energy_j in bars[:3])
    return bar_chart(bars, f"{title}: {first}.")


def job_link(job: str, up: str = "") -> Markup:
    """Return a link to the page of a job."""
    return element("a", job, href=f"{up}jobs/{quote(job, safe='')}")


def recurring(job: str | None = None, up: str = "") -> Asking[Panel | None]:
    """Ask what batch sizes have saved in jobs that recur: in all, or in one."""
    which = "" if job is None else f"WHERE job = {quoted(job)}"
    rows = yield _RECURRING.format(which=which, limit=SHOWN)
    if not rows:
        return None
    drawn = [{**row, "job": job_link(row["job"], up)} for row in rows]
    columns: Columns = {
        "job": ("job", as_is), "setup": ("GPUs", plain), "recurrences": ("recurrences", plain),
        "tries": ("tries", plain), "default_batch_size": ("default size", plain),
        "best_batch_size": ("best size", plain), "energy_j": ("energy", joules), "saved_j": ("saved", joules),
        "saved_percent": ("saved", percent), "time_added_percent": ("time added", percent),
    }  # fmt: skip
    text = "Savings are against as many trainings with the default batch size. Failed tries are included."
    body = table(drawn, columns, "Jobs that recur")
    return Panel(name="recurring", title="Jobs that recur", body=body, text=text, rows=rows)


def sizes(job: str) -> Asking[Panel | None]:
    """Ask what is known of each batch size of a job, with bars."""
    rows = yield _SIZES.format(job=quoted(job))
    if not rows:
        return None
    more: Columns = {
        "setup": ("GPUs", plain), "tries": ("tries", plain), "converged": ("converged", plain),
        "failed": ("failed", plain), "epochs": ("epochs", figure), "duration_s": ("time", seconds),
    }  # fmt: skip
    body = bars(rows, "batch_size", "batch size", more)
    return Panel(
        name="sizes", title="Batch sizes", body=body, text="Means of tries that converged.", rows=rows
    )


def tries(job: str) -> Asking[Panel | None]:
    """Ask for the latest tries of a job."""
    rows = yield _TRIES.format(job=quoted(job), limit=SHOWN)
    if not rows:
        return None
    drawn = [{**row, "run": run_link(row["run"], "../")} for row in rows]
    columns: Columns = {
        "number": ("number", plain), "recurrence": ("recurrence", plain), "run": ("run", as_is),
        "batch_size": ("batch size", plain), "epochs": ("epochs", plain), "energy_j": ("energy", joules),
        "cost_j": ("cost", joules), "ended": ("ended", plain), "policy": ("policy", plain),
        "reason": ("why", plain),
    }  # fmt: skip
    return Panel(name="tries", title="Tries", body=table(drawn, columns, "Tries"), text="", rows=rows)


def job_runs(job: str) -> Asking[Panel | None]:
    """Ask for the latest runs of a job."""
    rows = yield RECENT.format(which=f"AND job = {quoted(job)}", limit=RUNS_SHOWN)
    if not rows:
        return None
    return Panel(name="runs", title="Latest runs", body=runs_table(rows, "../"), text="", rows=rows)


def causes(runs: str = LATEST) -> Asking[Panel | None]:
    """Ask where the energy of the runs went, with bars."""
    rows = yield CAUSES.format(runs=runs, limit=SHOWN)
    if not rows:
        return None
    body = bars(rows, "cause", "cause", {"runs": ("runs", plain)})
    text = "The row of the steps is no waste. Parts of runs that are not measured to their end are not in it."
    title = "Where the energy went"
    charts = {"causes": _chart(title, rows, "cause")}
    return Panel(name="causes", title=title, body=body, text=text, rows=rows, half=True, charts=charts)


def causes_by_job(runs: str = LATEST) -> Asking[Panel | None]:
    """Ask what each job spent outside its steps, with bars."""
    rows = yield BY_JOB.format(runs=runs, limit=SHOWN)
    if not rows:
        return None
    drawn = [{**row, "name": f"{row['job'] or 'no job'}: {row['cause']}"} for row in rows]
    body = bars(drawn, "name", "job and cause", {})
    title = "Outside of steps, by job"
    return Panel(name="by-job", title=title, body=body, text="The largest first.", rows=rows, half=True)


def idle() -> Asking[Panel | None]:
    """Ask what GPUs used while no run had them."""
    rows = yield f"SELECT * FROM idle_gpus ORDER BY energy_j DESC, gpu LIMIT {SHOWN}"  # noqa: S608  (a number)
    if not rows:
        return None
    share = [
        {
            **row,
            "gpu": element("a", row["gpu"], href=f"gpus/{quote(row['gpu'], safe='')}"),
            "percent": None if row["share"] is None else 100 * row["share"],
        }
        for row in rows
    ]
    body = bars(
        share,
        "gpu",
        "GPU",
        {"host": ("host", plain), "duration_s": ("time", seconds), "percent": ("share", percent)},
    )
    return Panel(name="idle", title="Idle GPUs", body=body, text="GPUs while no run had them.", rows=rows)


def saved(runs: str) -> Asking[Panel | None]:
    """Ask what the chosen power limits saved, with bars."""
    rows = yield SAVED.format(runs=runs, limit=SHOWN)
    if not rows:
        return None
    drawn = [{**row, "energy_j": row["saved_j"]} for row in rows]
    more: Columns = {
        "job": ("job", plain), "default_limit_w": ("found", watts), "power_limit_w": ("chosen", watts),
        "energy_saved_percent": ("saved", percent), "time_added_percent": ("time added", percent),
    }  # fmt: skip
    body = bars(drawn, "run", "run", more)
    total = joules(sum(row["saved_j"] for row in rows))
    return Panel(
        name="saved", title=f"Saved: {total}", body=body, text="At the chosen power limits.", rows=rows,
        charts={"saved": _chart("Saved at the chosen power limits", drawn, "run")},
    )  # fmt: skip
