"""The end of a log, kept in memory until the host stops: /dev/shm.

A file system that failed, and is mounted again while the host runs, has lost what was not on its disk yet:
also of the mark beside the log. The log looks whole then, and ends earlier: offsets would be given twice.
"""

import logging
import os
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path

from zeus_stream.own_files import open_own, read_own

_log = logging.getLogger(__name__)
MEMORY = Path("/dev/shm")  # noqa: S108  (the file is opened without links, and has to be ours)
PREFIX = "zeus-stream-mark-"
SWEPT = 200
"""Marks that are looked at when one is opened: those of logs that are gone are removed."""
MARK_BYTES = 8_192
"""A mark with the longest path."""
_PLACE = 64
"""Bytes before the path of the log."""


class BootMark:
    """Some bytes about one log. Without memory for it, there are none."""

    def __init__(self, log: Path, memory: Path | None = MEMORY) -> None:
        """Open or make it. ``memory``: a directory that only a restart of the host empties; None: no mark."""
        self._file: int | None = None
        if memory is None:
            return
        path = str(log.absolute())
        name = f"{PREFIX}{os.geteuid()}-{sha256(path.encode()).hexdigest()[:16]}"
        _sweep(memory)
        try:
            self._file = open_own(memory / name, os.O_RDWR | os.O_CREAT)
            os.pwrite(self._file, path.encode(), _PLACE)
        except OSError as wrong:
            _log.info("%s: without a mark in memory: %s", log, wrong)
            self.close()

    def read(self) -> bytes:
        """Return what was put last; nothing if nothing was."""
        return b"" if self._file is None else os.pread(self._file, _PLACE, 0)

    def put(self, content: bytes) -> None:
        """Keep up to 64 bytes. Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, content, 0)

    def close(self) -> None:
        """Leave it for the next start."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _sweep(memory: Path) -> None:
    """Remove marks of ours whose logs are gone."""
    for file in islice(memory.glob(f"{PREFIX}{os.geteuid()}-*"), SWEPT):
        with suppress(OSError):
            log = read_own(file, MARK_BYTES, others_may=0o077)[_PLACE:]
            if log and not os.path.lexists(log):
                file.unlink()
