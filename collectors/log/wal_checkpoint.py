"""Bring the write-ahead log into its file, in a thread of its own: only that thread waits for the disk.

SQLite does so in the commit that fills the write-ahead log, and forces both files to disk for it. That held
up every event, reading and command of the host for 10 to 100 ms, every few seconds.
"""

import logging
import sqlite3
import threading
from pathlib import Path

DUE_BYTES = 4 << 20
"""Of the write-ahead log, about; SQLite's own measure."""
INLINE_PAGES = 16_000
"""Of the write-ahead log: then a commit does it after all (64 MB)."""
PAGE_BYTES = 4096
PAGES = 5
"""That a transaction writes beside its content, about: one of each tree."""
TRIES = 5
"""In a row. Frames that come in the meantime are left for the next; if none are, the file begins again."""
_log = logging.getLogger(__name__)


class WalCheckpoint:
    """The thread. It begins with the first checkpoint that is due."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0
        self._due = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Checkpoints that failed."""

    def wrote(self, size: int) -> None:
        """Take in that a transaction with so much content was committed."""
        self._bytes += size + PAGES * PAGE_BYTES
        if self._bytes < DUE_BYTES:
            return
        self._bytes = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log checkpoint", daemon=True)
            self._thread.start()
        self._due.set()

    def close(self) -> None:
        """End the thread, after the checkpoint under way."""
        self._stopping = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._stopping:
                return
            try:
                self._bring_in()
            except sqlite3.Error as wrong:  # what keeps the disk from it is seen by the writer as well
                self.failures += 1
                _log.info("%s: its write-ahead log could not be brought in: %s", self._path, wrong)

    def _bring_in(self) -> None:
        db = sqlite3.connect(self._path, timeout=2.0)
        try:
            for _ in range(TRIES):
                busy, pages, done = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if self._stopping or busy or pages == done:
                    return
        finally:
            db.close()
