"""Choices of the person who looks, columns, and lines of exact width. Pure."""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from zeus_stream.screens.terminal.figures import Line, StyledText, fit, fit_line
from zeus_stream.views.quantity import ABSENT

FRAME = 4
"""Cells that the frame of a panel takes."""
Sort = Literal["place", "power", "run"]
SORTS: tuple[Sort, ...] = ("place", "power", "run")
Unit = Literal["W", "J", "price"]


class Looks(Struct, frozen=True, kw_only=True):
    """The choices of the person who looks."""

    sort: Sort = "place"
    unit: Unit = "W"
    words: str = ""
    """Rows that have not all of these words are left out."""
    run: str | None = None
    """The run whose search is shown. None: the first."""
    price: tuple[float, str] | None = None
    """Of a kilowatt hour, and its currency, from the newest signal. None: there is none."""
    paused: bool = False
    trouble: str = ""
    """Why there is no newer snapshot; all that is shown is old."""


class Panel(Struct, frozen=True, kw_only=True):
    """One frame with lines in it."""

    title: str
    head: Line
    lines: tuple[Line, ...]
    keys: tuple[str, ...]
    """The name of what each line is about."""


class Column(Struct, frozen=True):
    head: str
    width: int
    cell: Callable[[int], Line]
    """Returns the cell of a row."""
    right: bool = False


def matches(looks: Looks, *names: str | None) -> bool:
    text = " ".join(filter(None, names)).lower()
    return all(word in text for word in looks.words.lower().split())


def counted(count: int, what: str, many: str = "") -> str:
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def known(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def heads(columns: Sequence[Column], width: int) -> Line:
    return line_of([(StyledText(column.head, "dim"),) for column in columns], columns, width)


def line_of(cells: Sequence[Line], columns: Sequence[Column], width: int) -> Line:
    """Return cells side by side. The column of width 0, if any, takes what is left."""
    fixed = sum(column.width for column in columns) + len(columns) - 1
    spans: list[StyledText] = []
    for cell, column in zip(cells, columns, strict=True):
        size = column.width or max(0, width - fixed)
        if column.right and len(cell) == 1:
            spans.append(StyledText(fit(cell[0].text, size, right=True), cell[0].tone))
        else:
            spans += fit_line(cell, size)
        spans.append(StyledText(" "))
    return fit_line(tuple(spans[:-1]), width)


def wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of at most ``width`` letters, cut between words."""
    lines, line = list[str](), ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines
