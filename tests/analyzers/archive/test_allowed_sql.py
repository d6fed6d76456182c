"""A query only reads: nothing in the archive's directory changes, whatever is asked."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from analyzers.archive import schema
from analyzers.archive.process.store_client import StoreClient
from analyzers.archive.sandbox import allowed_sql
from analyzers.archive.sandbox.bounded_queries import Queries
from tests.analyzers.archive.sql_attempts import attempts, internal_names, spellings
from tests.analyzers.archives import HOST, fill
from tests.empty_archive import archive_at
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

SETTINGS = Settings(memory_mb=256, query_seconds=60)


@pytest.fixture(scope="module")
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def archive(tmp_path: Path) -> Iterator[StoreClient]:
    archive = StoreClient.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS)
    fill(archive)
    archive.position(HOST)  # answered once the run that ended is summed up, which nobody waits for
    yield archive
    archive.close()


def fingerprint(directory: Path) -> dict[str, tuple[int, str]]:
    """Return size and hash of every file in a directory."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.iterdir())
        if path.is_file()
    }


def touched(directory: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of every file in a directory."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(directory.iterdir())
        if path.is_file()
    }


def test_no_attempt_is_allowed(tmp_path: Path) -> None:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    for sql in attempts(tmp_path / "energy.duckdb"):
        with pytest.raises((RefusedError, duckdb.Error)):
            # What is left names a table that is not there: FROM (TRUNCATE runs).
            connection.execute(allowed_sql.checked(connection, sql))


def test_no_attempt_is_answered_and_no_file_changes(
    archive: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queries = Queries(archive, SETTINGS)
    before, untouched = fingerprint(tmp_path), touched(tmp_path)
    assert "energy.duckdb.wal" in before, "a checkpoint would change something"
    # Each statement in three surroundings, each surrounding around many statements.
    corpus = list(attempts(tmp_path / "energy.duckdb"))[::20]
    assert len(corpus) >= 150
    for sql in corpus:
        with pytest.raises(RefusedError, match=r"^query: could not be "):
            queries.answer(Query(sql, 10, 60_000))
        assert touched(tmp_path) == untouched, sql
    queries.stop()
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize(
    "sql",
    [
        "explain\tselect run from runs",
        "/* x */ EXPLAIN -- y\n ANALYZE FROM runs",
        "EXPLAIN (FORMAT json) SELECT 'COPY runs TO x; DROP TABLE runs'",
        "EXPLAIN (ANALYZE, FORMAT json) WITH x AS (FROM runs) FROM x",
        "SELECT 'CHECKPOINT' AS \"COPY\" -- DROP TABLE runs",
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 3) FROM r",
        "FROM runs PIVOT (count(*) FOR host IN ('a', 'b'))",
        "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b",
        "FROM whole('step') ORDER BY ALL DESC NULLS LAST LIMIT 10% OFFSET 1",
        "FROM waste_of('a run')",
        "SELECT DISTINCT ON (run) *, random(), uuid() FROM runs USING SAMPLE 10%",
        "FROM (DESCRIBE runs) SELECT column_name",
        "SELECT energy_j::DECIMAL(18, 3), {'type': 'COPY'}, [1, 2][1], lower('X') FROM windows",
        "SELECT session FROM windows QUALIFY rank() OVER (PARTITION BY gpu ORDER BY index) = 1",
        "FROM information_schema.columns",
        "FROM duckdb_tables()",
        "FROM pragma_table_info('runs')",
        "FROM runs POSITIONAL JOIN gpus",
        "FROM readings ASOF JOIN windows ON readings.gpu = windows.gpu AND t_hi_ns >= begin_ns LIMIT 1",
    ],
)
def test_a_query_that_only_reads_is_answered(archive: StoreClient, sql: str) -> None:
    queries = Queries(archive, SETTINGS)
    queries.answer(Query(sql, 10, 60_000))
    queries.stop()


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT windows ON kind USING sum(energy_j)",
        "EXPLAIN PIVOT windows ON kind USING sum(energy_j)",
        "WITH x AS (PIVOT windows ON kind IN (SELECT kind FROM windows) USING sum(energy_j)) FROM x",
        "FROM (PIVOT (FROM windows) ON kind USING sum(energy_j) GROUP BY run)",
    ],
)
def test_a_pivot_that_would_create_a_type_is_refused_with_what_is_answered(sql: str) -> None:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    with pytest.raises(RefusedError, match="a PIVOT whose values are not named creates a type first") as why:
        allowed_sql.checked(connection, sql)
    pivot, filtered = re.search(r"as in (PIVOT .*), or ask for (.*)\.", str(why.value)).groups()  # type: ignore[union-attr]  # it is there
    connection.execute("CREATE TABLE windows (run VARCHAR, kind VARCHAR, energy_j DOUBLE)")
    for instead in (pivot, f"FROM windows SELECT {filtered}"):
        connection.execute(allowed_sql.checked(connection, instead))


def test_every_volatile_function_of_this_duckdb_is_classified() -> None:
    volatile = {
        name
        for (name,) in duckdb.connect(":memory:")
        .execute("SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE'")
        .fetchall()
    }
    assert volatile <= allowed_sql.REFUSED_FUNCTIONS | allowed_sql.VOLATILE_FUNCTIONS
    assert not allowed_sql.REFUSED_FUNCTIONS & allowed_sql.VOLATILE_FUNCTIONS


