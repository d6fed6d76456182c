"""The screen of ``zeus-stream status``: queries, a pure view of their answers, and its text."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from zeus_stream.protocol.queries import Status
from zeus_stream.reports.forecast import energy_words
from zeus_stream.reports.html.quantities import seconds
from zeus_stream.reports.tables import ABSENT, console_of

Row = Mapping[str, Any]
RECENT_STEPS = 40
"""Steps over which the energy of a step and the step rate are averaged."""
_OPEN = "SELECT DISTINCT run FROM runs WHERE ended_ns IS NULL"
_RECENT = """
recent AS (
    SELECT windows.* FROM windows JOIN (
        SELECT run, max(index) AS newest FROM windows
        WHERE kind = 'step' AND run IN ({opened}) GROUP BY run
    ) USING (run) WHERE kind = 'step' AND index > newest - {steps} AND NOT of_host(gpu)
)"""
_GPUS = """
WITH {recent}, latest AS (
    SELECT gpu, arg_max(power_mw, t_hi_ns) / 1000 AS power_w, arg_max(limit_mw, t_hi_ns) / 1000 AS limit_w,
        arg_max(utilization_pct, t_hi_ns) AS utilization_percent,
        arg_max(temperature_c, t_hi_ns) AS temperature_c
    FROM readings JOIN logs USING (log_id)
    WHERE readings.logged_ns >= logs.logged_ns - 5_000_000_000 GROUP BY gpu
), busy AS (
    SELECT gpu, string_agg(DISTINCT run, ', ') AS run FROM (
        SELECT run, unnest(gpus) AS gpu FROM runs WHERE ended_ns IS NULL
    ) GROUP BY gpu
), stepped AS (
    SELECT gpu, avg(energy_j) AS step_j FROM recent GROUP BY gpu
)
SELECT host, index, name, gpu, power_w, limit_w, found_limit_w, utilization_percent, temperature_c,
    step_j, run, gone
FROM gpus LEFT JOIN latest USING (gpu) LEFT JOIN busy USING (gpu) LEFT JOIN stepped USING (gpu)
WHERE NOT of_host(gpu) ORDER BY host, index, gpu
"""
_RUNS = """
WITH {recent}, opened AS (
    SELECT run, any_value(job) AS job, count(*) AS ranks, min(began_at) AS began_at FROM runs
    WHERE ended_ns IS NULL GROUP BY run
), paced AS (
    SELECT run, max(index) + 1 AS steps,
        count(DISTINCT index) * 1e9 / (max(end_ns) - min(begin_ns)) AS steps_per_s
    FROM recent GROUP BY run
), used AS (
    SELECT run, sum(energy_j) AS energy_j FROM windows
    WHERE kind = 'step' AND run IN ({opened}) AND NOT of_host(gpu) GROUP BY run
), tried AS (
    SELECT run, count(*) AS trials, max(round) AS round FROM trials GROUP BY run
), decided AS (
    SELECT run, arg_max(power_limit_w, number) AS chosen_w, arg_max(clock_mhz, number) AS chosen_mhz,
        arg_max(steps, number) AS since, arg_max(applied, number) AS applied,
        arg_max(reason, number) AS reason, max(round) AS round,
        arg_max(default_energy_per_step_j, number) AS found_step_j
    FROM decisions GROUP BY run
), at_limit AS (
    SELECT windows.run, count(DISTINCT index) AS steps, sum(energy_j) AS energy_j
    FROM windows JOIN decided ON windows.run = decided.run
        AND CASE WHEN chosen_mhz IS NULL THEN abs(power_limit_w - chosen_w) < 0.5 ELSE index >= since END
    WHERE kind = 'step' AND windows.run IN ({opened}) AND NOT of_host(gpu) GROUP BY windows.run
)
SELECT opened.*, forecast.energy_j AS forecast_j, forecast.energy_p2_5_j, forecast.energy_p97_5_j,
    forecast.duration_s, forecast.duration_p2_5_s, forecast.duration_p97_5_s,
    paced.steps, steps_per_s, used.energy_j, trials, chosen_w, chosen_mhz, applied, reason,
    tried.round > decided.round AS again,
    at_limit.steps * found_step_j - at_limit.energy_j AS saved_j
