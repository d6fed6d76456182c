"""Archives of the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from analyzers.archive import schema
from analyzers.archive.duckdb_file import DuckdbFile
from tests.analyzers.archives import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "energy.duckdb"


@pytest.fixture
def archive(path: Path) -> Iterator[DuckdbFile]:
    with opened(path) as archive:
        yield archive


@pytest.fixture
def tables() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the tables and views of an archive, all empty."""
    with duckdb.connect() as connection:
        schema.make(connection)
        yield connection
