"""Bars for the cells of a table. Pure."""

from zeus_stream.screens.html.elements import Markup, element


def bar(share: float) -> Markup:
    """Return a bar for a cell of a table; ``share`` is of the longest one, 0 to 1."""
    return element(
        "svg", element("rect", class_="track", width="100", height="8"),
        element("rect", width=f"{100 * min(max(share, 0), 1):.2f}", height="8"),
        viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true",
    )  # fmt: skip
