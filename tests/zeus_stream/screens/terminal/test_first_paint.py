"""The first screen, drawn before Textual is imported: it is the screen that Textual draws after it."""

import re
import subprocess
import sys

import pytest
from textual.strip import Strip

from tests.zeus_stream.screens.live_snapshots import SNAPSHOT
from tests.zeus_stream.screens.terminal.pictures import NoArchive
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.terminal.figures import width_of
from zeus_stream.screens.terminal.first_paint import painted, screen_rows
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.top_app import TopApp
from zeus_stream.screens.terminal.view import View, view

SIZES = [(160, 45), (118, 40), (80, 33), (60, 20), (30, 12)]


def shown_at(width: int, height: int) -> View:
    history = History()
    history.remember(SNAPSHOT)
    return view(SNAPSHOT, history, width, height=height)


@pytest.mark.anyio
@pytest.mark.parametrize("size", SIZES[:3])
async def test_textual_draws_the_same_text_over_it(size: tuple[int, int]) -> None:
    async def look() -> Snapshot:
        return SNAPSHOT

    first = ["".join(span.text for span in row).rstrip() for row in screen_rows(shown_at(*size), *size)]
    app = TopApp(look, NoArchive(), SNAPSHOT, 60.0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        strips: list[Strip] = app.screen._compositor.render_strips(app.size)
    assert first == [strip.text.rstrip() for strip in strips]


@pytest.mark.parametrize("size", SIZES)
def test_it_fills_the_screen_and_no_more(size: tuple[int, int]) -> None:
    rows = screen_rows(shown_at(*size), *size)
    assert len(rows) == size[1]
    assert max(map(width_of, rows)) <= size[0]
    text = painted(shown_at(*size), *size, colours=False)
    assert re.findall(r"\x1b\[(\d+);1H", text) == [str(place) for place in range(1, size[1] + 1)]
    assert "\x1b[38;2" not in text
    assert "\x1b[38;2" in painted(shown_at(*size), *size, colours=True)


def test_it_needs_neither_textual_nor_the_console_of_rich() -> None:
    script = (
        "import sys, zeus_stream.cli.screens.top, zeus_stream.live.source, zeus_stream.screens.terminal.view;"
        "import zeus_stream.screens.terminal.first_paint;"
        "print({'textual', 'rich.console', 'duckdb', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
