"""The newest results, numbered, in bounded memory. Pure.

    add(rows) -> kept until there are more than ``room``      page(place) -> what comes next there

A result is a row that the archive has stored. Numbers begin with 0 at each start of the analyzer and have no
holes. A slow reader learns how many results it missed. No reader slows the analyzer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from analyzers.results.rows import CheckpointRow, Derived, Row, StepColumns, each_row

MAX_RESULTS = 20_000
"""Kept. About a minute of a busy site, and 15 MB."""
MAX_PAGE = 200
"""Results of a page."""


class Place(Struct, frozen=True):
    """Where a reader goes on."""

    feed: str
    number: int


class FeedPage(Struct, frozen=True, kw_only=True):
    """Results that follow each other."""

    feed: str
    first: int
    rows: tuple[Row, ...]
    missed: int | None
    """Results before ``first`` that the reader did not get. None: of another start of the analyzer, so it is
    not known."""
    replayed: bool
    """Derived again after a start of the analyzer: they may have been handed out before."""

    @property
    def next(self) -> Place:
        """Return the place after the page."""
        return Place(self.feed, self.first + len(self.rows))


class _Chunk(Struct):
    first: int
    replayed: bool
    rows: list[Row] | StepColumns
    """Columns are made rows when a reader asks for them."""


class ResultsFeed:
    """The results that are kept. For one thread."""

    def __init__(self, name: str, room: int = MAX_RESULTS) -> None:
        """``name``: another one at each start of the analyzer."""
        self.name = name
        self.end = 0
        """Number of the next result."""
        self._room = room
        self._chunks: list[_Chunk] = []

    @property
    def oldest(self) -> int:
        """Return the number of the oldest result that is kept."""
        return self._chunks[0].first if self._chunks else self.end

    def add(self, rows: Sequence[Derived], *, replayed: bool) -> None:
        """Take in what was stored, without checkpoints; let go of the oldest where there is no room."""
        for row in rows:
            if isinstance(row, CheckpointRow):
                continue
            last = self._chunks[-1].rows if self._chunks and self._chunks[-1].replayed == replayed else None
            if isinstance(row, StepColumns):
                self._chunks.append(_Chunk(self.end, replayed, row))
            elif isinstance(last, list) and len(last) < MAX_PAGE:
                last.append(row)
            else:
                self._chunks.append(_Chunk(self.end, replayed, [row]))
            self.end += len(row) if isinstance(row, StepColumns) else 1
        while self.end - self.oldest > self._room:
            del self._chunks[0]

    def begin(self, *, newest: bool) -> Place:
        """Return the place of a reader that has none: after all results, or at the oldest one."""
        return Place(self.name, self.end if newest else self.oldest)

    def page(self, place: Place) -> FeedPage:
        """Return what comes next at a place: nothing, if it is at the end."""
        known = place.feed == self.name and place.number <= self.end
        at = max(place.number, self.oldest) if known else self.oldest
        missed = at - place.number if known else None
        which = bisect_right(self._chunks, at, key=lambda chunk: chunk.first) - 1
        if at >= self.end or which < 0:
            return FeedPage(feed=self.name, first=at, rows=(), missed=missed, replayed=False)
        chunk = self._chunks[which]
        begin = at - chunk.first
        stored = [chunk.rows] if isinstance(chunk.rows, StepColumns) else chunk.rows
        rows = tuple(islice(each_row(stored), begin, begin + MAX_PAGE))
        return FeedPage(feed=self.name, first=at, rows=rows, missed=missed, replayed=chunk.replayed)
