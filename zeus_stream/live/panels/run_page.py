"""The page of one run, and the page of what is missing. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from zeus_stream.live.figures import (
    ABSENT,
    Line,
    Span,
    clean,
    fit,
    fit_line,
    scaled,
    seconds,
    significant,
)
from zeus_stream.live.history import History
from zeus_stream.live.panels.columns import wrapped
from zeus_stream.live.panels.power_chart import power_chart, power_title
from zeus_stream.live.panels.run_panel import phase, search_lines
from zeus_stream.protocol.snapshots import ForecastNow, RunNow, Snapshot
from zeus_stream.reports.forecast import cost_words, energy_words, length_words, time_words

CHART_HEIGHT = 6
MOST_WINDOWS, MOST_CAUSES, MOST_GAPS = 12, 12, 200
Row = Mapping[str, Any]
CURES = {
    "readings": "Give the collector a processor of its own, or read less often with --poll-ms.",
    "events": "Look at the process that is named; its training goes on.",
    "frames": "Keep more in the log of the collector with --log-mb, or do not stop the analyzer for so long.",
    "messages": "Look at the process that is named; it speaks another version, or is broken.",
    "connections": "Look which program opens so many connections.",
    "windows": "End windows that are open.",
    "log": "Make room on the disk of the log.",
    "notes": "Make room on the disk of the log.",
}
"""What to do about data of each kind that is missing."""


class Details(Struct, frozen=True):
    """The facts that the archive has of a run. Empty: it was not asked, or did not answer."""

    saving: Row | None = None
    """Of ``saving_of(run)``."""
    windows: Sequence[Row] = ()
    """By name: ``name``, ``count``, ``energy_j``, ``duration_s``."""
    waste: Sequence[Row] = ()
    """By cause: ``cause``, ``energy_j``, ``share``."""
    costs: Sequence[Row] = ()
    """Of the whole run, as forecast: rows of ``forecast_costs``."""
    trouble: str = ""
    """Why the archive did not answer."""


def run_page(run: RunNow, history: History, width: int, details: Details) -> list[Line]:
    """Return the lines of the page of a run."""
    width = max(width, 40)
    lines: list[Line] = [
        (
            Span(clean(run.job), "strong"),
            Span(f"  run {clean(run.run)}", "dim"),
            Span(f"  {phase(run)}", "accent"),
        ),
        _facts(run),
        *forecast_lines(run.forecast),
        *((Span(f"          {clean(str(row['name']))}: {clean(cost_words(row))}"),) for row in details.costs),
        (),
        (Span("Power", "strong"), Span(f"   {power_title(run, history)}", "dim")),
        *power_chart(run, history, width, CHART_HEIGHT),
        (),
        (Span("Power limits", "strong"), Span("   energy and time of a step", "dim")),
        *search_lines(run, width),
        *_saving(details.saving),
    ]
    if details.windows:
        lines += [(), (Span("Windows", "strong"), Span("   energy and time, all together", "dim"))]
        lines += [_named(row) for row in details.windows[:MOST_WINDOWS]]
    if details.waste:
        lines += [(), (Span("Energy by use", "strong"),)]
        lines += [_cause(row) for row in details.waste[:MOST_CAUSES]]
    if details.trouble:
        lines += [(), *((Span(part, "warn"),) for part in wrapped(clean(details.trouble), width))]
    return [fit_line(line, width) for line in lines]


def _facts(run: RunNow) -> Line:
    gpus = (
        f"{len(run.gpus)} GPU{'' if len(run.gpus) == 1 else 's'} on {clean(', '.join(run.hosts)) or ABSENT}"
    )
    return (
        Span(f"{gpus}   epoch {_known(run.epoch)}   step {_known(run.step)}   "),
        Span(f"{significant(run.step_j)} J/step   {significant(run.step_ms)} ms   "),
        Span(f"{scaled(run.watts, 'W')}   {scaled(run.energy_j, 'J')} so far"),
    )


def forecast_lines(forecast: ForecastNow | None) -> list[Line]:
    """Return the forecast of a run as a line; none if there is none."""
    if forecast is None:
        return []
    energy = energy_words(forecast.energy_j, forecast.energy_low_j, forecast.energy_high_j)
    time = time_words(forecast.left_s, forecast.left_low_s, forecast.left_high_s)
    of = length_words(forecast.epochs, forecast.steps)
    return [(Span("Forecast  ", "strong"), Span(f"{time}   {energy}"), Span(f"   of {of}", "dim"))]


def _known(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _saving(saving: Row | None) -> list[Line]:
    """Return what the archive says of the saving, with its interval."""
    if saving is None or saving.get("energy_saved_percent") is None:
        return []
    words = f"A step takes {saving['energy_saved_percent']:.1f} % less energy"
    low, high = saving.get("energy_saved_low_percent"), saving.get("energy_saved_high_percent")
    words += f" (95 %: {low:.1f} to {high:.1f})" if low is not None and high is not None else ""
    added = saving.get("time_added_percent")
    words += "" if added is None else f", {added:+.1f} % time"
    return [(Span(words, "good"),)]


def _named(row: Row) -> Line:
    return (
        Span(fit(clean(str(row["name"])), 24)),
        Span(f"{row['count']:>7,} x "),
        Span(f"{scaled(row['energy_j'], 'J'):>10}", "strong"),
        Span(f"{seconds(row['duration_s']) if row['duration_s'] is not None else ABSENT:>10}"),
    )


def _cause(row: Row) -> Line:
    share = row.get("share")
    return (
        Span(fit(clean(str(row["cause"])), 24)),
        Span(f"{scaled(row['energy_j'], 'J'):>10}", "strong"),
        Span(f"{f'{100 * share:.1f} %' if share is not None else ABSENT:>9}"),
    )


def gaps_page(snapshot: Snapshot, stored: Sequence[Row], width: int) -> list[Line]:
    """Return the lines of the page of what is missing.

    Args:
        snapshot: the live state: gaps since the service started.
        stored: rows of the archive: ``host``, ``what``, ``count``, ``reason``; empty: it was not asked.
        width: of the page.
    """
    width = max(width, 40)
    rows = [(str(row["host"]), str(row["what"]), int(row["count"]), str(row["reason"])) for row in stored]
    live = [(gap.host, gap.what, gap.count, gap.reason) for gap in snapshot.gaps]
    lines: list[Line] = []
    for host, what, count, reason in (rows or live)[:MOST_GAPS]:
        lines.append((Span(clean(host), "strong"), Span(f"  {count:,} {clean(what)}", "warn")))
        lines += [(Span(f"   {part}"),) for part in wrapped(clean(reason), width - 3)]
        if what in CURES:
            lines += [(Span(f"   {part}", "good"),) for part in wrapped(CURES[what], width - 3)]
        lines.append(())
    if not lines:
        lines.append((Span("Nothing is missing.", "good"),))
    return [fit_line(line, width) for line in lines]


HELP = """
q          quit                      enter     page of the selected run
/          filter rows by words      up, down  select a run
s          sort GPUs: place, power, run
w          power, energy or cost     g         what is missing, and the cure
p          pause                     escape    back

GPUs
  The bar is power: full at the limit found. Dots begin at the limit in force.
  175<250    the limit in force is 175 W; 250 W was found before any change
  J/step     mean of the last 40 steps on that GPU

Runs
  trial 3 of 7: 200 W    this limit is measured now
  chosen 175 W           the search is over, and the limit is in force
  recalled 175 W         chosen from what an earlier run measured
  only observed          the run keeps the limit found; its page says why
  budget: 150 W          a power budget allows no more
  saved                  energy of a step, against the limit found

"-" is not known. A dim screen is old: the service does not answer.
"""


def help_page(width: int) -> list[Line]:
    """Return the lines of the page of help."""
    return [fit_line((Span(line),), max(width, 40)) for line in HELP.strip("\n").splitlines()]
