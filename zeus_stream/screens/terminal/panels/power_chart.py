"""The power of a run over the last minutes, as a chart of dots. Pure."""

from collections.abc import Sequence

from zeus_stream.screens.terminal.figures import Line, StyledText, braille, clean, fit, fit_line
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.columns import FRAME, Panel
from zeus_stream.views.quantity import seconds
from zeus_stream.views.run_view import RunView

SCALE = 8
"""Cells of the figures beside the chart."""
MOST_GAP = 8
"""Dots without a look that are filled with the value before: there are more dots than looks."""
LEAST_HEIGHT = 4


def power_panel(run: RunView | None, history: History, width: int, height: int) -> Panel | None:
    """Return a panel of ``height`` rows, frame included. None: there is no room, or nothing is known."""
    if run is None or height < LEAST_HEIGHT + 2:
        return None
    lines = power_chart(run.run, history, width - FRAME, height - 2)
    if not lines:
        return None
    return Panel(
        title=f"power: {clean(run.job)}, {power_title(run.run, history)}",
        head=(),
        lines=tuple(lines),
        keys=(),
    )


def power_title(run: str, history: History) -> str:
    """Return the span of the chart, with the least and the most of it."""
    span_s = history.span_s(run)
    known = [value for value in history.run(run, span_s, 300) if value is not None]
    span = f"last {seconds(span_s)}"
    return f"{span}, {min(known):,.0f} to {max(known):,.0f} W" if known else f"{span}, not known"


def power_chart(run: str, history: History, width: int, height: int) -> list[Line]:
    """Return the chart with its scale: none, if nothing is known."""
    values = history.run(run, history.span_s(run), max(2, (width - SCALE) * 2))
    known = [value for value in values if value is not None]
    if not known:
        return []
    most = max(max(known) * 1.05, 1.0)
    lines: list[Line] = []
    for place, row in enumerate(braille(_filled(values), most, height)):
        scale = f"{most:,.0f} W" if place == 0 else "0 W" if place == height - 1 else ""
        line = StyledText(fit(scale, SCALE - 1, right=True) + " ", "dim"), StyledText(row, "bar")
        lines.append(fit_line(line, width))
    return lines


def _filled(values: Sequence[float | None]) -> list[float | None]:
    """Return values in which short gaps have the value before."""
    filled: list[float | None] = []
    last, gap = None, 0
    for value in values:
        gap = 0 if value is not None else gap + 1
        last = value if value is not None else last if gap <= MOST_GAP else None
        filled.append(last)
    return filled
