"""Bars for the cells of a table, and strips of cells. Pure."""

from collections.abc import Sequence

from zeus_stream.screens.html.elements import Markup, element


def bar(share: float) -> Markup:
    """Return a bar for a cell of a table; ``share`` is of the longest one, 0 to 1."""
    return element(
        "svg", element("rect", class_="track", width="100", height="8"),
        element("rect", width=f"{100 * min(max(share, 0), 1):.2f}", height="8"),
        viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true",
    )  # fmt: skip


CELL = 16
"""Side of a cell of a strip with the space after it."""
LONG = 32
"""Cells in one line."""
SHADES = ("#dbe7f0", "#a9c8e0", "#6ea3cb", "#2f7db3", "#00558a")
"""From nothing to the limit: one hue from light to dark, which all eyes order."""


def strip(cells: Sequence[tuple[float | None, str, str]], alternative: str) -> Markup:
    """Return cells in lines of `LONG`: share, 0 to 1 or None, title, and mark, empty for a usual one."""
    parts: list[Markup] = []
    for number, (share, title, mark) in enumerate(cells):
        x, y = CELL * (number % LONG) + 1, CELL * (number // LONG) + 1
        shade = None if share is None else SHADES[min(int(max(share, 0) * len(SHADES)), len(SHADES) - 1)]
        kinds = ("" if shade else "free", "odd" if mark else "")
        place = {"x": str(x), "y": str(y), "width": "14", "height": "14", "rx": "2"}
        named = element("title", title)
        parts.append(element("rect", named, fill=shade, class_=" ".join(kinds).strip() or None, **place))
        if mark:
            place = {"x": f"{x + 7}", "y": f"{y + 11}", "text_anchor": "middle"}
            parts.append(element("text", mark, class_="dark" if share and share > 0.5 else None, **place))
    width, height = CELL * min(len(cells), LONG), CELL * -(-len(cells) // LONG)
    return element(
        "svg", parts, viewBox=f"0 0 {width} {height}", class_="strip", role="img", aria_label=alternative,
        width=str(width),
    )  # fmt: skip
