"""The ordered log on disk: SQLite, one writer, bounded by size and age.

Frames have offsets 0, 1, 2, ... within one log id. What was acknowledged is in the log, together with
the sequence number up to which each session has been heard, in one transaction. A process that is
killed loses nothing; after a loss of power, or when the file is broken, was cut or exchanged, offsets
that were handed out may be gone: then the log begins anew, with another id. Two things tell that:
every row has a checksum, and beside the log lies a mark, the next offset after each transaction.
(SQLite drops without a word what follows a damaged place in its write-ahead log.)
"""

import logging
import os
import secrets
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from zeus_stream.errors import StorageError
from zeus_stream.protocol.frames import Frame

FORMAT = "zeus-stream log 2"
OVERHEAD_BYTES = 64
"""What a frame takes on disk beside its topic and body, about."""
CHUNK = 500
"""Frames removed in one transaction."""
MAX_SESSIONS = 2_000
"""Sessions remembered; the longest silent are forgotten first."""
_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE frames (
  "offset" INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, topic TEXT NOT NULL, body BLOB NOT NULL,
  crc INTEGER NOT NULL);
CREATE TABLE sessions (
  session TEXT PRIMARY KEY, next_sequence INTEGER NOT NULL, about TEXT NOT NULL,
  heard INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
"""
_MARK = Struct("<16sQ")  # log id, next offset


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """What a restarted collector must know of a session: ``about`` is the caller's own text."""

    session: str
    next_sequence: int
    about: str


@dataclass(frozen=True, slots=True)
class Extent:
    """The frames of a log: from ``first_offset`` to below ``next_offset``."""

    log_id: str
    first_offset: int
    next_offset: int


class Log:
    """The log of one collector. Used from one thread; one process at a time (the collector's claim)."""

    def __init__(self, path: Path, host: str, boot_id: str) -> None:
        """Open or create the log; one that cannot be trusted is begun anew. Raises StorageError.

        ``begun_anew`` then says what was wrong with it.
        """
        self._path = path
        self._host = host
        with self._explained("be opened"):
            self._mark = os.open(_beside(path, "-mark"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._db, self.begun_anew = _open(path, boot_id, _read_mark(self._mark))
                self._begin(boot_id)
            except BaseException:
                os.close(self._mark)
                raise

    def _begin(self, boot_id: str) -> None:
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        self.log_id = meta["log_id"]
        first, last, size = self._db.execute(
            'SELECT min("offset"), max("offset"), sum(length(body) + length(topic)) FROM frames'
        ).fetchone()
        self._first = 0 if first is None else first
        self._next = 0 if last is None else last + 1
        self._bytes = (size or 0) + OVERHEAD_BYTES * (self._next - self._first)
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
        self, entries: Sequence[tuple[str, bytes]], t_ns: int, session: SessionMemory | None = None
    ) -> list[Frame]:
        """Add frames (topic, body), and how far a session was heard, in one transaction.

        Raises:
            StorageError: nothing was added; it may be tried again.
        """
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
                    (f.offset, t_ns, f.topic, f.body, _frame_crc(f.offset, t_ns, f.topic, f.body))
                    for f in frames
                ],
            )
            if session is not None:
                about = session.session, session.next_sequence, session.about, self._next + len(frames)
                self._db.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)", (*about, _crc(*about)))
        self._next += len(frames)
        self._bytes += sum(_size(topic, body) for topic, body in entries)
        try:
            self._put_mark()
        except OSError as wrong:  # the frames are in the log: a mark that is too low only notices less
            _log.info("%s: its mark could not be written: %s", self._path, wrong)
        return frames

    def _put_mark(self) -> None:
        os.pwrite(self._mark, _MARK.pack(self.log_id.encode(), self._next), 0)

    def fetch(self, first_offset: int, count: int, max_bytes: int) -> list[Frame]:
        """Return frames from ``first_offset`` (or the oldest) on: at most ``count``; one, or ``max_bytes``.

        Raises StorageError.
        """
        frames: list[Frame] = []
        with self._explained("be read"):
            rows = self._db.execute(
                'SELECT "offset", t_ns, topic, body FROM frames WHERE "offset" >= ?'
                ' ORDER BY "offset" LIMIT ?',
                (first_offset, count),
            )
            for offset, t_ns, topic, body in rows:
                max_bytes -= _size(topic, body)
                if frames and max_bytes < 0:
                    break
                frames.append(
                    Frame(
                        log_id=self.log_id, offset=offset, host=self._host, t_ns=t_ns, topic=topic, body=body
                    )
                )
        return frames

    def sessions(self) -> list[SessionMemory]:
        """Return the sessions heard, longest silent first. Raises StorageError."""
        with self._explained("be read"):
            rows = self._db.execute("SELECT session, next_sequence, about FROM sessions ORDER BY heard")
            return [SessionMemory(*row) for row in rows]

    def prune(self, now_ns: int, max_bytes: int, max_age_ns: int) -> int:
        """Remove the oldest frames, some at a time, and return how many. Raises StorageError.

        The newest frame stays whatever its age: it carries the next offset over a restart.
        """
        with self._explained("be pruned"), self._db:
            rows = self._db.execute(
                'SELECT "offset", t_ns, topic, length(body) FROM frames ORDER BY "offset" LIMIT ?', (CHUNK,)
            )
            first, left_bytes = self._first, self._bytes
            for offset, t_ns, topic, length in rows:
                # A frame of an earlier boot is at least as old as this one.
                age_ns = now_ns if offset < self._boot_offset else now_ns - t_ns
                if (left_bytes <= max_bytes and age_ns <= max_age_ns) or offset + 1 >= self._next:
                    break
                first = offset + 1
                left_bytes -= length + len(topic) + OVERHEAD_BYTES
            self._db.execute('DELETE FROM frames WHERE "offset" < ?', (first,))
            self._db.execute(
                "DELETE FROM sessions WHERE heard < (SELECT heard FROM sessions"
                " ORDER BY heard DESC LIMIT 1 OFFSET ?)",
                (MAX_SESSIONS,),
            )
        removed, self._first, self._bytes = first - self._first, first, left_bytes
        return removed

    def close(self) -> None:
        """Close in order: the next start trusts it, even after a reboot. Raises StorageError."""
        try:
            with self._explained("be closed"), self._db:
                self._db.execute("REPLACE INTO meta VALUES ('clean', 'yes')")
                os.fsync(self._mark)
        finally:
            self._db.close()
            os.close(self._mark)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as wrong:
            raise StorageError(
                f"{self._path}: could not {what}: {wrong}. Make room or give access; if the file is broken,"
                " restart the collector: it moves it aside and begins another."
            ) from wrong


