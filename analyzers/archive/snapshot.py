"""Read the archive while another process writes it: from a copy as of one instant.

DuckDB lets no second process open a file that is being written. A checkpoint of DuckDB writes to free blocks,
and then replaces one of two headers. The blocks that a header refers to stay as they are until the next
checkpoint. So a copy is whole if no header changed while it was made. The log beside the file (WAL) adds what
was committed since; DuckDB ignores a tail of it that is not complete.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from analyzers.archive.open_file import OpenFile
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

HEADERS_BYTES = 3 * 4096
"""The main header of a DuckDB file and its two database headers."""
TRIES = 20
"""Copies that are tried: each fails only if a checkpoint ends while it is made."""


@contextmanager
def opened(path: Path, settings: Settings) -> Iterator[OpenFile]:
    """Open an archive for queries, as it is now, whether another process writes it. Raises StorageError."""
    if not is_written(path):
        with closing(OpenFile.open_read_only(path, settings)) as archive:
            yield archive
        return
    with tempfile.TemporaryDirectory(prefix="zeus-stream-") as directory:
        copy = Path(directory) / "energy.duckdb"
        copy_whole(path, copy)
        with closing(OpenFile.open_read_only(copy, settings)) as archive:
            yield archive


def is_written(path: Path) -> bool:
    """Tell whether another process has a DuckDB file open for writing: it holds a lock of the whole file."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # opening it will say what is wrong
    return False


def copy_whole(path: Path, copy: Path) -> None:
    """Copy a DuckDB file and its WAL as of one instant. Raises StorageError."""
    try:
        for _ in range(TRIES):
            before = _headers(path)
            shutil.copyfile(path, copy)
            _copy_wal(path, copy)
            if _headers(path) == before:
                return
    except OSError as wrong:
        raise StorageError(
            f"{path}: could not be copied to {copy.parent}: {wrong.strerror or wrong}."
            " Make room, set TMPDIR to a larger directory, or stop the analyzer."
        ) from wrong
    raise StorageError(
        f"{path}: could not be copied: it changed {TRIES} times. Stop the analyzer, or try again later."
    )


def _headers(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEADERS_BYTES)


def _copy_wal(path: Path, copy: Path) -> None:
    target = Path(f"{copy}.wal")
    try:
        shutil.copyfile(f"{path}.wal", target)
    except FileNotFoundError:  # a checkpoint has just brought it into the file
        target.unlink(missing_ok=True)
