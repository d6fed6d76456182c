"""A frontier: energy against time, a point a choice, with 95 % intervals. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.axes import Axis, ChartFrame, drawing, frame
from zeus_stream.views.quantity import Quantity
from zeus_stream.views.search import TrialView

WIDTH, HEIGHT = 400, 270
LETTER, ABOVE, BELOW = 9.2, 14, 5
"""The place that a letter takes on a phone, where it is larger: across, above the line and below it."""
SHIFTS = (-8, 21, -28, 41)
"""Places of a label below its point, the best first."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


class ChartedChoice(Struct, frozen=True, kw_only=True):
    """A choice, as measured or promised."""

    name: str
    time: Quantity
    energy: Quantity
    role: str = ""
    """``chosen``, ``found``, ``confirmed`` or nothing."""
    old: bool = False
    """It is grey, and not on the line."""

    @property
    def title(self) -> str:
        """Return the point in words."""
        return f"{self.name}: {self.energy}, {self.time}"


def trial_points(trials: Sequence[TrialView]) -> list[ChartedChoice]:
    """Return the limits whose energy and time are known."""
    return [
        ChartedChoice(
            name=each.level, time=each.time, energy=each.energy, old=each.old,
            role=each.mark if each.mark in ("chosen", "found", "confirmed") and not each.old else "",
        )
        for each in trials
        if each.time.known is not None and each.energy.known is not None
    ]  # fmt: skip


def frontier_chart(points: Sequence[ChartedChoice], axes: tuple[str, str], alternative: str) -> Markup:
    """Return the drawing of at least one point. ``axes``: names with units, across and up."""
    made = frame(
        _axis(axes[0], [each.time for each in points]), _axis(axes[1], [each.energy for each in points]),
        WIDTH, HEIGHT,
    )  # fmt: skip
    on_line = [each for each in points if not each.old and each.role != "confirmed"]
    ordered = sorted(on_line, key=lambda each: each.time.known or 0)
    way = "L".join(
        f"{made.across(each.time.known or 0):.1f} {made.up(each.energy.known or 0):.1f}" for each in ordered
    )
    labels: list[Box] = []
    dots = [(made.across(each.time.known or 0), made.up(each.energy.known or 0)) for each in points]
    drawn = [
        _point(made, each, labels, dots)
        for each in sorted(points, key=lambda each: (each.old, not each.role))
    ]
    return drawing(made, alternative, element("path", class_="way", d=f"M{way}" if way else ""), *drawn)


def _axis(name: str, quantities: Sequence[Quantity]) -> Axis:
    ends = [end for each in quantities for end in each.interval or (each.known or 0,)]
    return Axis(name, min(ends), max(ends), padding=0.12)


def _point(
    made: ChartFrame,
    each: ChartedChoice,
    labels: list[Box],
    dots: Sequence[tuple[float, float]],
) -> Markup:
    """Return a point with its whiskers, and its label where there is room: beside the labels before it and,
    if it can, beside all points."""
    x, y = made.across(each.time.known or 0), made.up(each.energy.known or 0)
    parts = [element("title", each.title)]
    if each.time.interval:
        left, right = map(made.across, each.time.interval)
        parts.append(element("path", class_="whisker", d=f"M{left:.1f} {y:.1f}h{right - left:.1f}"))
    if each.energy.interval:
        below, above = map(made.up, each.energy.interval)
        parts.append(element("path", class_="whisker", d=f"M{x:.1f} {above:.1f}v{below - above:.1f}"))
    parts.append(element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="6" if each.role else "4"))
    text = f"{each.name} {each.role}".rstrip()
    length = LETTER * len(text)
    on_right = x + 10 + length < made.right
    at = x + 9 if on_right else x - 9
    begin = at if on_right else at - length

    def covers_a_dot(shift: int) -> bool:
        middle = y + shift - 4
        return any(
            begin - 6 < a < begin + length + 6 and abs(b - middle) < 11 for a, b in dots if (a, b) != (x, y)
        )

    # Those that cover a point come last; without a label a point has only its title.
    for shift in sorted(SHIFTS, key=covers_a_dot) if not each.old else ():
        box = begin, y + shift - ABOVE, begin + length, y + shift + BELOW
        if (
            made.top < box[1]
            and box[3] < made.bottom + 3
            and not any(_overlap(box, other) for other in labels)
        ):
            labels.append(box)
            place = {"x": f"{at:.1f}", "y": f"{y + shift:.1f}"}
            anchor = "start" if on_right else "end"
            parts.append(element("text", text, class_="name", text_anchor=anchor, **place))
            break
    kinds = " ".join(filter(None, ["point", each.role, "old" if each.old else ""]))
    return element("g", *parts, class_=kinds)


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
