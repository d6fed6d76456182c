"""A DuckDB file of ours that is open: readers, and queries from outside. Short commands import only this."""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

import duckdb

from analyzers.archive import schema
from analyzers.archive.incoming import IncomingTables
from analyzers.archive.opening import (
    Connection,
    Reader,
    connect,
    damage,
)
from analyzers.archive.sandbox import confined_query
from analyzers.archive.sandbox.bounded_queries import Question
from zeus_stream.errors import StorageError, explaining
from zeus_stream.settings import Settings


def check(connection: Connection, who: object) -> None:
    """Raise StorageError unless the schema is the newest."""
    version = schema.found_version(connection, who)
    if version is None:
        raise StorageError(f"{who}: could not be read: nothing is stored in it. Start `zeus-stream analyze`.")
    if version != schema.newest():
        raise StorageError(
            f"{who}: could not be read: its schema is of version {version}, not {schema.newest()}."
            " Run `zeus-stream analyze` on it once, which migrates it."
        )


class OpenFile:
    """One DuckDB file of ours, open to be read."""

    def __init__(self, path: Path, connection: Connection) -> None:
        """For `open_read_only`, or a connection that is open already."""
        self.path = path
        self.connection = connection
        self.incoming = IncomingTables(connection)

    @classmethod
    def open_read_only(cls, path: Path, settings: Settings) -> Self:
        """Open an archive that no analyzer has open. Raises StorageError."""
        if not path.exists():
            raise StorageError(
                f"{path}: could not be read: there is no such file."
                " Start `zeus-stream analyze` to make it, or name another with --archive."
            )
        connection = connect(path, settings, read_only=True)
        with ExitStack() as on_failure:
            on_failure.callback(connection.close)
            try:
                check(connection, path)
            except duckdb.Error as wrong:
                raise StorageError(f"{path}: could not be opened: {damage(str(wrong))}") from wrong
            on_failure.pop_all()
        return cls(path, connection)

    def close(self) -> None:
        """Close the file. Readers have to be done."""
        self.connection.close()

    def fork_query(self, question: Question, out: int) -> int:
        """Fork a child that answers a query into a pipe; return its pid (see `confined_query`)."""
        return confined_query.start(self.connection, self.path, question, out)

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe by a child of this process; return what ends it."""
        pid = self.fork_query(question, out)
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                confined_query.remove_scratch(self.path, pid)

        return end

    def read_no_other_file(self) -> None:
        """Let no view of this archive read another file: it may come from anywhere."""
        self.connection.execute("SET enable_external_access = false")

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Give a reader, in its own read-only transaction. For any thread."""
        with self.cursor() as cursor:
            yield Reader(cursor)

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        """Give a cursor in its own read-only transaction. For any thread. Raises StorageError."""
        cursor = self.connection.cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        except duckdb.Error as wrong:
            raise StorageError(f"{self.path}: could not be read: {damage(str(wrong))}") from wrong
        finally:
            cursor.close()


HEADERS_BYTES = 3 * 4096
"""The main header of a DuckDB file and its two database headers."""
TRIES = 20
"""Copies that are tried: each fails only if a checkpoint ends while it is made."""


@contextmanager
def opened(path: Path, settings: Settings) -> Iterator[OpenFile]:
    """Open an archive for queries, as it is now, whether another process writes it. Raises StorageError."""
    if not is_written(path):
        with closing(OpenFile.open_read_only(path, settings)) as archive:
            yield archive
        return
    with tempfile.TemporaryDirectory(prefix="zeus-stream-") as directory:
        copy = Path(directory) / "energy.duckdb"
        copy_whole(path, copy)
        with closing(OpenFile.open_read_only(copy, settings)) as archive:
            yield archive


def is_written(path: Path) -> bool:
    """Tell whether another process has a DuckDB file open for writing: it holds a lock of the whole file."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # opening it will say what is wrong
    return False


def copy_whole(path: Path, copy: Path) -> None:
    """Copy a DuckDB file and its WAL as of one instant, while another process writes it. Raises StorageError.

    A checkpoint of DuckDB writes to free blocks, and then replaces one of two headers. So a copy is whole if
    no header changed while it was made. DuckDB ignores a tail of the WAL that is not complete.
    """
    cure = "Make room, set TMPDIR to a larger directory, or stop the analyzer."
    with explaining(StorageError, f"{path}: could not be copied to {copy.parent}", cure):
        for _ in range(TRIES):
            before = _headers(path)
            shutil.copyfile(path, copy)
            _copy_wal(path, copy)
            if _headers(path) == before:
                return
    raise StorageError(
        f"{path}: could not be copied: it changed {TRIES} times. Stop the analyzer, or try again later."
    )


def _headers(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADERS_BYTES)


def _copy_wal(path: Path, copy: Path) -> None:
    target = Path(f"{copy}.wal")
    try:
        shutil.copyfile(f"{path}.wal", target)
    except FileNotFoundError:  # a checkpoint has just brought it into the file
        target.unlink(missing_ok=True)
