"""The cost of a run: queries over the archive, and their text."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any, TextIO

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict
from rich.text import Text

from zeus_stream.questions.asking import Rows, answered, together
from zeus_stream.questions.run_questions import find_run_rows, find_trials
from zeus_stream.quoting import quoted
from zeus_stream.screens.text.tables import console_of, print_facts, print_rows, write, write_text
from zeus_stream.screens.text.words import explained
from zeus_stream.service_packages import install_command
from zeus_stream.views.costs import COSTS, OWN_USE, SIGNALS_NOW, at_price, cost_facts, own_use_facts
from zeus_stream.views.forecast import COSTS as FORECAST_COSTS
from zeus_stream.views.forecast import forecast_facts
from zeus_stream.views.pipeline_view import POINTS, PRICED, PipelineChoice, choices_of
from zeus_stream.views.quantity import (
    ABSENT,
    KWH_J,
    Quantity,
    counted,
    in_one_unit,
    joules,
    percent,
    with_bounds,
)
from zeus_stream.views.run_view import STOPPED, RunRows, RunView, run_of_rows
from zeus_stream.views.saving import Saving
from zeus_stream.views.search import TrialView, trial_table
from zeus_stream.views.undecided import BEHIND_S, behind_facts
from zeus_stream.views.waste import NOT_KNOWN, waste_facts

_PROFILES = """
SELECT job, gpu_model, driver, gpus, world_size, batch_size, least_limit_w, highest_limit_w, chosen_limit_w,
    100 * (1 - min(energy_per_step_j) FILTER (chosen) / arg_max(energy_per_step_j, power_limit_w))
        AS energy_saved_percent,
    count(*) AS limits, measured_at, run
FROM profiles WHERE {kept} GROUP BY ALL ORDER BY job, measured_at DESC
"""
PROFILE_COLUMNS = {
    "job": "job",
    "gpu_model": "gpu_model",
    "gpus": "gpus",
    "chosen_limit_w": "limit_w",
    "energy_saved_percent": "saved_percent",
    "measured_at": "measured",
}
"""Columns of `_PROFILES` that fit a terminal of 80 columns, and the names they have there."""
SINGLE = """
SELECT count(*) AS gpus, count(*) FILTER (power_limit_w < job_limit_w) AS lowered,
    min(power_limit_w) AS lowest_w,
    any_value(energy_percent) AS energy_percent, any_value(time_percent) AS time_percent
