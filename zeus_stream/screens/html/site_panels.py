"""Panels of the site, of jobs and of one GPU: runs, energy, commands, gaps. Pure."""

from collections.abc import Generator, Mapping, Sequence
from urllib.parse import quote

from msgspec.structs import replace

from zeus_stream.questions.asking import Asking, Row, Rows
from zeus_stream.questions.run_questions import TIMES, PageGpu, find_savings
from zeus_stream.quoting import quoted
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.html.panels import (
    SHOWN,
    Cell,
    Columns,
    PagePanel,
    TablePanel,
    as_is,
    bars,
    facts,
    plain,
    quantity,
    table,
)
from zeus_stream.views.costs import SIGNALS_NOW, money
from zeus_stream.views.quantity import ABSENT, Quantity, figure, joules, percent, seconds, watts, with_half
from zeus_stream.views.run_view import STOPPED
from zeus_stream.views.saving import Saving
from zeus_stream.views.waste import LEAST_SHARE, USEFUL, WastePart, waste_of_runs

_RECENT = """
WITH latest AS (
    SELECT run, any_value(job) AS job, min(began_at) AS began_at, min(began_wall_ns) AS began_wall_ns,
        count(ended_ns) = count(*) AS ended,
        string_agg(DISTINCT ended_how, '; ') FILTER (is_last AND ended_how <> 'ended') AS ended_how,
        len(list_distinct(flatten(list(gpus)))) AS gpus
    FROM sessions_of_ranks() WHERE world_size > 0 AND {which}
    GROUP BY run ORDER BY began_wall_ns DESC, run LIMIT {limit}
)
SELECT run, latest.job, latest.began_at, ended, ended_how, gpus, duration_s, energy_j
FROM latest LEFT JOIN ({times}) USING (run) LEFT JOIN run_energy USING (run) ORDER BY began_wall_ns DESC, run
"""
RUNS_SHOWN = 25

UNKNOWN = "not known yet"


def run_link(run: str, up: str = "") -> Markup:
    """Return a link to the page of a run."""
    return element("a", run, href=f"{up}runs/{quote(run, safe='')}")


def recent_runs(
    which: str = "true", title: str = "Latest runs", up: str = "", none: str = ""
) -> Asking[PagePanel | None]:
    """Ask for the latest runs that meet a condition, with their savings.

    ``up``: from the page to the root of the site. ``none``: a sentence for no run, else there is no panel.
    """
    rows = yield _RECENT.format(
        which=which, limit=RUNS_SHOWN, times=TIMES.format(of="run IN (SELECT run FROM latest)")
    )
    if not rows:
        body = element("p", none, class_="under")
        return PagePanel(name="runs", title=title, body=body, text="") if none else None
    savings = yield from find_savings(row["run"] for row in rows)
    drawn = [
        {
            **row,
            "run": run_link(row["run"], up),
            "state": _state(row),
            **_saving_cells(savings.get(row["run"])),
        }
        for row in rows
    ]
    columns: Columns = {
        "run": ("run", as_is), "job": ("job", plain), "began_at": ("began, UTC", plain),
        "duration_s": ("time", seconds), "gpus": ("GPUs", plain), "energy_j": ("energy", joules),
        "limit": ("limit", plain), "saved": ("energy saved", with_half), "added": ("time added", with_half),
        "state": ("state", plain),
    }  # fmt: skip
    return PagePanel(name="runs", title=title, body=table(drawn, columns, title), text="", rows=rows)


def _state(row: Row) -> str:
    """Return how far a run is, in a word: its page has more."""
    how = row["ended_how"] or ""
    ended = "stopped" if how.startswith(STOPPED) else "failed" if how else "ended"
    return ended if row["ended"] else "open"


def _saving_cells(saving: Saving | None) -> Mapping[str, object]:
    if saving is None:
        return {"limit": ABSENT, "saved": Quantity(None, "%"), "added": Quantity(None, "%")}
    limit = saving.level if saving.applied else f"{saving.level}, not set"
    return {"limit": limit, "saved": saving.energy, "added": saving.time}


NO_RUN = "No run is in the archive yet. A training with zeus_stream.steps(loader) appears here."
EARLIER = "run NOT IN (SELECT run FROM sessions WHERE ended_ns IS NULL)"
"""A condition: every process of the run has ended."""

JOBS = """
WITH ran AS (
    SELECT job, run, sum(duration_s) AS gpu_s, sum_of_all(energy_j) AS energy_j
    FROM (SELECT DISTINCT job, run FROM windows WHERE kind = 'run' AND run IN ({runs}))
        LEFT JOIN counted_wholes() USING (job, run)
    GROUP BY job, run
)
SELECT job, coalesce(runs, 0) AS runs, coalesce(open, 0) AS open, energy_j,
    coalesce(unmeasured, 0) AS unmeasured, gpu_h
FROM (
    SELECT job, count(*) AS runs, sum(energy_j) AS energy_j, count(*) - count(energy_j) AS unmeasured,
        sum(gpu_s) / 3600 AS gpu_h
    FROM ran GROUP BY job
) FULL JOIN (
    SELECT job, count(DISTINCT run) AS open FROM sessions
    WHERE ended_ns IS NULL AND world_size > 0 AND run IN ({runs}) GROUP BY job
) USING (job) ORDER BY energy_j DESC NULLS LAST, job LIMIT {limit}
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
WHERE run IN ({runs}) AND cause <> 'steps' GROUP BY job, cause HAVING sum(energy_j) >= 0.001
ORDER BY energy_j DESC NULLS LAST, job, cause LIMIT {limit}
"""
_IDLE = """
SELECT gpu, coalesce(format('{{}} GPU {{}}', idle.host, index), gpu) AS name, energy_j, duration_s,
    100 * share AS percent
FROM idle_gpus AS idle LEFT JOIN gpus USING (gpu) WHERE duration_s > 0
ORDER BY energy_j DESC, gpu LIMIT {limit}
"""
SAVED = """
SELECT run, job, default_limit_w, power_limit_w, energy_saved_percent, time_added_percent, saved_j{more}
FROM savings
WHERE applied AND saved_j IS NOT NULL AND run IN ({runs}) ORDER BY saved_j DESC, run LIMIT {limit}
"""
LATEST = "SELECT run FROM sessions GROUP BY run ORDER BY max(began_wall_ns) DESC LIMIT 200"
"""The runs that the pages add up."""


def job_link(job: str, up: str = "") -> Markup:
    """Return a link to the page of a job."""
    return element("a", job, href=f"{up}jobs/{quote(job, safe='')}")


def _link_job(row: Row, up: str) -> Markup:
    return job_link(row["job"], up) if row["job"] else Markup("no job")


def link_run(row: Row, up: str) -> Markup:
    """Return the cell of a run that links to its page."""
    return run_link(row["run"], up)


