"""The ordered log on disk: SQLite, one writer, bounded by size and age.

Frames have offsets 0, 1, 2, ... within one log id. What was acknowledged is in the log, together with
the next sequence number of each session, in one transaction. A process that is
killed loses nothing. After a loss of power, or when the file is broken, was cut or exchanged, offsets
that were handed out may be gone: then the log starts over, with another id. Two things show that:
every row has a checksum, and beside the log lies a mark, the next offset after each transaction. The same
mark in memory (`BootMark`) is ahead of a log whose file system has lost what was not on its disk yet.
(SQLite drops without a word what follows a damaged place in its write-ahead log.) So the writer forces
nothing to disk. Another thread does, with each checkpoint (`WalCheckpoint`).

Events may take half of the room. Past that, the oldest events of the user who has most of them are removed
first: no user displaces readings, or events of others. Such a removal leaves a hole in the offsets, which
is kept in ``holes``: a hole that is not there is damage.
"""

import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from collectors.log.boot_mark import BootMark
from collectors.log.database import MARK, beside, frame_crc, open_database, read_mark, row_crc
from collectors.log.store import UNKNOWN_UID, Extent, SessionMemory
from zeus_stream.errors import StorageError
from zeus_stream.protocol.frames import Frame

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
    """Brings the write-ahead log into its file, in a thread of its own: only that thread waits for the disk.

    SQLite does so in the commit that fills the write-ahead log, and forces both files to disk for it. That
    held up every event, reading and command of the host for 10 to 100 ms, every few seconds. The thread
    begins with the first checkpoint that is due.
    """

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


OVERHEAD_BYTES = 64
"""What a frame takes on disk beside its topic and body, about."""
CHUNK = 500
"""Frames removed in one transaction."""
MAX_SESSIONS = 2_000
"""Sessions remembered; the longest silent are forgotten first."""

_log = logging.getLogger(__name__)
EVENT_SHARE = 0.5
"""What all events together may take of the log."""


class _Gone(Struct, frozen=True):
    """The frames removed, and the oldest offset after that."""

    first: int
    frames: int
    bytes: int
    written: Counter[int]
    """Bytes of events, by user."""


