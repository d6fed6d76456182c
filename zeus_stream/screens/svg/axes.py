"""Scales, ticks and the frame of a chart. Pure."""

from collections.abc import Callable, Mapping, Sequence
from math import asinh, ceil, floor, inf, isfinite, log2, log10
from typing import Literal

from msgspec import Struct

from zeus_stream.screens.html.elements import Markup, element

LETTER = 7.2
"""Mean width of a letter of a tick, in units of the drawing."""
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 28, 42
"""Least margins."""
LEAST_TICKS = 3
"""A logarithmic axis with fewer decades and thirds of them has ticks at equal distances."""
Bend = Literal["linear", "log", "asinh"]
"""asinh: linear around 0, logarithmic far from it, on both sides."""
_BENDS: Mapping[Bend, Callable[[float], float]] = {"linear": float, "log": log2, "asinh": asinh}


class Axis(Struct, frozen=True):
    """An axis: its label with the unit, and what it has to show."""

    label: str
    low: float = inf
    high: float = -inf
    """With ``low`` above it: what the values need."""
    ticks: Sequence[tuple[float, str]] = ()
    """Where, and the text there. Empty: round values."""
    padding: float = 0.06
    """Share of the range that is added at both ends."""
    bend: Bend = "linear"


class Scale(Struct, frozen=True):
    """A line from values to positions; of a bent axis, ``low`` and ``high`` are bent already."""

    low: float
    high: float
    first: float
    last: float
    bend: Bend = "linear"

    def __call__(self, value: float) -> float:
        share = (_BENDS[self.bend](value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


class ChartFrame(Struct, frozen=True, kw_only=True):
    """An empty chart: its scales, and what is behind the data."""

    width: float
    height: float
    across: Scale
    up: Scale
    grid: Markup
    left: float
    right: float
    top: float
    bottom: float


def round_values(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return about as many round values as wanted, between two values."""
    if not (isfinite(low) and isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(wanted, 1)
    power = 10.0 ** floor(log10(raw))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= raw * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _bent_values(axis: Axis) -> list[float]:
    """Return some decades and thirds of them on a logarithmic axis; of a narrow one, round values."""
    decades = [digit * 10.0**power for power in range(-2, 9) for digit in (1, 3)]
    if axis.bend == "asinh":
        decades = [-each for each in reversed(decades) if each >= 1] + [0.0] + [v for v in decades if v >= 1]
    inside = [value for value in decades if axis.low <= value <= axis.high]
    if len(inside) >= LEAST_TICKS:
        return inside[:: ceil(len(inside) / 7)]
    near = round_values(axis.low, axis.high)
    return [value for value in near if value > 0 or axis.bend == "asinh"] or [axis.low]


def number(value: float) -> str:
    """Format a tick: thousands are separated, nothing is rounded away."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:g}"


def _ticks(axis: Axis, low: float, high: float, wanted: int) -> list[tuple[float, str]]:
    if axis.ticks:
        return list(axis.ticks)
    if axis.bend != "linear":
        return [(value, number(value)) for value in _bent_values(axis)]
    return [(value, number(value)) for value in round_values(low, high, wanted)]


def _range(axis: Axis) -> tuple[float, float]:
    low, high = (_BENDS[axis.bend](edge) for edge in (axis.low, axis.high))
    room = axis.padding * (high - low) or (abs(high) * 0.05 or 0.5 if axis.padding else 0.5)
    if high > low and not axis.padding:
        room = 0.0
    return low - room, high + room


def frame(x: Axis, y: Axis, width: float, height: float) -> ChartFrame:
    """Return the frame of a chart with two axes."""
    (x_low, x_high), (y_low, y_high) = _range(x), _range(y)
    upward = _ticks(y, y_low, y_high, max(3, round(height / 55)))
    left = max(LEFT, LETTER * max((len(text) for _, text in upward), default=0) + 14)
    right, top, bottom = width - RIGHT, TOP, height - BOTTOM
    across = Scale(x_low, x_high, left, right, x.bend)
    up = Scale(y_low, y_high, bottom, top, y.bend)
    parts = []
    for value, text in upward:
        at = up(value)
        parts.append(element("path", class_="grid", d=f"M{left:.1f} {at:.1f}H{right:.1f}"))
        parts.append(
            element("text", text, class_="tick", x=f"{left - 6:.1f}", y=f"{at + 4:.1f}", text_anchor="end")
        )
    for value, text in _ticks(x, x_low, x_high, max(3, round(width / 95))):
        at = across(value)
        parts.append(element("path", class_="grid", d=f"M{at:.1f} {bottom:.1f}v4"))
        anchor = "end" if at + LETTER * len(text) / 2 > width else "middle"
        place = {"x": f"{at:.1f}", "y": f"{bottom + 17:.1f}", "text_anchor": anchor}
        parts.append(element("text", text, class_="tick x", **place))
    parts += [
        element("path", class_="axis", d=f"M{left:.1f} {bottom:.1f}H{right:.1f}"),
        element("text", x.label, class_="label", x=f"{right:.1f}", y=f"{height - 4:.1f}", text_anchor="end"),
        element("text", y.label, class_="label", x="0", y="13"),
    ]
    return ChartFrame(
        width=width, height=height, across=across, up=up, grid=Markup("".join(parts)),
        left=left, right=right, top=top, bottom=bottom,
    )  # fmt: skip


def drawing(made: ChartFrame, alternative: str, *parts: Markup) -> Markup:
    """Return the SVG element of a chart. ``alternative`` says in words what it shows."""
    return element(
        "svg", made.grid, *parts, viewBox=f"0 0 {made.width:g} {made.height:g}", role="img",
        aria_label=alternative, xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip
