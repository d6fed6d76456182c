"""A widget of lines. Only rows whose text changed are drawn again: that is what keeps the screen cheap."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from zeus_stream.screens.terminal.figures import Line, Tone, width_of

STYLES: Mapping[Tone, Style] = {
    "plain": Style(),
    "dim": Style(color="#7d8b99"),
    "strong": Style(bold=True),
    "good": Style(color="#7ccf8a"),
    "warn": Style(color="#e5b567"),
    "bad": Style(color="#f07178", bold=True),
    "accent": Style(color="#82aaff"),
    "bar": Style(color="#5fafd7"),
    "track": Style(color="#3f5468"),
}
_SELECTED = Style(bgcolor="#2a3b4d")


class Lines(ScrollView, can_focus=False):
    """Lines under a head that does not scroll. With a cursor, one of them is selected."""

    DEFAULT_CSS = "Lines { overflow-x: hidden; scrollbar-size-vertical: 1; }"

    class Chosen(Message):
        """The selected line was entered."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Selected(Message):
        """Another line was selected."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    BINDINGS: ClassVar[list[BindingType]] = [
        ("up", "move(-1)", "up"),
        ("down", "move(1)", "down"),
        ("k", "move(-1)", "up"),
        ("j", "move(1)", "down"),
        ("pageup", "move(-10)", "up"),
        ("pagedown", "move(10)", "down"),
        ("home", "move(-100000)", "first"),
        ("end", "move(100000)", "last"),
        ("enter", "choose", "run"),
    ]

    def __init__(self, name: str, *, cursor: bool = False) -> None:
        """Begin empty. ``cursor``: a line can be selected; else the arrows scroll."""
        super().__init__(id=name)
        self.can_focus = True
        self._cursor = cursor
        self._head: Line = ()
        self._lines: tuple[Line, ...] = ()
        self._keys: tuple[str, ...] = ()
        self.at = 0
        """The selected line."""
        self.drawn = 0
        """Lines that were drawn: a test looks at it."""

    def show(self, head: Line, lines: Sequence[Line], keys: Sequence[str] = ()) -> None:
        """Show these lines. The selection stays with its key."""
        before, self._lines = self._lines, tuple(lines)
        key = self.key
        self._keys = tuple(keys)
        if key in self._keys and self.key != key:
            self.at = self._keys.index(key)
            before = ()
        self.at = max(0, min(self.at, len(self._lines) - 1))
        if head != self._head or len(before) != len(self._lines):
            self._head = head
            self.virtual_size = Size(
                max(map(width_of, (head, *self._lines)), default=0), self._first + len(lines)
            )
            self.refresh()
            return
        for place, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new:
                self._refresh_row(place)

    @property
    def key(self) -> str:
        """The key of the selected line; empty: there is none."""
        return self._keys[self.at] if self._cursor and self.at < len(self._keys) else ""

    @property
    def _first(self) -> int:
        """Rows above the lines."""
        return 1 if self._head else 0

    def _refresh_row(self, place: int) -> None:
        row = place + self._first - self.scroll_offset.y
        if self._first <= row < self.size.height:
            self.refresh(Region(0, row, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        self.drawn += 1
        width = self.size.width
        if y < self._first:
            return _strip(self._head, width, self.rich_style)
        place = y + self.scroll_offset.y - self._first
        if not 0 <= place < len(self._lines):
            return Strip.blank(width, self.rich_style)
        style = self.rich_style
        if self._cursor and self._keys and place == self.at and self.has_focus:
            style += _SELECTED
        return _strip(self._lines[place], width, style)

    def action_move(self, by: int) -> None:
        """Select another line, or scroll."""
        if not self._cursor:
            self.scroll_relative(y=by, animate=False)
            return
        at = max(0, min(self.at + by, len(self._keys) - 1))
        if at != self.at and self._keys:
            old, self.at = self.at, at
            self._refresh_row(old)
            self._refresh_row(at)
            self.scroll_to_region(Region(0, at, 1, 1 + self._first), animate=False)
            self.post_message(self.Selected(self.key))

    def action_choose(self) -> None:
        """Enter the selected line."""
        if self.key:
            self.post_message(self.Chosen(self.key))

    def on_focus(self) -> None:
        """Show the selection."""
        self._refresh_row(self.at)

    def on_blur(self) -> None:
        """Hide the selection."""
        self._refresh_row(self.at)


def _strip(line: Line, width: int, base: Style) -> Strip:
    segments = [Segment(span.text, base + STYLES[span.tone]) for span in line]
    return Strip(segments).adjust_cell_length(width, base)