FROM opened LEFT JOIN paced USING (run) LEFT JOIN used USING (run) LEFT JOIN tried USING (run)
LEFT JOIN decided USING (run) LEFT JOIN at_limit USING (run)
LEFT JOIN run_forecasts AS forecast USING (run) ORDER BY began_at
"""
_GAPS = """
SELECT what, sum(count)::BIGINT AS count, reason FROM gaps GROUP BY what, reason ORDER BY count DESC
"""


def _query(template: str) -> str:
    recent = _RECENT.format(opened=_OPEN, steps=RECENT_STEPS)
    return template.format(recent=recent, opened=_OPEN)


QUERIES: Mapping[str, str] = {"gpus": _query(_GPUS), "runs": _query(_RUNS), "gaps": _GAPS}
"""Queries whose answers `view` takes. Each is bounded: the latest seconds, and runs that are open."""


class GpuLine(Struct, frozen=True, kw_only=True):
    """One GPU. None: not known."""

    gpu: str
    name: str
    where: str
    power_w: float | None
    limit_w: float | None
    found_limit_w: float | None
    utilization_percent: int | None
    temperature_c: int | None
    step_j: float | None
    run: str | None
    gone: str | None


class RunLine(Struct, frozen=True, kw_only=True):
    """One open run."""

    run: str
    job: str
    ranks: int
    phase: str
    steps: int | None
    steps_per_s: float | None
    energy_j: float | None
    saved_j: float | None
    forecast: str
    """Energy and duration of the whole run; empty: there is none."""


class ServiceLine(Struct, frozen=True, kw_only=True):
    """The collector, the analyzer, or a collector that the analyzer follows."""

    name: str
    state: str
    lag: str


class GapLine(Struct, frozen=True, kw_only=True):
    """Data that is known to be missing, with the reason."""

    what: str
    count: int
    reason: str


class StatusView(Struct, frozen=True, kw_only=True):
    """Everything that the screen shows."""

    gpus: tuple[GpuLine, ...]
    runs: tuple[RunLine, ...]
    services: tuple[ServiceLine, ...]
    gaps: tuple[GapLine, ...]


def view(
    found: Mapping[str, Status], silent: Mapping[str, str], answers: Mapping[str, Sequence[Row]]
) -> StatusView:
    """Return the screen. Pure.

    Args:
        found: the states of ``collector`` and ``analyzer``, as far as they answered.
        silent: the error of each process that did not answer.
        answers: rows of `QUERIES`, by name; empty if no analyzer answered.
    """
    return StatusView(
        gpus=tuple(_gpu(row) for row in answers.get("gpus", ())),
        runs=tuple(_run(row) for row in answers.get("runs", ())),
        services=(
            *(service for process, state in found.items() for service in _services(process, state)),
            *(ServiceLine(name=process, state="does not answer", lag=ABSENT) for process in silent),
        ),
        gaps=tuple(
            GapLine(what=row["what"], count=row["count"], reason=row["reason"])
            for row in answers.get("gaps", ())
        ),
    )


def _gpu(row: Row) -> GpuLine:
    index = ABSENT if row["index"] is None else row["index"]
    same = (
        "gpu", "power_w", "limit_w", "found_limit_w", "utilization_percent", "temperature_c", "step_j", "run",
        "gone",
    )  # fmt: skip
    return GpuLine(
        name=row["name"] or "unknown model",
        where=f"{row['host']}:{index}",
        **{name: row[name] for name in same},
    )


def _run(row: Row) -> RunLine:
    same = ("run", "job", "ranks", "steps", "steps_per_s", "energy_j", "saved_j")
    return RunLine(phase=_phase(row), forecast=_forecast(row), **{name: row[name] for name in same})


def _forecast(row: Row) -> str:
    """Return the forecast of a run in words; empty: there is none."""
    if row["duration_s"] is None:
        return ""
    energy = energy_words(row["forecast_j"], row["energy_p2_5_j"], row["energy_p97_5_j"])
    low_s, high_s = row["duration_p2_5_s"], row["duration_p97_5_s"]
    sure = "" if low_s is None else f" ({seconds(low_s)} to {seconds(high_s)})"
    return f"{energy}, {seconds(row['duration_s'])}{sure} from begin to end"


def _phase(row: Row) -> str:
    """Return the phase of the search of a run, in words."""
    if row["reason"] is None or row["again"]:
        return f"measuring limit {row['trials'] + 1}" if row["trials"] else "waiting for steps"
    if row["chosen_w"] is None:
        return f"no limit: {row['reason']}"
    level = f"{row['chosen_w']:g} W" if row["chosen_mhz"] is None else f"{row['chosen_mhz']} MHz"
    return f"{level} chosen" if row["applied"] else f"{level} would be chosen"


def _services(process: str, state: Status) -> list[ServiceLine]:
    """Return a line for a process, and one for each collector that the analyzer follows."""
    sections: dict[str, dict[str, str]] = {}
    for section, name, value in state.rows:
        sections.setdefault(section, {})[name] = value
    own = sections.get(process, {})
    if process == "collector":
        words = [own.get("host", ""), "only measures" if own.get("observes only") == "yes" else ""]
        trouble = sections.get("log", {}).get("trouble", "none")
        words.append("" if trouble == "none" else trouble)
        words.append(sections.get("devices", {}).get("none", ""))
        return [ServiceLine(name=process, state=", ".join(filter(None, ["answers", *words])), lag=ABSENT)]
    state_of_all, behind = f"answers, selector {own.get('selector', ABSENT)}", own.get("behind by", ABSENT)
    lines = [ServiceLine(name=process, state=state_of_all, lag=behind)]
    for section, values in sections.items():
        if section.startswith("collector "):
            trouble = values.get("trouble", "none")
            connected = "connected" if values.get("connected") == "yes" else "not connected"
            lines.append(
                ServiceLine(
                    name=f"follows {values.get('host', section.removeprefix('collector '))}",
                    state=connected if trouble == "none" else f"{connected}: {trouble}",
                    lag=values.get("behind", ABSENT),
                )
            )
    return lines


def print_view(shown: StatusView, out: TextIO) -> None:
    """Print the screen. It fits 80 columns for names of usual length."""
    console = console_of(out, wide=True)
    if shown.gpus:
        console.print(_gpu_table(shown.gpus))
        console.print()
    if shown.runs:
        console.print(_run_table(shown.runs))
        console.print()
        forecasts = [f"{run.run}, forecast: {run.forecast}" for run in shown.runs if run.forecast]
        for each in forecasts:
            console.print(Text(each))
        if forecasts:
            console.print()
    elif shown.gpus:
        console.print("No run is open.\n")
    services = _table("service", "state", "behind")
    for service in shown.services:
        services.add_row(*map(Text, (service.name, service.state, service.lag)))
    console.print(services)
    console.print()
    if shown.gaps:
        gaps = _table("missing", ">count", "reason")
        for gap in shown.gaps:
            gaps.add_row(*map(Text, (gap.what, str(gap.count), gap.reason)))
        console.print(gaps)
    elif shown.gpus:
        console.print("Nothing is missing from the archive.")


def _gpu_table(gpus: Sequence[GpuLine]) -> Table:
    table = _table("GPU", "model", ">W", ">limit W", ">util %", ">°C", ">J/step", "run")
    for gpu in gpus:
        limit = _figure(gpu.limit_w, ".0f")
        if (
            gpu.limit_w is not None
            and gpu.found_limit_w is not None
            and gpu.limit_w < gpu.found_limit_w - 0.5
        ):
            limit = f"{limit} of {gpu.found_limit_w:.0f}"
        cells = (
            gpu.where, gpu.name, _figure(gpu.power_w, ".1f"), limit, _figure(gpu.utilization_percent, "d"),
            _figure(gpu.temperature_c, "d"), _figure(gpu.step_j, ".4g"), gpu.gone or gpu.run or ABSENT,
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    return table


def _run_table(runs: Sequence[RunLine]) -> Table:
    table = _table("run", "job", "search", ">steps", ">step/s", ">J", ">saved J")
    for run in runs:
        cells = (
            run.run, run.job, run.phase, _figure(run.steps, "d"), _figure(run.steps_per_s, ".1f"),
            _figure(run.energy_j, ",.0f"), _figure(run.saved_j, ",.0f"),
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    return table


def _table(*heads: str) -> Table:
    """Return an empty table. A head that begins with ``>`` aligns its column to the right."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for head in heads:
        table.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
    return table


def _figure(value: float | None, form: str) -> str:
    return ABSENT if value is None else format(value, form)
