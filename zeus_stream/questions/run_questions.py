"""Questions for a run: its identity, its rows, its trials, its costs."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct, convert

from zeus_stream.questions.asking import Asking, Rows, together
from zeus_stream.quoting import quoted, quoted_list
from zeus_stream.views.costs import COSTS, at_price
from zeus_stream.views.forecast import FORECAST
from zeus_stream.views.pipeline_view import PIPELINE
from zeus_stream.views.run_view import RunRows
from zeus_stream.views.saving import Saving, saving_of_row
from zeus_stream.views.search import TrialView, as_believed, trials_of_rows

if TYPE_CHECKING:
    import pyarrow as pa

TIMES = """
SELECT run,
    sum(greatest(ended_us - greatest(began_us, coalesce(earlier_us, began_us)), 0)) / 1e6 AS duration_s
FROM (
    SELECT run, epoch_us(began_at) AS began_us, began_us + (end_ns - begin_ns) // 1000 AS ended_us,
        max(ended_us) OVER (PARTITION BY run ORDER BY began_us
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier_us
    FROM windows WHERE {of} AND kind = 'run' AND NOT of_host(gpu)
) GROUP BY run
"""
"""For how long some process of each run was there: a pause between two attempts is not in it."""
WHOLE = f"""
SELECT * FROM (
    SELECT (SELECT duration_s FROM ({TIMES.format(of="run = {run}")})) AS duration_s,
        bool_or(shared) AS shared,
        string_agg(DISTINCT quality, '; ') FILTER (quality <> 'ok') AS quality
    FROM windows WHERE run = {{run}} AND kind = 'run' AND NOT of_host(gpu)
), (
    SELECT sum_of_all(energy_j) AS energy_j,
        CASE WHEN count(energy_j) = count(*) THEN low_of_sum(energy_j, energy_p2_5_j) END AS energy_p2_5_j,
        CASE WHEN count(energy_j) = count(*) THEN high_of_sum(energy_j, energy_p97_5_j) END AS energy_p97_5_j
    FROM counted_wholes() WHERE run = {{run}}
), (
    -- Of ranks of one host that had the same CPU at the same time the longest counts.
    SELECT sum_of_all(energy_j) AS cpu_energy_j
    FROM windows AS mine WHERE run = {{run}} AND kind = 'run' AND of_host(gpu) AND NOT EXISTS (
        FROM windows AS other WHERE other.run = mine.run AND other.kind = 'run' AND other.gpu = mine.gpu
            AND other.began_at < mine.began_at + to_microseconds((mine.end_ns - mine.begin_ns) // 1000)
            AND mine.began_at < other.began_at + to_microseconds((other.end_ns - other.begin_ns) // 1000)
            AND (other.duration_s, other.session) > (mine.duration_s, mine.session)
    )
)
"""  # noqa: S608  (our own)
_SAVINGS = """
FROM lasting_savings WHERE run IN ({runs}) UNION ALL
FROM savings_of((
    SELECT list(run) FROM (SELECT unnest([{runs}]) AS run) WHERE run NOT IN (SELECT run FROM lasting_savings)
))
"""
TOTALS = """
SELECT any_value(job) AS job, count(*) AS sessions, max(world_size) AS ranks,
    count(DISTINCT rank) FILTER (world_size > 0) AS ranks_came,
    len(list_distinct(flatten(list(gpus)))) AS gpus,
    (SELECT list({{gpu: gpu, host: host, place: host || ':' || index}} ORDER BY host, index) FROM gpus
        WHERE gpu IN (SELECT unnest(gpus) FROM sessions WHERE run = {run})) AS places,
    string_agg(DISTINCT namespace || '/' || pod, ', ' ORDER BY namespace || '/' || pod) AS pods,
    string_agg(DISTINCT ended_how, '; ') FILTER (is_last AND ended_how <> 'ended') AS ended_how,
    (SELECT any_value(ended_how) FROM sessions WHERE run = {command}) AS command_ended_how,
    (SELECT count(DISTINCT session) FROM windows WHERE run = {run} AND kind = 'run') AS closed,
    (SELECT count(*) FROM epochs WHERE run = {run}) AS epochs,
    (SELECT coalesce(max(steps), 0) FROM (
        SELECT sum(steps)::BIGINT AS steps FROM (
            SELECT rank, max(last) - min(first) + 1 AS steps FROM (
                -- An attempt that numbers its steps from 0 again made all of them; others did some again.
                SELECT *, count(*) FILTER (first = 0 AND began_at > earlier)
                    OVER (PARTITION BY rank ORDER BY began_at) AS numbering
                FROM (
                    SELECT *, max(ended_at) OVER (PARTITION BY rank ORDER BY began_at
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier
                    FROM (
                        SELECT rank, min(index) AS first, max(index) AS last, min(began_at) AS began_at,
                            max(began_at) AS ended_at
                        FROM windows WHERE run = {run} AND kind = 'step' GROUP BY rank, session
                    )
                )
            ) GROUP BY rank, numbering
        ) GROUP BY rank
    )) AS steps,
    count(*) FILTER (ended_ns IS NULL) AS open_sessions,
    (SELECT count(DISTINCT (power_limit_w, clock_mhz)) FROM trials WHERE run = {run}) AS limits,
    (SELECT count(clock_mhz) > 0 FROM trials WHERE run = {run}) AS clocks,
    (SELECT value FROM settings
        WHERE name = 'select' AND start = (SELECT max(start) FROM sessions WHERE run = {run})) AS selector,
    (SELECT count(*) > 0 FROM events JOIN sessions AS own USING (session)
        WHERE own.run = {run} AND kind = 'search_wanted') AS search_wanted,
    (SELECT max(outcome_ns - asked_ns) / 1e9 FROM commands WHERE run = {run} AND outcome = 'applied')
        AS behind_s,
    (SELECT max(own.ended_ns - asked_ns) / 1e9
        FROM commands JOIN sessions AS own ON own.run = commands.run AND list_contains(own.gpus, commands.gpu)
        WHERE own.run = {run} AND outcome IS NULL) AS unanswered_s,
    (SELECT count(DISTINCT index) FROM windows
        WHERE run = {run} AND kind = 'step' AND quality LIKE '%the analyzer was behind%') AS steps_not_fitted
FROM sessions_of_ranks() WHERE run = {run}
"""
COMMAND = "/command"
"""After the name of a run: the name under which ``runs`` has the end of its command, if that failed."""
_LAST_RUN = "SELECT run FROM sessions WHERE world_size > 0 ORDER BY began_wall_ns DESC LIMIT 1"


def last_run(answer: Callable[[str], "pa.Table"]) -> str | None:
    """Return the name of the run that began last, or None while there is none."""
    names = answer(_LAST_RUN)["run"].to_pylist()
    return names[0] if names else None


def find_savings(runs: Iterable[str]) -> Asking[dict[str, Saving]]:
    """Ask for the savings of some runs, at once: of each, the plan of the query takes longer than it."""
    rows = yield _SAVINGS.format(runs=quoted_list(list(runs)))
    savings = {row["run"]: saving_of_row(row) for row in rows}
    return {run: saving for run, saving in savings.items() if saving is not None}


class PageGpu(Struct, frozen=True, kw_only=True):
    """A GPU of a run or a page."""

    gpu: str
    host: str
    index: int
    model: str
    driver: str
    period_ms: float
    """Between two changes of its counter; 100 where it is not known."""
    found_limit_w: float | None

    @property
    def title(self) -> str:
        return f"{self.host} GPU {self.index}"


class PageRun(Struct, frozen=True, kw_only=True):
    """A run: its identity and its time."""

    run: str
    job: str
    sessions: int
    ranks: int
    hosts: tuple[str, ...]
    gpus: tuple[PageGpu, ...]
    pods: str
    """NAMESPACE/POD of each. Empty: none is known."""
    batch_size: int | None
    began_at: str
    """UTC, to the second."""
    began_wall_ns: int
    ended_wall_ns: int | None
    """None: it is open."""
    last_wall_ns: int
    """Its end, or the latest that the archive has of its host."""
    ended_how: str
    price: tuple[float, str] | None = None
    """Amount and currency of a kilowatt hour, in place of the signals."""


_RUN = """
SELECT any_value(job) AS job, count(*) AS sessions, max(world_size) AS ranks, max(batch_size) AS batch_size,
    list_sort(list_distinct(list(host))) AS hosts, list_sort(list_distinct(flatten(list(gpus)))) AS gpus,
    strftime(min(began_at), '%Y-%m-%d %H:%M:%S') AS began_at, min(began_wall_ns) AS began_wall_ns,
    CASE WHEN count(ended_ns) = count(*) THEN max(began_wall_ns + ended_ns - began_ns) END AS ended_wall_ns,
    string_agg(DISTINCT ended_how, '; ') FILTER (is_last) AS ended_how,
    string_agg(DISTINCT namespace || '/' || pod, ', ' ORDER BY namespace || '/' || pod) AS pods
FROM sessions_of_ranks() WHERE run = {run}
"""
GPUS = """
SELECT gpu, host, index, name AS model, driver, coalesce(period_ms, 100) AS period_ms, found_limit_w FROM gpus
WHERE {which} ORDER BY host, index, gpu
"""
_LAST = """
SELECT max(logs.logged_ns + shifts.shift_ns) AS last_wall_ns
FROM logs JOIN (
    SELECT log_id, max_by(wall_ns - monotonic_ns, monotonic_ns) AS shift_ns FROM hosts GROUP BY log_id
) AS shifts USING (log_id) {named}
"""


def find_run(run: str) -> Asking[PageRun | None]:
    """Ask for a run. None: the archive does not have it."""
    (row,) = yield _RUN.format(run=quoted(run))
    if not row["sessions"]:
        return None
    gpus = yield from find_gpus(f"gpu IN ({quoted_list(row['gpus'])})")
    last_wall_ns = row["ended_wall_ns"]
    if last_wall_ns is None:
        last_wall_ns = yield from find_last(*row["hosts"])
    return PageRun(
        run=run, job=row["job"], sessions=row["sessions"], ranks=row["ranks"], hosts=tuple(row["hosts"]),
        gpus=gpus, pods=row["pods"] or "", batch_size=row["batch_size"], began_at=row["began_at"],
        began_wall_ns=row["began_wall_ns"], ended_wall_ns=row["ended_wall_ns"],
        last_wall_ns=max(last_wall_ns, row["began_wall_ns"]), ended_how=row["ended_how"] or "",
    )  # fmt: skip


def find_last(*hosts: str) -> Asking[int]:
    """Ask for the latest instant that the archive has of some hosts, of all if none is named. 0: of none."""
    named = f"WHERE logs.host IN ({quoted_list(hosts)})" if hosts else ""
    (latest,) = yield _LAST.format(named=named)
    return latest["last_wall_ns"] or 0


def find_first(host: str) -> Asking[int]:
    """Ask for the first instant that the archive has of a host. 0: it has none."""
    (first,) = yield f"SELECT min(wall_ns) AS wall_ns FROM hosts WHERE host = {quoted(host)}"  # noqa: S608  (quoted)
    return first["wall_ns"] or 0


def find_gpus(which: str) -> Asking[tuple[PageGpu, ...]]:
    """Ask for the GPUs that a condition selects."""
    return convert((yield GPUS.format(which=which)), tuple[PageGpu, ...])


_WASTE = "SELECT cause, energy_j, duration_s, share FROM {of} ORDER BY energy_j DESC NULLS LAST, cause"
_STEPS = """
SELECT power_limit_w, sum(energy_j) / sum(steps) AS step_j FROM trials
WHERE run = {run} AND NOT confirms GROUP BY round, power_limit_w
QUALIFY round = max(round) OVER ()
"""
SO_FAR = """
SELECT CASE WHEN count(energy_j) = count(*) THEN sum(energy_j * part) END AS energy_j,
    (epoch_us(max(power.began_at)) + 1_000_000) * 1000 AS as_of_ns,
    epoch(max(power.began_at)) + 1 - epoch(any_value(since.began_at)) AS duration_s
FROM power JOIN (
    SELECT gpu, min(began_at) AS began_at
    FROM (SELECT unnest(gpus) AS gpu, began_at FROM sessions WHERE run = {run} AND ended_ns IS NULL)
    GROUP BY gpu
) AS since ON since.gpu = power.gpu AND power.began_at + to_seconds(length_s) > since.began_at,
LATERAL (SELECT epoch(power.began_at) + length_s - epoch(since.began_at) AS own_s),
LATERAL (SELECT CASE WHEN length_s = 1 THEN 1 ELSE least(1, own_s / nullif(covered_s, 0)) END AS part)
"""
"""Of sessions that are open: the energy of their GPUs until now, to the second.

A minute or an hour that began before a session has its part at the mean power.
"""


_ROWS = {
    "totals": TOTALS,
    "whole": WHOLE,
    "trials": _STEPS,
    "pipelines": PIPELINE,
    "savings": "FROM lasting_savings WHERE run = {run}",
    "waste": _WASTE.format(of="lasting_waste WHERE run = {run}"),
}
"""Of a run that has ended, all of it is stored: of 1 M steps, 0.06 s of processor time in place of 0.35 s."""
_OF_STEPS = {"savings": "FROM saving_of({run})", "waste": _WASTE.format(of="waste_of({run})")}
"""The same of a run that is open: by its steps, 0.6 s for 1 M of them."""


def find_run_rows(run: str) -> Asking[RunRows | None]:
    """Ask for the rows of a run. None: the archive does not have it."""
    named = {"run": quoted(run), "command": quoted(f"{run}{COMMAND}")}
    (rows,) = yield together({name: sql.format(**named) for name, sql in _ROWS.items()})
    if rows["waste"] is None and rows["totals"][0]["sessions"]:
        (of_steps,) = yield together({name: sql.format(**named) for name, sql in _OF_STEPS.items()})
        rows = {**rows, **of_steps}
    (totals,), (whole,) = rows["totals"], rows["whole"]
    if not totals["sessions"]:
        return None
    so_far = (yield SO_FAR.format(**named)) if totals["open_sessions"] else ()
    forecasts = (yield FORECAST.format(**named)) if totals["open_sessions"] else ()
    return RunRows(
        run=run, totals=totals, whole=whole, waste=rows["waste"] or (), trials=rows["trials"] or (),
        so_far=so_far[0] if so_far else None,
        saving=rows["savings"][0] if rows["savings"] else None,
        forecast=forecasts[0] if forecasts else None,
        pipeline=rows["pipelines"][0] if rows["pipelines"] else None,
    )  # fmt: skip


_TRIALS = """
SELECT number, round, power_limit_w, clock_mhz, steps, duration_s / steps AS step_s,
    energy_j / steps AS step_j, average_power_w, cost / steps AS cost_j, temperature_c, confirms
FROM trials WHERE run = {run} ORDER BY number
"""
_LIMITS = {
    "trials": _TRIALS,
    "scatter": "SELECT round, power_limit_w, energy_within_j, step_within_s FROM scatter WHERE run = {run}",
    "believed": """
        SELECT round, power_limit_w, energy_j / steps AS step_j, duration_s / steps AS step_s, chosen_limit_w
        FROM profiled
        WHERE run = {run} AND measured_run = run AND measured_round = round AND chosen_limit_w IS NOT NULL
    """,
    "found": """
        SELECT max(found_limit_w) AS limit_w FROM gpus
        WHERE gpu IN (SELECT unnest(gpus) FROM sessions WHERE run = {run})
    """,
}


def find_trials(of_run: RunRows) -> Asking[tuple[Rows, tuple[TrialView, ...]]]:
    """Ask for the limits that a run measured: rows of its visits, and the limits as they are shown."""
    if not of_run.totals["limits"]:
        return (), ()
    named = {"run": quoted(of_run.run)}
    (rows,) = yield together({name: sql.format(**named) for name, sql in _LIMITS.items()})
    within, believed = (
        {(row["round"], row["power_limit_w"]): row for row in rows[name] or ()}
        for name in ("scatter", "believed")
    )
    decided = of_run.saving
    if decided is not None and decided["default_limit_w"] is not None:
        return rows["trials"], as_believed(rows["trials"], within, believed, decided)
    return rows["trials"], trials_of_rows(rows["trials"], within, rows["found"][0]["limit_w"], {})


def find_costs(run: str, price: tuple[float, str] | None, energy_j: float | None = None) -> Asking[Rows]:
    """Ask for money and carbon of a run by the signals, or for its energy at a price: see `at_price`."""
    if price is not None:
        return [at_price(energy_j, price)]
    return (yield COSTS.format(run=quoted(run)))
