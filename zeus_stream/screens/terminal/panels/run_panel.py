"""The panel of runs, and that of the search of one of them. Pure."""

from collections.abc import Sequence
from typing import Literal

from zeus_stream.screens.terminal.figures import Line, StyledText, bar, clean, dimmed, fit, fit_line
from zeus_stream.screens.terminal.panels.columns import Column, Panel, counted, heads, known, line_of, wrapped
from zeus_stream.views.quantity import ABSENT, compact, percent, seconds
from zeus_stream.views.run_view import RunView
from zeus_stream.views.site_view import SiteView

UNSEARCHED = "No limit is searched for: no analyzer runs, or it has --select none."
SEARCH_ENDED = "The run has ended: `zeus-stream report` shows the limits that were measured."


def run_panel(site: SiteView, runs: Sequence[RunView], width: int) -> Panel:
    job_width = max(3, min(16 if width < 100 else 22, max((len(run.job) for run in runs), default=3)))
    wanted = (
        (0, Column("job", job_width, lambda row: (StyledText(clean(runs[row].job), _alive(runs[row])),))),
        (100, Column("run", 12, lambda row: (StyledText(clean(runs[row].run), "dim"),))),
        (40, Column("search", 21 if width < 104 else 30, lambda row: (_phase(runs[row]),))),
        (84, Column("epoch", 5, lambda row: (StyledText(known(runs[row].epoch)),), right=True)),
        (54, Column("step", 8, lambda row: (StyledText(known(runs[row].step)),), right=True)),
        (
            64,
            Column("J/step", 7, lambda row: (StyledText(compact(runs[row].step_energy.known)),), right=True),
        ),
        (70, Column("ms", 6, lambda row: (StyledText(compact(runs[row].step_time.known)),), right=True)),
        (
            84,
            Column("energy", 8, lambda row: (StyledText(compact(runs[row].energy.known, "J")),), right=True),
        ),
        (0, Column("saved", 7, lambda row: (_saved(runs[row]),), right=True)),
        (94, Column("ends in", 8, lambda row: (StyledText(_left(runs[row])),), right=True)),
    )
    columns = [column for least, column in wanted if width >= least]
    return Panel(
        title=counted(site.open_runs, "open run"),
        head=heads(columns, width),
        lines=tuple(
            _line([column.cell(row) for column in columns], columns, width, runs[row])
            for row in range(len(runs))
        )
        or (
            fit_line(
                (StyledText("No run is open. Start one: zeus-stream run -- python train.py", "dim"),), width
            ),
        ),
        keys=tuple(run.run for run in runs),
    )


def _left(run: RunView) -> str:
    """Return the forecast of the time to the end of a run."""
    return ABSENT if run.forecast is None else seconds(run.forecast.left.known)


def _alive(run: RunView) -> Literal["plain", "dim"]:
    return "dim" if run.ended else "plain"


def _line(cells: Sequence[Line], columns: Sequence[Column], width: int, run: RunView) -> Line:
    """Return the line of a run. Figures that are old are dim."""
    line = line_of(cells, columns, width)
    return dimmed(line) if run.trouble else line


def _phase(run: RunView) -> StyledText:
    return StyledText(run.trouble or run.phase.text, run.phase.tone)


def _saved(run: RunView) -> StyledText:
    if run.saving is None or run.saving.energy.known is None:
        return StyledText(ABSENT, "dim")
    saved = run.saving.energy
    return StyledText(percent(saved.known), "good" if (saved.known or 0) > 0 else "plain")


def search_panel(run: RunView | None, width: int) -> Panel:
    if run is None:
        return Panel(title="search", head=(), lines=(), keys=())
    title = f"search: {clean(run.job)}"
    lines = [fit_line(line, width) for line in search_lines(run, width)]
    return Panel(title=fit(title, min(len(title), width)), head=(), lines=tuple(lines), keys=())


def search_lines(run: RunView, width: int) -> list[Line]:
    """Return the trials of a run, the highest limit first, and what became of the search."""
    if run.searched is None:
        words = SEARCH_ENDED if run.ended else UNSEARCHED
        return [(StyledText(part, "dim"),) for part in wrapped(words, width)]
    most_j = max((trial.energy.known or 0.0 for trial in run.trials), default=0.0)
    wide = max(0, width - 40)
    lines: list[Line] = []
    for trial in run.trials:
        energy, time = compact(trial.energy.known), compact(trial.time.known)
        lines.append(
            (
                StyledText(f"{trial.level:>8} ", "good" if trial.mark in ("chosen", "best") else "plain"),
                StyledText(f"{energy:>7} J {time:>6} ms "),
                *bar(trial.energy.known, most_j, most_j, min(wide, 24)),
                StyledText(f" {trial.mark}", "good"),
            )
        )
    if run.searched:
        lines.append((StyledText(clean(run.searched), "accent"),))
    if run.saving is not None:
        lines += [(StyledText(part, "good"),) for part in wrapped(clean(run.headline), width)]
        if run.saving.saved.known and not run.saving.kept:
            lines.append((StyledText(f"saved {run.saving.saved_words}", "good"),))
    if run.reason:
        lines += [(StyledText(part, "dim"),) for part in wrapped(clean(run.reason), width)[:4]]
    return lines or [(StyledText("waits for steps of all ranks", "dim"),)]