JOBS_PANEL = TablePanel(
    name="jobs", title="Energy by job", sql=JOBS, bars=("job", "job"),
    text="Energy of the runs that have ended. What is open, or was not measured to its end, is not in it.",
    columns={
        "runs": ("ended", plain), "open": ("open", plain), "unmeasured": ("not measured", plain),
        "gpu_h": ("GPU hours", figure),
    },
    made={"job": _link_job},
)  # fmt: skip
RECURRING = TablePanel(
    name="recurring", title="Jobs that recur", sql=_RECURRING, made={"job": _link_job},
    text="Savings are against as many trainings with the default batch size. Failed tries are included.",
    columns={
        "job": ("job", as_is), "setup": ("GPUs", plain), "recurrences": ("recurrences", plain),
        "tries": ("tries", plain), "default_batch_size": ("default size", plain),
        "best_batch_size": ("best size", plain), "energy_j": ("energy", joules), "saved_j": ("saved", joules),
        "saved_percent": ("saved", percent), "time_added_percent": ("time added", percent),
    },
)  # fmt: skip
SIZES = TablePanel(
    name="sizes", title="Batch sizes", sql=_SIZES, bars=("batch_size", "batch size"),
    text="Means of tries that converged.",
    columns={
        "setup": ("GPUs", plain), "tries": ("tries", plain), "converged": ("converged", plain),
        "failed": ("failed", plain), "epochs": ("epochs", figure), "duration_s": ("time", seconds),
    },
)  # fmt: skip
TRIES = TablePanel(
    name="tries", title="Tries", sql=_TRIES, made={"run": link_run},
    columns={
        "number": ("number", plain), "recurrence": ("recurrence", plain), "run": ("run", as_is),
        "batch_size": ("batch size", plain), "epochs": ("epochs", plain), "energy_j": ("energy", joules),
        "cost_j": ("cost", joules), "ended": ("ended", plain), "policy": ("policy", plain),
        "reason": ("why", plain),
    },
)  # fmt: skip
JOBS_WASTE = TablePanel(
    name="by-job", title="Outside of steps, by job", sql=BY_JOB, bars=("job", "job"), half=True,
    text="The largest first.", columns={"cause": ("cause", plain)}, made={"job": _link_job},
)  # fmt: skip
IDLE = TablePanel(
    name="idle", title="Idle GPUs", sql=_IDLE, bars=("name", "GPU"), half=True,
    text="GPUs while no run had them.",
    columns={"duration_s": ("time", seconds), "percent": ("share of its energy", percent)},
    made={"name": lambda row, up: element("a", row["name"], href=f"{up}gpus/{quote(row['gpu'], safe='')}")},
)  # fmt: skip
_SAVED_PANEL = TablePanel(
    name="saved", title="Saved", sql=SAVED, bars=("run", "run"), text="At the chosen power limits.",
    columns={
        "job": ("job", plain), "default_limit_w": ("found", watts), "power_limit_w": ("chosen", watts),
        "energy_saved_percent": ("saved", percent), "time_added_percent": ("time added", percent),
    },
)  # fmt: skip


def saved(runs: str) -> Asking[PagePanel | None]:
    """Ask what the chosen power limits saved, with bars and their sum."""
    more = ", saved_j AS energy_j, sum(saved_j) OVER () AS all_saved_j"
    panel = yield from _SAVED_PANEL.ask(runs=runs, more=more)
    return panel and replace(panel, title=f"Saved: {joules(panel.rows[0]['all_saved_j'])}")


def causes(runs: str = LATEST) -> Asking[PagePanel | None]:
    """Ask what the runs spent outside of their steps: what can be regained."""
    rows = yield CAUSES.format(runs=runs, limit=SHOWN)
    prices = yield SIGNALS_NOW
    panel = waste_panel("causes", waste_of_runs(rows), prices, half=False)
    return panel and replace(panel, rows=rows)


def waste_panel(
    name: str, parts: Sequence[WastePart], prices: Rows, more: str = "", *, half: bool = True
) -> PagePanel | None:
    """Return a panel of the parts that are not steps: each with its share, its price and what regains it."""
    rest = [part for part in parts if part.cause != USEFUL]
    rest = [part for part in rest if part.share.known is None or part.share.known >= 100 * LEAST_SHARE]
    rest = rest[:SHOWN]
    if not rest:
        return None
    rows = [
        {"cause": part.cause, "energy_j": part.energy.known, "share": part.share,
         "money": money(part.energy.known, prices), "time": part.duration, "cure": part.cure}
        for part in rest
    ]  # fmt: skip
    columns: dict[str, tuple[str, Cell]] = {"share": ("share", quantity)}
    if any(row["money"] for row in rows):
        columns["money"] = ("cost", plain)
    # Half of a screen has no room for both: then the price is shown.
    if any(part.duration.known is not None for part in rest) and not (half and "money" in columns):
        columns["time"] = ("time", quantity)
    columns["cure"] = ("what regains it", plain)
    useful = next((part for part in parts if part.cause == USEFUL and part.share.known), None)
    text = f"{useful.share} of the energy went into steps; this is the rest." if useful else ""
    body = bars(rows, "cause", "cause", columns)
    return PagePanel(
        name=name,
        title="What can be regained",
        body=body,
        text=f"{text} {more}".strip(),
        rows=rows,
        half=half,
    )


