"""Rows of commands that are not in the archive yet, in a file beside it.

A command leaves once its row outlives the analyzer. A line here does: no transaction and no disk is waited
for. It is in the archive with the next commit, and after a kill with the next start. After a loss of power
the frames come again from the collectors' logs, and give the same row (decision 063).

    <archive>.commands    a line a row: checksum, archive id, values by column
"""

import json
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analyzers.results.rows import CommandRow
from zeus_stream.errors import StorageError

MAX_BYTES = 1 << 20
"""Of rows that wait for a commit; then no more are taken in."""
_log = logging.getLogger(__name__)


def beside(archive: Path) -> Path:
    """Return where the rows beside an archive are."""
    return archive.with_name(f"{archive.name}.commands")


class CommandFile:
    """The rows beside one archive. Of the process that has it open for writing."""

    def __init__(self, archive: Path, archive_id: str) -> None:
        """Open it, or make it. Raises StorageError."""
        self._path = beside(archive)
        self._archive_id = archive_id
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._bytes = os.fstat(self._file).st_size
        except OSError as wrong:
            raise self._failure("be opened", wrong) from wrong

    def read(self) -> list[CommandRow]:
        """Return the rows that an earlier start left, the oldest first. Raises StorageError."""
        try:
            lines = os.pread(self._file, self._bytes, 0).splitlines()
        except OSError as wrong:
            raise self._failure("be read", wrong) from wrong
        rows = []
        for line in lines:
            try:
                crc, archive_id, values = json.loads(line)
                if crc == _crc(archive_id, values) and archive_id == self._archive_id:
                    rows.append(CommandRow(**values))
            except (ValueError, TypeError) as wrong:  # cut by a loss of power, or of another version
                _log.warning("%s: a row is left out, its frames give it again: %s", self._path, wrong)
        return rows

    def add(self, rows: Sequence[CommandRow]) -> bool:
        """Add rows; they outlive this process. False: there is no room for all, so they need a commit.

        Raises StorageError.
        """
        values = [asdict(row) for row in rows]
        lines = b"".join(
            json.dumps([_crc(self._archive_id, each), self._archive_id, each]).encode() + b"\n"
            for each in values
        )
        if self._bytes + len(lines) > MAX_BYTES:
            return False
        try:
            whole = os.write(self._file, lines) == len(lines)
            if not whole:  # the next line is not to continue a part of this one
                os.ftruncate(self._file, self._bytes)
        except OSError as wrong:
            raise self._failure("be written", wrong) from wrong
        self._bytes += len(lines) if whole else 0
        return whole

    def clear(self) -> None:
        """Forget all rows: they are in the archive. Raises StorageError."""
        if not self._bytes:
            return
        try:
            os.ftruncate(self._file, 0)
        except OSError as wrong:
            raise self._failure("be written", wrong) from wrong
        self._bytes = 0

    def close(self) -> None:
        """Close it, and remove it if it is empty."""
        os.close(self._file)
        if not self._bytes:
            self._path.unlink(missing_ok=True)

    def _failure(self, what: str, wrong: OSError) -> StorageError:
        return StorageError(
            f"{self._path}: could not {what}: {wrong.strerror or wrong}. Make room or give access, then start"
            " the analyzer again."
        )


def _crc(archive_id: object, values: object) -> int:
    return zlib.crc32(json.dumps([archive_id, values], sort_keys=True).encode())
