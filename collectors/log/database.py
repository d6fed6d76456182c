"""The database of a log: opened, begun, and checked row by row before it is continued."""

import logging
import secrets
import sqlite3
import zlib
from pathlib import Path
from struct import Struct
from typing import TypeAlias

FORMAT = "zeus-stream log 2"
_WRONG_SHARES = """
SELECT "offset" FROM written LEFT JOIN frames USING ("offset")
WHERE topic IS NULL OR topic NOT LIKE 'events/%' LIMIT 1
"""
MARK = Struct("<16sQ")
Mark: TypeAlias = tuple[str, int]
"""Log id, next offset."""
_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE frames (
  "offset" INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, topic TEXT NOT NULL, body BLOB NOT NULL,
  crc INTEGER NOT NULL);
CREATE TABLE sessions (
  session TEXT PRIMARY KEY, next_sequence INTEGER NOT NULL, about TEXT NOT NULL,
  heard INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE written (
  uid INTEGER NOT NULL, "offset" INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (uid, "offset"))
  WITHOUT ROWID;
CREATE TABLE holes (first INTEGER PRIMARY KEY, past INTEGER NOT NULL);
"""


def open_database(
    path: Path, boot_id: str, mark: Mark | None, boot_mark: Mark | None = None
) -> tuple[sqlite3.Connection, str | None]:
    """Return the log's database, and why the one that was there is not continued, if so.

    ``mark``: of the file beside the log; ``boot_mark``: as this boot knows it, of this log or another.
    """
    try:
        db = _connect(path)
        doubt = _doubt(db, boot_id, mark, boot_mark)
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


def _doubt(db: sqlite3.Connection, boot_id: str, mark: Mark | None, boot_mark: Mark | None) -> str | None:
    """Return why this database must not be continued, or None. Closes it when it must not."""
    try:
        doubt = _compare(db, boot_id, mark, boot_mark)
    except sqlite3.Error:
        db.close()
        raise
    if doubt is not None:
        db.close()
    return doubt


def _compare(db: sqlite3.Connection, boot_id: str, mark: Mark | None, boot_mark: Mark | None) -> str | None:
    tables = _tables(db)
    if not tables:
        return None if mark is None else "it is gone"
    if not tables >= {"meta", "frames", "sessions", "written", "holes"}:
        return "it is not a log of zeus-stream"
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if meta.get("format") != FORMAT:
        return f"its format is {meta.get('format')!r}, this version writes {FORMAT!r}"
    if meta["clean"] != "yes" and meta["boot_id"] != boot_id:
        return "the host stopped without closing it"
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return f"it is broken: {verdict}" if verdict != "ok" else _damage(db, meta["log_id"], mark, boot_mark)


def _damage(db: sqlite3.Connection, log_id: str, mark: Mark | None, boot_mark: Mark | None) -> str | None:
    """Return which rows are not what was written, or are missing."""
    expected = None
    holes = dict(db.execute("SELECT first, past FROM holes"))
    rows = db.execute('SELECT "offset", t_ns, topic, CAST(body AS BLOB), crc FROM frames ORDER BY "offset"')
    for offset, t_ns, topic, body, crc in rows:
        expected = holes.get(expected, expected)
        if offset != (offset if expected is None else expected):
            return f"it is broken: frame {expected} is gone"
        if crc != frame_crc(offset, t_ns, topic, body):
            return f"it is broken: frame {offset} is not what was written"
        expected = offset + 1
    for *about, crc in db.execute("SELECT * FROM sessions"):
        if crc != row_crc(*about):
            return f"it is broken: session {about[0]} is not what was written"
    if (wrong := db.execute(_WRONG_SHARES).fetchone()) is not None:
        return f"it is broken: the writer of frame {wrong[0]} is not what was written"
    if mark is not None and mark[0] != log_id:
        return f"it was exchanged: the last was {mark[0]}"
    known = [each[1] for each in (mark, boot_mark) if each is not None and each[0] == log_id]
    if (end := max(known, default=0)) > (expected or 0):
        return f"it was cut: frames {expected or 0} to {end - 1} are gone"
    return None


def _move_aside(path: Path) -> None:
    """Make room for another log; of those that were moved, the last is kept."""
    aside = beside(path, ".old")
    _log.warning("%s: is moved to %s", path, aside)
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        beside(path, suffix).unlink(missing_ok=True)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def read_mark(content: bytes) -> Mark | None:
    """Return log id and next offset, or None when there is no mark yet."""
    content = content[: MARK.size]
    if len(content) < MARK.size or not any(content):
        return None
    log_id, next_offset = MARK.unpack(content)
    return log_id.decode("ascii", "replace"), next_offset


def frame_crc(offset: int, t_ns: int, topic: str, body: bytes) -> int:
    return zlib.crc32(body, row_crc(offset, t_ns, topic))


def row_crc(*values: object) -> int:
    return zlib.crc32(repr(values).encode())
