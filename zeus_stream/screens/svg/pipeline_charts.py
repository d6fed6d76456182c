"""The chart of a pipeline: instructions of an iteration as bars, a lane a stage. Pure."""

from collections.abc import Sequence
from colorsys import hls_to_rgb

from msgspec import Struct

from zeus_stream.screens.html.elements import Markup, element
from zeus_stream.screens.svg.axes import Axis, drawing, frame

WIDE = 760
LANE, GAP = 26, 8
"""Height of a stage, and the distance to the next, in units of the drawing."""
MARGINS = 48
LETTER = 5.6
"""Mean width of a letter in a bar."""
HUES = (212, 22)
"""Of the lowest clock and of the highest: blue to orange, which all eyes tell apart."""


class Bar(Struct, frozen=True, kw_only=True):
    """One instruction."""

    stage: int
    begin_s: float
    duration_s: float
    kind: str
    micro_batch: int
    clock_mhz: int


def clock_colour(clock_mhz: int, low_mhz: int, high_mhz: int) -> str:
    """Return the colour of a clock between the lowest and the highest of a drawing."""
    share = (clock_mhz - low_mhz) / (high_mhz - low_mhz) if high_mhz > low_mhz else 1.0
    extreme = abs(2 * share - 1)
    hue = HUES[0] if share < 0.5 else HUES[1]
    parts = hls_to_rgb(hue / 360, 0.78 - 0.26 * extreme, 0.2 + 0.65 * extreme)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def bubble_chart(bars: Sequence[Bar], end_s: float, clocks_mhz: tuple[int, int], alternative: str) -> Markup:
    """Return the instructions of one iteration as bars, a lane for each stage; gaps are waiting.

    ``end_s``: of the drawing: two of the same end compare. ``clocks_mhz``: lowest and highest, for colours.
    """
    stages = sorted({bar.stage for bar in bars})
    height = MARGINS + len(stages) * (LANE + GAP)
    ticks = tuple((float(-index) - 0.5, f"stage {stage}") for index, stage in enumerate(stages))
    made = frame(
        Axis("time in the iteration, s", 0.0, end_s, padding=0.0),
        Axis("", float(-len(stages)), 0.0, ticks=ticks, padding=0.0), WIDE, height,
    )  # fmt: skip
    lane = {stage: made.up(-index - 0.5) - LANE / 2 for index, stage in enumerate(stages)}
    parts = []
    for bar in bars:
        left, right = made.across(bar.begin_s), made.across(bar.begin_s + bar.duration_s)
        y = lane[bar.stage]
        title = (
            f"{bar.kind} {bar.micro_batch} on stage {bar.stage}: {1000 * bar.duration_s:.4g} ms at"
            f" {bar.clock_mhz} MHz"
        )
        shape = element(
            "rect", element("title", title), x=f"{left:.2f}", y=f"{y:.1f}",
            width=f"{max(right - left - 0.6, 0.4):.2f}", height=f"{LANE}", rx="2",
            fill=clock_colour(bar.clock_mhz, *clocks_mhz),
            stroke="#5a6472" if bar.kind == "forward" else "none", stroke_width="0.7",
        )  # fmt: skip
        parts.append(shape)
        text = f"{bar.kind[0].upper()}{bar.micro_batch}"
        if right - left > LETTER * len(text) + 3:
            parts.append(
                element(
                    "text", text, class_="inside", x=f"{(left + right) / 2:.1f}", text_anchor="middle",
                    y=f"{y + LANE / 2 + 3.5:.1f}",
                )
            )  # fmt: skip
    for number, clock_mhz in enumerate(dict.fromkeys(clocks_mhz)):
        x = made.left + 96 * number
        colour = clock_colour(clock_mhz, *clocks_mhz)
        swatch = {"x": f"{x:.1f}", "y": f"{height - 12}", "width": "14", "height": "9", "rx": "2"}
        parts.append(element("rect", fill=colour, **swatch))
        words = f"{clock_mhz} MHz"
        parts.append(element("text", words, class_="tick", x=f"{x + 19:.1f}", y=f"{height - 4}"))
    return drawing(made, alternative, *parts)
