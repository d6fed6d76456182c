"""SQL for others: one statement, read-only, bounded in time, memory, rows and bytes.

    Query -> child of the process that has the file open (`confined_query`) -> pipe -> parts of the answer

What would write is refused twice: by what stands in its parse tree (`allowed_sql`), and by what its process
may do (`confinement`).

The analyzer asks its store process so. It loads neither DuckDB nor Arrow for that.
"""

import fcntl
import json
import os
import re
import select
import struct
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Protocol

from msgspec import Struct

from zeus_stream.errors import RefusedError
from zeus_stream.protocol.queries import Query, QueryDone
from zeus_stream.settings import Settings

HEAD = struct.Struct("<cI")
"""Kind and length of a part of the answer."""
DATA, DONE, REFUSED = b"D", b"E", b"R"


class Question(Struct, frozen=True):
    """A query from outside, and what its answer may take."""

    sql: str
    rows: int
    seconds: float
    memory_mb: int
    answer_bytes: int
    jobs: tuple[str, ...] = ()
    """Patterns of the jobs that it may be about; none: everything."""


class Answering(Protocol):
    """Data that can be asked."""

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe; return what ends it."""


def out_of_memory(question: Question) -> str:
    return (
        f"query: could not be answered: Out of Memory: it needs more than memory_mb = {question.memory_mb}."
        " Ask for less, or raise memory_mb of the analyzer."
    )


MAX_ANSWER_BYTES = 256 << 20
THREADS = 2
"""Queries answered at once, at most: one more waits."""
LATE_S = 1.0
"""A query's process ends itself at its time; this long after it the query is ended from here."""
_F_SETPIPE_SZ = 1031
_SHOW_TABLES = re.compile(r"\s*SHOW\s+TABLES\s*;?\s*", re.IGNORECASE)
"""Is answered by the shipped query `tables`: DuckDB would list all of them."""
_PIPE_BYTES = 1 << 20
CANCELLED = "query: could not be finished: it was cancelled."
_STOPPING = "query: could not be finished: the analyzer is stopping. Ask again when it runs."


class Queries:
    """Answers queries over an archive that is being written. For any thread."""

    def __init__(self, store: Answering, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._stopping = False
        self._under_way: set[_UnderWay] = set()

    def answer(self, query: Query, key: object = None) -> tuple[QueryDone, list[bytes]]:
        """Return the parts of an Arrow IPC stream, to be joined. Waits for the answer.

        ``key``: by which it can be cancelled. Raises RefusedError: DuckDB refuses it, it is too long or too
        large.
        """
        sql = query.sql
        if _SHOW_TABLES.fullmatch(sql):
            sql = files("analyzers.archive").joinpath("queries/tables.sql").read_text(encoding="utf-8")
        question = Question(
            sql,
            min(query.max_rows, self._settings.query_rows),
            min(query.timeout_ms / 1000, self._settings.query_seconds),
            self._settings.memory_mb,
            MAX_ANSWER_BYTES,
            query.jobs,
        )
        under_way = _UnderWay(key)
        self._under_way.add(under_way)
        source, sink = os.pipe()
        try:
            fcntl.fcntl(sink, _F_SETPIPE_SZ, _PIPE_BYTES)
            if self._stopping:
                raise RefusedError(_STOPPING)
            began = time.monotonic()  # before its process begins, which ends itself when its time is over
            under_way.end = self._store.query(question, sink)
            if under_way.why is not None:  # it was ended while it was started
                raise RefusedError(under_way.why)
            os.close(sink)
            sink = -1
            return _received(source, question, under_way, began)
        finally:
            self._under_way.remove(under_way)
            under_way.end()
            os.close(source)
            if sink >= 0:
                os.close(sink)

    def cancel(self, key: object) -> None:
        for each in tuple(self._under_way):
            if each.key == key:
                each.why = CANCELLED
                each.end()

    def stop(self) -> None:
        """End what is under way, and refuse what comes."""
        self._stopping = True
        for each in tuple(self._under_way):
            each.why = _STOPPING
            each.end()


def _nothing() -> None:
    """Return: no query was started yet."""


class _UnderWay(Struct, eq=False):
    """A query that is being answered."""

    key: object
    end: Callable[[], None] = _nothing
    why: str | None = None
    """The refusal of a query that was ended from outside."""


def _received(
    source: int, question: Question, under_way: _UnderWay, began: float
) -> tuple[QueryDone, list[bytes]]:
    """Return what a query's process writes into its pipe. Raises RefusedError."""
    parts: list[bytes] = []
    data = bytearray()
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while True:
        left = began + question.seconds + LATE_S - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            under_way.end()
            raise RefusedError(_too_long(question))
        received = os.read(source, _PIPE_BYTES)
        if not received:
            if under_way.why is None and time.monotonic() - began >= question.seconds:
                under_way.why = _too_long(question)
            raise RefusedError(under_way.why or _ended(question))
        data += received
        while len(data) >= HEAD.size:
            kind, length = HEAD.unpack_from(data)
            if len(data) < HEAD.size + length:
                break
            payload = bytes(data[HEAD.size : HEAD.size + length])
            del data[: HEAD.size + length]
            if kind == DATA:
                parts.append(payload)
            elif kind == DONE:
                rows, truncated = json.loads(payload)
                return QueryDone(rows, truncated), parts
            else:
                raise RefusedError(payload.decode())


def _too_long(question: Question) -> str:
    return (
        f"query: could not be finished: it took over {question.seconds:g} s. Ask for less, or raise"
        " query_seconds of the analyzer and of the question."
    )


def _ended(question: Question) -> str:
    return (
        "query: could not be answered: its process ended without an answer. Ask again. If it ends again, it"
        f" needs more than memory_mb = {question.memory_mb}: ask for less, or raise that of the analyzer."
    )
