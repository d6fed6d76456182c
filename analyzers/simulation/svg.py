"""Charts as SVG, for a page that stands alone. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import asinh, ceil, floor, isfinite, log2, log10
from typing import Literal

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7500", "#7f7f7f")
"""Told apart by those who see few colours (Okabe, Ito, 2008, darkened where they are thin lines)."""
WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 26, 38
"""Margins; the left one at least so."""
RADIUS = 2.6
LETTER = 5.4
"""Width, on average."""

Scale = Literal["linear", "log", "asinh"]
"""asinh: linear around 0, logarithmic far from it, on both sides."""
_SCALES: dict[Scale, Callable[[float], float]] = {"linear": float, "log": log2, "asinh": asinh}


@dataclass(frozen=True, slots=True)
class Series:
    """What belongs together: a line through its points, or a mark at each, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    """A number; `COLOURS` come again."""
    line: bool = True
    mark: Literal["", "dot", "cross"] = ""


@dataclass(frozen=True, slots=True)
class Axis:
    label: str
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()
    """Where, and what is written there; none: round values."""


def chart(title: str, x: Axis, y: Axis, series: Sequence[Series], height: int = HEIGHT) -> str:
    """Return an SVG element."""
    points = [point for one in series for point in one.points]
    up = _Place(y, [point[1] for point in points], height - BOTTOM, TOP)
    left = max(LEFT, LETTER * max((len(text) for _, text in up.ticks), default=0) + 10)
    across = _Place(x, [point[0] for point in points], left, WIDTH - RIGHT)
    box = f'viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg"'
    parts = [
        f'<svg {box} role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{left:g}" y="15">{escape(title)}</text>',
    ]
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
    # What lies under others is wider: lines that are the same are all seen.
    widths = (1.4 + 0.8 * above for above in range(len(series) - 1, -1, -1))
    parts += [
        _drawn(one, [(across(a), up(b)) for a, b in one.points], width)
        for one, width in zip(series, widths, strict=True)
    ]
    return "\n".join([*parts, "</svg>"])


def _drawn(series: Series, places: Sequence[tuple[float, float]], width: float) -> str:
    colour = COLOURS[series.colour % len(COLOURS)]
    parts = [f'<g stroke="{colour}" fill="{colour}"><title>{escape(series.name)}</title>']
    if series.line and places:
        way = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(f'<path class="line" stroke-width="{width:.1f}" d="M{way}"/>')
    for a, b in places if series.mark else ():
        if series.mark == "dot":
            parts.append(f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="{RADIUS}"/>')
        else:
            arm = 2 * RADIUS
            strokes = f"M{a - RADIUS:.1f} {b - RADIUS:.1f}l{arm} {arm}m0 -{arm}l-{arm} {arm}"
            parts.append(f'<path class="cross" d="{strokes}"/>')
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
    return inside[:: ceil(len(inside) / 7)] if inside else [low]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, ..."""
    power = 10.0 ** floor(log10(value))
    return next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= value * (1 - 1e-9))
