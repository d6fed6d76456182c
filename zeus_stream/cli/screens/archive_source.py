"""Answers the SQL of pages from an archive file that no analyzer writes."""

from contextlib import ExitStack
from pathlib import Path
from threading import Lock, Timer

from analyzers.archive.query import Queries, answer_some
from analyzers.archive.snapshot import opened
from zeus_stream.clock import monotonic_ns
from zeus_stream.live.web.source import Answer
from zeus_stream.settings import Settings

IDLE_S = 2.0
"""An analyzer that starts needs the file: it is closed after this time without a query."""
OLDEST_NS = 10_000_000_000
"""A file that another process writes is read from a copy, which is made again after this time."""


class ArchiveSource:
    """An archive file that stays open while a page asks. For any thread."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self._lock = Lock()
        self._held: ExitStack | None = None
        self._queries: Queries | None = None
        self._users = 0
        self._opened_ns = 0
        self._timer: Timer | None = None

    def ask(self, sql: str, max_rows: int, seconds: float) -> Answer:
        """Return the first rows of an answer. Raises StorageError, RefusedError."""
        with self._lock:
            queries = self._open()
            self._users += 1
        try:
            return Answer(*answer_some(queries, sql, max_rows, seconds))
        finally:
            with self._lock:
                self._users -= 1
                self._close_later()

    def close(self) -> None:
        """Close the file if no query is under way."""
        with self._lock:
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
                self._queries = Queries(
                    held.enter_context(opened(self._path, self._settings)), self._settings
                )
                held.callback(self._queries.stop)
                self._held = held.pop_all()
            self._opened_ns = monotonic_ns()
        return self._queries

    def _close_later(self) -> None:
        if self._users == 0:
            self._timer = Timer(IDLE_S, self.close)
            self._timer.daemon = True
            self._timer.start()
