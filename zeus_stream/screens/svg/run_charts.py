"""Charts of one run: power over time, energy per epoch. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from zeus_stream.questions.power_question import PowerPoint
from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.axes import Axis, ChartFrame, drawing, frame, number, round_values
from zeus_stream.screens.svg.frontier_chart import HEIGHT, WIDTH

WIDE, TALL = 760, 230
"""Size of the chart over time, in units of the drawing."""
SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800)
"""Round distances between two ticks of time."""


def elapsed(seconds: float) -> str:
    """Format a time since the begin: 45 s, 3:20, 2:05:00."""
    whole = round(seconds)
    if abs(whole) < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _time_ticks(seconds: float) -> list[tuple[float, str]]:
    step = next((each for each in SECONDS if seconds / each <= 8), 86400 * max(1, round(seconds / 86400 / 8)))
    return [(at, elapsed(at)) for at in range(0, int(seconds) + 1, step)]


def power_chart(
    points: Sequence[PowerPoint], epochs: Sequence[tuple[float, float]], alternative: str
) -> Markup:
    """Return power over time: the mean, the sensor's range, the limit; ``epochs``, in seconds, as bands."""
    known = [
        value
        for point in points
        for value in (point.mean_w, point.most_w, point.limit_w)
        if value is not None
    ]
    end_s = points[-1].end_s if points else 1.0
    made = frame(
        Axis("time since the begin", 0, end_s, _time_ticks(end_s), padding=0),
        Axis("W", 0, 1.05 * max(known, default=1.0), padding=0), WIDE, TALL,
    )  # fmt: skip
    bands = [
        element(
            "rect", element("title", f"epoch {at}"), class_="band", x=f"{made.across(max(begin, 0)):.1f}",
            y=f"{made.top}", height=f"{made.bottom - made.top:.1f}",
            width=f"{max(made.across(min(end, end_s)) - made.across(max(begin, 0)), 0.5):.1f}",
        )
        for at, (begin, end) in enumerate(epochs) if at % 2 == 0 and begin < end_s
    ]  # fmt: skip
    shade = [
        f"M{made.across(point.begin_s):.1f} {made.up(point.most_w):.1f}H{made.across(point.end_s):.1f}"
        f"V{made.up(point.least_w):.1f}H{made.across(point.begin_s):.1f}Z"
        for point in points
        if point.least_w is not None and point.most_w is not None
    ]
    return drawing(
        made, alternative, Markup("".join(bands)), element("path", class_="shade", d="".join(shade)),
        _stairs(made, [(p.begin_s, p.end_s, p.limit_w) for p in points], "limit"),
        _stairs(made, [(p.begin_s, p.end_s, p.mean_w) for p in points], "mean"),
    )  # fmt: skip


def _stairs(made: ChartFrame, levels: Sequence[tuple[float, float, float | None]], kind: str) -> Markup:
    """Return a line of steps, broken where a value is missing."""
    way, before = [], None
    for begin, end, value in levels:
        if value is not None and before is None:
            way.append(f"M{made.across(begin):.1f} {made.up(value):.1f}")
        elif value is not None and value != before:
            way.append(f"H{made.across(begin):.1f}V{made.up(value):.1f}")
        elif value is None and before is not None:
            way.append(f"H{made.across(begin):.1f}")
        before = value
        last = end
    if before is not None:
        way.append(f"H{made.across(last):.1f}")
    return element("path", class_=kind, d="".join(way))


def epochs_chart(epochs: Sequence[Mapping[str, Any]], alternative: str) -> Markup:
    """Return the energy of each epoch as a dot with its 95 % interval. The axis need not begin at 0.

    ``epochs``: ``epoch``, ``energy_j``, its bounds or None, and ``power_limit_w`` or None.
    """
    bounds = ("energy_j", "energy_p2_5_j", "energy_p97_5_j")
    up = [each[name] for each in epochs for name in bounds if each[name] is not None]
    first, last = epochs[0]["epoch"], epochs[-1]["epoch"]
    marks = sorted({round(value) for value in round_values(first, last, 8)})
    room = max(max(up) - min(up), 0.02 * max(up)) / 2
    middle = (min(up) + max(up)) / 2
    made = frame(
        Axis("epoch", first - 0.5, last + 0.5, [(at, number(at)) for at in marks], padding=0),
        Axis("energy, J", middle - room, middle + room, padding=0.1), WIDTH, HEIGHT,
    )  # fmt: skip
    parts = []
    for each in epochs:
        x, y = made.across(each["epoch"]), made.up(each["energy_j"])
        limit = f", {each['power_limit_w']:g} W" if each["power_limit_w"] is not None else ""
        inner = [element("title", f"epoch {each['epoch']}: {each['energy_j']:,.1f} J{limit}")]
        if each["energy_p2_5_j"] is not None and each["energy_p97_5_j"] is not None:
            ends = f"M{x:.1f} {made.up(each['energy_p2_5_j']):.1f}V{made.up(each['energy_p97_5_j']):.1f}"
            inner.append(element("path", class_="whisker", d=ends))
        inner.append(element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4"))
        parts.append(element("g", *inner, class_="point"))
    return drawing(made, alternative, *parts)