def _open(path: Path, boot_id: str, mark: tuple[str, int] | None) -> tuple[sqlite3.Connection, str | None]:
    """Return the log's database, and why the one that was there is not continued, if so."""
    try:
        db = _connect(path)
        doubt = _doubt(db, boot_id, mark)
    except sqlite3.OperationalError:
        raise  # no access, no room: nothing is wrong with the file
    except sqlite3.DatabaseError as wrong:
        doubt = f"it could not be read: {wrong}"
    if doubt is not None:
        _move_aside(path)
        db = _connect(path)
    if not _tables(db):
        _create(db, boot_id)
    return db, doubt


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=2.0)
    db.text_factory = lambda text: text.decode("utf-8", "replace")  # damage is found by checksums
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _create(db: sqlite3.Connection, boot_id: str) -> None:
    values = {
        "format": FORMAT,
        "log_id": secrets.token_hex(8),
        "boot_id": boot_id,
        "boot_offset": "0",
        "clean": "no",
    }
    with db:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())


def _doubt(db: sqlite3.Connection, boot_id: str, mark: tuple[str, int] | None) -> str | None:
    """Return why this database must not be continued, or None. Closes it when it must not."""
    try:
        doubt = _compare(db, boot_id, mark)
    except sqlite3.Error:
        db.close()
        raise
    if doubt is not None:
        db.close()
    return doubt


def _compare(db: sqlite3.Connection, boot_id: str, mark: tuple[str, int] | None) -> str | None:
    tables = _tables(db)
    if not tables:
        return None if mark is None else "it is gone"
    if not tables >= {"meta", "frames", "sessions"}:
        return "it is not a log of zeus-stream"
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if meta.get("format") != FORMAT:
        return f"its format is {meta.get('format')!r}, this version writes {FORMAT!r}"
    if meta["clean"] != "yes" and meta["boot_id"] != boot_id:
        return "the host stopped without closing it"
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return f"it is broken: {verdict}" if verdict != "ok" else _damage(db, meta["log_id"], mark)


def _damage(db: sqlite3.Connection, log_id: str, mark: tuple[str, int] | None) -> str | None:
    """Return which rows are not what was written, or are missing."""
    expected = None
    rows = db.execute('SELECT "offset", t_ns, topic, CAST(body AS BLOB), crc FROM frames ORDER BY "offset"')
    for offset, t_ns, topic, body, crc in rows:
        if offset != (offset if expected is None else expected):
            return f"it is broken: frame {expected} is gone"
        if crc != _frame_crc(offset, t_ns, topic, body):
            return f"it is broken: frame {offset} is not what was written"
        expected = offset + 1
    for *about, crc in db.execute("SELECT * FROM sessions"):
        if crc != _crc(*about):
            return f"it is broken: session {about[0]} is not what was written"
    if mark is not None and mark[0] != log_id:
        return f"it was exchanged: the last was {mark[0]}"
    if mark is not None and mark[1] > (expected or 0):
        return f"it was cut: frames {expected or 0} to {mark[1] - 1} are gone"
    return None


def _move_aside(path: Path) -> None:
    """Make room for another log; of those that were moved, the last is kept."""
    aside = _beside(path, ".old")
    _log.warning("%s: is moved to %s", path, aside)
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        _beside(path, suffix).unlink(missing_ok=True)


def _size(topic: str, body: bytes) -> int:
    return len(topic) + len(body) + OVERHEAD_BYTES


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _read_mark(mark: int) -> tuple[str, int] | None:
    """Return log id and next offset, or None when there is no mark yet."""
    content = os.pread(mark, _MARK.size, 0)
    if len(content) < _MARK.size or not any(content):
        return None
    log_id, next_offset = _MARK.unpack(content)
    return log_id.decode("ascii", "replace"), next_offset


def _frame_crc(offset: int, t_ns: int, topic: str, body: bytes) -> int:
    return zlib.crc32(body, _crc(offset, t_ns, topic))


def _crc(*values: object) -> int:
    return zlib.crc32(repr(values).encode())
