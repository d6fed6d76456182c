"""A chart of named series: lines, marks and shaded cells, on linear and logarithmic axes. Pure."""

from collections.abc import Sequence
from math import isfinite
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.axes import Axis, ChartFrame, drawing, frame

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500", "#7f7f7f")
"""Distinct for people who see few colours (Okabe, Ito, 2008, darkened where they are thin lines)."""
WIDTH, HEIGHT = 360, 240
RADIUS = 2.6
Mark = Literal["", "dots", "faint", "cross"]
SAME = " = "
"""Between the names of series that are the same."""


class ChartSeries(Struct, frozen=True):
    """Points of one name: a line through them, or a mark at each, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    """A number; `COLOURS` come again."""
    line: bool = True
    mark: Mark = ""


class Cell(Struct, frozen=True):
    """A shaded square around a point of a heat map; axes count whole cells."""

    x: float
    y: float
    shade: float
    """0: none; 1: full."""
    title: str


def series_chart(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[ChartSeries],
    height: int = HEIGHT,
    cells: Sequence[Cell] = (),
) -> Markup:
    """Return a chart under its title. Series that are the same are drawn once, and the title names them."""
    series = merged(series)
    points = [point for one in series for point in one.points]
    points += [(cell.x + side, cell.y + side) for cell in cells for side in (-0.5, 0.5)]
    made = frame(
        _spanned(x, [point[0] for point in points]), _spanned(y, [point[1] for point in points]), WIDTH,
        height,
    )  # fmt: skip
    drawn = [_cell(cell, made) for cell in cells] + [_drawn(one, made) for one in series]
    caption = "; ".join(filter(None, [title, *(one.name for one in series if SAME in one.name)]))
    chart = drawing(made, title or y.label or x.label, *drawn)
    return element("figure", element("figcaption", caption, class_="caption") if caption else None, chart)


def _spanned(axis: Axis, values: Sequence[float]) -> Axis:
    seen = [value for value in (*values, *(tick for tick, _ in axis.ticks)) if isfinite(value)] or [1, 2]
    return replace(axis, low=min(seen), high=max(seen), padding=0.04)


def merged(series: Sequence[ChartSeries]) -> list[ChartSeries]:
    """Return the series, those of the same points as one that has the names of all."""
    found: dict[tuple[object, ...], ChartSeries] = {}
    for one in series:
        key = (tuple(one.points), one.line, one.mark) if one.points else (one.name,)
        known = found.get(key)
        name = f"{known.name}{SAME}{one.name}" if known else one.name
        found[key] = replace(known or one, name=name)
    return list(found.values())


def _cell(cell: Cell, made: ChartFrame) -> Markup:
    left, right = made.across(cell.x - 0.5), made.across(cell.x + 0.5)
    top, bottom = made.up(cell.y + 0.5), made.up(cell.y - 0.5)
    return element(
        "rect", element("title", cell.title), class_="cell", x=f"{left:.1f}", y=f"{top:.1f}",
        width=f"{right - left:.1f}", height=f"{bottom - top:.1f}", opacity=f"{cell.shade:.2f}",
    )  # fmt: skip


def _drawn(series: ChartSeries, made: ChartFrame) -> Markup:
    colour = COLOURS[series.colour % len(COLOURS)]
    places = [f"{made.across(a):.1f} {made.up(b):.1f}" for a, b in series.points]
    parts = [element("title", series.name)]
    if series.line and places:
        parts.append(element("path", class_="line", d=f"M{'L'.join(places)}"))
    arm = 2 * RADIUS
    cross = f"m-{RADIUS:g} -{RADIUS:g}l{arm:g} {arm:g}m0 -{arm:g}l-{arm:g} {arm:g}"
    if series.mark and places:
        stroke = cross if series.mark == "cross" else "h0"
        parts.append(element("path", class_=series.mark, d="".join(f"M{place}{stroke}" for place in places)))
    return element("g", *parts, stroke=colour, fill="none")
