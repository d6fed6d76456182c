"""Lines of text with tones, bars and small charts for a terminal. Pure."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from zeus_stream.errors import printable

Tone = Literal["plain", "dim", "strong", "good", "warn", "bad", "accent", "bar", "track"]
_SPARKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""Bits of a braille character: rows from the lowest up, left and right."""


class StyledText(NamedTuple):
    """Text in one tone."""

    text: str
    tone: Tone = "plain"


Line = tuple[StyledText, ...]


def clean(text: str) -> str:
    """Return a name as it may be written to a terminal: control characters become question marks."""
    return printable(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return text of exactly ``width`` cells: padded, or cut with an ellipsis."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)


def width_of(line: Line) -> int:
    """Return the cells that a line takes."""
    return sum(cell_len(span.text) for span in line)


def fit_line(line: Line, width: int) -> Line:
    """Return a line of exactly ``width`` cells."""
    spans: list[StyledText] = []
    left = width
    for span in line:
        size = cell_len(span.text)
        if size > left:
            spans.append(StyledText(fit(span.text, left), span.tone))
            left = 0
            break
        spans.append(span)
        left -= size
    if left > 0:
        spans.append(StyledText(" " * left))
    return tuple(spans)


def dimmed(line: Line) -> Line:
    """Return a line that is old."""
    return tuple(StyledText(span.text, "dim") for span in line)


def sparkline(values: Sequence[float | None], most: float) -> str:
    """Return one character a value: its height from 0 to ``most``. What is not known is a space."""
    return "".join(
        " " if value is None else _SPARKS[max(0, min(7, int(value / most * 8)))] if most > 0 else _SPARKS[0]
        for value in values
    )


def bar(value: float | None, limit: float | None, most: float | None, width: int) -> Line:
    """Return a bar of ``width`` cells: the value, a track to the limit, dots from there to ``most``."""
    if value is None or not most or most <= 0:
        return (StyledText(" " * width, "track"),)
    full, half = divmod(round(max(0.0, min(1.0, value / most)) * width * 2), 2)
    filled = "━" * full + "╸" * half
    to_limit = width if limit is None else round(max(0.0, min(1.0, limit / most)) * width)
    track = "─" * max(0, to_limit - len(filled))
    free = "·" * (width - len(filled) - len(track))
    return StyledText(filled, "bar"), StyledText(track, "track"), StyledText(free, "dim")


def braille(values: Sequence[float | None], most: float, height: int) -> list[str]:
    """Return a chart of dots, ``height`` lines high: two values a character, filled from below."""
    rows = [[0] * ((len(values) + 1) // 2) for _ in range(height)]
    for place, value in enumerate(values):
        if value is None or most <= 0:
            continue
        dots = max(1, round(min(1.0, value / most) * height * 4)) if value > 0 else 0
        for dot in range(dots):
            line, row = divmod(dot, 4)
            rows[height - 1 - line][place // 2] |= _DOTS[row][place % 2]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in rows]
