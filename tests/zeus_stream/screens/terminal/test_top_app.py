"""The live screen, driven by keys: what it shows, what it draws again, and what it does without an answer."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from tests.zeus_stream.screens.live_snapshots import PROCESS, SNAPSHOT, a_gpu, a_run
from tests.zeus_stream.screens.terminal.pictures import FOLDER, MOVING, SIZES, moving, picture
from zeus_stream.errors import UnreachableError
from zeus_stream.protocol.snapshots import GapNow, Snapshot
from zeus_stream.screens.terminal.lines import Lines
from zeus_stream.screens.terminal.panels.run_page import Details, Row
from zeus_stream.screens.terminal.top_app import Page, TopApp
from zeus_stream.views.run_view import run_of_live
from zeus_stream.views.saving import saving_of_row
from zeus_stream.views.waste import waste_parts

pytestmark = pytest.mark.anyio
SAVING = {
    "run": "asr-9a73", "power_limit_w": 175.0, "default_limit_w": 250.0, "applied": True,
    "reason": "its energy is least", "trials_run": "asr-9a73", "steps_at_limit": 18_000, "saved_j": 412_000.0,
    "energy_saved_percent": 17.4, "energy_saved_low_percent": 16.8, "energy_saved_high_percent": 17.9,
    "time_added_percent": 1.2, "time_added_low_percent": None, "time_added_high_percent": None,
}  # fmt: skip
WINDOWS = [{"name": "validation", "count": 12, "energy_j": 437.0, "duration_s": 2.8}]
WASTE = waste_parts([{"cause": "profiling", "energy_j": 449.0, "duration_s": 3.0, "share": 0.02}])
STORED = replace(run_of_live(SNAPSHOT.runs[1], SNAPSHOT.wall_ns), saving=saving_of_row(SAVING), waste=WASTE)
GAP = GapNow(host="node2", what="readings", count=3, reason="the driver hung")


class Service:
    """An analyzer whose answers a test chooses."""

    def __init__(self, before: Sequence[Row]) -> None:
        self.snapshot = SNAPSHOT
        self.before = list(before)
        self.answers = True
        self.looks = 0
        self.kwh: tuple[float, str] | None = None

    async def look(self) -> Snapshot:
        """Return the snapshot that the test chose."""
        self.looks += 1
        if not self.answers:
            raise UnreachableError("analyzer: did not answer at query: none runs there, or it hangs.")
        return self.snapshot

    async def details(self, run: str) -> Details:
        """Return what an archive would know."""
        return (
            Details(STORED, windows=WINDOWS)
            if run == "asr-9a73"
            else Details(trouble="query: it took over 5 s.")
        )

    async def power(self) -> list[Row]:
        """Return the power of before the screen was opened."""
        return self.before

    async def gaps(self) -> list[GapNow]:
        """Return one gap."""
        return [GAP]

    async def price(self) -> tuple[float, str] | None:
        """Return the price that the test chose."""
        return self.kwh


@asynccontextmanager
async def top(
    size: tuple[int, int] = (160, 40), every_s: float = 60.0, before: Sequence[Row] = ()
) -> AsyncIterator[tuple[TopApp, "Pilot[None]", Service]]:
    service = Service(before)
    app = TopApp(service.look, service, SNAPSHOT, every_s)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot, service


def text(app: TopApp) -> str:
    """Return what is on the screen now."""
    width, height = app.size
    return "\n".join(
        "".join(segment.text for segment in strip).rstrip()
        for strip in app.screen._compositor.render_strips()[:height]
        if width
    )


async def until(app: TopApp, pilot: "Pilot[None]", words: str) -> None:
    """Wait until the screen has these words."""
    for _ in range(1000):
        if words in text(app):
            return
        await pilot.pause(0.01)
    raise AssertionError(f"not on the screen: {words}\n{text(app)}")


@pytest.mark.parametrize("width", [70, 80, 120, 200])
async def test_gpus_runs_and_search_are_there_at_every_width(width: int) -> None:
    async with top((width, 40)) as (app, _, _service):
        shown = text(app)
    for words in (
        "zeus-stream",
        "7 GPUs",
        "175<250",
        "no reading for 3.1 s",
        "llama-sft",
        "trial 4 of 7: 175 W",
        "q quit",
    ):
        assert words in shown
    assert "measuring 175 W, 31 of 40 steps" in shown


async def test_a_terminal_that_changes_its_size_is_filled_again() -> None:
    async with top((200, 40)) as (app, pilot, _):
        for width in (70, 120, 80, 200):
            await pilot.resize_terminal(width, 30)
            await pilot.pause()
            assert max(map(len, text(app).splitlines())) == width
            assert "trial 4 of 7" in text(app)


async def test_keys_sort_change_the_unit_filter_and_pause() -> None:
    async with top() as (app, pilot, service):
        await pilot.press("s")
        assert "7 GPUs, by power" in text(app)
        await pilot.press("w")
        assert "123.5 kJ" in text(app)
        await pilot.press("w")
        assert "123.5 kJ" not in text(app), "no price is known: power again"
        service.kwh = (0.30, "EUR")
        await pilot.press("w", "w")
        assert " EUR " in text(app)
        assert "0.010" in text(app)
        await pilot.press("w")
        assert " EUR " not in text(app)
        await pilot.press("slash", *"node1")
        assert "4 of 7 GPUs" in text(app)
        await pilot.press("enter")
        assert not app.query_one("#words", Input).display
        assert "only rows with: node1" in text(app)
        await pilot.press("escape")
        assert "7 GPUs" in text(app)
        await pilot.press("p")
        assert "paused" in text(app)


async def test_the_selected_run_has_its_search_shown_and_its_page() -> None:
    async with top() as (app, pilot, _):
        assert "search: llama-sft" in text(app)
        await pilot.press("down")
        assert "search: asr" in text(app)
        assert "its energy is least" in text(app)
        await pilot.press("enter")
        await until(app, pilot, "17.4 % (95 %: 16.8 to 17.9)")
        shown = text(app)
        for words in ("asr  run asr-9a73", "validation", "profiling", "2.0 %", "0 W"):
            assert words in shown
        await pilot.press("escape")
        await until(app, pilot, "search: asr")


async def test_a_page_says_what_the_archive_did_not_answer() -> None:
    async with top() as (app, pilot, _):
        await pilot.press("enter")
        await until(app, pilot, "query: it took over 5 s.")


async def test_what_is_missing_is_shown_with_its_cure() -> None:
    async with top() as (app, pilot, _):
        await pilot.press("g")
        await until(app, pilot, "the driver hung")
        assert "3 readings" in text(app)
        assert "Give the collector a processor of its own" in text(app)
        await pilot.press("escape")
        await until(app, pilot, "7 GPUs")


async def test_the_processes_of_gpus_have_a_page() -> None:
    async with top(every_s=0.05) as (app, pilot, service):
        await pilot.press("u")
        await until(app, pilot, "No process is known to compute on a GPU.")
        service.snapshot = replace(SNAPSHOT, gpus=(a_gpu(0, processes=(PROCESS,)),))
        await until(app, pilot, "python train.py")
        assert "anna" in text(app)
        await pilot.press("escape")
        await until(app, pilot, "1 GPU")


async def test_help_explains_the_keys_and_q_ends_from_its_page() -> None:
    async with top() as (app, pilot, _):
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        assert "the limit in force is 175 W" in text(app)
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running
    assert app.return_code == 0


async def test_the_power_of_before_it_was_opened_is_drawn() -> None:
    now_s = SNAPSHOT.wall_ns // 10**9
    gpus = SNAPSHOT.runs[1].gpus
    before = [{"gpu": gpu, "at_s": now_s - ago, "watts": 100.0} for ago in range(200, 1, -1) for gpu in gpus]
    async with top(before=before) as (app, pilot, _):
        await pilot.press("down")
        await until(app, pilot, "last 4.0 min, 200 to")


async def test_a_low_terminal_has_a_line_a_run_with_its_saving() -> None:
    async with top((60, 12)) as (app, _, _service):
        shown = text(app)
    assert "17.4 %" in shown
    assert "llama-sft" in shown
    assert "175<250" not in shown


async def test_an_analyzer_that_goes_and_comes_back_is_followed() -> None:
    async with top(every_s=0.02) as (app, pilot, service):
        service.answers = False
        await until(app, pilot, "analyzer: did not answer")
        assert "asr" in text(app), "what was known is still there"
        service.answers = True
        service.snapshot = replace(SNAPSHOT, runs=(a_run("new", job="another"),))
        await until(app, pilot, "another")
        assert "did not answer" not in text(app)


async def test_a_run_that_ends_leaves_the_selection_in_bounds() -> None:
    async with top(every_s=0.1) as (app, pilot, service):
        await pilot.press("down")
        service.snapshot = replace(SNAPSHOT, runs=())
        await until(app, pilot, "No run is open")
        await pilot.press("down", "enter", "up")
        assert not isinstance(app.screen, Page)


async def test_only_rows_that_changed_are_drawn_again() -> None:
    async with top(every_s=0.02) as (app, pilot, service):
        gpus = app.query_one("#gpus", Lines)
        looks = service.looks
        before = gpus.drawn
        while service.looks < looks + 10:
            await pilot.pause(0.01)
        assert gpus.drawn == before, "nothing has changed"
        changed = (a_gpu(0, power_mw=99_000, run="asr-9a73"), *SNAPSHOT.gpus[1:])
        service.snapshot = replace(SNAPSHOT, gpus=changed)
        await until(app, pilot, " 99 ")
        assert 1 <= gpus.drawn - before <= 4


@pytest.mark.parametrize("name", [*SIZES, MOVING])
async def test_the_pictures_in_the_docs_are_of_this_screen(name: str) -> None:
    made = await (moving() if name == MOVING else picture(SIZES[name]))
    shown = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert shown == made, "Make them again: python -m tests.zeus_stream.screens.terminal.pictures"
    assert "http" not in made.replace("http://www.w3.org/", "")
