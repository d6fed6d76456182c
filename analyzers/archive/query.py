"""SQL for others: one statement, read-only, bounded in time, memory, rows and bytes.

    Query -> child of the process that has the file open (`query_process`) -> pipe -> parts of the answer

What would write is refused twice: by what stands in its parse tree (`allowed_sql`), and by what its process
may do (`confinement`).
"""

import fcntl
import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa

from analyzers.archive.opening import Reader
from analyzers.archive.sandbox import query_process
from analyzers.archive.sandbox.query_process import DATA, DONE, HEAD
from analyzers.archive.sandbox.question import Answering, Question
from analyzers.archive.snapshot import opened
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    from zeus_stream.protocol.queries import Query

MAX_ANSWER_BYTES = 256 << 20
THREADS = 2
"""Queries answered at once, at most: one more waits."""
EXPORT_ROWS = 120_000
"""Rows of a Parquet row group."""
LATE_S = 1.0
"""A query's process ends itself at its time; this long after it the query is ended from here."""
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
"""Of a table that a file can be named after."""
CANCELLED = "query: could not be finished: it was cancelled."
_STOPPING = "query: could not be finished: the analyzer is stopping. Ask again when it runs."


class Asked(NamedTuple):
    """A query of this process: the fields of a `Query`, whose module is slow to import."""

    sql: str
    max_rows: int
    timeout_ms: int


class Done(NamedTuple):
    """The end of an answer."""

    rows: int
    truncated: bool
    """There were more."""


class Queries:
    """Answers queries over an archive that is being written. For any thread."""

    def __init__(self, store: Answering, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._stopping = False
        self._under_way: set[_UnderWay] = set()

    def answer(self, query: "Query | Asked", key: object = None) -> tuple[Done, list[bytes]]:
        """Return the parts of an Arrow IPC stream, to be joined. Waits for the answer.

        Args:
            query: from outside.
            key: by which it can be cancelled.

        Raises:
            RefusedError: the statement, or DuckDB's word on it, or too long, or too large; in a sentence.
        """
        question = Question(
            query.sql,
            min(query.max_rows, self._settings.query_rows),
            min(query.timeout_ms / 1000, self._settings.query_seconds),
            self._settings.memory_mb,
            MAX_ANSWER_BYTES,
        )
        under_way = _UnderWay(key)
        self._under_way.add(under_way)
        source, sink = os.pipe()
        try:
            fcntl.fcntl(sink, _F_SETPIPE_SZ, _PIPE_BYTES)
            if self._stopping:
                raise RefusedError(_STOPPING)
            under_way.end = self._store.start_query(question, sink)
            if under_way.why is not None:  # it was ended while it was started
                raise RefusedError(under_way.why)
            os.close(sink)
            sink = -1
            return _received(source, question, under_way)
        finally:
            self._under_way.remove(under_way)
            under_way.end()
            os.close(source)
            if sink >= 0:
                os.close(sink)

    def cancel(self, key: object) -> None:
        """End the query of this key, if it is under way."""
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


class _UnderWay:
    """A query that is being answered."""

    def __init__(self, key: object) -> None:
        self.key = key
        self.end: Callable[[], None] = _nothing
        self.why: str | None = None
        """The refusal of a query that was ended from outside."""


def _nothing() -> None:
    """Return: no query was started yet."""


def _received(source: int, question: Question, under_way: _UnderWay) -> tuple[Done, list[bytes]]:
    """Return what a query's process writes into its pipe. Raises RefusedError."""
    began = time.monotonic()
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
            raise RefusedError(under_way.why or query_process.out_of_memory(question))
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
                return Done(rows, truncated), parts
            else:
                raise RefusedError(payload.decode())


def _too_long(question: Question) -> str:
    return (
        f"query: could not be finished: it took over {question.seconds:g} s. Ask for less, or raise"
        " query_seconds of the analyzer and of the question."
    )


# ---- when no analyzer runs --------------------------------------------------------------------------


def read_file(path: Path, sql: str, settings: Settings) -> pa.Table:
    """Answer one query from the file. Raises StorageError, RefusedError."""
    with opened(path, settings) as archive:
        queries = Queries(archive, settings)
        try:
            table, truncated = answer_some(queries, sql, settings.query_rows, settings.query_seconds)
        finally:
            queries.stop()
    if truncated:
        raise RefusedError(
            f"query: could not return everything: there are more than {settings.query_rows} rows."
            " Add a LIMIT, aggregate in SQL, or use `zeus-stream export`."
        )
    return table


def read_own(reader: Reader, sql: str) -> pa.Table:
    """Answer a query of ours, in this process: it needs no sandbox. Raises RefusedError."""
    schema, batches = reader.batches(sql, EXPORT_ROWS)
    return pa.Table.from_batches(batches, schema)


def answer_some(queries: Queries, sql: str, max_rows: int, seconds: float) -> tuple[pa.Table, bool]:
    """Return the first rows of an answer, and whether there were more. Raises RefusedError."""
    done, parts = queries.answer(Asked(sql, max_rows, round(seconds * 1000)))
    return pa.ipc.open_stream(b"".join(parts)).read_all(), done.truncated


def export(
    path: Path, directory: Path, form: Literal["parquet", "csv"], settings: Settings
) -> Iterator[tuple[Path, int]]:
    """Write each table and view into a file of its own; yield each file when it is whole, and its rows.

    All of them show the same instant. A file that was there is replaced.

    Raises:
        StorageError: the archive cannot be read or has a table that no file can be named after, or the
            directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with opened(path, settings) as archive, archive.reading() as reader:
            archive.read_no_other_file()
            _, batches = reader.batches("SELECT table_name FROM information_schema.tables ORDER BY ALL", 1000)
            names = [name for batch in batches for name in batch.column(0).to_pylist()]
            if unnamed := [name for name in names if not _NAME.fullmatch(name)]:
                raise StorageError(
                    f"{path}: could not be exported: no file can have the name of its table {unnamed[0]!r}."
                    " Another program made that table: drop it, or name another archive."
                )
            for name in names:
                target = directory / f"{name}.{form}"
                yield target, _write(reader, name, target, form)
    except OSError as wrong:
        raise StorageError(
            f"{directory}: could not be written: {wrong.strerror or wrong}."
            " Make room, or name another directory."
        ) from wrong


def _write(reader: Reader, name: str, target: Path, form: Literal["parquet", "csv"]) -> int:
    partial = target.with_suffix(target.suffix + ".partial")
    source = f'FROM "{name}"' if form == "parquet" else _flat(reader, name)
    schema, batches = reader.batches(source, EXPORT_ROWS)
    from pyarrow.csv import CSVWriter  # noqa: PLC0415  (slow to import, and only an export needs them)
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415

    open_writer = ParquetWriter if form == "parquet" else CSVWriter
    rows = 0
    try:
        with open_writer(partial, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _flat(reader: Reader, name: str) -> str:
    """Return a query for a table as CSV can hold it: lists as words, bytes as hexadecimal digits."""
    schema, _ = reader.batches(f'FROM "{name}" LIMIT 0', 1)
    columns = []
    for field in schema:
        column = '"' + field.name.replace('"', '""') + '"'
        if pa.types.is_list(field.type):
            columns.append(f"array_to_string({column}, ' ') AS {column}")
        elif pa.types.is_binary(field.type):
            columns.append(f"hex({column}) AS {column}")
    replaced = f" REPLACE ({', '.join(columns)})" if columns else ""
    return f'SELECT *{replaced} FROM "{name}"'  # noqa: S608  (quoted names)
