"""The command ``wait``: run a command when energy is cheap, or has little carbon, and pause it when not."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from statistics import fmean, stdev
from typing import TYPE_CHECKING, TypeAlias

import click
from msgspec import Struct
from msgspec.json import encode

from zeus_stream.bench.energy_difference import SHOWN
from zeus_stream.bench.student import student_quantile
from zeus_stream.cli.options import QUERY, Command, Duration, ask_sql, settings_options
from zeus_stream.errors import RefusedError, StorageError, explaining
from zeus_stream.paths import places
from zeus_stream.questions.run_questions import TIMES
from zeus_stream.quoting import quoted
from zeus_stream.settings import Settings
from zeus_stream.views.quantity import Quantity, counted, ends

if TYPE_CHECKING:
    from analyzers.results.signal_rows import SignalRow

J_PER_KWH = 3.6e6
Waits: TypeAlias = tuple[tuple[int, int], ...]
"""Begin and end of each, UTC ns."""
RUNS = 20
"""The latest runs of a job that count."""
_RUNS = f"""
SELECT duration_s, energy_j FROM run_energy JOIN ({TIMES.format(of="job = {job}")}) USING (run)
WHERE job = {{job}} AND energy_j > 0 AND duration_s > 0 ORDER BY ended_at DESC LIMIT {RUNS}
"""  # noqa: S608  (our own)


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
    saved_per_kwh: float
    """The amount, for a mean run."""
    saved_low: float | None
    """Lower end of the 95 % interval for one more run, as is the next its upper end. None: fewer than two."""
    saved_high: float | None
    saved_percent: float | None
    """None: a run that begins now costs nothing, or less."""
    saved_percent_low: float | None
    saved_percent_high: float | None
    runs: int
    """Earlier runs whose lengths and energies count."""
    pauses: tuple[tuple[int, int], ...] = ()
    """Begin and end of each pause after the start, UTC ns. A run may end before one."""
    above: float | None = None
    """The value of the signal above which it pauses. None: it does not."""
    later_s: float = 0.0
    """How much later a run ends than one that begins now."""


@click.command(cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--price", "signal", flag_value="price", help="Wait for a low price.")
@click.option("--carbon", "signal", flag_value="carbon", help="Wait for a low carbon intensity.")
@click.option(
    "--within",
    type=Duration(),
    required=True,
    metavar="TIME",
    help="Wait no longer than 30m, 12h or 2d, all pauses together.",
)
@click.option(
    "--pause",
    type=Duration(),
    metavar="TIME",
    help="Pause COMMAND in dear hours: end it by SIGTERM, start it again later. It has to go on from what it"
    " saved at SIGTERM; that costs it TIME.",
)
@click.option("--lasts", type=Duration(), metavar="TIME", help="How long COMMAND takes.  [that of --job]")
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
    pause: float | None,
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
    zeus-stream wait --price --within 12h --pause 5m --job train -- zeus-stream run -- python train.py
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
    plan = plan_wait(signal, rows, now_ns, within, runs, lasts, pause)
    if dry_run:
        sys.stdout.write(encode(plan).decode() + "\n")
        return
    sys.exit(_wait_and_run(plan, command, rows))


def _past_runs(settings: Settings, job: str) -> list[PastRun]:
    rows = ask_sql(settings, _RUNS.format(job=quoted(job))).to_pylist()
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
    with explaining(StorageError, f"{file}: could not be read", "Name a CSV file."):
        return signal_files.parse(file.read_text(encoding="utf-8"), str(file), now_ns)


def plan_wait(
    signal: str,
    rows: "Sequence[SignalRow]",
    now_ns: int,
    within_s: float,
    runs: Sequence[PastRun],
    lasts_s: float | None = None,
    pause_s: float | None = None,
) -> WaitPlan:
    """Return the start and the pauses that cost least. A run is taken to draw the same power all the time.

    ``now_ns``: UTC. ``within_s``: the longest wait, pauses included. ``runs``: that may come again; empty:
    only ``lasts_s`` is known. ``pause_s``: by which a pause makes a run longer; None: it cannot pause. Raises
    RefusedError: the signal does not cover a run that begins now.
    """
    likely = list(runs) or [PastRun(lasts_s or 0.0, J_PER_KWH)]
    rows = _that_matter(rows, now_ns, within_s, likely)
    plans = _candidates(rows, now_ns, round(within_s * 1e9), likely, can_pause=pause_s is not None)

    def parts_of(waits: Waits, run: PastRun) -> list[tuple[int, int]]:
        return _running(waits, now_ns, round(run.duration_s * 1e9), round((pause_s or 0) * 1e9))

    def costs(waits: Waits) -> list[float] | None:
        found = [_cost(rows, run, parts_of(waits, run)) for run in likely]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None

    now = costs(())
    if now is None:
        raise RefusedError(
            f"wait: could not plan: the signal {signal} does not cover a run that begins now."
            " Import newer values with `zeus-stream signals import FILE`, or give --file."
        )
    _, above, waits = _cheapest(costs, [(None, ()), *plans])
    # A pause late in a run may cost more than it saves.
    then, above, waits = _cheapest(costs, [(above, waits[:number]) for number in range(len(waits) + 1)])
    saved = [before - after for before, after in zip(now, then, strict=True)]
    shares = [100 * each / before for each, before in zip(saved, now, strict=True) if before > 0]
    amount_low, amount_high = _next_interval(saved)
    share_low, share_high = _next_interval(shares) if len(shares) == len(now) else (None, None)
    start_ns = waits[0][1] if waits and waits[0][0] <= now_ns else now_ns
    ends = [parts_of(waits, run)[-1][1] - now_ns - round(run.duration_s * 1e9) for run in likely]
    return WaitPlan(
        signal=signal,
        unit=rows[0].unit.partition("/")[0],
        start_ns=start_ns,
        wait_s=(start_ns - now_ns) / 1e9,
        saved=fmean(saved) if runs else None,
        saved_low=amount_low if runs else None,
        saved_high=amount_high if runs else None,
        saved_per_kwh=fmean(saved) / fmean(run.energy_j for run in likely) * J_PER_KWH,
        saved_percent=fmean(shares) if len(shares) == len(now) else None,
        saved_percent_low=share_low,
        saved_percent_high=share_high,
        runs=len(runs),
        pauses=tuple(wait for wait in waits if wait[0] > now_ns),
        above=above if any(wait[0] > now_ns for wait in waits) else None,
        later_s=fmean(ends) / 1e9,
    )


def _cheapest(
    costs: Callable[[Waits], list[float] | None], plans: Sequence[tuple[float | None, Waits]]
) -> tuple[list[float], float | None, Waits]:
    """Return the plan of the least mean cost, with its costs; of equal ones the first."""
    priced = [(found, above, waits) for above, waits in plans if (found := costs(waits))]
    return min(priced, key=lambda each: round(fmean(each[0]), 12))


def _that_matter(
    rows: "Sequence[SignalRow]", now_ns: int, within_s: float, likely: Sequence[PastRun]
) -> "list[SignalRow]":
    """Return the values of the hours to come: a year takes minutes. Pauses at most double a run."""
    latest_ns = now_ns + round(1e9 * (within_s + 2 * max(run.duration_s for run in likely)))
    return [row for row in rows if (row.end_ns or latest_ns) > now_ns and row.begin_ns < latest_ns]


def _candidates(
    rows: "Sequence[SignalRow]", now_ns: int, within_ns: int, likely: Sequence[PastRun], *, can_pause: bool
) -> list[tuple[float | None, Waits]]:
    """Return the waits to choose from: until a start, or in all times when the signal is above a value."""
    edges = {row.begin_ns for row in rows} | {row.end_ns for row in rows if row.end_ns is not None}
    starts = edges | {edge - round(run.duration_s * 1e9) for edge in edges for run in likely}
    within = [start for start in sorted(starts) if now_ns < start <= now_ns + within_ns]
    values = sorted({row.value for row in rows if row.value is not None}) if can_pause else []
    return [
        *((None, ((now_ns, start),)) for start in within),
        *((above, _dear_times(rows, now_ns, above, within_ns)) for above in values),
    ]


def _cost(rows: "Sequence[SignalRow]", run: PastRun, parts: Sequence[tuple[int, int]]) -> float | None:
    """Return the cost of a run that computes at these times. None: the signal does not cover them."""
    means = [(_mean(rows, begin, end - begin), end - begin) for begin, end in parts]
    kwh_per_ns = run.energy_j / J_PER_KWH / (run.duration_s or 1) * 1e-9
    if any(mean is None for mean, _ in means):
        return None
    return kwh_per_ns * sum((mean or 0.0) * length_ns for mean, length_ns in means)


def _dear_times(rows: "Sequence[SignalRow]", now_ns: int, above: float, most_ns: int) -> Waits:
    """Return when a signal is higher than a value, from now on, until that is ``most_ns`` together."""
    times: list[tuple[int, int]] = []
    for row in sorted(rows, key=lambda row: row.begin_ns):
        if row.value is None or row.value <= above or row.end_ns is None or row.end_ns <= now_ns:
            continue
        begin_ns = max(row.begin_ns, now_ns)
        if times and times[-1][1] == begin_ns:
            begin_ns = times.pop()[0]
        end_ns = min(row.end_ns, begin_ns + most_ns - sum(end - begin for begin, end in times))
        if end_ns > begin_ns:
            times.append((begin_ns, end_ns))
    return tuple(times)


def _running(waits: Waits, now_ns: int, length_ns: int, pause_ns: int) -> list[tuple[int, int]]:
    """Return when a run computes that lasts ``length_ns``, and ``pause_ns`` longer for each pause."""
    parts, at_ns = [], now_ns
    for begin_ns, end_ns in waits:
        if begin_ns >= at_ns + length_ns:
            break
        if begin_ns > at_ns:
            parts.append((at_ns, begin_ns))
            length_ns += pause_ns - (begin_ns - at_ns)
        at_ns = end_ns
    return [*parts, (at_ns, at_ns + length_ns)]


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


def _utc(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="seconds")


def describe_plan(plan: WaitPlan) -> str:
    """Return a plan as a sentence."""
    if plan.wait_s <= 0 and not plan.pauses:
        return f"begins now: no wait saves anything, by the {plan.signal} that is known."
    at = _utc(plan.start_ns)
    if plan.saved_percent is None:
        saves = f"{plan.saved_per_kwh:.3g} {plan.unit} a kWh; a run now costs nothing or less"
    else:
        saves = _with_interval(plan.saved_percent, plan.saved_percent_low, plan.saved_percent_high, "%")
        saves += f" of the {plan.signal}"
    if plan.saved is not None:
        saves += f", {_with_interval(plan.saved, plan.saved_low, plan.saved_high, plan.unit)}"
    known = f"by {plan.runs} earlier runs" if plan.runs else "no interval: no earlier run is known"
    if plan.runs == 1:
        known = "no interval: one earlier run is known"
    if plan.above is not None:
        at += f", pauses {counted(len(plan.pauses), 'time')} while the {plan.signal} is above {plan.above:g}"
        at += f", ends {Quantity(plan.later_s, 's')} later"
    return f"begins at {at}: saves {saves}; {known}."


def _with_interval(value: float, low: float | None, high: float | None, unit: str) -> str:
    interval = "" if low is None or high is None else ends(low, high)
    shown = f"{value:.1f}" if unit == "%" else f"{value:.3g}"
    return f"{shown} ({interval}) {unit}" if interval else f"{shown} {unit}"


def _is_past(wall_ns: int) -> bool:
    return time.time_ns() >= wall_ns


def _wait_and_run(plan: WaitPlan, command: Sequence[str], rows: "Sequence[SignalRow]") -> int:
    from zeus_stream.cli.run_training import PAUSED, carry_out
    from zeus_stream.cli.running.signals import Signals
    from zeus_stream.cli.running.waits import until
    from zeus_stream.own_services import say

    # The attempts are one run.
    environment = {**os.environ}
    if plan.pauses:
        environment.setdefault("ZEUS_STREAM_RUN", f"run-{token_hex(4)}")
    parts: list[tuple[int, int]] = []
    with Signals() as signals:
        say(f"wait: {describe_plan(plan)}")
        start_ns, pauses = plan.start_ns, list(plan.pauses)
        while True:
            left_s = max(0.0, (start_ns - time.time_ns()) / 1e9)
            if not until(partial(_is_past, start_ns), left_s + 86_400, signals):
                return 128 + (signals.told or 0)
            began_ns = time.time_ns()
            pauses = [pause for pause in pauses if pause[1] > began_ns]
            stop_ns = pauses[0][0] if pauses else None
            code = carry_out(command, environment, places(os.environ), signals, stop_ns)
            parts.append((began_ns, time.time_ns()))
            if code != PAUSED:
                break
            start_ns = pauses.pop(0)[1]
            say(f"wait: paused until {_utc(start_ns)}: the {plan.signal} is above {plan.above:g}.")
        if len(parts) > 1:
            say(f"wait: {describe_pauses(plan.signal, rows, parts)}")
        return code


def describe_pauses(signal: str, rows: "Sequence[SignalRow]", parts: Sequence[tuple[int, int]]) -> str:
    """Return what the pauses have saved: the mean of the signal, against the same time without a pause."""
    paused_s = sum(later[0] - each[1] for each, later in pairwise(parts)) / 1e9
    length_ns = sum(end - begin for begin, end in parts)
    means = [(_mean(rows, begin, end - begin), end - begin) for begin, end in parts]
    at_once = _mean(rows, parts[0][0], length_ns)
    number = f"paused {counted(len(parts) - 1, 'time')}, {Quantity(paused_s, 's')} in all"
    if at_once is None or any(mean is None for mean, _ in means):
        return f"{number}; what that saved is not known: the signal does not cover it."
    mean = sum((mean or 0.0) * part_ns for mean, part_ns in means) / length_ns
    return f"{number}: the mean {signal} was {mean:.3g} {rows[0].unit}, without a pause {at_once:.3g}."
