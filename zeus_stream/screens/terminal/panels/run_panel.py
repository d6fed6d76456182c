"""The panel of runs, and that of the search of one of them. Pure."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from zeus_stream.screens.terminal.figures import Line, StyledText, clean, dimmed, fit, fit_line
from zeus_stream.screens.terminal.panels.columns import (
    Column,
    Panel,
    heads,
    known,
    line_of,
    table_of,
    width_for,
    wrapped,
)
from zeus_stream.views.quantity import ABSENT, counted, three_digits
from zeus_stream.views.run_view import RunView, sentence
from zeus_stream.views.search import TrialView, trial_table
from zeus_stream.views.site_view import SiteView

UNSEARCHED = "No limit is searched for: --select or the script says so, or no analyzer answers."
SEARCH_ENDED = "The run has ended: `zeus-stream report` shows what was measured."
NO_RUN = StyledText("No run is open. Start one: zeus-stream run -- python train.py", "dim")
NO_ANALYZER = StyledText(
    "No analyzer answers here, and it knows the runs. Ask on its host, or start one: zeus-stream analyze",
    "warn",
)


def run_panel(site: SiteView, runs: Sequence[RunView], width: int) -> Panel:
    job_width = width_for([run.job for run in runs], 3, 16 if width < 100 else 22)
    wanted = (
        (
            0,
            Column(
                "job", job_width, lambda run: (StyledText(clean(run.job), "dim" if run.ended else "plain"),)
            ),
        ),
        (100, Column("run", 12, lambda run: (StyledText(clean(run.run), "dim"),))),
        (40, Column("search", 21 if width < 104 else 30, _phase)),
        (84, Column("epoch", 5, lambda run: known(run.epoch), right=True)),
        (54, Column("step", 8, lambda run: known(run.step), right=True)),
        (64, Column("J/step", 7, lambda run: three_digits(run.step_energy), right=True)),
        (70, Column("ms", 6, lambda run: three_digits(run.step_time), right=True)),
        (84, Column("energy", 9, lambda run: str(run.energy), right=True)),
        (0, Column("saved", 7, _saved, right=True)),
        (
            94,
            Column("ends in", 8, lambda run: str(run.forecast.left) if run.forecast else ABSENT, right=True),
        ),
    )
    columns = [column for least, column in wanted if width >= least]
    lines = [line_of(run, columns, width) for run in runs]
    shown = [dimmed(line) if run.trouble else line for run, line in zip(runs, lines, strict=True)]
    unknown, ended = site.process == "collector", sum(run.ended for run in runs)
    title = counted(site.open_runs, "open run") + (f", {ended:,} that ended" if ended else "")
    return Panel(
        title="runs" if unknown else title,
        head=heads(columns, width),
        lines=tuple(shown) or (fit_line((NO_ANALYZER if unknown else NO_RUN,), width),),
        keys=tuple(run.run for run in runs),
    )


def _phase(run: RunView) -> Line:
    return (StyledText(clean(run.trouble or run.phase.text), run.phase.tone),)


def _saved(run: RunView) -> Line:
    if run.saving is None or run.saving.energy.known is None:
        return (StyledText(ABSENT, "dim"),)
    return (StyledText(str(run.saving.energy), "good" if run.saving.energy.known > 0 else "plain"),)


def search_panel(run: RunView | None, width: int) -> Panel:
    if run is None:
        return Panel(title="search")
    title = f"search: {clean(run.job)}"
    lines = tuple(fit_line(line, width) for line in search_lines(run, run.trials, width))
    return Panel(title=fit(title, min(len(title), width)), lines=lines)


def search_lines(run: RunView, trials: Sequence[TrialView], width: int) -> list[Line]:
    """Return the limits that were measured, by round, and what became of the search."""
    if run.searched is None and not trials:
        words = SEARCH_ENDED if run.ended else sentence(run.undecided) if run.undecided else UNSEARCHED
        return [(StyledText(part, "dim"),) for part in wrapped(words, width)]
    lines = trial_lines(trials, width)
    if run.searched:
        lines.append((StyledText(clean(run.searched), "accent"),))
    if run.saving is not None:
        lines += [(StyledText(part, "good"),) for part in wrapped(clean(run.headline), width)]
        if run.saving.saved.known and not run.saving.kept:
            saved = wrapped(f"saved {run.saving.saved_words}", width)
            lines += [(StyledText(part, "good"),) for part in saved]
    if run.reason:
        lines += [(StyledText(part, "dim"),) for part in wrapped(clean(run.reason), width)[:4]]
    return lines or [(StyledText("waits for steps of all ranks", "dim"),)]


def trial_lines(trials: Sequence[TrialView], width: int) -> list[Line]:
    """Return a line a limit: its difference to the limit found. Those of earlier rounds are dim."""
    if not trials:
        return []
    heads_of, rows = trial_table(trials)
    columns: list[Column] = []
    for at, head in enumerate(heads_of):
        size = max(len(head), *(len(row[at]) for row in rows)) + (at > 1)
        if (width := width - size - 1) < -1:
            break
        columns.append(Column(head, size, partial(_trial_cell, at), right=at != 1))
    size = sum(column.width + 1 for column in columns) - 1
    panel = table_of("", rows, columns, size, itemgetter(0))
    lines = zip(trials, panel.lines, strict=True)
    return [panel.head, *(dimmed(line) if trial.old else line for trial, line in lines)]


def _trial_cell(at: int, row: Sequence[str]) -> Line:
    is_best = at < 2 and row[1].endswith(("chosen", "best"))
    return (StyledText(row[at], "good" if is_best else "plain"),)
