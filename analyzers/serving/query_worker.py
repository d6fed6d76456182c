"""Answer queries one at a time, in a process of its own that can do no harm.

    server --question, and the pipe for its answer--> this process --parts of the answer--> pipe
           <------------------ IDLE ------------------      |
                                                            +--> lake or archive file, read-only

The process is confined as the child that an analyzer forks for a query (`confined_query`): the kernel bounds
what it may write, and how much memory and time it takes. A query that goes over its time ends the process;
the server starts another.
"""

import os
import shutil
import signal
import sys
import tempfile
from multiprocessing.connection import Connection as Channel
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import duckdb
from msgspec import Struct

from analyzers.archive.open_file import check
from analyzers.archive.opening import Connection, connect
from analyzers.archive.sandbox.bounded_queries import REFUSED, Question
from analyzers.archive.sandbox.confined_query import NICE, lock, put_into, write_answer
from analyzers.archive.sandbox.confinement import ProcessLimits, confine_worker
from zeus_stream.errors import StorageError, ZeusStreamError
from zeus_stream.protocol.fields import MOST_WORDS
from zeus_stream.settings import Settings

IDLE = b"i"
SLACK_BYTES = 1 << 30
"""Address space beyond DuckDB's memory: each of its threads reserves some that it never touches."""
THREADS = 2


class QuerySource(Struct, frozen=True):
    """The data that queries are about."""

    settings: Settings
    lake: str | None
    """PostgreSQL of a lake; None: it is a file."""
    file: Path | None


def open_source(source: QuerySource) -> tuple[Connection, list[str]]:
    """Open a lake or a file to be read; return also the directories that may be read. Raises StorageError."""
    if source.lake is not None:
        from analyzers.lake import catalog  # noqa: PLC0415  (it needs extensions that a file does not)

        connection = catalog.attach(source.lake, source.settings, read_only=True)
        catalog.check(connection)
        return connection, [catalog.data_path(connection)]
    assert source.file is not None
    if not source.file.exists():
        raise StorageError(
            f"{source.file}: could not be read: there is no such file. Name another with --archive."
        )
    connection = connect(source.file, source.settings, read_only=True)
    try:
        check(connection, source.file)
    except StorageError:
        connection.close()
        raise
    return connection, [str(source.file), f"{source.file}.wal"]


def serve(channel: Channel, scratch: Path) -> None:
    """Open the source that the first message names, then answer until the server goes."""
    source: QuerySource = channel.recv()
    connection: Connection | None = None
    refusal: str | None = None
    try:
        connection, readable = open_source(source)
        connection.execute(f"SET threads = {THREADS}")
        lock(connection, scratch, readable)
    except (ZeusStreamError, duckdb.Error) as wrong:
        refusal = str(wrong)
    memory = source.settings.memory_mb << 20
    confine_worker(ProcessLimits(0, memory + SLACK_BYTES, 4 * memory), write=scratch)
    while True:
        question = channel.recv()
        with os.fdopen(recv_handle(channel), "wb", buffering=0) as pipe:
            if connection is None:
                put_into(pipe.fileno())(REFUSED, (refusal or "")[:MOST_WORDS].encode())
                return
            goes_on = _answer(connection, question, pipe.fileno())
        if not goes_on:
            return
        channel.send_bytes(IDLE)


def _answer(connection: Connection, question: Question, out: int) -> bool:
    """Answer a query in its time. Return False if the connection is not to be used again."""
    signal.setitimer(signal.ITIMER_REAL, max(question.seconds, 0.001))
    try:
        lasting = write_answer(connection, question, out)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return lasting and _ended(connection)


def _ended(connection: Any) -> bool:
    """End the transaction of a query. Return False if that fails."""
    try:
        connection.execute("ROLLBACK")
    except duckdb.TransactionException:
        return True  # an error has ended it
    except duckdb.Error:
        return False
    return True


def main() -> None:
    """Serve at the descriptor in the arguments, a stream socket, until its other end goes."""
    channel = Channel(int(sys.argv[1]))
    os.umask(0o077)
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the server's
    scratch = Path(tempfile.mkdtemp(prefix="zeus-stream-sql-"))
    try:
        serve(channel, scratch)
    except (EOFError, OSError):
        pass  # the server has gone
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(0)  # without DuckDB's own end: it would wait for servers


if __name__ == "__main__":
    main()
