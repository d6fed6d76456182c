"""Charts of a site: energy and power over time. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.axes import Axis, ChartFrame, drawing, frame
from zeus_stream.screens.svg.run_charts import SECONDS, TALL, WIDE
from zeus_stream.screens.svg.series_chart import COLOURS
from zeus_stream.views.quantity import energy_scale, joules
from zeus_stream.views.site_view import PowerView

TICKS = 8
WHOLE, LOW = 1000, 250
"""Size of a chart over the whole width of a page."""


def time_chart(columns: Sequence[tuple[str, float | None]], alternative: str) -> Markup:
    """Return energies, J, of equal spans in a row as columns. None: nothing was measured in it."""
    known = [energy_j for _, energy_j in columns if energy_j is not None]
    most = max(known, default=0.0)
    size, unit = energy_scale(most)
    every = max(1, -(-len(columns) // TICKS))
    ticks = [(at + 0.5, label) for at, (label, _) in enumerate(columns) if at % every == 0]
    made = frame(
        Axis("UTC", 0, max(len(columns), 1), ticks, padding=0),
        Axis(f"energy, {unit}", 0, 1.05 * most / size or 1.0, padding=0), WIDE, TALL,
    )  # fmt: skip
    parts = []
    for at, (label, energy_j) in enumerate(columns):
        if energy_j is not None:
            x, y = made.across(at + 0.08), made.up(max(energy_j, 0) / size)
            parts.append(
                element(
                    "rect", element("title", f"{label}: {joules(energy_j)}"), class_="amount", x=f"{x:.1f}",
                    y=f"{y:.1f}", width=f"{made.across(at + 0.92) - x:.1f}", height=f"{made.bottom - y:.1f}",
                )
            )  # fmt: skip
    return drawing(made, alternative, *parts)


def power_layers(power: PowerView, alternative: str) -> Markup:
    """Return power over time: a layer a run, above it hatched what was saved, and the limit as a line."""
    count, end_s = len(power.saved_w), power.span_s
    totals = [sum(layer.watts[at] for layer in power.layers) for at in range(count)]
    tops = [total + max(saved, 0.0) for total, saved in zip(totals, power.saved_w, strict=True)]
    highest = max([*tops, *(value for value in power.limit_w if value is not None)], default=0.0)
    step_s = next((each for each in SECONDS if end_s / each <= TICKS), SECONDS[-1])
    begin_s = power.begin_ns / 1e9
    first_s = -begin_s % step_s
    form = "%H:%M:%S" if step_s < 60 else "%H:%M"
    ticks = [
        (at, f"{datetime.fromtimestamp(begin_s + at, UTC):{form}}")
        for at in (first_s + number * step_s for number in range(int((end_s - first_s) / step_s) + 1))
    ]
    made = frame(
        Axis("UTC", 0, end_s, ticks, padding=0), Axis("W", 0, 1.05 * highest or 1.0, padding=0), WHOLE, LOW
    )
    hatch = element(
        "pattern", element("path", class_="hatch", d="M0 6L6 0"), id="hatch", width="6", height="6",
        patternUnits="userSpaceOnUse",
    )  # fmt: skip
    parts = [element("defs", hatch)]
    below = [0.0] * count
    for number, layer in reversed(list(enumerate(power.layers))):
        above = [low + value for low, value in zip(below, layer.watts, strict=True)]
        title = element("title", f"{layer.job} {layer.run}" if layer.run else "no run")
        colour = COLOURS[number % len(COLOURS)] if layer.run else None
        way = _band(made, power.bucket_s, below, above)
        parts.append(element("path", title, class_=None if colour else "free", fill=colour, d=way))
        below = above
    if any(power.saved_w):
        way = _band(made, power.bucket_s, below, tops)
        parts.append(element("path", element("title", "saved"), fill="url(#hatch)", d=way))
    limit = "".join(
        f"M{made.across(at * power.bucket_s):.1f} {made.up(value):.1f}"
        f"H{made.across((at + 1) * power.bucket_s):.1f}"
        for at, value in enumerate(power.limit_w)
        if value is not None
    )
    return drawing(made, alternative, *parts, element("path", class_="limit", d=limit))


def _band(made: ChartFrame, bucket_s: float, below: Sequence[float], above: Sequence[float]) -> str:
    """Return the way around the area between two lines of steps."""
    upper = "".join(
        f"L{made.across(at * bucket_s):.1f} {made.up(value):.1f}H{made.across((at + 1) * bucket_s):.1f}"
        for at, value in enumerate(above)
    )
    lower = "".join(
        f"L{made.across((at + 1) * bucket_s):.1f} {made.up(value):.1f}H{made.across(at * bucket_s):.1f}"
        for at, value in reversed(list(enumerate(below)))
    )
    return f"M{upper[1:]}{lower}Z"


def sparkline(values: Sequence[float]) -> Markup:
    """Return a small line for a cell of a table, from 0 to the highest value."""
    highest = max(values, default=0.0) or 1.0
    points = " ".join(f"{at} {20 - 18 * value / highest:.1f}" for at, value in enumerate(values))
    return element(
        "svg", element("polyline", points=points), viewBox=f"0 0 {max(len(values) - 1, 1)} 20",
        preserveAspectRatio="none", class_="spark", aria_hidden="true",
    )  # fmt: skip
