"""Asks the running processes, for the command line and for notebooks. Blocking, bounded in time."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_stream import paths
from zeus_stream.errors import RefusedError, UnreachableError
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.queries import (
    AskResults,
    AskStatus,
    ForgetJob,
    Forgotten,
    No,
    Query,
    QueryDone,
    Request,
    ResultsPage,
    Status,
)
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.quoting import quoted
from zeus_stream.transport import sockets
from zeus_stream.transport.endpoints import Address, Distant, distant

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M")


def status(where: paths.Places | Distant, process: str, timeout_s: float = 2.0) -> Status:
    """Return the state of the ``collector`` or ``analyzer`` of a setup. Raises UnreachableError."""
    path = where.control if process == "collector" else where.query
    reply, _ = _ask(path, AskStatus(), Status, timeout_s, process)
    return reply


def ask_now(
    where: paths.Places | Distant, host: str | None = None, process: str = "analyzer", timeout_s: float = 2.0
) -> Snapshot:
    """Return the live state of the site, or of one host, from the memory of the analyzer.

    Args:
        where: the setup that is asked.
        host: rows of this host only. None: of all.
        process: ``analyzer``, or ``collector`` for the GPUs of its own host.
        timeout_s: seconds to wait at most.

    Raises:
        UnreachableError: it does not answer.
        RefusedError: it answers, and refuses.
    """
    path = where.control if process == "collector" else where.query
    reply, _ = _ask(path, AskNow(host), Snapshot, timeout_s, process)
    return reply


def ask_results(
    where: paths.Places | Distant, asked: AskResults, kinds: Sequence[type[M]], timeout_s: float = 5.0
) -> tuple[ResultsPage, tuple[M | Unknown, ...]]:
    """Return one page of stored results, and its records, of these ``kinds``; others are `Unknown`.

    ``timeout_s`` is beyond the wait for a result. Raises UnreachableError, RefusedError and MalformedError.
    """
    page, parts = _ask(where.query, asked, ResultsPage, timeout_s + asked.wait_ms / 1000, "analyzer")
    return page, codec.decode_records(parts[0] if parts else b"", kinds)


def forget(where: paths.Places | Distant, job: str, timeout_s: float = 10.0) -> int:
    """Let a recurring job begin again; return the number of tries that no longer count.

    Raises:
        UnreachableError: no analyzer runs there.
        RefusedError: it knows no such job, or this is not for the key to ask.
    """
    reply, _ = _ask(where.query, ForgetJob(job), Forgotten, timeout_s, "analyzer")
    return reply.tries


class Connection:
    """A running analyzer, as a source of tables. `connect` returns one.

    Args:
        where: the analyzer's setup.

    Example:
        >>> zeus_stream.connect().sql("SELECT run, epoch, energy_j FROM epochs").to_pandas()
    """

    def __init__(self, where: paths.Places | Distant) -> None:
        self._where = where

    def __repr__(self) -> str:
        query = self._where.query
        return f"<Connection to {query if isinstance(query, Path) else query.address}>"

    def sql(self, query: str, *, max_rows: int = 1_000_000, timeout_s: float = 30.0) -> "pa.Table":
        """Return the answer to one SQL statement over the archive, as it is now.

        Args:
            query: one SELECT, or another statement that only reads. See docs/reference/sql.md for the tables.
            max_rows: rows to return at most.
            timeout_s: seconds that the query may take.

        Raises:
            RefusedError: DuckDB's or the analyzer's sentence: an error in the SQL, too long, too many rows.
            UnreachableError: no analyzer answers.
        """
        table, truncated = self.ask(query, max_rows=max_rows, timeout_s=timeout_s)
        if truncated:
            raise too_many(max_rows)
        return table

    def ask(
        self, query: str, *, max_rows: int, timeout_s: float, jobs: tuple[str, ...] = ()
    ) -> "tuple[pa.Table, bool]":
        """Return the first rows of an answer, and whether there were more. Errors are those of `sql`.

        Args:
            query: a statement that only reads.
            max_rows: rows to return at most.
            timeout_s: seconds that the query may take.
            jobs: patterns such as ``team-a-*``: the answer is of these jobs alone. None: of all.
        """
        request = Query(query, max_rows, round(timeout_s * 1000), jobs)
        done, parts = _ask(self._where.query, request, QueryDone, timeout_s + 5, "analyzer")
        return table_of(parts), done.truncated

    def now(self, host: str | None = None, *, timeout_s: float = 2.0) -> Snapshot:
        """Return the live state, from memory: GPUs, runs, their searches and forecasts, what is missing.

        Args:
            host: rows of this host only. None: of all.
            timeout_s: seconds to wait at most.

        Raises:
            UnreachableError: the analyzer does not answer.

        Example:
            >>> [(run.run, run.watts) for run in zeus_stream.connect().now().runs]
            [('run-5f0c2a91', 183.2)]
        """
        return ask_now(self._where, host, timeout_s=timeout_s)

    def windows(
        self, run: str | None = None, name: str | None = None, *, timeout_s: float = 30.0
    ) -> "pa.Table":
        """Return the named windows of a run, or of all, the latest last: rows of the view ``named``.

        A window is there once it is measured. Errors are those of `sql`.

        Args:
            run: name of a run. None: all runs.
            name: name of the windows. None: all names.
            timeout_s: seconds that the query may take.
        """
        return self.sql(windows_query(run, name), timeout_s=timeout_s)


def windows_query(run: str | None, name: str | None) -> str:
    """Return the query for named windows: of one run and name, or of all."""
    wanted = {"run": run, "name": name}
    which = [f"{column} = {quoted(value)}" for column, value in wanted.items() if value is not None]
    where = f" WHERE {' AND '.join(which)}" if which else ""
    return f"FROM named{where} ORDER BY began_at, run, name, occurrence"


def connect(environ: Mapping[str, str] | None = None) -> Connection:
    """Return a connection to the analyzer of this setup, or to that at ``ZEUS_STREAM_ANALYZER``.

    Args:
        environ: environment variables that say which setup: ``ZEUS_STREAM_DIR``, ``ZEUS_STREAM_ANALYZER``.
            Default: those of this process.

    Raises:
        UnreachableError: none runs there.
        RefusedError, SettingsError: the key for another host is refused there, or absent here.

    Example:
        >>> zeus_stream.connect().sql("SELECT * FROM epochs")
    """
    environ = os.environ if environ is None else environ
    where = analyzer(environ, environ.get("ZEUS_STREAM_ANALYZER"))
    status(where, "analyzer")
    return Connection(where)


def analyzer(environ: Mapping[str, str], address: str | None) -> paths.Places | Distant:
    """Return where the analyzer at ``HOST:PORT`` is asked; None: that of this setup."""
    here = paths.places(environ)
    return here if address is None else distant(address, here.keys)


def table_of(parts: list[bytes]) -> "pa.Table":
    """Return the table of an answer."""
    import pyarrow as pa  # noqa: PLC0415  (heavy, and only for who asks)

    table: pa.Table = pa.ipc.open_stream(b"".join(parts)).read_all()
    return table


def too_many(max_rows: int) -> RefusedError:
    """Return the error of an answer that has more rows than were asked for."""
    return RefusedError(
        f"query: could not return everything: there are more than {max_rows} rows."
        " Add a LIMIT, aggregate in SQL, or use `zeus-stream export`."
    )


def unreachable(process: str, address: Address) -> UnreachableError:
    """Return the error of a process that does not answer."""
    verb = "collect" if process == "collector" else "analyze"
    at = address if isinstance(address, Path) else address.address
    return UnreachableError(
        f"{process}: did not answer at {at}: none runs there, or it hangs."
        f" Start one with `zeus-stream {verb}`, or set ZEUS_STREAM_DIR to where it is."
    )


def _ask(
    address: Address, request: Request, expected: type[M], timeout_s: float, process: str
) -> tuple[M, list[bytes]]:
    there = not isinstance(address, Path) or (address.exists() and paths.trusted(address))
    parts = sockets.exchange(address, codec.encode(request), timeout_s) if there else None
    return reply_of(parts, expected, process, address)


def reply_of(
    parts: list[bytes] | None, expected: type[M], process: str, address: Address
) -> tuple[M, list[bytes]]:
    """Return the reply in a message, and the parts behind it. None: there is no message.

    Raises UnreachableError: there is none. RefusedError: the process refused.
    """
    if not parts:
        raise unreachable(process, address)
    reply: M | No = codec.decode(parts[0], expected, No)
    if isinstance(reply, No):
        raise RefusedError(reply.reason)
    return reply, parts[1:]
