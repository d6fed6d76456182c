"""The application: panels of GPUs, runs and the search, and pages over them."""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol

import anyio
from msgspec.structs import replace
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input

from zeus_stream.errors import ZeusStreamError
from zeus_stream.protocol.snapshots import GapNow, Snapshot
from zeus_stream.screens.terminal.figures import Line, StyledText
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.lines import Lines
from zeus_stream.screens.terminal.panels.columns import SORTS, Looks, Panel
from zeus_stream.screens.terminal.panels.gpu_panel import process_panel
from zeus_stream.screens.terminal.panels.run_page import Details, Row, gaps_page, help_page, run_page
from zeus_stream.screens.terminal.view import view
from zeus_stream.views.site_view import site_of_live

DETAILS_S = 10.0
"""Between two questions to the archive, for the page of a run."""


class Archive(Protocol):
    """Answers what only the archive knows."""

    async def details(self, run: str) -> Details: ...
    async def gaps(self) -> list[GapNow]: ...
    async def power(self) -> list[Row]: ...
    async def price(self) -> tuple[float, str] | None: ...


class Page(Screen[None]):
    """A page over the panels: lines that are made again with each snapshot."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter", "leave", "back")]

    def __init__(self, title: str, lines: Callable[[int], list[Line]]) -> None:
        """Show what ``lines`` returns for a width."""
        super().__init__()
        self._title, self._make = title, lines

    def compose(self) -> ComposeResult:
        yield Lines("page")

    def on_mount(self) -> None:
        page = self.query_one("#page", Lines)
        page.border_title, page.border_subtitle = self._title, "escape: back"
        page.focus()
        self.again()

    def on_resize(self) -> None:
        self.again()

    def again(self) -> None:
        """Make the lines again."""
        page = self.query_one("#page", Lines)
        page.show((), self._make(max(20, self.app.size.width - 5)))

    def action_leave(self) -> None:
        self.dismiss()


class TopApp(App[None]):
    """The screen of ``zeus-stream top``."""

    CSS = """
    Screen { background: $background; }
    #head, #foot { height: auto; scrollbar-size-vertical: 0; overflow-y: hidden; }
    #foot { height: 1; dock: bottom; }
    #gpus, #runs, #search, #power, #page { border: round #3f5468; border-title-color: #9fb3c8; padding: 0 1; }
    #gpus:focus, #runs:focus, #page:focus { border: round #82aaff; }
    #page { height: 1fr; border-subtitle-color: #7d8b99; }
    #below { height: auto; layout: vertical; }
    #below.wide { layout: horizontal; }
    #below.wide #runs { width: 62%; }
    #below.wide #search { width: 1fr; }
    #words { display: none; dock: bottom; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        ("slash", "filter", "filter"),
        ("s", "sort", "sort"),
        ("w", "unit", "unit"),
        ("u", "processes", "users"),
        ("g", "gaps", "gaps"),
        ("p", "pause", "pause"),
        ("question_mark", "help", "help"),
        ("escape", "clear", "clear"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, look: Callable[[], Awaitable[Snapshot]], archive: Archive, first: Snapshot, every_s: float
    ) -> None:
        """``look`` returns the next snapshot, each ``every_s``, or raises ZeusStreamError."""
        super().__init__()
        self._look, self._archive, self._every_s = look, archive, every_s
        self._snapshot, self._shown = first, first
        self._history = History()
        self._history.remember(first)
        self._looks = Looks()
        self._details = Details()

    def compose(self) -> ComposeResult:
        yield Lines("head")
        yield Lines("gpus")
        with Container(id="below"):
            yield Lines("runs", cursor=True)
            yield Lines("search")
        yield Lines("power")
        yield Input(
            placeholder="words that a row has to have; enter keeps them, escape clears them", id="words"
        )
        yield Lines("foot")

    def on_mount(self) -> None:
        for still in ("head", "foot", "search", "power"):
            self.query_one(f"#{still}", Lines).can_focus = False
        self.query_one("#runs", Lines).focus()
        self.again()
        self.run_worker(self._follow(), exclusive=True, name="follow")

    async def _follow(self) -> None:
        """Look again and again. An answer that does not come makes what is shown old."""
        self._history.fill(await self._archive.power(), self._snapshot)
        self.again()
        while True:
            await anyio.sleep(self._every_s)
            try:
                self._snapshot = await self._look()
            except ZeusStreamError as wrong:
                self._looks = replace(self._looks, trouble=str(wrong))
            else:
                self._history.remember(self._snapshot)
                self._looks = replace(self._looks, trouble="")
                if not self._looks.paused:
                    self._shown = self._snapshot
            self.again()

    # ---- drawing

    def on_resize(self, _event: Resize) -> None:
        self.again()

    def again(self) -> None:
        """Show the snapshot as it is wanted now."""
        if not self.screen_stack:
            return  # it is ending
        if isinstance(self.screen, Page):
            self.screen.again()
            return
        if not self.screen.is_mounted or not self.query("#foot"):
            return
        width, height = self.size
        if run := self.query_one("#runs", Lines).key:  # what is selected is what is shown
            self._looks = replace(self._looks, run=run)
        shown = view(self._shown, self._history, width, self._looks, height)
        head, power = self.query_one("#head", Lines), self.query_one("#power", Lines)
        _set_height(head, len(shown.head))
        head.show((), shown.head)
        self.query_one("#below").set_class(shown.side_by_side, "wide")
        panels = (("#gpus", shown.gpus), ("#runs", shown.runs), ("#search", shown.search))
        for (name, panel), rows in zip(panels, shown.heights, strict=True):
            lines = self.query_one(name, Lines)
            lines.display = rows > 0
            _set_height(lines, rows)
            self._show(lines, panel)
        power.display = shown.power is not None
        if shown.power is not None:
            _set_height(power, len(shown.power.lines) + 2)
            self._show(power, shown.power)
        self.query_one("#foot", Lines).show((), (shown.foot,))

    def _show(self, lines: Lines, panel: Panel) -> None:
        if lines.border_title != panel.title:
            lines.border_title = panel.title
        lines.show(panel.head, panel.lines, panel.keys)

    # ---- keys

    def _change(self, looks: Looks) -> None:
        self._looks = looks
        self.again()

    def action_sort(self) -> None:
        """Sort GPUs by the next of `SORTS`."""
        at = SORTS.index(self._looks.sort)
        self._change(replace(self._looks, sort=SORTS[(at + 1) % len(SORTS)]))

    async def action_unit(self) -> None:
        """Show power, energy, or what it costs if a price is known."""
        match self._looks.unit:
            case "W":
                self._change(replace(self._looks, unit="J"))
            case "J" if (price := await self._archive.price()) is not None:
                self._change(replace(self._looks, unit="price", price=price))
            case _:
                self._change(replace(self._looks, unit="W"))

    def action_pause(self) -> None:
        """Hold the screen, or let it go on."""
        self._shown = self._snapshot
        self._change(replace(self._looks, paused=not self._looks.paused))

    def action_filter(self) -> None:
        """Ask for the words that rows have to have."""
        words = self.query_one("#words", Input)
        words.display = True
        words.value = self._looks.words
        words.focus()

    def action_clear(self) -> None:
        """Show all rows again."""
        self._end_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        if event.input.display:
            self._change(replace(self._looks, words=event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        self._end_filter(event.value)

    def _end_filter(self, words: str) -> None:
        box = self.query_one("#words", Input)
        box.display = False
        self.query_one("#runs", Lines).focus()
        self._change(replace(self._looks, words=words))

    def on_lines_selected(self, event: Lines.Selected) -> None:
        """Show the search of the selected run."""
        self._change(replace(self._looks, run=event.key))

    # ---- pages

    def on_lines_chosen(self, event: Lines.Chosen) -> None:
        """Open the page of a run."""
        name, self._details = event.key, Details()

        def lines(width: int) -> list[Line]:
            run = next((run for run in site_of_live(self._shown).runs if run.run == name), None)
            return [] if run is None else run_page(run, self._history, width, self._details)

        page = Page(name, lines)
        self.push_screen(page)
        self.run_worker(self._fetch(name, page), exclusive=True, group="details")

    async def _fetch(self, run: str, page: Page) -> None:
        """Ask the archive for what the page of a run shows, while it is open."""
        while not page.is_mounted or page.is_current:
            self._details = await self._archive.details(run)
            if page.is_mounted:
                page.again()
            await anyio.sleep(DETAILS_S)

    def action_processes(self) -> None:
        """Open the page of the processes on the GPUs."""

        def lines(width: int) -> list[Line]:
            panel = process_panel(site_of_live(self._shown), width, self._looks)
            nothing = (StyledText("No process is known to compute on a GPU.", "dim"),)
            return [panel.head, *panel.lines] if panel.lines else [nothing]

        self.push_screen(Page("processes on the GPUs", lines))

    def action_gaps(self) -> None:
        """Open the page of what is missing."""
        stored: list[GapNow] = []
        page = Page("what is missing", lambda width: gaps_page(site_of_live(self._snapshot), stored, width))
        self.push_screen(page)

        async def fetch() -> None:
            stored[:] = await self._archive.gaps()
            page.again()

        self.run_worker(fetch(), exclusive=True, group="details")

    def action_help(self) -> None:
        """Open the page of keys and words."""
        self.push_screen(Page("help", help_page))


def _set_height(lines: Lines, rows: int) -> None:
    """Give a widget its height; the screen is laid out again only where it is another."""
    if lines.styles.height is None or lines.styles.height.value != rows:
        lines.styles.height = rows
