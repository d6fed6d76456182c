"""Answers the SQL of pages and reports: by the analyzer that runs, or from an archive file."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING

from analyzers.archive.open_file import opened
from analyzers.archive.opening import Reader
from analyzers.archive.query import answer_some, import_signals, read_own
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.state_files import signal_files
from zeus_stream.cli.options import is_file_asked
from zeus_stream.clock import monotonic_ns
from zeus_stream.paths import Places
from zeus_stream.screens.web.source import QueryRows
from zeus_stream.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

IDLE_S = 2.0
"""An analyzer that starts needs the file: it is closed after this time without a query."""
OLDEST_NS = 10_000_000_000
"""A file that another process writes is read from a copy, which is made again after this time."""


class ArchiveSource:
    """An archive file that stays open while a page asks. For any thread."""

    def __init__(self, path: Path, signals: Path, settings: Settings) -> None:
        """``signals``: directory of this machine's signals, by which money and carbon are reckoned."""
        self.path = path
        self._signals = signals
        self._settings = settings
        self._lock = Lock()
        self._held: ExitStack | None = None
        self._queries: Queries | None = None
        self._users = 0
        self._opened_ns = 0
        self._timer: Timer | None = None

    def ask(self, sql: str, max_rows: int, seconds: float, jobs: tuple[str, ...] = ()) -> QueryRows:
        """Return the first rows of an answer. Raises StorageError, RefusedError."""
        with self._lock:
            queries = self._open()
            self._users += 1
        try:
            return QueryRows(*answer_some(queries, sql, max_rows, seconds, jobs))
        finally:
            with self._lock:
                self._users -= 1
                self._close_later()

    def close(self) -> None:
        """Close the file if no query is under way."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._users == 0 and self._held is not None:
                self._held.close()
                self._held = self._queries = None

    def _open(self) -> Queries:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        old = monotonic_ns() - self._opened_ns > OLDEST_NS
        if self._held is not None and old and self._users == 0:
            self._held.close()
            self._held = self._queries = None
        if self._queries is None:
            with ExitStack() as held:
                archive = held.enter_context(opened(self.path, self._settings))
                import_signals(archive.connection, signal_files.load(self._signals))
                self._queries = Queries(archive, self._settings)
                held.callback(self._queries.stop)
                self._held = held.pop_all()
            self._opened_ns = monotonic_ns()
        return self._queries

    def _close_later(self) -> None:
        if self._users == 0:
            self._timer = Timer(IDLE_S, self.close)
            self._timer.daemon = True
            self._timer.start()


def is_file_shown(settings: Settings, where: Places) -> bool:
    """Tell whether a page shows the archive file: it is asked, and it is named or there is one."""
    return is_file_asked(settings, where) and (settings.archive is not None or where.archive.exists())


@contextmanager
def answering(settings: Settings, where: Places) -> "Iterator[Callable[[str], pa.Table]]":
    """Give what answers the SQL of a report; a file answers in this process. Raises as its queries do."""
    if not is_file_asked(settings, where):
        from zeus_stream.transport.client import Connection, analyzer  # a file needs no socket

        connection = Connection(analyzer(os.environ, settings.analyzer))
        yield lambda sql: connection.sql(sql, timeout_s=settings.query_seconds)
        return
    with opened(settings.archive or where.archive, settings) as archive, archive.cursor() as cursor:
        archive.read_no_other_file()
        import_signals(cursor, signal_files.load(where.signals))
        yield partial(read_own, Reader(cursor))
