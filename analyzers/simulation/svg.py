"""Charts as SVG, for a page that stands alone. Pure."""

from collections.abc import Callable, Sequence
from html import escape
from math import asinh, ceil, floor, isfinite, log2, log10
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500", "#7f7f7f")
"""Distinct for people who see few colours (Okabe, Ito, 2008, darkened where they are thin lines)."""
WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 26, 38
"""Margins; the left one at least so."""
RADIUS = 2.6
SAME = " = "
"""Between the names of series that are the same."""
LETTER = 6.2
"""Width, on average."""
LEAST_TICKS = 3
"""A logarithmic axis with fewer decades and thirds of them has ticks at equal distances."""

Scale = Literal["linear", "log", "asinh"]
"""asinh: linear around 0, logarithmic far from it, on both sides."""
_SCALES: dict[Scale, Callable[[float], float]] = {"linear": float, "log": log2, "asinh": asinh}


class Series(Struct, frozen=True):
    """Points of one name: a line through them, or a mark at each, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    """A number; `COLOURS` come again."""
    line: bool = True
    mark: Literal["", "dot", "faint", "cross"] = ""


class Cell(Struct, frozen=True):
    """A shaded square around a point of a heat map; axes count whole cells."""

    x: float
    y: float
    shade: float
    """0: none; 1: full."""
    title: str


class Axis(Struct, frozen=True):
    label: str
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    """Where, and what is written there; none: round values."""


def chart(
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    height: int = HEIGHT,
    cells: Sequence[Cell] = (),
) -> str:
    """Return an SVG element. Series that are the same are drawn once, and a note names them."""
    series = merged(series)
    alike = [one.name for one in series if SAME in one.name]
    note = "; ".join(alike)
    if LETTER * len(note) > WIDTH - LEFT:
        note = "; ".join(f"{name.count(SAME) + 1} lines are equal" for name in alike)
    points = [point for one in series for point in one.points]
    points += [(cell.x + side, cell.y + side) for cell in cells for side in (-0.5, 0.5)]
    up = _Place(y, [point[1] for point in points], height - BOTTOM, TOP)
    left = max(LEFT, LETTER * max((len(text) for _, text in up.ticks), default=0) + 10)
    across = _Place(x, [point[0] for point in points], left, WIDTH - RIGHT)
    box = f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg"'
    parts = [
        f'<svg {box} role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{left:g}" y="{15 - 4 * bool(note)}">{escape(title)}</text>',
    ]
    if note:
        parts.append(f'<text class="tick" x="{left:g}" y="22">{escape(note)}</text>')
    parts += [_cell(cell, across, up) for cell in cells]
    for value, text in up.ticks:
        at = up(value)
        parts.append(f'<path class="grid" d="M{left:g} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{left - 5:g}" y="{at + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
        )
    below, middle = height - BOTTOM + 13, (TOP + height - BOTTOM) / 2
    for value, text in across.ticks:
        at = across(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{below}" text-anchor="middle">{escape(text)}</text>'
        )
    parts.append(
        f'<text class="label" x="{(left + WIDTH - RIGHT) / 2:g}" y="{height - 8}" text-anchor="middle">'
        f"{escape(x.label)}</text>"
    )
    parts.append(
        f'<text class="label" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    parts += [_drawn(one, [(across(a), up(b)) for a, b in one.points]) for one in series]
    return "\n".join([*parts, "</svg>"])


def merged(series: Sequence[Series]) -> list[Series]:
    """Return the series, those of the same points as one that has the names of all."""
    found: dict[tuple[object, ...], Series] = {}
    for one in series:
        key = (tuple(one.points), one.line, one.mark) if one.points else (one.name,)
        known = found.get(key)
        name = f"{known.name}{SAME}{one.name}" if known else one.name
        found[key] = replace(known or one, name=name)
    return list(found.values())


def _cell(cell: Cell, across: "_Place", up: "_Place") -> str:
    left, right = across(cell.x - 0.5), across(cell.x + 0.5)
    top, bottom = up(cell.y + 0.5), up(cell.y - 0.5)
    return (
        f'<rect class="cell" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}"'
        f' height="{bottom - top:.1f}" opacity="{cell.shade:.2f}"><title>{escape(cell.title)}</title></rect>'
    )


def _drawn(series: Series, places: Sequence[tuple[float, float]]) -> str:
    colour = COLOURS[series.colour % len(COLOURS)]
    parts = [f'<g stroke="{colour}" fill="{colour}"><title>{escape(series.name)}</title>']
    if series.line and places:
        way = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(f'<path class="line" d="M{way}"/>')
    arm = 2 * RADIUS
    cross = f"m-{RADIUS:g} -{RADIUS:g}l{arm:g} {arm:g}m0 -{arm:g}l-{arm:g} {arm:g}"
    if series.mark and places:
        stroke = cross if series.mark == "cross" else "h0"
        marks = "".join(f"M{a:.1f} {b:.1f}{stroke}" for a, b in places)
        parts.append(f'<path class="{series.mark}" d="{marks}"/>')
    return "".join([*parts, "</g>"])


class _Place:
    """Where values of an axis lie."""

    def __init__(self, axis: Axis, values: Sequence[float], first: float, last: float) -> None:
        self._scale = _SCALES[axis.scale]
        seen = [value for value in (*values, *(tick for tick, _ in axis.ticks)) if isfinite(value)] or [1, 2]
        low, high = min(seen), max(seen)
        self.ticks = list(axis.ticks) or [
            (tick, f"{tick:g}") for tick in _round_values(axis.scale, low, high)
        ]
        low, high = (self._scale(edge) for edge in (low, high))
        room = 0.04 * (high - low) or 0.5
        self._low, self._high = low - room, high + room
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)


def _round_values(scale: Scale, low: float, high: float) -> list[float]:
    """Return about five round values between two."""
    if scale == "linear":
        step = _round_up((high - low) / 5 or 1)
        return [round(at * step, 12) for at in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    decades = [digit * 10.0**power for power in range(-2, 9) for digit in (1, 3)]
    if scale == "asinh":
        decades = (
            [-value for value in reversed(decades) if value >= 1] + [0.0] + [v for v in decades if v >= 1]
        )
    inside = [value for value in decades if low <= value <= high]
    if len(inside) < LEAST_TICKS:
        return [value for value in _round_values("linear", low, high) if value > 0 or scale == "asinh"] or [
            low
        ]
    return inside[:: ceil(len(inside) / 7)]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, ..."""
    power = 10.0 ** floor(log10(value))
    return next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= value * (1 - 1e-9))
