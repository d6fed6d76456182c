"""The command ``wait``: run a command when energy is cheap, or has little carbon."""

import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.json import encode

from zeus_stream.bench.energy_difference import SHOWN, student_quantile
from zeus_stream.cli.options import QUERY, Command, ask_sql, settings_options
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.paths import places
from zeus_stream.settings import Settings
from zeus_stream.transport.client import quoted

if TYPE_CHECKING:
    from analyzers.results.signal_rows import SignalRow

J_PER_KWH = 3.6e6
RUNS = 20
"""The latest runs of a job that count."""
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RUNS = """
SELECT epoch(ended_at - began_at) AS duration_s, energy_j FROM run_energy
WHERE job = {job} AND energy_j > 0 AND ended_at > began_at ORDER BY ended_at DESC LIMIT {runs}
"""


class PastRun(Struct, frozen=True):
    """A run as it may come again."""

    duration_s: float
    energy_j: float


class WaitPlan(Struct, frozen=True, kw_only=True):
    """When to begin, and what that saves against now."""

    signal: str
    unit: str
    """Of the amounts."""
    start_ns: int
    """UTC."""
    wait_s: float
    saved: float | None
    """The amount. None: the energy of a run is not known."""
    saved_low: float | None
    """Lower end of the 95 % interval for one more run, as is the next its upper end. None: fewer than two."""
    saved_high: float | None
    saved_percent: float
    saved_percent_low: float | None
    saved_percent_high: float | None
    runs: int
    """Earlier runs whose lengths and energies count."""


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if found is None or not 0 < float(found[1]) * _UNITS_S[found[2]] <= 30 * 86_400:
            self.fail(f"{value!r} is no length of time: give one such as 90s, 30m, 12h or 2d.", param, ctx)
        return float(found[1]) * _UNITS_S[found[2]]


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--price", "signal", flag_value="price", help="Wait for a low price.")
@click.option("--carbon", "signal", flag_value="carbon", help="Wait for a low carbon intensity.")
@click.option(
    "--within", type=_Duration(), required=True, metavar="TIME", help="Begin within 30m, 12h or 2d."
)
@click.option("--lasts", type=_Duration(), metavar="TIME", help="How long COMMAND takes.  [that of --job]")
@click.option("--job", metavar="NAME", help="Job whose earlier runs say how long it takes, and its energy.")
@click.option(
    "--file", type=click.Path(path_type=Path, dir_okay=False), help="CSV of the signal.  [those imported]"
)
@click.option("--dry-run", is_flag=True, help="Print the plan as JSON, and neither wait nor run.")
@settings_options(*QUERY)
def wait(
    settings: Settings,
    command: tuple[str, ...],
    *,
    signal: str | None,
    within: float,
    lasts: float | None,
    job: str | None,
    file: Path | None,
    dry_run: bool,
) -> None:
    """Run COMMAND when its energy costs least, by the price or the carbon intensity to come.

    It prints when COMMAND begins and what the wait saves. The exit code is that of COMMAND. Ctrl-C ends the
    wait without COMMAND.

    \b
    zeus-stream wait --price --within 12h --job train -- zeus-stream run -- python train.py
    zeus-stream wait --carbon --within 8h --lasts 2h --file carbon.csv -- sbatch train.sh
    """
    if signal is None:
        raise click.UsageError("Give --price or --carbon.")
    if lasts is None and job is None:
        raise click.UsageError("Give --lasts TIME, or --job NAME with earlier runs.")
    runs = [] if job is None else _past_runs(settings, job)
    if lasts is not None:
        runs = [PastRun(lasts, each.energy_j * lasts / each.duration_s) for each in runs]
    now_ns = time.time_ns()
    rows = [row for row in _signals(file, now_ns) if row.name == signal]
    plan = plan_wait(signal, rows, now_ns, within, runs, lasts)
    if dry_run:
        sys.stdout.write(encode(plan).decode() + "\n")
        return
    sys.exit(_wait_and_run(plan, command))


def _past_runs(settings: Settings, job: str) -> list[PastRun]:
    rows = ask_sql(settings, _RUNS.format(job=quoted(job), runs=RUNS)).to_pylist()
    if not rows:
        raise RefusedError(
            f"wait: could not plan: the archive has no ended run of the job {job}."
            " Name one that `zeus-stream sql @jobs` lists, or give --lasts alone."
        )
    return [PastRun(**row) for row in rows]


def _signals(file: Path | None, now_ns: int) -> "list[SignalRow]":
    from analyzers.state_files import signal_files

    if file is None:
        return signal_files.load(places(os.environ).signals)
    try:
        return signal_files.parse(file.read_text(encoding="utf-8"), str(file), now_ns)
    except (OSError, UnicodeDecodeError) as wrong:
        raise StorageError(f"{file}: could not be read: {wrong}. Name a CSV file.") from wrong