class SqliteLog:
    """The log of one collector. Used from one thread; one process at a time (the collector's claim)."""

    def __init__(self, path: Path, host: str, boot_id: str, boot_mark: BootMark | None = None) -> None:
        """Open or create the log; one not to be trusted starts over (`started_over`). Raises StorageError."""
        self._path = path
        self._host = host
        self._boot_mark = boot_mark or BootMark(path, None)
        self._checkpoint = WalCheckpoint(path)
        with self._explained("be opened"):
            self._mark = os.open(beside(path, "-mark"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                marks = read_mark(os.pread(self._mark, MARK.size, 0)), read_mark(self._boot_mark.read())
                self._db, self.started_over = open_database(path, boot_id, *marks)
                self._begin(boot_id)
                for pragma in (f"wal_autocheckpoint = {INLINE_PAGES}", "synchronous = OFF"):
                    self._db.execute(f"PRAGMA {pragma}")
            except BaseException:
                os.close(self._mark)
                self._boot_mark.close()
                raise

    def _begin(self, boot_id: str) -> None:
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        self.log_id = meta["log_id"]
        first, last, size, count = self._db.execute(
            'SELECT min("offset"), max("offset"), sum(length(body) + length(topic)), count(*) FROM frames'
        ).fetchone()
        self._first = 0 if first is None else first
        self._next = 0 if last is None else last + 1
        self._bytes: int = (size or 0) + OVERHEAD_BYTES * count
        self._written = Counter(dict(self._db.execute("SELECT uid, sum(bytes) FROM written GROUP BY uid")))
        # Times of frames from before the last boot mean nothing to this one's clock.
        if meta["boot_id"] != boot_id:
            meta["boot_offset"] = str(self._next)
        self._boot_offset = int(meta["boot_offset"])
        values = {"boot_id": boot_id, "boot_offset": str(self._boot_offset), "clean": "no"}
        with self._db:
            self._db.executemany("REPLACE INTO meta VALUES (?, ?)", values.items())
        self._put_mark()
        os.fsync(self._mark)

    @property
    def extent(self) -> Extent:
        return Extent(self.log_id, self._first, self._next)

    @property
    def size_bytes(self) -> int:
        """About what the frames take on disk."""
        return self._bytes

    def append(
        self,
        entries: Sequence[tuple[str, bytes]],
        t_ns: int,
        session: SessionMemory | None = None,
        *,
        written_by: int | None = None,
    ) -> list[Frame]:
        frames = [
            Frame(
                log_id=self.log_id,
                offset=self._next + place,
                host=self._host,
                t_ns=t_ns,
                topic=topic,
                body=body,
            )
            for place, (topic, body) in enumerate(entries)
        ]
        with self._explained("be written"), self._db:
            self._db.executemany(
                "INSERT INTO frames VALUES (?, ?, ?, ?, ?)",
                [
                    (f.offset, t_ns, f.topic, f.body, frame_crc(f.offset, t_ns, f.topic, f.body))
                    for f in frames
                ],
            )
            if written_by is not None:
                shares = [(written_by, f.offset, _size(f.topic, f.body)) for f in frames]
                self._db.executemany("INSERT INTO written VALUES (?, ?, ?)", shares)
            if session is not None:
                about = session.session, session.next_sequence, session.about, self._next + len(frames)
                self._db.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)", (*about, row_crc(*about)))
        self._next += len(frames)
        size = sum(_size(topic, body) for topic, body in entries)
        self._bytes += size
        self._checkpoint.wrote(size)
        if written_by is not None:
            self._written[written_by] += size
        try:
            self._put_mark()
        except OSError as wrong:  # the frames are in the log: a mark that is too low only notices less
            _log.info("%s: its mark could not be written: %s", self._path, wrong)
        return frames

    def _put_mark(self) -> None:
        mark = MARK.pack(self.log_id.encode(), self._next)
        self._boot_mark.put(mark)
        os.pwrite(self._mark, mark, 0)

    def fetch(self, first_offset: int, count: int, max_bytes: int) -> list[Frame]:
        frames: list[Frame] = []
        with self._explained("be read"):
            rows = self._db.execute(
                'SELECT "offset", t_ns, topic, body FROM frames WHERE "offset" >= ?'
                ' ORDER BY "offset" LIMIT ?',
                (first_offset, count),
            )
            for offset, t_ns, topic, body in rows:
                max_bytes -= _size(topic, body)
                if frames and (max_bytes < 0 or offset != frames[-1].offset + 1):
                    break
                frames.append(
                    Frame(
                        log_id=self.log_id, offset=offset, host=self._host, t_ns=t_ns, topic=topic, body=body
                    )
                )
        return frames

    def sessions(self) -> list[SessionMemory]:
        """Return the sessions, longest silent first. Raises StorageError."""
        with self._explained("be read"):
            rows = self._db.execute("SELECT session, next_sequence, about FROM sessions ORDER BY heard")
            return [SessionMemory(*row) for row in rows]

    def prune(self, now_ns: int, max_bytes: int, max_age_ns: int) -> int:
        """Remove the oldest frames, but the newest, which has the next offset. Raises StorageError."""
        uid, most = max(self._written.items(), key=lambda item: item[1], default=(UNKNOWN_UID, 0))
        with self._explained("be pruned"), self._db:
            if self._bytes > max_bytes and most and self._written.total() > EVENT_SHARE * max_bytes:
                gone = self._remove_events(uid, self._bytes - max_bytes)
            else:
                gone = self._remove_oldest(now_ns, max_bytes, max_age_ns)
        self._first = gone.first
        self._bytes -= gone.bytes
        self._written -= gone.written  # and drops who has nothing left
        return gone.frames

    def _remove_oldest(self, now_ns: int, max_bytes: int, max_age_ns: int) -> _Gone:
        rows = self._db.execute(
            'SELECT "offset", t_ns, topic, length(body) FROM frames ORDER BY "offset" LIMIT ?', (CHUNK,)
        )
        first, gone_bytes, frames = self._first, 0, 0
        for offset, t_ns, topic, length in rows:
            # A frame of an earlier boot is at least as old as this one.
            age_ns = now_ns if offset < self._boot_offset else now_ns - t_ns
            fits = self._bytes - gone_bytes <= max_bytes and age_ns <= max_age_ns
            if fits or offset + 1 >= self._next:
                break
            first, frames = offset + 1, frames + 1
            gone_bytes += length + len(topic) + OVERHEAD_BYTES
        events = self._db.execute('DELETE FROM written WHERE "offset" < ? RETURNING uid, bytes', (first,))
        written = Counter[int]()
        for uid, size in events.fetchall():
            written[uid] += size
        self._db.execute('DELETE FROM frames WHERE "offset" < ?', (first,))
        self._db.execute(
            "DELETE FROM sessions WHERE heard < (SELECT heard FROM sessions"
            " ORDER BY heard DESC LIMIT 1 OFFSET ?)",
            (MAX_SESSIONS,),
        )
        return _Gone(self._past_holes(first), frames, gone_bytes, written)

    def _remove_events(self, uid: int, too_many_bytes: int) -> _Gone:
        """Remove a user's oldest events, and keep which offsets that leaves empty."""
        rows = self._db.execute(
            'SELECT "offset", bytes FROM written WHERE uid = ? ORDER BY "offset" LIMIT ?', (uid, CHUNK)
        )
        offsets, gone_bytes = list[int](), 0
        for offset, size in rows.fetchall():
            if gone_bytes >= too_many_bytes or offset + 1 >= self._next:
                break
            offsets.append(offset)
            gone_bytes += size
            self._add_hole(offset)
        self._db.executemany('DELETE FROM frames WHERE "offset" = ?', ((offset,) for offset in offsets))
        users = ((uid, offset) for offset in offsets)
        self._db.executemany('DELETE FROM written WHERE uid = ? AND "offset" = ?', users)
        return _Gone(self._past_holes(self._first), len(offsets), gone_bytes, Counter({uid: gone_bytes}))

    def _add_hole(self, offset: int) -> None:
        """Keep that an offset is empty, as one hole with those beside it."""
        first, past = offset, offset + 1
        for hole in self._db.execute(
            "DELETE FROM holes WHERE past = ? OR first = ? RETURNING first, past", (offset, offset + 1)
        ).fetchall():
            first, past = min(first, hole[0]), max(past, hole[1])
        self._db.execute("INSERT INTO holes VALUES (?, ?)", (first, past))

    def _past_holes(self, first: int) -> int:
        """Return the offset of the oldest frame, and forget the holes before it."""
        for (past,) in self._db.execute(
            "DELETE FROM holes WHERE first <= ? RETURNING past", (first,)
        ).fetchall():
            first = max(first, past)
        return first

    def close(self) -> None:
        """Close in order: the next start trusts it, even after a reboot. Raises StorageError."""
        self._checkpoint.close()
        try:
            with self._explained("be closed"):
                self._db.execute("PRAGMA synchronous = NORMAL")
            with self._explained("be closed"), self._db:
                self._db.execute("REPLACE INTO meta VALUES ('clean', 'yes')")
                os.fsync(self._mark)
        finally:
            self._db.close()
            os.close(self._mark)
            self._boot_mark.close()

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as wrong:
            raise StorageError(
                f"{self._path}: could not {what}: {wrong}. Make room or give access; if the file is broken,"
                " restart the collector: it moves it aside and begins another."
            ) from wrong


def _size(topic: str, body: bytes) -> int:
    return len(topic) + len(body) + OVERHEAD_BYTES
