"""Rows that commands wait for and that are not in the archive yet, in a file beside it.

A command leaves once its row outlives the analyzer, and the rows of its run's beginning. A line here does: no
transaction and no disk is waited for. It is in the archive with the next commit, and after a kill with the
next start. After a loss of power the frames come again from the collectors' logs, and give the same rows
(decisions 063 and 071).

    <archive>.commands    lines of a checksum, and rows or how far they are in the archive, in base64
"""

import logging
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from analyzers.results.rows import CommandRow, RecallRow, RunRow
from zeus_stream.errors import MalformedError, StorageError, explaining
from zeus_stream.protocol import codec

MAX_BYTES = 1 << 20
"""Of rows that wait for a commit; then no more are taken in."""
Kept: TypeAlias = CommandRow | RunRow | RecallRow
_log = logging.getLogger(__name__)


class _Stored(Struct, frozen=True):
    """The lines before a place of the file are in the archive."""

    end: int


_KINDS: tuple[type[Kept | _Stored], ...] = (CommandRow, RunRow, RecallRow, _Stored)


def beside(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.commands")


class CommandFile:
    """The rows beside one archive. Of the process that has it open for writing."""

    def __init__(self, archive: Path, archive_id: str) -> None:
        """Open it, or make it. Raises StorageError."""
        self._path = beside(archive)
        self._archive_id = archive_id.encode()
        with self._explaining("be opened"):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.end = os.fstat(self._file).st_size
            """Where the next line begins."""

    def read(self) -> list[Kept]:
        """Return the rows that an earlier start left, the oldest first. Raises StorageError."""
        with self._explaining("be read"):
            lines = os.pread(self._file, self.end, 0).splitlines(keepends=True)
        rows: list[tuple[int, Kept]] = []
        at = 0
        for line in lines:
            for row in self._decoded(line):
                if isinstance(row, _Stored):
                    rows = [(place, kept) for place, kept in rows if place >= row.end]
                else:
                    rows.append((at, row))
            at += len(line)
        return [row for _, row in rows]

    def _decoded(self, line: bytes) -> list[Kept | _Stored]:
        """Return what a line says; nothing if it is not whole, or of another archive or version."""
        crc, _, text = line.partition(b" ")
        try:
            content = b64decode(text)
            whole = int(crc, 16) == self._crc(content)
            found = codec.decode_records(content, _KINDS) if whole else ()
        except (ValueError, MalformedError):  # cut by a loss of power, or of another version
            found = ()
        if not found:
            _log.warning("%s: a line is left out, its frames give its rows again.", self._path)
        return [row for row in found if isinstance(row, Kept | _Stored)]

    def add(self, rows: Sequence[Kept | _Stored]) -> bool:
        """Add rows; they outlive this process. False: no room, they need a commit. Raises StorageError."""
        content = codec.encode_records(rows)
        line = b"%08x %b\n" % (self._crc(content), b64encode(content))
        if self.end + len(line) > MAX_BYTES:
            return False
        with self._explaining("be written"):
            whole = os.write(self._file, line) == len(line)
            if not whole:  # the next line is not to continue a part of this one
                os.ftruncate(self._file, self.end)
        self.end += len(line) if whole else 0
        return whole

    def clear(self, end: int) -> None:
        """Forget the rows before that place: they are in the archive. Raises StorageError."""
        if end < self.end:
            self.add([_Stored(end)])  # without room for it, rows of the next start replace their like
            return
        if not end:
            return
        with self._explaining("be written"):
            os.ftruncate(self._file, 0)
        self.end = 0

    def close(self) -> None:
        os.close(self._file)
        if not self.end:
            self._path.unlink(missing_ok=True)

    def _crc(self, content: bytes) -> int:
        return zlib.crc32(content, zlib.crc32(self._archive_id))

    def _explaining(self, what: str) -> AbstractContextManager[None]:
        cure = "Make room or give access, then start the analyzer again."
        return explaining(StorageError, f"{self._path}: could not {what}", cure)
