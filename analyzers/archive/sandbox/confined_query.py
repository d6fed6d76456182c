"""Check and run one query in a process that is confined, and write its answer into a pipe.

    question -> checked (`allowed_sql`) -> DuckDB, locked -> parts of an Arrow IPC stream, and how it ended

Two processes do so: a child that is forked for one query (`start`), and a worker that is started for
many (`query_worker`).
"""

import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from analyzers.archive.sandbox.allowed_sql import checked
from analyzers.archive.sandbox.bounded_queries import DATA, DONE, HEAD, REFUSED, Question, out_of_memory
from analyzers.archive.sandbox.confinement import ProcessLimits, confine
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.codec import MAX_BYTES
from zeus_stream.protocol.fields import MOST_WORDS
from zeus_stream.quoting import quoted, quoted_list

BATCH_ROWS = 10_000
PART_BYTES = MAX_BYTES // 2
"""Half of what a message may hold."""
NICE = 5
"""Others of the host come first, the process that stores among them."""
LASTING = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
)
"""Errors of a query after which the connection is as it was."""
Put = Callable[[bytes, bytes], None]
"""Writes a part of an answer: its kind and its content."""


def lock(connection: Any, scratch: Path, readable: Sequence[str] = ()) -> None:
    """Let a connection read these directories and files, write into ``scratch``, and do nothing else."""
    try:
        connection.execute(f"SET temp_directory = {quoted(scratch)}")
    except duckdb.Error:
        # The parent has spilled rows: they are still read from there, and no more are spilled.
        [(used,)] = connection.execute(
            "SELECT coalesce(sum(size), 0) FROM duckdb_temporary_files()"
        ).fetchall()
        connection.execute(f"SET max_temp_directory_size = '{used}B'")
    if readable:
        connection.execute(f"SET allowed_directories = [{quoted_list(readable)}]")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def write_answer(connection: Any, question: Question, out: int) -> bool:
    """Write the answer to a question, or its refusal. Return False if the connection is done with."""
    put, words, lasting = put_into(out), "", True
    try:
        put(DONE, _answer(connection, question, put))
    except RefusedError as wrong:
        words = str(wrong)
    except (MemoryError, duckdb.OutOfMemoryException):
        words, lasting = out_of_memory(question), False
    except BrokenPipeError:
        lasting = False  # nobody waits for the answer
    except (duckdb.Error, pa.ArrowException, OSError, ValueError) as wrong:
        words = f"query: could not be answered: {str(wrong).strip()}"
        lasting = isinstance(wrong, LASTING)
    if words:
        put(REFUSED, words[:MOST_WORDS].encode())
    return lasting


def put_into(out: int) -> Put:
    """Return what writes parts of an answer into a pipe."""

    def put(kind: bytes, payload: bytes) -> None:
        left = memoryview(HEAD.pack(kind, len(payload)) + payload)
        while left:
            left = left[os.write(out, left) :]

    return put


def _answer(connection: Any, question: Question, put: Put) -> bytes:
    """Write the parts of an Arrow IPC stream; return the content of the last part, `DONE`."""
    sql = checked(connection, question.sql, question.jobs)
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

    def __init__(self, put: Put) -> None:
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


SLACK_BYTES = 192 << 20
"""Memory of a child beyond that of its DuckDB: for parsing, for Arrow, for what DuckDB does not count."""


def scratch(archive: Path, pid: int) -> Path:
    return Path(f"{archive}.tmp") / f"query-{pid}"


def start(connection: Any, archive: Path, question: Question, out: int) -> int:
    """Fork a child that writes its answer to ``out``; return its pid. Reap it, then remove its `scratch`.

    The child has its parent's DuckDB by copy on write. The parent must be outside a transaction, and must not
    checkpoint before the child has ended: that would give blocks to other rows which the child still reads.
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
    os.nice(NICE)
    where = scratch(archive, os.getpid())
    where.mkdir(parents=True, mode=0o700)
    limits = ProcessLimits(
        question.seconds, (question.memory_mb << 20) + SLACK_BYTES, 4 * (question.memory_mb << 20)
    )
    files = (archive, Path(f"{archive}.wal"))
    try:
        confine(parent, limits, read=files, keep=(out,), write=where)
    except OSError as wrong:
        put_into(out)(REFUSED, f"query: could not be answered: {wrong}".encode())
        return
    lock(connection, where)
    write_answer(connection, question, out)


def remove_scratch(archive: Path, pid: int) -> None:
    shutil.rmtree(scratch(archive, pid), ignore_errors=True)
