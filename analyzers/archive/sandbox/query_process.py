"""Run one query in a forked child, over the archive as it was at the fork.

    process that owns the file --fork--> child: confined, DuckDB locked, read-only -> parts of the answer ->
    pipe

The child has its parent's DuckDB by copy on write: its catalogue, its committed rows and its cache. Nothing
it does reaches the parent or the file. The parent must be between two transactions, and must not checkpoint
before the child has ended: that would give blocks to other rows which the child still reads.
"""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from analyzers.archive.sandbox.confined_query import NICE, lock, put_into, write_answer
from analyzers.archive.sandbox.confinement import ProcessLimits, confine
from analyzers.archive.sandbox.question import REFUSED, Question

SLACK_BYTES = 192 << 20
"""Memory of a child beyond that of its DuckDB: for parsing, for Arrow, for what DuckDB does not count."""


def scratch(archive: Path, pid: int) -> Path:
    """Return the directory in which the child of this pid keeps what does not fit in its memory."""
    return Path(f"{archive}.tmp") / f"query-{pid}"


def start(connection: Any, archive: Path, question: Question, out: int) -> int:
    """Fork a child that writes its answer to ``out``; return its pid. Reap it, then remove its `scratch`.

    ``connection``: outside a transaction. Close ``out`` in this process afterwards.
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
    """Remove what a child that has ended kept on disk."""
    shutil.rmtree(scratch(archive, pid), ignore_errors=True)
