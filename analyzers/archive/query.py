"""SQL on a file that no analyzer has open: one answer, or all tables as files."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from msgspec.structs import asdict

from analyzers.archive.open_file import opened
from analyzers.archive.opening import Connection, Reader
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.archive.schema import view_sql
from analyzers.results.signal_rows import SignalRow
from zeus_stream.errors import StorageError, explaining
from zeus_stream.protocol.queries import Query
from zeus_stream.quoting import without_formulas
from zeus_stream.settings import Settings
from zeus_stream.transport.client import too_many

EXPORT_ROWS = 120_000
"""Rows of a Parquet row group."""
_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")
"""Of a table that a file can be named after."""


def read_file(path: Path, sql: str, settings: Settings, signals: Sequence[SignalRow] = ()) -> pa.Table:
    """Answer one query from the file, with these signals too for costs. Raises StorageError, RefusedError."""
    with opened(path, settings) as archive:
        import_signals(archive.connection, signals)
        queries = Queries(archive, settings)
        try:
            table, truncated = answer_some(queries, sql, settings.query_rows, settings.query_seconds)
        finally:
            queries.stop()
    if truncated:
        raise too_many(settings.query_rows)
    return table


def read_own(reader: Reader, sql: str) -> pa.Table:
    """Answer a query of ours, in this process: it needs no sandbox. Raises RefusedError."""
    schema, batches = reader.batches(sql, EXPORT_ROWS)
    return pa.Table.from_batches(batches, schema)


def import_signals(connection: Connection, rows: Sequence[SignalRow]) -> None:
    """Reckon money and carbon by these signals too, for this connection: a file may be of another machine."""
    if not rows:
        return
    (file,) = connection.execute("SELECT current_database()").fetchone() or ("",)
    connection.execute("CREATE TEMP TABLE imported AS FROM signals LIMIT 0")
    for row in rows:
        connection.execute(
            "INSERT INTO imported BY NAME SELECT *, make_timestamp(begin_ns // 1000) AS begins_at,"
            " make_timestamp(end_ns // 1000) AS ends_at FROM (SELECT unnest($1))",
            [asdict(row)],
        )
    connection.execute(f'CREATE TEMP VIEW signals AS FROM "{file}".main.signals UNION FROM imported')
    for view in ("costs", "forecast_costs"):
        connection.execute(view_sql(view).replace("CREATE VIEW", "CREATE TEMP VIEW", 1))


def answer_some(
    queries: Queries, sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()
) -> tuple[pa.Table, bool]:
    """Return the first rows of an answer, and whether there were more. Raises RefusedError."""
    done, parts = queries.answer(Query(sql, max_rows, round(seconds * 1000), jobs))
    return pa.ipc.open_stream(b"".join(parts)).read_all(), done.truncated


def export(
    path: Path, directory: Path, form: Literal["parquet", "csv"], settings: Settings
) -> Iterator[tuple[Path, int]]:
    """Write each table and view, as of one instant, into a file of its own; yield file and rows.

    Raises StorageError: the archive cannot be read, a table's name is no file's, or it cannot be written.
    """
    cure = "Make room, or name another directory."
    with explaining(StorageError, f"{directory}: could not be written", cure):
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
                part = pa.Table.from_batches([batch], schema)
                writer.write_table(part if form == "parquet" else without_formulas(part))
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
