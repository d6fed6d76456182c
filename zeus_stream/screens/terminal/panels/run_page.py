"""The page of one run, and the page of what is missing. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from zeus_stream.protocol.snapshots import GapNow
from zeus_stream.screens.terminal.figures import Line, StyledText, clean, fit, fit_line
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.columns import known, wrapped
from zeus_stream.screens.terminal.panels.power_chart import power_chart, power_title
from zeus_stream.screens.terminal.panels.run_panel import search_lines
from zeus_stream.views.costs import cost_words
from zeus_stream.views.forecast import ForecastView
from zeus_stream.views.gaps import cure_of
from zeus_stream.views.quantity import joules, seconds, three_digits
from zeus_stream.views.run_view import RunView
from zeus_stream.views.search import TrialView
from zeus_stream.views.site_view import SiteView
from zeus_stream.views.waste import WastePart

CHART_HEIGHT = 6
MOST_WINDOWS, MOST_CAUSES, MOST_GAPS = 12, 12, 200
Row = Mapping[str, Any]


class Details(Struct, frozen=True):
    """The facts that the archive has of a run. Empty: it was not asked, or did not answer."""

    view: RunView | None = None
    trials: Sequence[TrialView] = ()
    windows: Sequence[Row] = ()
    """By name: ``name``, ``count``, ``energy_j``, ``duration_s``."""
    costs: Sequence[Row] = ()
    """Of the whole run, as forecast: rows of ``forecast_costs``."""
    trouble: str = ""
    """Why the archive did not answer."""


def run_page(run: RunView, history: History, width: int, details: Details) -> list[Line]:
    """Return the lines of the page of a run."""
    width = max(width, 40)
    saving = None if details.view is None else details.view.saving
    effect = [] if saving is None else wrapped(saving.effect, width)
    lines: list[Line] = [
        (
            StyledText(clean(run.job), "strong"),
            StyledText(f"  run {clean(run.run)}", "dim"),
            StyledText(f"  {run.phase.text}", "accent"),
        ),
        _facts(run),
        *([(StyledText(f"The figures are old: {run.trouble}", "warn"),)] if run.trouble else []),
        *([(StyledText(f"Energy: {run.energy_words}", "warn"),)] if run.energy.known is None else []),
        *forecast_lines(run.forecast),
        *(
            (StyledText(f"          {clean(str(row['name']))}: {clean(' '.join(cost_words(row)))}"),)
            for row in details.costs
        ),
        (),
        (StyledText("Power", "strong"), StyledText(f"   {power_title(run.run, history)}", "dim")),
        *power_chart(run.run, history, width, CHART_HEIGHT),
        (),
        (StyledText("Power limits", "strong"), StyledText("   a step, against the limit found", "dim")),
        *((StyledText(part, "good"),) for part in effect),
        *search_lines(run, details.trials or run.trials, width),
    ]
    if details.windows:
        lines += [
            (),
            (StyledText("Windows", "strong"), StyledText("   energy and time, all together", "dim")),
        ]
        lines += [_named(row) for row in details.windows[:MOST_WINDOWS]]
    if details.view is not None and details.view.waste:
        lines += [(), (StyledText("Energy by use", "strong"),)]
        lines += [_cause(part) for part in details.view.waste[:MOST_CAUSES]]
    if details.trouble:
        lines += [(), *((StyledText(part, "warn"),) for part in wrapped(clean(details.trouble), width))]
    return [fit_line(line, width) for line in lines]


def _facts(run: RunView) -> Line:
    so_far = "" if run.ended else " so far"
    return (
        StyledText(f"{clean(run.gpus_words)}   epoch {known(run.epoch)}   step {known(run.step)}   "),
        StyledText(f"{three_digits(run.step_energy)} J/step   {three_digits(run.step_time)} ms   "),
        StyledText(f"{run.power}   {run.energy}{so_far}"),
    )


def forecast_lines(forecast: ForecastView | None) -> list[Line]:
    """Return the forecast of a run as a line; none if there is none."""
    if forecast is None:
        return []
    words = f"{forecast.left_words}   {forecast.energy_words}"
    return [
        (
            StyledText("Forecast  ", "strong"),
            StyledText(words),
            StyledText(f"   of {forecast.length_words}", "dim"),
        )
    ]


def _named(row: Row) -> Line:
    return (
        StyledText(fit(clean(str(row["name"])), 24)),
        StyledText(f"{row['count']:>7,} x "),
        StyledText(f"{joules(row['energy_j']):>10}", "strong"),
        StyledText(f"{seconds(row['duration_s']):>10}"),
    )


def _cause(part: WastePart) -> Line:
    return (
        StyledText(fit(clean(part.cause), 24)),
        StyledText(f"{part.energy!s:>10}", "strong"),
        StyledText(f"{part.share!s:>9}"),
    )


def gaps_page(site: SiteView, stored: Sequence[GapNow], width: int) -> list[Line]:
    """Return the lines of the page of what is missing. ``stored``: of the archive; empty: not asked."""
    width = max(width, 40)
    lines: list[Line] = []
    for trouble in site.troubles:
        lines += [*((StyledText(part, "bad"),) for part in wrapped(clean(trouble), width)), ()]
    for gap in (stored or site.gaps)[:MOST_GAPS]:
        lines.append(
            (StyledText(clean(gap.host), "strong"), StyledText(f"  {gap.count:,} {clean(gap.what)}", "warn"))
        )
        lines += [(StyledText(f"   {part}"),) for part in wrapped(clean(gap.reason), width - 3)]
        lines += [(StyledText(f"   {part}", "good"),) for part in wrapped(cure_of(gap), width - 3)]
        lines.append(())
    if not lines:
        lines.append((StyledText("Nothing is missing.", "good"),))
    return [fit_line(line, width) for line in lines]


HELP = """
q          quit, from every page     enter     page of the selected run
/          filter rows by words      up, down  select a run
s          sort GPUs: place, power, run
w          power, energy or cost     g         what is missing, and the cure
p          pause                     escape    back
u          processes on the GPUs: user, memory, run, program

GPUs
  The bar is power: full at the limit found. Dots begin at the limit in force.
  175<250    the limit in force is 175 W; 250 W was found before any change
  J/step     mean of the last 40 steps on that GPU
  GiB        memory in use, and all of it

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
    return [fit_line((StyledText(line),), max(width, 40)) for line in HELP.strip("\n").splitlines()]
