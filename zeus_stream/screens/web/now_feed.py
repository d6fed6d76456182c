"""The live state for all viewers: one poll a second, none without viewers."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from msgspec import Struct, field

from zeus_stream.errors import ZeusStreamError
from zeus_stream.protocol.snapshots import Snapshot

EVERY_S = 1.0


class Update(Struct, frozen=True):
    """The newest state, or why there is none; and how many updates this viewer missed before it."""

    now: Snapshot | None
    trouble: str | None
    skipped: int


class _Viewer(Struct, eq=False):
    waiting: anyio.Event = field(default_factory=anyio.Event)
    seen: int = 0


class NowFeed:
    """Polls while somebody watches. A slow viewer gets the newest state, never a queue of old ones."""

    def __init__(self, ask: Callable[[], Awaitable[Snapshot]], every_s: float = EVERY_S) -> None:
        self._ask = ask
        self._every_s = every_s
        self._viewers: set[_Viewer] = set()
        self._watched = anyio.Event()
        self._number = 0
        self._latest: tuple[Snapshot | None, str | None] = None, None
        self._closing = anyio.Event()
        self.polls = 0
        self.wall_ns = 0
        """Of the latest answer, UTC; 0: there is none yet."""

    @property
    def viewers(self) -> int:
        """Return the number of open streams."""
        return len(self._viewers)

    async def run(self) -> None:
        """Poll until the feed is closed."""
        while not self._closing.is_set():
            if not self._viewers:
                self._watched = anyio.Event()
                await self._watched.wait()
                continue
            await self._poll()
            with anyio.move_on_after(self._every_s):
                await self._closing.wait()

    async def ask_once(self) -> Snapshot:
        """Return the state now. Raises ZeusStreamError."""
        snapshot = await self._ask()
        self.wall_ns = snapshot.wall_ns
        return snapshot

    async def _poll(self) -> None:
        self.polls += 1
        try:
            self._latest = await self.ask_once(), None
        except ZeusStreamError as wrong:
            self._latest = None, str(wrong)
        self._number += 1
        for viewer in self._viewers:
            viewer.waiting.set()

    def close(self) -> None:
        """End all streams: a server with open ones would wait for them."""
        self._closing.set()
        self._watched.set()
        for viewer in self._viewers:
            viewer.waiting.set()

    async def watch(self) -> AsyncIterator[Update]:
        """Yield each state, beginning with the latest, until the feed is closed."""
        viewer = _Viewer(seen=self._number)
        self._viewers.add(viewer)
        self._watched.set()
        try:
            while True:
                await viewer.waiting.wait()
                if self._closing.is_set():
                    return
                viewer.waiting = anyio.Event()
                skipped = self._number - viewer.seen - 1
                viewer.seen = self._number
                yield Update(*self._latest, skipped)
        finally:
            self._viewers.discard(viewer)
