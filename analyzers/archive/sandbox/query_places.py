"""The places of queries that are answered at once, and who gets the next: nobody's queries keep others out.

Of those who wait, the user with the fewest queries under way is next; of one user's, the process with the
fewest; then the oldest. A user who has none under way has a place more than the others.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

GUESTS = 1
"""Places more, for users who have no query under way."""


class Asker(NamedTuple):
    """The sender of a query."""

    user: str | int | None
    """The name of its key, or its uid."""
    pid: int | None


class QueryPlaces:
    """Places of queries."""

    def __init__(self, places: int) -> None:
        """``places``: without those of guests."""
        self._left = places
        self._of_user: Counter[str | int | None] = Counter()
        self._of: Counter[Asker] = Counter()
        self._waiting: dict[anyio.Event, Asker] = {}

    @asynccontextmanager
    async def take(self, asker: Asker) -> AsyncIterator[None]:
        """Wait for a place; it is given back at the end."""
        place = anyio.Event()
        self._waiting[place] = asker
        self._give()
        try:
            await place.wait()
            yield
        finally:
            if self._waiting.pop(place, None) is None:  # it was given
                self._count(asker, -1)
            self._give()

    def _give(self) -> None:
        while self._waiting:
            place, asker = min(self._waiting.items(), key=self._order)
            if self._left <= (0 if self._of_user[asker.user] else -GUESTS):
                return
            del self._waiting[place]
            self._count(asker, 1)
            place.set()

    def _order(self, waiting: tuple[anyio.Event, Asker]) -> tuple[int, int]:
        _, asker = waiting
        return self._of_user[asker.user], self._of[asker]

    def _count(self, asker: Asker, change: int) -> None:
        self._left -= change
        self._of_user[asker.user] += change
        self._of[asker] += change
        if not self._of[asker]:
            del self._of[asker]
        if not self._of_user[asker.user]:
            del self._of_user[asker.user]
