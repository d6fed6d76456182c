"""The panel of runs, and that of the search of one of them. Pure."""

from collections.abc import Sequence
from typing import Literal

from zeus_stream.live.figures import (
    ABSENT,
    Line,
    Span,
    bar,
    clean,
    fit,
    fit_line,
    scaled,
    seconds,
    significant,
    watts,
)
from zeus_stream.live.panels.columns import Column, Panel, counted, heads, known, line_of, wrapped
from zeus_stream.protocol.snapshots import RunNow, SearchNow, Snapshot


def run_panel(snapshot: Snapshot, runs: Sequence[RunNow], width: int) -> Panel:
    job_width = max(3, min(16 if width < 100 else 22, max((len(run.job) for run in runs), default=3)))
    columns = [
        Column("job", job_width, lambda row: (Span(clean(runs[row].job), _alive(runs[row])),)),
        Column("search", 21 if width < 104 else 30, lambda row: (_phase(runs[row]),)),
        Column("step", 8, lambda row: (Span(known(runs[row].step)),), right=True),
        Column("J/step", 7, lambda row: (Span(significant(runs[row].step_j)),), right=True),
    ]
    if width >= 60:
        columns.append(Column("ms", 6, lambda row: (Span(significant(runs[row].step_ms)),), right=True))
    if width >= 70:
        columns.append(Column("saved", 7, lambda row: (_saved(runs[row].search),), right=True))
    if width >= 84:
        columns.insert(2, Column("epoch", 5, lambda row: (Span(known(runs[row].epoch)),), right=True))
        columns.insert(
            -1, Column("energy", 8, lambda row: (Span(scaled(runs[row].energy_j, "J")),), right=True)
        )
    if width >= 94:
        columns.append(Column("ends in", 8, lambda row: (Span(_left(runs[row])),), right=True))
    if width >= 100:
        columns.insert(1, Column("run", 12, lambda row: (Span(clean(runs[row].run), "dim"),)))
    return Panel(
        title=counted(snapshot.totals.runs, "open run"),
        head=heads(columns, width),
        lines=tuple(
            line_of([column.cell(row) for column in columns], columns, width) for row in range(len(runs))
        )
        or (
            fit_line((Span("No run is open. Start one: zeus-stream run -- python train.py", "dim"),), width),
        ),
        keys=tuple(run.run for run in runs),
    )


def _left(run: RunNow) -> str:
    """Return the forecast of the time to the end of a run."""
    forecast = run.forecast
    return ABSENT if forecast is None or forecast.left_s is None else seconds(forecast.left_s)


UNSEARCHED = "No limit is searched for: no analyzer runs, or it has --select none."
ENDED = "The run has ended: `zeus-stream report` shows the limits that were measured."


def _alive(run: RunNow) -> Literal["plain", "dim"]:
    return "plain" if run.ended_wall_ns is None else "dim"


def phase(run: RunNow) -> str:
    """Return where the search of a run stands, in a few words."""
    search = run.search
    if search is None:
        return "ended" if run.ended_wall_ns else "only measured" if run.step is not None else ABSENT
    limit = "" if search.limit_mw is None else f" {_level(search.limit_mw, search.clock_mhz).strip()}"
    match search.phase:
        case "waiting":
            words = "waiting for steps"
        case "measuring":
            of = "" if search.trials_planned is None else f" of {search.trials_planned}"
            words = f"trial {search.trial}{of}:{limit}" if search.trial else "measuring"
        case "observing":
            words = "only observed"
        case "within a budget":
            words = f"budget:{limit}"
        case _:
            words = f"{search.phase}{limit}"
    return f"{words}, ended" if run.ended_wall_ns else words


def _level(limit_mw: int, clock_mhz: int | None) -> str:
    """Format a power limit, or the clock whose nominal power it is."""
    return f"{watts(limit_mw):>4} W " if clock_mhz is None else f"{clock_mhz:>4} MHz "


def _phase(run: RunNow) -> Span:
    if run.search is None or run.ended_wall_ns:
        return Span(phase(run), "dim")
    match run.search.phase:
        case "chosen" | "recalled":
            return Span(phase(run), "good")
        case "measuring":
            return Span(phase(run), "accent")
        case "observing" | "within a budget":
            return Span(phase(run), "warn")
        case _:
            return Span(phase(run), "dim")


def _saved(search: SearchNow | None) -> Span:
    if search is None or search.saved_percent is None or search.saved_j is None:
        return Span(ABSENT, "dim")
    return Span(f"{search.saved_percent:.1f} %", "good" if search.saved_percent > 0 else "plain")


def search_panel(run: RunNow | None, width: int) -> Panel:
    if run is None:
        return Panel(title="search", head=(), lines=(), keys=())
    title = f"search: {clean(run.job)}"
    lines = [fit_line(line, width) for line in search_lines(run, width)]
    return Panel(title=fit(title, min(len(title), width)), head=(), lines=tuple(lines), keys=())


def search_lines(run: RunNow, width: int) -> list[Line]:
    """Return the trials of a run, the highest limit first, and what became of the search."""
    search = run.search
    if search is None:
        return [(Span(part, "dim"),) for part in wrapped(ENDED if run.ended_wall_ns else UNSEARCHED, width)]
    most_j = max((trial.step_j or 0.0 for trial in search.trials), default=0.0)
    wide = max(0, width - 34)
    lines: list[Line] = []
    for trial in sorted(search.trials, key=lambda trial: (-trial.limit_mw, trial.confirms)):
        chosen = search.phase != "measuring" and trial.limit_mw == search.limit_mw
        best = search.phase == "measuring" and trial.limit_mw == search.best_mw
        mark = "again" if trial.confirms else "chosen" if chosen else "best" if best else ""
        lines.append(
            (
                Span(_level(trial.limit_mw, trial.clock_mhz), "good" if chosen or best else "plain"),
                Span(f"{significant(trial.step_j):>7} J {significant(trial.step_ms):>6} ms "),
                *bar(trial.step_j, most_j, most_j, min(wide, 24)),
                Span(f" {mark}", "good"),
            )
        )
    if search.phase == "measuring" and search.limit_mw is not None:
        lines.append(
            (
                Span(_level(search.limit_mw, search.clock_mhz), "accent"),
                Span(
                    f"measuring, {known(search.steps_done)} of {known(search.steps_wanted)} steps", "accent"
                ),
            )
        )
    if search.saved_j is not None and search.saved_percent is not None:
        slower = "" if search.time_added_percent is None else f", steps {search.time_added_percent:+.1f} %"
        saved = f"saved {scaled(search.saved_j, 'J')} ({search.saved_percent:.1f} %){slower}"
        lines.append((Span(saved, "good"),))
    if search.reason:
        lines += [(Span(part, "dim"),) for part in wrapped(clean(search.reason), width)[:4]]
    return lines or [(Span("waits for steps of all ranks", "dim"),)]
