"""The next place for a query: nobody's queries keep others out."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from analyzers.service.query_server import Asker, QueryPlaces

ANNA, HER_OTHER, OTTO, FAR = Asker(1001, 1), Asker(1001, 2), Asker(1002, 3), Asker("a key", None)

pytestmark = pytest.mark.anyio


class Server:
    """Queries that go on until they are ended."""

    def __init__(self, tasks: TaskGroup, places: int) -> None:
        self._tasks, self._places = tasks, QueryPlaces(places)
        self.under_way: list[Asker] = []
        self._ends: list[tuple[Asker, anyio.CancelScope]] = []

    async def ask(self, *askers: Asker) -> None:
        for asker in askers:
            self._tasks.start_soon(self._query, asker)
            await self._settle()

    async def end(self, asker: Asker) -> None:
        """End the oldest query of an asker, under way or waiting."""
        place = next(index for index, (of, _) in enumerate(self._ends) if of == asker)
        self._ends.pop(place)[1].cancel()
        await self._settle()

    async def _query(self, asker: Asker) -> None:
        with anyio.CancelScope() as scope:
            self._ends.append((asker, scope))
            async with self._places.take(asker):
                self.under_way.append(asker)
                try:
                    await anyio.sleep_forever()
                finally:
                    self.under_way.remove(asker)

    async def _settle(self) -> None:
        for _ in range(5):
            await checkpoint()


@asynccontextmanager
async def server(places: int) -> AsyncIterator[Server]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        yield Server(tasks, places)
        tasks.cancel_scope.cancel()


async def test_a_user_without_a_query_does_not_wait_for_those_of_another() -> None:
    async with server(2) as made:
        await made.ask(*[ANNA] * 5)
        assert made.under_way == [ANNA, ANNA]
        await made.ask(OTTO)
        assert made.under_way == [ANNA, ANNA, OTTO]


async def test_the_user_with_the_fewest_is_next_then_the_process_then_the_oldest() -> None:
    async with server(2) as made:
        await made.ask(ANNA, ANNA, ANNA, HER_OTHER, OTTO, FAR)
        assert made.under_way == [ANNA, ANNA, OTTO]
        await made.end(ANNA)
        assert made.under_way == [ANNA, OTTO, FAR]
        await made.end(OTTO)
        assert made.under_way == [ANNA, FAR]
        await made.end(FAR)
        assert made.under_way == [ANNA, HER_OTHER]
        await made.end(HER_OTHER)
        assert made.under_way == [ANNA, ANNA]


async def test_who_stops_to_wait_leaves_nothing() -> None:
    async with server(1) as made:
        await made.ask(ANNA, HER_OTHER)
        await made.end(HER_OTHER)
        await made.end(ANNA)
        assert made.under_way == []
        await made.ask(OTTO, OTTO)
        assert made.under_way == [OTTO]
