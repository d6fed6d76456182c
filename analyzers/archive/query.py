"""SQL for others: one statement, read-only, bounded in time, rows and bytes.

Whatever would write is refused twice: by what stands in its parse tree (`allowed_sql`), and by DuckDB, which
has the whole database locked (see `archive`) and the transaction read-only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from analyzers.archive.duckdb_file import Archive, Reader
from analyzers.archive.sql_parser import Parser
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.protocol.queries import Query, QueryDone
from zeus_stream.settings import Settings

THREADS = 2
"""Queries answered at once, at most: one more waits."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
BATCH_ROWS = 10_000
PART_BYTES = MAX_BYTES // 2
EXPORT_ROWS = 120_000
"""Rows of a Parquet row group."""
_INTERRUPT_S = 0.05


class Queries:
    """Answers queries over an archive that is being written. For any thread."""

    def __init__(self, archive: Archive, settings: Settings) -> None:
        self._archive = archive
        self._settings = settings
        self._stopping = False
        self._parser = Parser()
        self._under_way: set[_Limit] = set()

    def answer(self, query: Query) -> tuple[QueryDone, list[bytes]]:
        """Return the parts of an Arrow IPC stream, to be joined. Waits for DuckDB.

        Raises:
            RefusedError: the statement, or DuckDB's word on it, or too long, or too large; in a sentence.
        """
        max_rows = min(query.max_rows, self._settings.query_rows)
        limit = _Limit(min(query.timeout_ms / 1000, self._settings.query_seconds))
        self._under_way.add(limit)
        try:
            if self._stopping:
                limit.end("the analyzer is stopping. Ask again when it runs")
            with self._archive.reading() as reader, limit.watching(reader):
                return _answer(self._parser, reader, query.sql, max_rows)
        finally:
            self._under_way.remove(limit)

    def stop(self) -> None:
        """End what is under way, and refuse what comes."""
        self._stopping = True
        for limit in tuple(self._under_way):
            limit.end("the analyzer is stopping. Ask again when it runs")
        self._parser.close()


class _Limit:
    """Ends a query when its time is over, or when told to."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._why: str | None = None
        self._wake = Event()
        self._done = Event()

    def end(self, why: str) -> None:
        self._why = why
        self._wake.set()

    @contextmanager
    def watching(self, reader: Reader) -> Iterator[None]:
        """Interrupt what happens inside. Raises RefusedError saying why."""
        watcher = Thread(target=self._watch, args=(reader,), name="query-limit")
        watcher.start()
        try:
            yield
        except RefusedError as wrong:
            if self._why is None:
                raise
            raise RefusedError(f"query: could not be finished: {self._why}.") from wrong
        finally:
            self._done.set()
            self._wake.set()
            watcher.join()

    def _watch(self, reader: Reader) -> None:
        if not self._wake.wait(self._seconds):
            self._why = (
                f"it took over {self._seconds:g} s. Ask for less, or raise query_seconds of the analyzer"
                " and of the question"
            )
        # Again and again: an interrupt between two of its calls to DuckDB is forgotten.
        while not self._done.wait(_INTERRUPT_S):
            reader.interrupt()


def _answer(parser: Parser, reader: Reader, sql: str, max_rows: int) -> tuple[QueryDone, list[bytes]]:
    schema, batches = _select(parser, reader, sql)
    sink = pa.BufferOutputStream()
    rows = 0
    truncated = False
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            truncated = rows + batch.num_rows > max_rows
            kept = batch.slice(0, max_rows - rows)
            if sink.tell() + kept.nbytes > MAX_ANSWER_BYTES:
                raise RefusedError(
                    f"query: could not return everything: it is over {MAX_ANSWER_BYTES >> 20} MiB."
                    " Add a LIMIT, aggregate in SQL, or use `zeus-stream export`."
                )
            stream.write_batch(kept)
            rows += kept.num_rows
            if truncated:
                break
    answer = sink.getvalue()
    parts = [answer[at : at + PART_BYTES].to_pybytes() for at in range(0, answer.size, PART_BYTES)]
    return QueryDone(rows, truncated), parts


def _select(parser: Parser, reader: Reader, sql: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of an allowed statement's answer. Raises RefusedError."""
    return reader.batches(parser.checked(sql), BATCH_ROWS)


# ---- when no analyzer runs --------------------------------------------------------------------------


def read_file(path: Path, sql: str, settings: Settings) -> pa.Table:
    """Answer one query from the file. Raises StorageError, RefusedError."""
    archive = Archive.open_read_only(path, settings)
    try:
        timeout_ms = round(settings.query_seconds * 1000)
        queries = Queries(archive, settings)
        try:
            done, parts = queries.answer(Query(sql, settings.query_rows, timeout_ms))
        finally:
            queries.stop()
    finally:
        archive.close()
    if done.truncated:
        raise RefusedError(
            f"query: could not return everything: there are more than {settings.query_rows} rows."
            " Add a LIMIT, aggregate in SQL, or use `zeus-stream export`."
        )
    return pa.ipc.open_stream(b"".join(parts)).read_all()


def export(
    path: Path, directory: Path, form: Literal["parquet", "csv"], settings: Settings
) -> Iterator[tuple[Path, int]]:
    """Write each table and view into a file of its own; yield each file when it is whole, and its rows.

    All of them show the same instant. A file that was there is replaced.

    Raises:
        StorageError: the archive cannot be read, or the directory not be written.
    """
    archive = Archive.open_read_only(path, settings)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with archive.reading() as reader:
            _, batches = reader.batches("SELECT table_name FROM information_schema.tables ORDER BY ALL", 1000)
            for name in [name for batch in batches for name in batch.column(0).to_pylist()]:
                target = directory / f"{name}.{form}"
                yield target, _write(reader, name, target, form)
    except OSError as wrong:
        raise StorageError(
            f"{directory}: could not be written: {wrong.strerror or wrong}."
            " Make room, or name another directory."
        ) from wrong
    finally:
        archive.close()


def _write(reader: Reader, name: str, target: Path, form: Literal["parquet", "csv"]) -> int:
    partial = target.with_suffix(target.suffix + ".partial")
    source = f"FROM {name}" if form == "parquet" else _flat(reader, name)
    schema, batches = reader.batches(source, EXPORT_ROWS)
    open_writer = pa.parquet.ParquetWriter if form == "parquet" else pa.csv.CSVWriter
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
    schema, _ = reader.batches(f"FROM {name} LIMIT 0", 1)
    columns = []
    for field in schema:
        if pa.types.is_list(field.type):
            columns.append(f"array_to_string({field.name}, ' ') AS {field.name}")
        elif pa.types.is_binary(field.type):
            columns.append(f"hex({field.name}) AS {field.name}")
    replaced = f" REPLACE ({', '.join(columns)})" if columns else ""
    return f"SELECT *{replaced} FROM {name}"  # noqa: S608  (names of our own tables and columns)