@pytest.fixture(scope="module")
def two_jobs() -> duckdb.DuckDBPyConnection:
    """A connection to an archive with a step of each of two jobs."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    schema.make(connection)
    for job in ("a-1", "b-1"):
        connection.execute(
            "INSERT INTO windows BY NAME SELECT $1 AS job, 'run ' || $1 AS run, 'step' AS kind, 1 AS index",
            [job],
        )
    return connection


@pytest.mark.parametrize(
    "sql",
    [
        "FROM windows",
        "TABLE windows",
        "SELECT * FROM windows ORDER BY run DESC LIMIT 9; -- every run",
        'SELECT run FROM "WINDOWS"',
        "WITH windows AS (SELECT * FROM windows) FROM windows",
        "WITH runs AS (FROM windows) SELECT run FROM runs",
        "WITH RECURSIVE w AS (SELECT run FROM windows UNION SELECT run FROM w) FROM w",
        "SELECT (SELECT string_agg(run) FROM windows)",
        "SELECT w.run FROM windows w JOIN windows v ON true",
        "SELECT run FROM windows UNION ALL FROM steps SELECT run",
        "FROM range(1) SELECT (SELECT list(windows) FROM windows)",
        "PIVOT windows ON kind IN ('step') USING count(*)",
        "FROM windows WHERE EXISTS (FROM epochs) OR run IN (SELECT run FROM steps)",
        "SELECT run FROM windows) UNION ALL (SELECT run FROM windows",
    ],
)
def test_a_key_of_some_jobs_finds_their_rows_alone(two_jobs: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        found = str(two_jobs.execute(allowed_sql.checked(two_jobs, sql, ("a-*", "it's"))).fetchall())
    except duckdb.ParserException:
        return  # no text is put into another before it is SQL by itself
    assert "run a-1" in found or "'a-1'" in found
    assert "run b-1" not in found


@pytest.mark.parametrize(
    "sql",
    [
        "FROM readings",
        "WITH readings AS (FROM readings) FROM readings",
        "SELECT run FROM main.windows",
        "SELECT run FROM memory.main.windows",
        "SELECT run FROM windows AT (VERSION => 1)",
        "FROM whole('step')",
        "FROM waste_of_runs(['run b-1'])",
        "FROM windows WHERE run IN (SELECT what FROM gaps)",
        "FROM duckdb_tables()",
        "FROM duckdb_views",
        "FROM pg_class",
        "FROM pragma_table_info('windows')",
        "FROM information_schema.tables",
        "DESCRIBE windows",
        "SHOW TABLES",
        "FROM (SUMMARIZE windows)",
        "EXPLAIN ANALYZE FROM windows",
        "FROM query_table('windows')",
    ],
)
def test_a_key_of_some_jobs_is_refused_what_is_not_of_single_jobs(
    two_jobs: duckdb.DuckDBPyConnection, sql: str
) -> None:
    allowed_sql.checked(two_jobs, "FROM windows", ("a-*",))
    with pytest.raises(RefusedError, match="Ask one SELECT"):
        allowed_sql.checked(two_jobs, sql, ("a-*",))


def test_no_table_or_view_is_open_to_a_key_of_some_jobs_but_for_their_rows(
    two_jobs: duckdb.DuckDBPyConnection,
) -> None:
    names = two_jobs.execute(
        "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views()"
    ).fetchall()
    answered = set()
    for (name,) in names:
        try:
            sql = allowed_sql.checked(two_jobs, f'FROM "{name}"', ("a-*",))
        except RefusedError:
            continue
        answered.add(name)
        assert "b-1" not in str(two_jobs.execute(sql).fetchall())
    assert {"runs", "windows", "steps", "savings", "costs", "waste"} <= answered
    assert answered.isdisjoint({"readings", "gpus", "frames", "events", "checkpoints", "chain"})


CANARY = "canary"


@pytest.fixture(scope="module")
def lake_like(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with what DuckLake attaches: a catalog whose address has a password."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    catalog = tmp_path_factory.mktemp("lake") / f"{CANARY}.duckdb"
    connection.execute(f"ATTACH '{catalog}' AS __ducklake_metadata_lake")
    connection.execute(f"CREATE TABLE __ducklake_metadata_lake.tokens AS SELECT '{CANARY}' AS token")
    yield connection
    connection.close()


def test_no_internal_view_and_no_attached_catalog_gives_an_address_or_a_secret_away(
    lake_like: duckdb.DuckDBPyConnection,
) -> None:
    """``serve-sql`` answered duckdb_databases with the password of PostgreSQL."""
    named = internal_names(lake_like, "tokens", "main.tokens")
    assert len(named) > 480
    refused = set()
    for name in named:
        try:
            plain = allowed_sql.checked(lake_like, f"FROM {name}")
        except RefusedError:
            refused.add(name)
            for sql in (f"SUMMARIZE {name}", f"WITH a AS (FROM {name}) FROM a") if name.islower() else ():
                with pytest.raises(RefusedError):
                    allowed_sql.checked(lake_like, sql)
            continue
        with suppress(duckdb.Error):  # no such view there: pg_catalog.duckdb_tables
            assert CANARY not in str(lake_like.execute(plain).fetchall()), plain
    for view in ("duckdb_databases", "pg_settings", "pragma_database_list", "duckdb_logs", "sqlite_master"):
        assert refused.issuperset(spellings(view))
    assert refused.issuperset(name for name in named if "__ducklake" in name.lower())
    assert "duckdb_tables" not in refused
