"""Choices of the person who looks, and tables as lines of exact width. Pure."""

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any, Literal, TypeVar

from msgspec import Struct

from zeus_stream.screens.terminal.figures import Line, StyledText, clean, fit, fit_line
from zeus_stream.views.quantity import ABSENT

T = TypeVar("T")
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
    head: Line = ()
    lines: tuple[Line, ...] = ()
    keys: tuple[str, ...] = ()
    """The name of what each line is about."""


class Column(Struct, frozen=True):
    """A column of a table."""

    head: str
    width: int
    """Cells; 0: what the others leave."""
    cell: Callable[[Any], str | Line]
    """Returns the cell of a row."""
    right: bool = False


def matches(looks: Looks, *names: str | None) -> bool:
    text = " ".join(filter(None, names)).lower()
    return all(word in text for word in looks.words.lower().split())


def known(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def width_for(texts: Sequence[str], least: int, most: int) -> int:
    """Return the cells that a column of texts takes."""
    return max(least, min(most, max(map(len, texts), default=least)))


def heads(columns: Sequence[Column], width: int) -> Line:
    return _side_by_side([(StyledText(column.head, "dim"),) for column in columns], columns, width)


def line_of(row: object, columns: Sequence[Column], width: int) -> Line:
    """Return the cells of a row side by side."""
    cells = [column.cell(row) for column in columns]
    lines = [(StyledText(clean(cell)),) if isinstance(cell, str) else cell for cell in cells]
    return _side_by_side(lines, columns, width)


def table_of(
    title: str, rows: Sequence[T], columns: Sequence[Column], width: int, key: Callable[[T], str]
) -> Panel:
    """Return a panel with a line a row. ``key``: returns the name of what a row is about."""
    lines = tuple(line_of(row, columns, width) for row in rows)
    return Panel(title=title, head=heads(columns, width), lines=lines, keys=tuple(map(key, rows)))


def _side_by_side(cells: Sequence[Line], columns: Sequence[Column], width: int) -> Line:
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
    return wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
