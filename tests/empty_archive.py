"""An empty archive is copied: to make its schema takes longer than to copy it."""

from functools import cache
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import duckdb

from analyzers.archive import schema
from analyzers.archive.opening import connect
from zeus_stream.settings import Settings


@cache
def _empty() -> bytes:
    """Return the content of an archive that no analyzer has opened yet."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "empty.duckdb"
        with connect(path, Settings(memory_mb=128), read_only=False) as file:
            schema.make(file)
        return path.read_bytes()


@cache
def _with_identity(number: int) -> bytes:  # noqa: ARG001  (each number has another identity)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "empty.duckdb"
        path.write_bytes(_empty())
        with duckdb.connect(path) as file:
            file.execute("UPDATE meta SET archive_id = $1", [str(uuid4())])
        return path.read_bytes()


NUMBERS = cycle(range(8))
"""Of identities: no test has so many archives at a time."""


def archive_at(path: Path) -> Path:
    """Make an empty archive with an identity of its own, if there is none at this path. Return the path."""
    if not path.exists():
        path.write_bytes(_with_identity(next(NUMBERS)))
    return path
