"""Make the pictures of the screen in the docs: ``python -m tests.zeus_stream.screens.terminal.pictures``."""

import asyncio
import re
from pathlib import Path

from tests.zeus_stream.screens.live_snapshots import SNAPSHOT, history_of
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.run_page import Details, Row
from zeus_stream.screens.terminal.top_app import TopApp

FOLDER = Path(__file__).parents[4] / "docs" / "images"
SIZES = {"top-160": (160, 33), "top-80": (80, 33)}
"""Columns and rows of each picture."""


class NoArchive:
    """An archive that knows nothing."""

    async def details(self, run: str) -> Details:
        """Return nothing about a run."""
        return Details(trouble=f"{run}: nothing is known.")

    async def gaps(self) -> list[Row]:
        """Return no gap."""
        return []

    async def price(self) -> None:
        """Return no price."""


class StillApp(TopApp):
    """The screen at one instant, with minutes of history."""

    def __init__(self, history: History) -> None:
        async def look() -> Snapshot:
            return SNAPSHOT

        super().__init__(look, NoArchive(), SNAPSHOT, 60.0)
        self._history = history


async def picture(size: tuple[int, int]) -> str:
    """Return the screen of this size as SVG, with no font from elsewhere."""
    app = StillApp(history_of(SNAPSHOT))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        svg = app.export_screenshot(title="zeus-stream top")
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;]*;", "font-family: monospace;", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main() -> None:
    """Write all pictures."""
    for name, size in SIZES.items():
        (FOLDER / f"{name}.svg").write_text(asyncio.run(picture(size)), encoding="utf-8")


if __name__ == "__main__":
    main()
