"""Open a DuckDB file of ours: connect, and name what is wrong."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

import duckdb
import pyarrow as pa

from zeus_stream.errors import RefusedError, StorageError, explaining
from zeus_stream.quoting import quoted
from zeus_stream.settings import Settings

THREADS = 1
"""Of DuckDB: the writer and each query then work in the thread that calls. A second made a commit of 1000
readings slower by a fifth and no query faster, on two cores. One of 50,000 readings in a lake took half as
much processor time again."""
_NO_THREADS = {"async_threads": 0} if int(duckdb.__version__.split(".")[0]) >= 2 else {}
"""A query runs in a fork: threads of DuckDB would not be there."""
CHECKPOINT = "16MiB"
"""The commit that passes it waits for the checkpoint: 0.1 s; for 256 MB it was 1 to 2 s."""
NEVER = "1024TiB"
Connection = duckdb.DuckDBPyConnection


def connect(path: Path, settings: Settings, *, read_only: bool, checkpoint: str = CHECKPOINT) -> Connection:
    if path.exists() and not _is_database(path):
        raise StorageError(
            f"{path}: could not be opened: it is no DuckDB database. Name another file with --archive."
        )
    changes = path.with_name(f"{path.name}.wal")
    if not path.exists() and changes.exists():  # DuckDB would delete them with the first commit
        raise StorageError(
            f"{path}: could not be opened: it is gone, and its last changes are left in {changes}."
            " Move it back; or move these away, to begin another."
        )
    try:
        connection = duckdb.connect(
            path,
            read_only=read_only,
            config={
                "storage_compatibility_version": "v1.5.0",
                "memory_limit": f"{settings.memory_mb}MiB",
                "threads": THREADS,
                "temp_directory": f"{path}.tmp",
                "max_temp_directory_size": f"{4 * settings.memory_mb}MiB",
                "checkpoint_threshold": checkpoint,
                # An ASOF join whose left side is small becomes a nested loop otherwise: minutes, not seconds.
                "asof_loop_join_threshold": 0,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
                **_NO_THREADS,
            },
        )
    except duckdb.Error as wrong:
        kind = HeldError if "Could not set lock" in str(wrong) else StorageError
        raise kind(_why_not_opened(path, str(wrong))) from wrong
    return connection


def forget_freed(connection: Connection, memory_mb: int) -> None:
    """Have DuckDB forget the buffers that it has freed, which nobody reads: after a checkpoint.

    It lists them, 240 bytes each, until 32,768 of each of several kinds are listed: a store grew for an hour.
    It goes through its lists for what it could free where it is to keep to less than it has.
    """
    try:
        with suppress(duckdb.OutOfMemoryException):  # the answer, once it has looked at all
            connection.execute("SET memory_limit = '1KiB'")
    finally:
        connection.execute(f"SET memory_limit = '{memory_mb}MiB'")


def attach_internal(path: Path) -> Connection:
    """Open a file read-only as ``internal``, beside a database with the tables of `SHOW TABLES` alone.

    DuckDB moves no table to another schema, so a list of few tables needs a database of its own.
    """
    connection = duckdb.connect()
    connection.execute(f"ATTACH {quoted(path)} AS internal (READ_ONLY)")
    shown = files("analyzers.archive").joinpath("queries/tables.sql").read_text(encoding="utf-8")
    for table, _ in connection.execute(shown).fetchall():
        connection.execute(f"CREATE VIEW {table} AS FROM internal.{table}")
    return connection


def serve_ui(path: Path) -> tuple[Connection, str]:
    """Open a file for DuckDB's own page; return what holds it open, and its address. Raises RefusedError."""
    try:
        connection = attach_internal(path)
        for statement in ("INSTALL ui", "LOAD ui"):
            connection.execute(statement)
        connection.execute("CALL start_ui_server()")
        (port,) = connection.execute("SELECT current_setting('ui_local_port')").fetchone() or (4213,)
    except duckdb.Error as wrong:
        raise RefusedError(
            f"sql --ui: could not start DuckDB's page: {first_line(str(wrong))} It needs the extension"
            f" `ui` for DuckDB {duckdb.__version__}, from extensions.duckdb.org."
            " Use the shell: zeus-stream sql."
        ) from wrong
    return connection, f"http://localhost:{port}"


def _is_database(path: Path) -> bool:
    """Tell by the file's head; DuckDB itself would look for an extension that reads, say, SQLite."""
    cure = "Name another file with --archive."
    with explaining(StorageError, f"{path}: could not be opened", cure), path.open("rb") as file:
        head = file.read(12)
    return not head or head[8:] == b"DUCK"


def _why_not_opened(path: Path, says: str) -> str:
    if "Could not set lock" in says:
        pid = re.search(r"PID (\d+)", says)
        who = f"process {pid[1]}" if pid else "another process"
        return (
            f"{path}: could not be opened: {who} holds it. If that is the analyzer, ask it with"
            " `zeus-stream sql`; else stop it, or name another file with --archive."
        )
    if "version number" in says:
        return f"{path}: could not be opened: a newer DuckDB wrote it. Install that version of duckdb."
    if "Cannot open file" in says:
        why = first_line(says).rpartition(": ")[2]
        return f"{path}: could not be opened: {why}. Give access, or name another file with --archive."
    return f"{path}: could not be opened: {damage(says)}"


def damage(says: str) -> str:
    """Return what is wrong with a file that DuckDB cannot read, and what to do about it."""
    return (
        f"it is damaged, {first_line(says)}. `zeus-stream set-aside` moves the damaged part away and says"
        " what is lost; or name another file with --archive."
    )


class HeldError(StorageError):
    """Another process has the file open."""


def why_not_stored(says: str) -> str:
    if "Out of Memory" in says:
        return f"{first_line(says)}. Raise memory_mb of the analyzer."
    return f"{first_line(says)}. Make room on its disk, or move the file away and start again."


@contextmanager
def storing(
    connection: Connection, could_not: str, why: Callable[[str], str] = why_not_stored
) -> Iterator[Connection]:
    """Give a connection in a transaction: all of it is stored or nothing. Raises StorageError.

    Args:
        connection: to the archive.
        could_not: the beginning of the sentence of a failure.
        why: returns its end, cause and cure, from the words of DuckDB.
    """
    try:
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
    except BaseException as wrong:
        _roll_back(connection)
        if isinstance(wrong, duckdb.Error):
            raise StorageError(f"{could_not}: {why(str(wrong))}") from wrong
        raise


def _roll_back(connection: Connection) -> None:
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:
        return  # a COMMIT that failed has ended it already; what went wrong is on its way to the caller


def first_line(says: str) -> str:
    return says.strip().split("\n", 1)[0].rstrip(".")


class Reader:
    """A cursor that sees one snapshot and can change nothing. For one thread."""

    def __init__(self, cursor: Connection) -> None:
        self._cursor = cursor

    def batches(self, sql: str, rows: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema of an answer, and the answer, ``rows`` at a time. Both raise RefusedError."""
        with _refusing():
            relation = self._cursor.sql(sql)
            reader = relation.to_arrow_reader(rows)

        def stream() -> Iterator[pa.RecordBatch]:
            with reader:
                while True:
                    with _refusing():
                        try:
                            batch = reader.read_next_batch()
                        except StopIteration:
                            return
                    yield batch

        return reader.schema, stream()


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn DuckDB's errors, also those that Arrow made OSError or ValueError, into refusals."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as wrong:
        raise RefusedError(f"query: could not be answered: {str(wrong).strip()}") from wrong
