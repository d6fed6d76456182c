"""Asks the archive for pages, a bounded number of queries at a time."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct

from zeus_stream.errors import RefusedError
from zeus_stream.questions.asking import Asking, Rows, answered_by, go_on, together

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Lane = Literal["page", "box"]
PAGE_ROWS = 20_000
"""Rows of one answer for a page. Its queries ask for far fewer."""
PAGE_S = 10.0


class QueryRows(Struct, frozen=True):
    """Rows of a query. ``truncated``: there were more than were asked for."""

    table: "pa.Table"
    truncated: bool


class AskRows(Protocol):
    """A function that answers SQL. It blocks, and may raise ZeusStreamError."""

    def __call__(self, sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()) -> QueryRows:
        """Return at most so many rows, in so many seconds; of some jobs alone, if any are named."""


AskTable = Callable[[str], "pa.Table"]
"""Answers SQL of ours: all rows of it, in the time of a page."""
AskPage = Callable[[str, int, float], Awaitable[QueryRows]]
"""The same without blocking: a query that is cancelled ends in the analyzer as well."""


class Source:
    """The archive as pages see it: a running analyzer, or a file."""

    def __init__(self, ask: AskRows, ask_page: AskPage | None = None) -> None:
        """``ask_page`` answers small queries, which end when a viewer goes away. None: ``ask`` does."""
        self._ask = ask
        self._ask_page = ask_page
        # The analyzer answers two queries at once. A slow page never keeps the SQL box waiting, nor others.
        self._lanes = {"page": anyio.CapacityLimiter(1), "box": anyio.CapacityLimiter(1)}

    async def query(
        self,
        sql: str,
        lane: Lane,
        max_rows: int = PAGE_ROWS,
        seconds: float = PAGE_S,
        jobs: tuple[str, ...] = (),
    ) -> QueryRows:
        """Return the answer to one query, of some jobs alone if any are named. Raises ZeusStreamError."""
        async with self._lanes[lane]:
            if lane == "page" and self._ask_page is not None:
                return await self._ask_page(sql, max_rows, seconds)
            return await run_sync(self._ask, sql, max_rows, seconds, jobs)

    async def computed(self, compute: Callable[[AskTable], T]) -> T:
        """Return what a function makes of answers, in a thread: one such function at a time."""
        async with self._lanes["page"]:
            return await run_sync(compute, lambda sql: self._ask(sql, PAGE_ROWS, PAGE_S).table)

    async def learn(self, askings: Iterable[Asking[Any]], known: dict[str, Rows]) -> None:
        """Ask what some questions ask, one query for each round of all of them: a query is a process.

        What a query refuses is left to the questions: each then says why it fails.
        """
        waiting = [(asking, go_on(asking)) for asking in askings]
        while asked := [(asking, sql) for asking, sql in waiting if isinstance(sql, str)]:
            named = {
                f"q{n}": sql
                for n, sql in enumerate(dict.fromkeys(sql for _, sql in asked))
                if sql not in known
            }
            if named:
                try:
                    (row,) = (await self.query(together(named), "page")).table.to_pylist()
                except RefusedError:
                    return
                known |= {sql: row[name] or () for name, sql in named.items()}
            waiting = [(asking, go_on(asking, known[sql])) for asking, sql in asked]

    async def answered(self, asking: Asking[T], known: dict[str, Rows] | None = None) -> T:
        """Run a question of a page to its end. Raises ZeusStreamError.

        Args:
            asking: the question.
            known: answers that the page has by their SQL; new ones are added. Panels of a run share some.
        """
        known = {} if known is None else known

        async def ask(sql: str) -> Rows:
            if sql not in known:
                known[sql] = (await self.query(sql, "page")).table.to_pylist()
            return known[sql]

        return await answered_by(asking, ask)
