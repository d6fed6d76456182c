"""The first screen as text with escape codes. Pure.

Textual takes longer to import than the first answer to come. It draws the same over it.
"""

from collections.abc import Mapping, Sequence

from zeus_stream.screens.terminal.figures import Line, Span, Tone, fit_line, width_of
from zeus_stream.screens.terminal.panels.columns import Panel
from zeus_stream.screens.terminal.view import View

BEGIN = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""Switch to the other screen of the terminal, hide the cursor, clear."""
_BASE = "\x1b[0;38;2;224;224;224;48;2;18;18;18m"
"""Colours of Textual's screen."""
CODES: Mapping[Tone, str] = {
    "plain": "",
    "dim": "\x1b[38;2;125;139;153m",
    "strong": "\x1b[1m",
    "good": "\x1b[38;2;124;207;138m",
    "warn": "\x1b[38;2;229;181;103m",
    "bad": "\x1b[1;38;2;240;113;120m",
    "accent": "\x1b[38;2;130;170;255m",
    "bar": "\x1b[38;2;95;175;215m",
    "track": "\x1b[38;2;63;84;104m",
}


def painted(shown: View, width: int, height: int, *, colours: bool) -> str:
    """Return the screen as a terminal takes it. Each row of it begins where it stands."""
    rows = screen_rows(shown, width, height)
    drawn = [f"\x1b[{place};1H{_text(row, colours=colours)}" for place, row in enumerate(rows, 1)]
    return BEGIN + "".join(drawn)


def screen_rows(shown: View, width: int, height: int) -> list[Line]:
    """Return the rows of the screen from the top; the last one is the foot."""
    of_gpus, of_runs, of_search = shown.heights
    rows: list[Line] = [*shown.head, *_box(shown.gpus, width, of_gpus)]
    if shown.side_by_side:
        left = width * 62 // 100
        runs, search = _box(shown.runs, left, of_runs), _box(shown.search, width - left, of_search)
        rows += [(*one, *other) for one, other in zip(runs, search, strict=True)]
    else:
        rows += [*_box(shown.runs, width, of_runs), *_box(shown.search, width, of_search)]
    if shown.power is not None:
        rows += _box(shown.power, width, len(shown.power.lines) + 2)
    above = height - 1
    rows += [()] * (above - len(rows))
    return [*rows[:above], shown.foot]


def _box(panel: Panel, width: int, rows: int) -> list[Line]:
    """Return a panel with its frame, cut to so many rows."""
    inside = width - 4
    title = fit_line((Span(panel.title),), min(len(panel.title), inside - 2))
    used = width_of(title) + 2 if panel.title else 0
    top: Line = (Span("╭─", "track"), *_spaced(title), Span("─" * (width - 3 - used) + "╮", "track"))
    lines: Sequence[Line] = ((panel.head, *panel.lines) if panel.head else panel.lines)[: max(rows - 2, 0)]
    lines = [*lines, *[()] * (rows - 2 - len(lines))]
    edge = Span("│", "track")
    middle = [(edge, Span(" "), *fit_line(line, inside), Span(" "), edge) for line in lines]
    return [top, *middle, (Span("╰" + "─" * (width - 2) + "╯", "track"),)]


def _spaced(title: Line) -> Line:
    return (Span(" "), *title, Span(" ")) if width_of(title) else ()


def _text(row: Line, *, colours: bool) -> str:
    if not colours:
        return "".join(span.text for span in row)
    spans = (f"{CODES[span.tone]}{span.text}{_BASE if CODES[span.tone] else ''}" for span in row)
    return f"{_BASE}\x1b[K{''.join(spans)}"
