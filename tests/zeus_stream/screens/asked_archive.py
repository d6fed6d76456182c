"""An archive with known rows, and the function by which reports ask it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.results.rows import Row
from tests.analyzers import archives
from tests.empty_archive import archive_at
from zeus_stream.settings import Settings

Answer = Callable[[str], pa.Table]


@contextmanager
def asked_archive(folder: Path, more: Sequence[Row], *, filled: bool = True) -> Iterator[Answer]:
    """Give what answers SQL. ``filled``: with the world of `archives` before ``more``."""
    archive = DuckdbFile.open(archive_at(folder / "energy.duckdb"), Settings())
    if filled:
        archives.fill(archive)
    archive.put([], more, {}, replaying=False)
    with archive.reading() as reader:

        def ask(sql: str) -> pa.Table:
            schema, batches = reader.batches(sql, 10_000)
            return pa.Table.from_batches(list(batches), schema)

        yield ask
    archive.close()