FROM gpu_limits WHERE run = {run} GROUP BY round ORDER BY round DESC LIMIT 1
"""
_TRUE = (
    "SELECT true_j, true_p2_5_j, true_p97_5_j, doubt_percent, calibrated FROM true_energy WHERE run = {run}"
)
_UNNAMED = """
WITH marks AS (
    SELECT session, gpu, kind, begin_ns, end_ns FROM windows WHERE run = {run} AND kind IN ('step', 'window')
    UNION ALL SELECT session, gpu, kind, end_ns, end_ns FROM windows WHERE run = {run} AND kind = 'run'
), gaps AS (
    SELECT CASE WHEN earlier_ns IS NULL THEN 'before the first step or window, such as the start of loaders'
            WHEN marks.kind = 'run' THEN 'after the last step or window'
            ELSE 'between steps and windows' END AS place,
        sum(marks.begin_ns - coalesce(earlier_ns, whole.begin_ns)) / 1e9 AS gap_s
    FROM (
        FROM marks SELECT *, max(end_ns) OVER (PARTITION BY session, gpu ORDER BY begin_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier_ns
    ) AS marks JOIN windows AS whole ON whole.session = marks.session AND whole.gpu = marks.gpu
        AND whole.kind = 'run'
    WHERE marks.begin_ns > coalesce(earlier_ns, whole.begin_ns)
        AND (earlier_ns IS NOT NULL OR marks.kind <> 'run')
    GROUP BY place, marks.session, marks.gpu
    UNION ALL SELECT 'in steps that were not measured', sum(end_ns - begin_ns) / 1e9 FROM windows
    WHERE run = {run} AND kind = 'step' AND energy_j IS NULL GROUP BY session, gpu
)
SELECT place, max(gap_s) AS seconds FROM gaps GROUP BY place ORDER BY sum(gap_s) DESC LIMIT 1
"""
_GAPS = "SELECT what, sum(count)::BIGINT AS count, reason FROM gaps GROUP BY what, reason ORDER BY count DESC"
_MORE = {
    "single": SINGLE,
    "true": _TRUE,
    "gaps": _GAPS,
    "costs": COSTS,
    "own_use": OWN_USE,
}

NAMED_SHARE = 0.05
"""Share of the energy that is not attributed from which on its largest part is named."""
VERSION = 1
"""Of the JSON form; it changes when a field changes its meaning or goes."""
SHOWN = 5
"""Runs of a command that are named."""
SIGNALLED = 128
"""Exit codes above it stand for signals."""


class Summary(Struct, frozen=True, kw_only=True):
    """One run: its rows of the archive."""

    rows: RunRows
    visits: Rows
    """The limits that were measured, a row a visit."""
    trials: Sequence[TrialView]
    """The same, as they are shown."""
    gaps: pa.Table
    """Data that the whole archive is known to lack."""
    single: Mapping[str, Any] | None
    """The last round of limits of single GPUs. None: there was none."""
    costs: Sequence[Mapping[str, Any]] = ()
    """Money and carbon: rows of ``costs``, or the price that was given with the question."""
    forecast_costs: Sequence[Mapping[str, Any]] = ()
    true: Mapping[str, Any] | None = None
    """The energy with what is not known of the gain of its sensors: a row of ``true_energy``."""
    unnamed: Mapping[str, Any] | None = None
    """Where most of the time outside of steps and windows is: its place and seconds. None: it is little."""
    own_use: Sequence[Mapping[str, Any]] = ()
    """The use of the services in its time: rows of ``own_use_of_runs``."""
    choices: Sequence[PipelineChoice] = ()
    """Of a pipeline: durations of iterations, and what each costs."""

    @property
    def totals(self) -> Mapping[str, Any]:
        return self.rows.totals

    @property
    def view(self) -> RunView:
        """Return its figures and sentences."""
        return run_of_rows(self.rows)

    @property
    def closed(self) -> bool:
        """Return True when every session of the run is measured to its end."""
        return bool(self.totals["closed"] == self.totals["sessions"])


def summarize(
    answer: Callable[[str], pa.Table], run: str, price: tuple[float, str] | None = None
) -> Summary | None:
    """Return the summary of a run, or None while the archive does not have it. ``price``: of a kWh."""

    def ask(query: str) -> pa.Table:
        return answer(query.format(run=quoted(run)))

    rows = answered(find_run_rows(run), answer)
    if rows is None:
        return None
    visits, trials = answered(find_trials(rows), answer)
    more = ask(together(_MORE))
    of = {name: pa.Table.from_struct_array(more[name].combine_chunks().flatten()) for name in _MORE}
    (single,), (true,) = (of[name].to_pylist() or (None,) for name in ("single", "true"))
    points = ask(POINTS).to_pylist() if rows.pipeline is not None else []
    prices = [at_price(None, price)] if price else answer(SIGNALS_NOW).to_pylist() if points else []
    unnamed = next((row["share"] for row in rows.waste if row["cause"] == NOT_KNOWN), None) or 0.0
    return Summary(
        rows=rows,
        visits=visits,
        trials=trials,
        gaps=of["gaps"],
        single=single,
        costs=[at_price(run_of_rows(rows).energy.known, price)] if price else of["costs"].to_pylist(),
        true=true,
        unnamed=next(iter(ask(_UNNAMED).to_pylist()), None) if unnamed >= NAMED_SHARE else None,
        own_use=of["own_use"].to_pylist(),
        choices=choices_of(points, rows.pipeline, prices) if rows.pipeline is not None else (),
        forecast_costs=ask(FORECAST_COSTS).to_pylist() if rows.forecast is not None else (),
    )


def remembered(answer: Callable[[str], pa.Table], forgotten_wall_ns: Mapping[str, int]) -> pa.Table:
    """Return the profiles that later runs start from; those until a job was forgotten are left out."""
    kept = [
        f"(job <> {quoted(job)} OR measured_wall_ns > {until_ns})"
        for job, until_ns in forgotten_wall_ns.items()
    ]
    return answer(_PROFILES.format(kept=" AND ".join(kept) or "true"))


def print_summary(
    summary: Summary, archive: Path | None, sql: str, out: TextIO, *, failed: str | None = None
) -> None:
    """Print the cost of a run, the chosen limit, and a command for more. ``failed``: how its command did."""
    console = console_of(out)
    console.print()
    console.rule(Text(f"{summary.totals['job']}  ({summary.rows.run})"), align="left", style="dim")
    print_facts(console, (*_failure(summary, failed), *_facts(summary)))
    if summary.trials:
        console.print()
        print_rows(console, *trial_table(summary.trials), left=2)
    if summary.choices:
        console.print(f"\nTo choose with --slowdown: an iteration of a replica, and {PRICED:,} of all:")
        print_rows(console, *_choices(summary.choices))
    if summary.gaps.num_rows:
        console.print("\nMissing from the archive:")
        write(summary.gaps, "table", out)
    console.print()
    if archive is not None:
        console.print(f"Archive: {archive}", soft_wrap=True)
    console.print(Text(f"More: {sql} @epochs"), soft_wrap=True)


def _visit(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a visit of a limit, or of a clock in place of its nominal power, for programs."""
    clock_mhz = row["clock_mhz"]
    level = {"limit_w": row["power_limit_w"]} if clock_mhz is None else {"clock_mhz": clock_mhz}
    return {
        **level, "steps": row["steps"], "step_ms": 1000 * row["step_s"], "step_j": row["step_j"],
        "power_w": row["average_power_w"], "temperature_c": row["temperature_c"], "confirms": row["confirms"],
    }  # fmt: skip


def _choices(choices: Sequence[PipelineChoice]) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of the choices of a pipeline."""
    heads = ["slowdown", "iteration", "energy", "saved", "in all", "energy", "cost"]
    columns = [
        [each.name for each in choices],
        in_one_unit([each.time_s for each in choices], "s"),
        in_one_unit([each.energy_j for each in choices], "J"),
        [str(Quantity(each.saved_percent, "%")) for each in choices],
        in_one_unit([3600 * each.hours for each in choices], "s"),
        in_one_unit([KWH_J * each.kwh for each in choices], "J"),
        [each.cost or ABSENT for each in choices],
    ]
    return heads, [list(cells) for cells in zip(*columns, strict=True)]


def print_words(text: str, out: TextIO) -> None:
    """Print the words of a report that are ours alone, each with its meaning."""
    console = console_of(out)
    console.print()
    print_facts(console, explained(text))


def ended_by(exit_code: int) -> str:
    """Return how a command ended, from its exit code: 128 + n if signal n ended it."""
    if exit_code > SIGNALLED and (exit_code - SIGNALLED) in {each.value for each in Signals}:
        return f"ended by {Signals(exit_code - SIGNALLED).name}"
    return f"exit code {exit_code}"


def _failure(summary: Summary, failed: str | None) -> list[tuple[str, str]]:
    """Return how a run was stopped or failed, as name and text; empty if it succeeded or has not ended."""
    parts = (failed or summary.totals["command_ended_how"], summary.totals["ended_how"])
    text = ": ".join(part for part in parts if part)
    return [("stopped" if text.startswith(STOPPED) else "failed", text)] if text else []


def write_summary(summary: Summary, out: TextIO) -> None:
    """Write a summary as one JSON object; docs/reference/report.schema.json describes it."""
    rows = summary.rows
    content = {
        "report": "run",
        "version": VERSION,
        "run": rows.run,
        **rows.totals,
        **rows.whole,
        "closed": summary.closed,
        "sessions_closed": rows.totals["closed"],
        "saving": rows.saving,
        "waste": list(rows.waste),
        "costs": list(summary.costs),
        "own_use": list(summary.own_use),
        "true_energy": summary.true and dict(summary.true),
        "forecast": rows.forecast and {**rows.forecast, "made_at": str(rows.forecast["made_at"])},
        "trials": [_visit(row) for row in sorted(summary.visits, key=lambda row: -row["power_limit_w"])],
        "single_gpus": summary.single,
        "pipeline": None if rows.pipeline is None else dict(rows.pipeline),
        "pipeline_choices": [asdict(each) for each in summary.choices],
        "gaps": summary.gaps.to_pylist(),
    }
    write_json(content, out)


def write_json(content: Mapping[str, Any], out: TextIO) -> None:
    """Write one JSON object. A figure that is not known, or that no double holds, is null."""
    write_text(json.dumps(_finite(content), ensure_ascii=False, allow_nan=False, indent=2) + "\n", out)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _facts(summary: Summary) -> list[tuple[str, str]]:
    totals, whole, view = summary.totals, summary.rows.whole, summary.view
    epochs = f"{counted(totals['epochs'], 'epoch')}, " if totals["epochs"] else ""
    facts = [
        ("work", f"{epochs}{counted(totals['steps'], 'step')} on {counted(totals['gpus'], 'GPU')}"),
        *([("pod", totals["pods"])] if totals["pods"] else []),
        ("time", with_bounds(view.duration)),
        ("energy", view.energy_words),
        *_true_energy(summary.true),
    ]
    if whole["cpu_energy_j"] is not None:
        facts.append(
            ("host", f"{joules(whole['cpu_energy_j'])} of its CPUs and DRAM, not in the energy above")
        )
    facts += waste_facts(view.waste)
    if summary.unnamed is not None:
        place, seconds = summary.unnamed["place"], summary.unnamed["seconds"]
        facts.append((NOT_KNOWN, f"mostly {Quantity(seconds, 's')} {place}"))
    facts += [*cost_facts(summary.costs), *own_use_facts(summary.own_use)]
    if not summary.closed:
        facts += forecast_facts(view.forecast, summary.forecast_costs)
        facts.append(("warning", "the run is not closed yet: the figures cover what has arrived"))
    if whole["shared"]:
        facts.append(("warning", "another run used the same GPU at that time; its energy is included"))
    if view.saving is not None:
        facts += saving_facts(view.saving)
        facts += _single(summary.single) if summary.single is not None else []
    elif view.pipeline is not None:
        facts += view.pipeline.facts
    elif view.undecided:
        facts.append(("chosen", view.undecided))
    return facts + behind_facts(totals)


def _true_energy(true: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the energy with the doubt of the sensors' gains, as name and text, if there is one."""
    if true is None or true["true_j"] is None or not true["doubt_percent"]:
        return []
    energy = with_bounds(Quantity(true["true_j"], "J", true["true_p2_5_j"], true["true_p97_5_j"]))
    how = "calibrated" if true["calibrated"] else "not calibrated; the energy above is what it shows"
    return [("true energy", f"{energy}: gain of the sensor +-{true['doubt_percent']:.1f} %, {how}")]


def saving_facts(saving: Saving) -> list[tuple[str, str]]:
    """Return the decision of a run and its saving: names and texts."""
    facts = [("chosen", f"{saving.level}{'' if saving.applied else ', not set'}: {saving.reason}")]
    if saving.energy.known is None or saving.time.known is None:
        return [*facts, ("saves", f"not known: {saving.energy.absent}")]
    facts.append(("saves" if saving.applied else "would save", saving.effect))
    if saving.energy.interval is None and not saving.kept:
        facts.append(("warning", f"the interval is not known: {saving.energy.absent}"))
    if saving.saved_words and not saving.kept:
        facts.append(("saved" if saving.applied else "in total", saving.saved_words))
    return facts + ([("known from", saving.known_from)] if saving.known_from else [])


def _single(single: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result for single GPUs, as names and texts."""
    if not single["lowered"]:
        return [("single GPUs", f"none of {single['gpus']} can be lowered without slowing the others")]
    below = f"{single['lowered']} of {single['gpus']} are lower, down to {single['lowest_w']:g} W"
    energy, time = percent(single["energy_percent"], "+.1f"), percent(single["time_percent"], "+.1f")
    effect = f"{energy} of a step's energy for {time} of its time"
    return [("single GPUs", f"{below}: {effect}, compared with the job's limit on all")]


def print_others(out: TextIO, name: str, runs: Sequence[str], report: str) -> None:
    """Print that a command published no run of the name it was given, and which runs began in its time."""
    console = console_of(out)
    shown = ", ".join(runs[:SHOWN]) + (f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else "")
    console.print(
        Text(f"\nThe command published no run of its name, {name}. In its time began: {shown}."),
        soft_wrap=True,
    )
    console.print(Text(f"Print what one cost: {report} {shlex.quote(runs[-1])}"), soft_wrap=True)


def print_unpublished(
    out: TextIO, lacking: str | None = None, *, behind_s: float = 0.0, failed: str | None = None
) -> None:
    """Print that nothing was measured, or not yet, why, and what to do.

    ``lacking``: a Python that has no package zeus_stream. ``behind_s``: of the analyzer.
    """
    console = console_of(out)
    if behind_s > BEHIND_S:
        waits = f"the analyzer is behind by {behind_s:.0f} s"
        console.print(f"\nThe archive has no run of the command yet: {waits}.", soft_wrap=True)
        console.print("Print its cost later: zeus-stream report", soft_wrap=True)
        return
    if lacking is not None:
        console.print(f"\nNothing was measured: {lacking} has no package zeus_stream.", soft_wrap=True)
        console.print(Text(f"Install it there: {install_command(python=lacking)}"), soft_wrap=True)
        return
    if failed is None:
        console.print("\nThe command published no run, so nothing was measured. Add one line to the script:")
    else:
        console.print(f"\nThe command ended before its first step ({failed}), so nothing was measured.")
        console.print("What it printed says why. If the script has no line for it, add one:")
    console.print("\n    import zeus_stream\n    for batch in zeus_stream.steps(loader):", style="bold")