_FACTS = """
SELECT min_limit_w, max_limit_w, found_limit_w, period_ms, counter_kind, sensor_window_ms, counts_energy,
    gone,
    (SELECT string_agg(DISTINCT regexp_extract(quality, 'gain [0-9.]+'), ', ') FROM (
        SELECT quality FROM windows WHERE gpu = {gpu} AND kind = 'run' AND contains(quality, 'gain')
        ORDER BY end_ns DESC LIMIT 1)) AS calibration,
    (SELECT coalesce(any_value(run), '') FROM (
        SELECT run, limit_w, clock_mhz FROM commands WHERE gpu = {gpu} AND outcome = 'applied'
        ORDER BY outcome_ns DESC LIMIT 1) WHERE limit_w IS NOT NULL OR clock_mhz IS NOT NULL) AS lease
FROM gpus WHERE gpu = {gpu}
"""
_GPU_COMMANDS = """
SELECT make_timestamp((hosts.wall_ns + asked_ns - hosts.monotonic_ns) // 1000) AS asked_at, run, control,
    limit_w, clock_mhz, outcome, outcome_limit_w, reason
FROM commands, gpus, LATERAL (
    SELECT wall_ns, monotonic_ns FROM hosts WHERE hosts.host = gpus.host ORDER BY monotonic_ns DESC LIMIT 1
) AS hosts
WHERE commands.gpu = {gpu} AND gpus.gpu = {gpu} ORDER BY asked_ns DESC LIMIT {limit}
"""
_GPU_GAPS = """
SELECT what, reason, sum(count)::BIGINT AS missing FROM gaps WHERE contains(reason, {gpu}) GROUP BY ALL
ORDER BY missing DESC LIMIT {limit}
"""


def gpu_panels(gpu: PageGpu) -> Generator[Asking[PagePanel | None], None, None]:
    """Yield the questions of the page of one GPU."""
    yield _gpu_facts(gpu)
    on_it = f"list_contains(gpus, {quoted(gpu.gpu)})"
    yield recent_runs(on_it, "Runs on it", "../", "No run was on this GPU.")
    yield _COMMANDS_PANEL.ask("../", gpu=quoted(gpu.gpu))
    yield _GAPS_PANEL.ask(gpu=quoted(gpu.gpu))


def _gpu_facts(gpu: PageGpu) -> Asking[PagePanel | None]:
    """Ask for the lease on a GPU, its limits, its counter and its calibration."""
    (row,) = yield _FACTS.format(gpu=quoted(gpu.gpu))
    kind = row["counter_kind"] or (UNKNOWN if row["counts_energy"] else "power")
    window, period_ms = row["sensor_window_ms"], row["period_ms"]
    changes = "" if period_ms is None or kind == UNKNOWN else f"changes every {figure(period_ms, 'ms', 3)}"
    sees = "" if window is None else f"sees the last {window:.0f} ms"
    span = f"{watts(row['min_limit_w'])} to {watts(row['max_limit_w'])}"
    items: list[tuple[str, str | Markup, str | Markup]] = [
        ("lease", run_link(row["lease"], "../") if row["lease"] else "none", "who may change its limit"),
        ("limit found", watts(row["found_limit_w"]), f"possible: {span}"),
        ("counter", kind, "; ".join(filter(None, (changes, sees)))),
        ("calibration", row["calibration"] or "none", "of its counter, against a meter"),
    ]
    if row["gone"]:
        items.append(("gone", "yes", row["gone"]))
    return PagePanel(name="facts", title="This GPU", body=facts(items), text="", rows=[row])


def _asked(row: Row, _: str) -> str:
    if row["clock_mhz"] is not None:
        return f"{row['clock_mhz']} MHz"
    return "release" if row["limit_w"] is None else watts(row["limit_w"])


_COMMANDS_PANEL = TablePanel(
    name="commands", title="Commands", sql=_GPU_COMMANDS, made={"run": link_run, "asked": _asked},
    text="The latest first. A release gives back what was found.",
    columns={
        "asked_at": ("asked, UTC", plain), "run": ("run", as_is), "asked": ("asked for", plain),
        "outcome": ("outcome", lambda value: value or "under way"), "outcome_limit_w": ("limit then", watts),
        "reason": ("reason", plain),
    },
)  # fmt: skip
_GAPS_PANEL = TablePanel(
    name="gaps", title="Missing data", sql=_GPU_GAPS,
    columns={"what": ("what", plain), "missing": ("missing", plain), "reason": ("why", plain)},
)  # fmt: skip
