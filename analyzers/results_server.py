"""Hand out stored results to those who follow them: pages of the feed, on the query socket.

A reader asks for the page after its last one, and waits a while if there is none. So each reader has its own
pace, and a slow one costs the analyzer nothing: it learns how many results are kept no longer.
"""

from collections.abc import Callable, Sequence

import anyio
from anyio.to_thread import run_sync

from analyzers.results.feed import MAX_RESULTS, Page, Place, ResultsFeed
from analyzers.results.windows.step_columns import Derived
from zeus_stream.protocol import codec
from zeus_stream.protocol.queries import AskResults, No, ResultsPage

MAX_READERS = 64
"""Readers that wait for results; one more is refused."""


class ResultsServer:
    """The results of one analyzer, and those who wait for more. For one event loop."""

    def __init__(self, name: str, room: int = MAX_RESULTS) -> None:
        """``name``: of this start of the analyzer. ``room``: results to keep."""
        self._feed = ResultsFeed(name, room)
        self._stored = anyio.Event()
        self._encoders = anyio.CapacityLimiter(1)
        self.readers = 0
        """Readers that wait."""
        self.missed = 0
        """Results that readers were too slow for."""

    def publish(self, rows: Sequence[Derived], *, replayed: bool) -> None:
        """Take in rows that were stored. Never waits."""
        if rows:
            self._feed.add(rows, replayed=replayed)
            self._stored.set()
            self._stored = anyio.Event()

    def status(self) -> list[tuple[str, str, str]]:
        """Return rows of the status."""
        kept = self._feed.end - self._feed.oldest
        return [
            ("results", "stored", str(self._feed.end)),
            ("results", "kept for readers", str(kept)),
            ("results", "readers", str(self.readers)),
            ("results", "missed by slow readers", str(self.missed)),
        ]

    async def answer(self, asked: AskResults, reply: Callable[..., None]) -> None:
        """Send the page that a reader asks for, once there is one or its wait is over."""
        if self.readers >= MAX_READERS:
            reply(
                No(
                    f"results: could not be followed: {MAX_READERS} readers wait already."
                    " End one of them, or ask again later."
                )
            )
            return
        self.readers += 1
        try:
            page = await self._next_page(asked)
            rows = page.rows
            encoded = await run_sync(codec.encode_records, rows, limiter=self._encoders)
            while len(encoded) > codec.MAX_BYTES:
                rows = rows[: len(rows) // 2]
                encoded = await run_sync(codec.encode_records, rows, limiter=self._encoders)
        finally:
            self.readers -= 1
        self.missed += page.missed or 0
        head = ResultsPage(
            feed=page.feed,
            first=page.first,
            next=page.first + len(rows),
            missed=page.missed,
            replayed=page.replayed,
        )
        reply(head, encoded)

    async def _next_page(self, asked: AskResults) -> Page:
        if asked.feed is None or asked.after is None:
            place = self._feed.begin(newest=asked.newest)
        else:
            place = Place(asked.feed, asked.after)
        with anyio.move_on_after(asked.wait_ms / 1000):
            while not (page := self._feed.page(place)).rows and page.missed == 0:
                await self._stored.wait()
        return self._feed.page(place)
