"""Panels of the site: the latest runs, jobs, GPUs. Pure."""

from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import quote

from zeus_stream.reports.html.elements import Markup, element
from zeus_stream.reports.html.panels import ABSENT, Panel, joules, percent, plain, seconds, table, watts
from zeus_stream.reports.html.questions import Asking, Gpu, Rows, quoted

_RECENT = """
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
        {**row, "run": run_link(row["run"], up), "state": "" if row["ended"] else "runs",
         "limit": _limit(row["power_limit_w"], row["applied"])}
        for row in rows
    ]  # fmt: skip
    columns: dict[str, tuple[str, Callable[[Any], str | Markup]]] = {
        "run": ("run", _as_is), "job": ("job", plain), "began_at": ("began, UTC", plain),
        "duration_s": ("time", seconds), "gpus": ("GPUs", plain), "energy_j": ("energy", joules),
        "limit": ("limit", plain), "saved_percent": ("energy saved", percent),
        "added_percent": ("time added", percent), "state": ("", plain),
    }  # fmt: skip
    return table(drawn, columns, "Latest runs")


def _as_is(value: Markup) -> Markup:
    return value


def _limit(limit_w: float | None, applied: bool | None) -> str:  # noqa: FBT001  (a column of the archive)
    if limit_w is None:
        return ABSENT
    return watts(limit_w) + ("" if applied else ", not set")


def recent_runs() -> Asking[Panel | None]:
    """Ask for the latest runs."""
    rows = yield _RECENT.format(which="", limit=RUNS_SHOWN)
    body = runs_table(rows) if rows else element("p", _NO_RUN, class_="under")
    return Panel(name="runs", title="Latest runs", body=body, text="", rows=rows)


_NO_RUN = (
    "There is no run yet. Add `for batch in zeus_stream.steps(loader):` to a training script and start it."
)
RECENT_RUNS: SitePanel = recent_runs
SITE_PANELS: tuple[SitePanel, ...] = ()


def gpu_panels(gpu: Gpu) -> Generator[Asking[Panel | None], None, None]:
    """Yield the questions of the page of one GPU."""
    yield _gpu_runs(gpu)


def _gpu_runs(gpu: Gpu) -> Asking[Panel | None]:
    rows = yield _RECENT.format(which=f"AND list_contains(gpus, {quoted(gpu.gpu)})", limit=RUNS_SHOWN)
    body = runs_table(rows, "../") if rows else element("p", "No run was on this GPU.", class_="under")
    return Panel(name="runs", title="Runs on it", body=body, text="", rows=rows)
