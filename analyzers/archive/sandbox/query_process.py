"""Run one query in a forked child, over the archive as it was at the fork.

    process that owns the file --fork--> child: confined, DuckDB locked, read-only -> parts of the answer ->
    pipe

The child has its parent's DuckDB by copy on write: its catalogue, its committed rows and its cache. Nothing
it does reaches the parent or the file. The parent must be between two transactions, and must not checkpoint
before the child has ended: that would give blocks to other rows which the child still reads.
"""

import io
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from analyzers.archive.sandbox.allowed_sql import checked
from analyzers.archive.sandbox.answer_parts import DATA, DONE, HEAD, REFUSED, out_of_memory
from analyzers.archive.sandbox.confinement import Limits, confine
from analyzers.archive.sandbox.question import Question
from zeus_stream.errors import RefusedError

BATCH_ROWS = 10_000
PART_BYTES = 2 << 20
"""Half of what a message may hold (`codec.MAX_BYTES`, which is slow to import)."""
SLACK_BYTES = 192 << 20
"""Memory of a child beyond that of its DuckDB: for parsing, for Arrow, for what DuckDB does not count."""
NICE = 5
"""Others of the host come first, the process that stores among them."""
WORDS = 2_000
"""Characters of a refusal."""


def scratch(archive: Path, pid: int) -> Path:
    """Return the directory in which the child of this pid keeps what does not fit in its memory."""
    return Path(f"{archive}.tmp") / f"query-{pid}"


def start(connection: Any, archive: Path, question: Question, out: int) -> int:
    """Fork a child that writes its answer to ``out``; return its pid. Reap it, then remove its `scratch`.

    Args:
        connection: of DuckDB, outside a transaction.
        archive: the file that it has open.
        question: from outside.
        out: descriptor of a pipe or socket; close it in this process afterwards.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Threads of NumPy and of Arrow's allocator may be there; none of them holds a lock now.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    try:
        _in_child(connection, archive, question, out, parent)
    finally:
        os._exit(1)


def _in_child(connection: Any, archive: Path, question: Question, out: int, parent: int) -> None:
    def put(kind: bytes, payload: bytes) -> None:
        left = memoryview(HEAD.pack(kind, len(payload)) + payload)
        while left:
            left = left[os.write(out, left) :]

    try:
        os.nice(NICE)
        where = scratch(archive, os.getpid())
        where.mkdir(parents=True, mode=0o700)
        limits = Limits(
            question.seconds, (question.memory_mb << 20) + SLACK_BYTES, 4 * (question.memory_mb << 20)
        )
        files = (archive, Path(f"{archive}.wal"))
        confine(parent, limits, read=files, keep=(out,), write=where)
        _lock(connection, where)
        put(DONE, answer(connection, question, put))
    except RefusedError as wrong:
        put(REFUSED, str(wrong)[:WORDS].encode())
    except MemoryError:
        put(REFUSED, out_of_memory(question).encode())
    except (duckdb.Error, pa.ArrowException, OSError, ValueError) as wrong:
        put(REFUSED, f"query: could not be answered: {str(wrong).strip()}"[:WORDS].encode())


def _lock(connection: Any, where: Path) -> None:
    try:
        connection.execute(f"SET temp_directory = '{_quoted(where)}'")
    except duckdb.Error:
        # The parent has spilled rows: they are still read from there, and no more are spilled.
        [(used,)] = connection.execute(
            "SELECT coalesce(sum(size), 0) FROM duckdb_temporary_files()"
        ).fetchall()
        connection.execute(f"SET max_temp_directory_size = '{used}B'")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def answer(connection: Any, question: Question, put: Callable[[bytes, bytes], None]) -> bytes:
    """Check and run a query, and write the parts of an Arrow IPC stream; return what follows them: DONE's."""
    sql = checked(connection, question.sql)
    connection.execute("BEGIN TRANSACTION READ ONLY")
    reader = connection.sql(sql).to_arrow_reader(BATCH_ROWS)
    rows, truncated, parts = 0, False, _Parts(put)
    with pa.ipc.new_stream(pa.PythonFile(parts, mode="w"), reader.schema) as stream:
        for batch in reader:
            truncated = rows + batch.num_rows > question.rows
            kept = batch.slice(0, question.rows - rows)
            if parts.written + kept.nbytes > question.answer_bytes:
                raise RefusedError(
                    f"query: could not return everything: it is over {question.answer_bytes >> 20} MiB."
                    " Add a LIMIT, aggregate in SQL, or use `zeus-stream export`."
                )
            stream.write_batch(kept)
            rows += kept.num_rows
            if truncated:
                break
    parts.flush()
    return json.dumps([rows, truncated]).encode()


class _Parts(io.RawIOBase):
    """A file that hands on what is written to it in parts of PART_BYTES."""

    def __init__(self, put: Callable[[bytes, bytes], None]) -> None:
        super().__init__()
        self._put = put
        self._waiting = bytearray()
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(data)
        self.written += size
        self._waiting += data
        while len(self._waiting) >= PART_BYTES:
            self._put(DATA, bytes(self._waiting[:PART_BYTES]))
            del self._waiting[:PART_BYTES]
        return size

    def flush(self) -> None:
        if self._waiting:
            self._put(DATA, bytes(self._waiting))
            self._waiting.clear()


def remove_scratch(archive: Path, pid: int) -> None:
    """Remove what a child that has ended kept on disk."""
    shutil.rmtree(scratch(archive, pid), ignore_errors=True)
