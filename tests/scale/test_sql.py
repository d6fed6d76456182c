"""SQL on a lake for many: roles that only read, and the server of SQL."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner

from analyzers.archive.sandbox.allowed_sql import checked
from analyzers.archive.sandbox.bounded_queries import Queries
from analyzers.lake import catalog, roles
from analyzers.serving.query_worker import QuerySource, open_source
from analyzers.serving.query_workers import QueryWorkers
from tests.analyzers.archive.sql_attempts import CATALOG, internal_names
from tests.analyzers.archives import frames, rows
from tests.scale.held_part import SETTINGS, take
from tests.scale.servers import Postgres
from zeus_stream.cli.cluster.lake import role as role_command
from zeus_stream.cli.cluster.lake import sql as sql_command
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.queries import Query

NAME = "grafana"


@pytest.fixture
def filled(lake: str) -> str:
    archive = take(lake, "a")
    archive.put_stream([list(frames())], 2)
    archive.lake.writer.put([], rows())
    archive.close()
    return lake


@pytest.fixture
def reader(filled: str) -> Iterator[str]:
    """Return the DSN of a role that may only read."""
    dsn, _ = roles.grant(filled, NAME, "p'w")
    yield dsn
    roles.revoke(filled, NAME)


def answer(queries: Queries, sql: str, seconds: float = 60) -> list[dict[str, Any]]:
    _, parts = queries.answer(Query(sql, 1_000, round(seconds * 1000)))
    rows: list[dict[str, Any]] = pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()
    return rows


def test_a_role_reads_what_comes_later_too_and_changes_nothing(reader: str, filled: str) -> None:
    archive = take(filled, "a")
    archive.lake.writer.put([], rows())
    archive.close()
    connection = catalog.attach(reader, SETTINGS, read_only=True)
    assert connection.execute("SELECT count(*) FROM windows").fetchall() == [(2 * 98,)]
    connection.close()
    writing = catalog.attach(reader, SETTINGS)
    with pytest.raises(Exception, match=r"permission denied|read-only transaction"):
        writing.execute("DELETE FROM decisions")
    writing.close()
    with pytest.raises(StorageError, match="permission denied"):
        take(reader, "a")
    with psycopg.connect(reader) as direct, pytest.raises(psycopg.Error, match="permission denied"):
        direct.execute("SELECT * FROM zs.leases")


def test_the_command_says_how_to_attach_and_refuses_the_owner(filled: str) -> None:
    made = CliRunner().invoke(role_command, [NAME, "--database", filled, "--password"], input="secret\n")
    assert made.exit_code == 0, made.output
    assert f"user={NAME}" in made.output
    assert "AS lake (READ_ONLY); USE lake;" in made.output
    assert "secret" not in made.output
    again = CliRunner().invoke(role_command, [NAME, "--database", filled])
    assert again.exit_code == 0
    removed = CliRunner().invoke(role_command, [NAME, "--database", filled, "--remove"])
    assert removed.output == f"Role {NAME} is removed.\n"
    with pytest.raises(RefusedError, match="there is no such role"):
        roles.revoke(filled, NAME)
    with pytest.raises(RefusedError, match="it owns the lake"):
        roles.grant(filled, "zs", None)


def test_a_database_without_a_lake_is_one_sentence(database: str) -> None:
    with pytest.raises(StorageError, match=r"no tables of ours. Run `zeus-stream lake create`"):
        roles.grant(database, NAME, None)
    with pytest.raises(StorageError, match=r"could not change roles: .* Name its owner"):
        roles.grant("host=/nowhere dbname=x", NAME, None)


def test_a_file_that_is_gone_is_named_with_its_cure(filled: str) -> None:
    connection = catalog.attach(filled, SETTINGS, read_only=True)
    listing = f"FROM ducklake_list_files('{catalog.LAKE}', 'readings')"
    for file, *_ in connection.execute(listing).fetchall():
        Path(file).unlink()
    connection.close()
    done = CliRunner().invoke(sql_command, ["--database", filled, "SELECT sum(energy_mj) FROM readings"])
    assert "is missing or damaged. Restore this file from the backup of the lake." in str(done.exception)


def test_queries_on_a_lake_are_bounded_and_outlast_a_kill_of_the_database(
    reader: str, server: Postgres
) -> None:
    workers = QueryWorkers(QuerySource(SETTINGS, reader, None), 1)
    queries = Queries(workers, SETTINGS)
    try:
        assert answer(queries, "SELECT run FROM decisions") == [{"run": "run-1"}]
        with pytest.raises(RefusedError, match="__ducklake_metadata_lake is not allowed here"):
            answer(queries, "FROM __ducklake_metadata_lake.zs.leases")
        assert workers.replaced == 0
        with pytest.raises(RefusedError, match=r"it took over 0\.5 s"):
            answer(queries, "SELECT count(*) FROM range(1_000_000) a, range(1_000_000_000) b", 0.5)
        server.kill()
        server.start()
        with suppress(RefusedError):
            answer(queries, "SELECT count(*) FROM decisions")  # its connection is gone, or is made again
        assert answer(queries, "SELECT count(*) AS n FROM decisions") == [{"n": 1}]
    finally:
        queries.stop()
        workers.close()


CANARY = "canary-f8a1"


def test_no_view_no_catalog_and_no_error_of_a_lake_shows_its_password(
    reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB shows what is attached: ``duckdb_databases`` had the password, and errors have the address."""
    monkeypatch.setenv("PGPASSWORD", "")
    connection, _ = open_source(QuerySource(SETTINGS, f"{reader} password='{CANARY} x'", None))
    assert os.environ["PGPASSWORD"] == f"{CANARY} x"
    named = internal_names(connection, "ducklake_metadata", "public.ducklake_table", "zs.leases")
    for name in {name.lower().replace('"', "") for name in named}:  # DuckDB reads all spellings alike
        with suppress(duckdb.Error):  # a view that is not there, or a table that a role may not read
            assert CANARY not in str(connection.execute(f"FROM {name}").fetchmany(1_000)), name
    assert connection.execute(f"FROM {CATALOG}.ducklake_metadata").fetchall()
    with pytest.raises(RefusedError, match="__ducklake_metadata_lake is not allowed"):
        checked(connection, "FROM __DUCKLAKE_METADATA_LAKE.PUBLIC.ducklake_table")
    connection.close()
    for address in (f"host=/nowhere password={CANARY}", f"postgresql://u:{CANARY}@/lake?host=/nowhere"):
        with pytest.raises(StorageError, match="could not be opened") as wrong:
            open_source(QuerySource(SETTINGS, address, None))
        assert CANARY not in f"{wrong.value.args} {wrong.value.__cause__}"