def plan_wait(
    signal: str,
    rows: "Sequence[SignalRow]",
    now_ns: int,
    within_s: float,
    runs: Sequence[PastRun],
    lasts_s: float | None = None,
) -> WaitPlan:
    """Return the start with the least cost. A run is taken to draw the same power all the time.

    ``now_ns``: UTC. ``within_s``: the latest start. ``runs``: that may come again; empty: only ``lasts_s``
    is known. Raises RefusedError: the signal does not cover a run that begins now.
    """
    likely = list(runs) or [PastRun(lasts_s or 0.0, J_PER_KWH)]
    end_ns = now_ns + round(within_s * 1e9)
    edges = {row.begin_ns for row in rows} | {row.end_ns for row in rows if row.end_ns is not None}
    starts = edges | {edge - round(run.duration_s * 1e9) for edge in edges for run in likely}

    def costs(start_ns: int) -> list[float] | None:
        found = [_mean(rows, start_ns, round(run.duration_s * 1e9)) for run in likely]
        if any(each is None for each in found):
            return None
        return [run.energy_j / J_PER_KWH * (mean or 0.0) for run, mean in zip(likely, found, strict=True)]

    now = costs(now_ns)
    if now is None:
        raise RefusedError(
            f"wait: could not plan: the signal {signal} does not cover a run that begins now."
            " Import newer values with `zeus-stream signals import FILE`, or give --file."
        )
    priced = [
        (start, found) for start in sorted(starts) if now_ns < start <= end_ns and (found := costs(start))
    ]
    start_ns, then = min([(now_ns, now), *priced], key=lambda each: (round(fmean(each[1]), 12), each[0]))
    saved = [before - after for before, after in zip(now, then, strict=True)]
    shares = [100 * each / before if before else 0.0 for each, before in zip(saved, now, strict=True)]
    amount_low, amount_high = _next_interval(saved)
    share_low, share_high = _next_interval(shares)
    return WaitPlan(
        signal=signal,
        unit=rows[0].unit.partition("/")[0],
        start_ns=start_ns,
        wait_s=(start_ns - now_ns) / 1e9,
        saved=fmean(saved) if runs else None,
        saved_low=amount_low if runs else None,
        saved_high=amount_high if runs else None,
        saved_percent=fmean(shares),
        saved_percent_low=share_low,
        saved_percent_high=share_high,
        runs=len(runs),
    )


def _next_interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of one more value. None: there are fewer than two."""
    if len(values) < 2:
        return None, None
    half = student_quantile(SHOWN, len(values) - 1) * stdev(values) * (1 + 1 / len(values)) ** 0.5
    return fmean(values) - half, fmean(values) + half


def _mean(rows: "Sequence[SignalRow]", start_ns: int, length_ns: int) -> float | None:
    """Return the mean of a signal over a time. None: it does not cover all of it."""
    end_ns, covered_ns, total = start_ns + length_ns, 0, 0.0
    for row in rows:
        part_ns = min(end_ns, end_ns if row.end_ns is None else row.end_ns) - max(start_ns, row.begin_ns)
        if part_ns > 0:
            if row.value is None:
                return None
            covered_ns += part_ns
            total += part_ns * row.value
    return total / length_ns if length_ns and covered_ns == length_ns else None


def describe_plan(plan: WaitPlan) -> str:
    """Return a plan as a sentence."""
    if plan.wait_s <= 0:
        return f"waiting saves nothing: the {plan.signal} is lowest now."
    at = datetime.fromtimestamp(plan.start_ns / 1e9, UTC).isoformat(timespec="seconds")
    percent = f"{plan.saved_percent:.1f} %"
    if plan.saved_percent_low is not None:
        percent += f" ({plan.saved_percent_low:.1f} to {plan.saved_percent_high:.1f})"
    amount = ""
    if plan.saved is not None:
        bounds = "" if plan.saved_low is None else f" ({plan.saved_low:.3g} to {plan.saved_high:.3g})"
        amount = f", {plan.saved:.3g}{bounds} {plan.unit}"
    known = f"by {plan.runs} earlier runs" if plan.runs else "no interval: no earlier run is known"
    if plan.runs == 1:
        known = "no interval: one earlier run is known"
    return f"begins at {at}: saves {percent} of the {plan.signal}{amount}; {known}."


def _wait_and_run(plan: WaitPlan, command: Sequence[str]) -> int:
    from zeus_stream.cli.run_training import carry_out
    from zeus_stream.cli.running.signals import Signals
    from zeus_stream.cli.running.waits import say, until

    with Signals() as signals:
        say(f"wait: {describe_plan(plan)}")
        if not until(lambda: time.time_ns() >= plan.start_ns, plan.wait_s + 86_400, signals):
            return 128 + (signals.told or 0)
        return carry_out(command, os.environ, places(os.environ), signals)
