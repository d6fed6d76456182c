"""The cost of a run: queries over the archive, and their text."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any, TextIO

import pyarrow as pa
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from zeus_stream.reports.costs import OWN_USE, at_price, cost_facts, costs, own_use_facts
from zeus_stream.reports.forecast import COSTS, FORECAST, forecast_facts
from zeus_stream.reports.html.quantities import found_level, level
from zeus_stream.reports.html.questions import COMMAND, SAVING, TOTALS, WHOLE, quoted
from zeus_stream.reports.pipeline_facts import PIPELINE, pipeline_facts
from zeus_stream.reports.tables import console_of, write, write_text
from zeus_stream.reports.undecided import BEHIND_S, behind_facts, why_no_energy, why_undecided
from zeus_stream.reports.waste import waste_facts, wasted

_TRIALS = """
SELECT power_limit_w AS limit_w, steps, 1000 * duration_s / steps AS step_ms, energy_j / steps AS step_j,
    average_power_w AS power_w, temperature_c, confirms, clock_mhz
FROM trials WHERE run = {run} ORDER BY power_limit_w DESC, number
"""
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
_GAPS = "SELECT what, sum(count)::BIGINT AS count, reason FROM gaps GROUP BY what, reason ORDER BY count DESC"


VERSION = 1
"""Of the JSON form; it changes when a field changes its meaning or goes."""
SIGNALLED = 128
"""Exit codes above it stand for signals."""


class Summary(Struct, frozen=True, kw_only=True):
    """One run: its rows of the archive."""

    run: str
    totals: Mapping[str, Any]
    whole: Mapping[str, Any]
    trials: pa.Table
    saving: Mapping[str, Any] | None
    """A row of ``savings``. None: nothing was decided."""
    gaps: pa.Table
    """Data that the whole archive is known to lack."""
    single: Mapping[str, Any] | None
    """The last round of limits of single GPUs. None: there was none."""
    waste: Sequence[Mapping[str, Any]] = ()
    """Where its energy went: rows of ``waste``."""
    pipeline: Mapping[str, Any] | None = None
    """Its pipeline and last plan of clocks. None: it is none."""
    costs: Sequence[Mapping[str, Any]] = ()
    """Money and carbon: rows of ``costs``, or the price that was given with the question."""
    forecast: Mapping[str, Any] | None = None
    """A row of ``run_forecasts``. None: there is none."""
    forecast_costs: Sequence[Mapping[str, Any]] = ()
    true: Mapping[str, Any] | None = None
    """The energy with what is not known of the gain of its sensors: a row of ``true_energy``."""
    own_use: Sequence[Mapping[str, Any]] = ()
    """The use of the services in its time: rows of ``own_use_of_runs``."""

    @property
    def closed(self) -> bool:
        """Return True when every session of the run is measured to its end."""
        return bool(self.totals["closed"] == self.totals["sessions"])


def summarize(
    answer: Callable[[str], pa.Table], run: str, price: tuple[float, str] | None = None
) -> Summary | None:
    """Return the summary of a run, or None while the archive does not have it.

    Args:
        answer: answers SQL.
        run: its name.
        price: amount and currency of a kilowatt hour, in place of the signals. None: by the signals.
    """

    def ask(query: str) -> pa.Table:
        return answer(query.format(run=quoted(run), command=quoted(f"{run}{COMMAND}")))

    (totals,) = ask(TOTALS).to_pylist()
    if not totals["sessions"]:
        return None
    (whole,) = ask(WHOLE).to_pylist()
    (saving,) = ask(SAVING).to_pylist() or (None,)
    (single,) = ask(SINGLE).to_pylist() or (None,)
    (forecast,) = ask(FORECAST).to_pylist() or (None,)
    (true,) = ask(_TRUE).to_pylist() or (None,)
    (pipeline,) = ask(PIPELINE).to_pylist() or (None,)
    return Summary(
        run=run,
        totals=totals,
        whole=whole,
        trials=_levels(ask(_TRIALS)),
        saving=saving,
        gaps=ask(_GAPS),
        single=single,
        pipeline=pipeline,
        waste=wasted(answer, run),
        costs=costs(answer, run) if price is None else [at_price(whole["energy_j"], price)],
        forecast=forecast,
        true=true,
        own_use=ask(OWN_USE).to_pylist(),
        forecast_costs=ask(COSTS).to_pylist() if forecast is not None else (),
    )


def _levels(trials: pa.Table) -> pa.Table:
    """Return trials with their clock in place of its nominal power, where a clock was searched."""
    clocks = trials.column("clock_mhz")
    if clocks.null_count == len(trials):
        return trials.drop_columns(["clock_mhz"])
    return trials if clocks.null_count else trials.drop_columns(["limit_w"])


def remembered(answer: Callable[[str], pa.Table], forgotten_wall_ns: Mapping[str, int]) -> pa.Table:
    """Return the profiles that later runs start from, one row each.

    Args:
        answer: answers SQL.
        forgotten_wall_ns: by job; profiles measured until then are left out.
    """
    kept = [
        f"(job <> {quoted(job)} OR measured_wall_ns > {until_ns})"
        for job, until_ns in forgotten_wall_ns.items()
    ]
    return answer(_PROFILES.format(kept=" AND ".join(kept) or "true"))


def print_summary(
    summary: Summary, archive: Path | None, sql: str, out: TextIO, *, failed: str | None = None
) -> None:
    """Print the cost of a run, the chosen limit, and a command for more.

    Args:
        summary: of the run.
        archive: the file, if it is known.
        sql: the command that queries it.
        out: receives the text.
        failed: how the command failed. None: as the archive says.
    """
    console = console_of(out)
    console.print()
    console.rule(Text(f"{summary.totals['job']}  ({summary.run})"), align="left", style="dim")
    grid = Table.grid(padding=(0, 3))
    for name, value in (*_failure(summary, failed), *_facts(summary)):
        grid.add_row(Text(name, style="bold"), Text(value))
    console.print(grid)
    if summary.trials.num_rows:
        console.print()
        write(summary.trials, "table", out)
    if summary.gaps.num_rows:
        console.print("\nMissing from the archive:")
        write(summary.gaps, "table", out)
    console.print()
    if archive is not None:
        console.print(f"Archive: {archive}", soft_wrap=True)
    console.print(Text(f"More: {sql} @epochs"), soft_wrap=True)


def ended_by(exit_code: int) -> str:
    """Return how a command ended, from its exit code: 128 + n if signal n ended it."""
    if exit_code > SIGNALLED and (exit_code - SIGNALLED) in {each.value for each in Signals}:
        return f"ended by {Signals(exit_code - SIGNALLED).name}"
    return f"exit code {exit_code}"


def _failure(summary: Summary, failed: str | None) -> list[tuple[str, str]]:
    """Return the failure of a run, as name and text; empty if it succeeded or has not ended."""
    parts = (failed or summary.totals["command_ended_how"], summary.totals["ended_how"])
    text = ": ".join(part for part in parts if part)
    return [("failed", text)] if text else []


def write_summary(summary: Summary, out: TextIO) -> None:
    """Write a summary as one JSON object; docs/reference/report.schema.json describes it."""
    content = {
        "report": "run",
        "version": VERSION,
        "run": summary.run,
        **summary.totals,
        **summary.whole,
        "closed": summary.closed,
        "sessions_closed": summary.totals["closed"],
        "saving": summary.saving,
        "waste": list(summary.waste),
        "costs": list(summary.costs),
        "own_use": list(summary.own_use),
        "true_energy": summary.true and dict(summary.true),
        "forecast": summary.forecast and {**summary.forecast, "made_at": str(summary.forecast["made_at"])},
        "trials": summary.trials.to_pylist(),
        "single_gpus": summary.single,
        "pipeline": None if summary.pipeline is None else dict(summary.pipeline),
        "gaps": summary.gaps.to_pylist(),
    }
    write_json(content, out)


def write_json(content: Mapping[str, Any], out: TextIO) -> None:
    """Write one JSON object. A figure that is not known is null."""
    write_text(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n", out)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    totals, whole = summary.totals, summary.whole
    gpus = f"{totals['gpus']} GPU{'' if totals['gpus'] == 1 else 's'}"
    facts = [
        ("work", f"{totals['epochs']} epochs, {totals['steps']} steps on {gpus}"),
        ("time", "not known" if whole["duration_s"] is None else f"{whole['duration_s']:.1f} s"),
        ("energy", _energy(totals, whole)),
        *_true_energy(summary.true),
    ]
    if whole["cpu_energy_j"] is not None:
        facts.append(
            ("host", f"{whole['cpu_energy_j']:,.1f} J of its CPUs and DRAM, not in the energy above")
        )
    facts += [*waste_facts(summary.waste), *cost_facts(summary.costs), *own_use_facts(summary.own_use)]
    if not summary.closed:
        facts += forecast_facts(summary.forecast, summary.forecast_costs)
        facts.append(("warning", "the run is not closed yet: the figures cover what has arrived"))
    if whole["shared"]:
        facts.append(("warning", "another run used the same GPU at that time; its energy is included"))
    if summary.saving is not None:
        facts += chosen(summary.saving)
        facts += _single(summary.single) if summary.single is not None else []
    elif summary.pipeline is not None:
        facts += pipeline_facts(summary.pipeline)
    elif (undecided := why_undecided(totals)) is not None:
        facts.append(("chosen", undecided))
    return facts + behind_facts(totals)


def _energy(totals: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    energy_j, duration_s = whole["energy_j"], whole["duration_s"]
    if energy_j is None or not duration_s:
        return f"missing: {why_no_energy(totals, whole)}"
    interval = f"{whole['energy_p2_5_j']:,.1f} to {whole['energy_p97_5_j']:,.1f}"
    return f"{energy_j:,.1f} J (95 %: {interval}), {energy_j / duration_s:.1f} W on average"


def _true_energy(true: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the energy with the doubt of the sensors' gains, as name and text, if there is one."""
    if true is None or true["true_j"] is None or not true["doubt_percent"]:
        return []
    interval = f"{true['true_j']:,.0f} J (95 %: {true['true_p2_5_j']:,.0f} to {true['true_p97_5_j']:,.0f})"
    how = "calibrated" if true["calibrated"] else "not calibrated; the energy above is what it shows"
    return [("true energy", f"{interval}: gain of the sensor +-{true['doubt_percent']:.1f} %, {how}")]


