"""Questions to the archive as generators: they yield SQL and receive rows. Pure.

A page asks them one by one over a socket, the report asks a file: both run the same generator.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
Row = Mapping[str, Any]
Rows = Sequence[Row]
Asking = Generator[str, Rows, T]
"""Yields SQL, receives the rows of the answer, returns a T."""


class AskingEnded(Struct, Generic[T], frozen=True):
    """A question has all its answers: what it returns."""

    result: T


def go_on(asking: Asking[T], rows: Rows | None = None) -> str | AskingEnded[T]:
    """Return the next SQL of a question, after the rows of the SQL before, or its end. None: it begins."""
    try:
        return next(asking) if rows is None else asking.send(rows)
    except StopIteration as end:
        return AskingEnded(end.value)


def answered(asking: Asking[T], answer: Callable[[str], "pa.Table"], asked: list[str] | None = None) -> T:
    """Run a question to its end. ``asked`` receives the SQL of it."""
    sql = go_on(asking)
    while isinstance(sql, str):
        if asked is not None:
            asked.append(sql.strip())
        sql = go_on(asking, answer(sql).to_pylist())
    return sql.result


async def answered_by(asking: Asking[T], ask: Callable[[str], Awaitable[Rows]]) -> T:
    """Run a question to its end, with a function that answers without blocking."""
    sql = go_on(asking)
    while isinstance(sql, str):
        sql = go_on(asking, await ask(sql))
    return sql.result


def together(queries: Mapping[str, str]) -> str:
    """Return one query for the answers of some: its row has the rows of each as a list, or NULL for none.

    Each query is a process. A report takes 0.65 s instead of 1.2 s at load 7, with 2 of them instead of 12.
    """
    columns = [
        f"(SELECT list(answer) FROM ({sql.strip()}) AS answer) AS {name}"  # noqa: S608  (our own)
        for name, sql in queries.items()
    ]
    return "SELECT " + ",\n".join(columns)