def chosen(saving: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the decision and its saving, from a row of the view ``savings``: names and texts."""
    if saving["power_limit_w"] is None:
        return [("chosen", f"no power limit: {saving['reason']}")]
    applied = "" if saving["applied"] else ", not set"
    facts = [("chosen", f"{level(saving)}{applied}: {saving['reason']}")]
    if saving["energy_saved_percent"] is None or saving["time_added_percent"] is None:
        return facts
    verb = "saves" if saving["applied"] else "would save"
    cost = (
        f"{_interval(saving, 'energy_saved', '.1f')} of a step's energy for"
        f" {_interval(saving, 'time_added', '+.1f')} of its time,"
        f" compared with {found_level(saving)}"
    )
    facts.append((verb, cost))
    if saving["energy_saved_low_percent"] is None or saving["time_added_low_percent"] is None:
        facts.append(("warning", "the interval is not known: too few steps were measured at these limits"))
    if saving["applied"]:
        if saving["saved_j"] is not None:
            what = "limit" if saving["clock_mhz"] is None else "clock"
            facts.append(
                ("saved", f"{saving['saved_j']:,.1f} J over {saving['steps_at_limit']} steps at this {what}")
            )
        return facts
    if saving["would_save_j"] is not None:
        at_found = f"of the energy of the steps at {saving['default_limit_w']:g} W"
        facts.append(("in total", f"{saving['would_save_j']:,.1f} J {at_found}"))
    if saving["trials_run"] != saving["run"]:
        facts.append(("known from", f"{saving['trials_run']}, an earlier run{_changed(saving)}"))
    return facts


def _single(single: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result for single GPUs, as names and texts."""
    if not single["lowered"]:
        return [("single GPUs", f"none of {single['gpus']} can be lowered without slowing the others")]
    below = f"{single['lowered']} of {single['gpus']} are lower, down to {single['lowest_w']:g} W"
    energy, time = f"{single['energy_percent']:+.1f}", f"{single['time_percent']:+.1f}"
    effect = f"{energy} % of a step's energy for {time} % of its time"
    return [("single GPUs", f"{below}: {effect}, compared with the job's limit on all")]


def _interval(saving: Mapping[str, Any], what: str, form: str) -> str:
    """Format a share with its 95 % interval, if that is known."""
    share, low, high = (saving[f"{what}{part}_percent"] for part in ("", "_low", "_high"))
    sure = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{share:{form}} %{sure}"


def _changed(saving: Mapping[str, Any]) -> str:
    """Describe how much the steps of this run differ from those that were profiled."""
    if saving["changed_percent"] is None:
        return "; it is not known whether a step still takes the same energy"
    changed = f"{saving['changed_percent']:+.1f} % energy compared with that run"
    return f"; a step at the highest limit takes {changed}"


def print_unpublished(
    out: TextIO, lacking: str | None = None, *, behind_s: float = 0.0, failed: str | None = None
) -> None:
    """Print that nothing was measured, or not yet, why, and what to do.

    Args:
        out: receives the text.
        lacking: a Python that has no package zeus_stream. None: that is not the reason.
        behind_s: by which the analyzer is behind.
        failed: how the command failed. None: it did not.
    """
    console = console_of(out)
    if behind_s > BEHIND_S:
        waits = f"the analyzer is behind by {behind_s:.0f} s"
        console.print(f"\nThe archive has no run of the command yet: {waits}.", soft_wrap=True)
        console.print("Print its cost later: zeus-stream report", soft_wrap=True)
        return
    if lacking is not None:
        console.print(f"\nNothing was measured: {lacking} has no package zeus_stream.", soft_wrap=True)
        console.print(f"Install it there: {lacking} -m pip install zeus-stream", soft_wrap=True)
        return
    if failed is None:
        console.print("\nThe command published no run, so nothing was measured. Add one line to the script:")
    else:
        console.print(f"\nThe command published no run before its end ({failed}), so nothing was measured.")
        console.print("If the script has no line for it, add one:")
    console.print("\n    import zeus_stream\n    for batch in zeus_stream.steps(loader):", style="bold")
