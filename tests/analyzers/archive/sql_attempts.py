"""Attempts to write, checkpoint, read files or change state through a read-only query.

Every kind of statement that DuckDB's grammar knows, and every function that acts, each alone and inside
whatever may stand around it. ``{archive}`` is the path of the archive, ``{there}`` one beside it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATEMENTS = (
    "COPY runs TO '{there}'",
    "COPY (SELECT 1) TO '{archive}' (FORMAT csv, USE_TMP_FILE false)",
    "COPY (SELECT 1) TO '{archive}.wal' (FORMAT csv, USE_TMP_FILE false)",
    "COPY runs FROM '{there}'",
    "COPY FROM DATABASE energy TO other",
    "INSERT INTO runs BY NAME SELECT 'x' AS run",
    "INSERT OR REPLACE INTO logs BY NAME SELECT 'x' AS host",
    "INSERT INTO runs BY NAME SELECT 'x' AS run RETURNING *",
    "UPDATE runs SET run = 'x'",
    "UPDATE runs SET run = 'x' RETURNING *",
    "DELETE FROM runs",
    "DELETE FROM runs RETURNING *",
    "TRUNCATE runs",
    "MERGE INTO runs USING (SELECT 'x' AS run) s ON false WHEN NOT MATCHED THEN INSERT BY NAME",
    "CREATE TABLE mine (i INTEGER)",
    "CREATE TEMP TABLE mine AS SELECT 1 AS i",
    "CREATE OR REPLACE TABLE runs AS SELECT 1 AS i",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE MACRO mine(a) AS a",
    "CREATE MACRO mine(a) AS TABLE SELECT a",
    "CREATE SCHEMA mine",
    "CREATE SEQUENCE mine",
    "CREATE TYPE mine AS ENUM ('a')",
    "CREATE INDEX mine ON runs (run)",
    "CREATE SECRET mine (TYPE s3)",
    "ALTER TABLE runs ADD COLUMN mine INTEGER",
    "ALTER TABLE runs RENAME TO mine",
    "DROP TABLE runs",
    "DROP VIEW steps",
    "DROP MACRO utc",
    "COMMENT ON TABLE runs IS 'x'",
    "ATTACH '{there}' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH energy",
    "USE memory",
    "EXPORT DATABASE '{there}'",
    "IMPORT DATABASE '{there}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "UPDATE EXTENSIONS",
    "SET threads = 8",
    "SET memory_limit = '100GB'",
    "SET lock_configuration = false",
    "SET enable_external_access = true",
    "SET VARIABLE mine = 1",
    "RESET threads",
    "RESET VARIABLE mine",
    "PRAGMA enable_profiling",
    "PRAGMA force_checkpoint",
    "PRAGMA database_size",
    "BEGIN TRANSACTION",
    "COMMIT",
    "ROLLBACK",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "VACUUM ANALYZE runs",
    "ANALYZE",
    "CALL checkpoint()",
    "CALL force_checkpoint()",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "PREPARE mine AS SELECT 1",
    "EXECUTE mine",
    "DEALLOCATE mine",
    "DECLARE mine CURSOR FOR SELECT 1",
    "FROM checkpoint()",
    "FROM force_checkpoint()",
    "FROM \"checkpoint\"('energy')",
    "FROM system.main.checkpoint()",
    "FROM enable_logging()",
    "FROM disable_logging()",
    "FROM enable_profiling()",
    "FROM truncate_duckdb_logs()",
    "FROM copy_database('energy', 'other')",
    "FROM import_database('{there}')",
    "FROM create_external_resource('a')",
    "FROM add_parquet_key('a', '0123456789112345')",
    "FROM pragma_storage_info('runs')",
    "FROM query('SELECT 1')",
    "FROM query_table('runs')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "FROM read_text('{archive}')",
    "FROM read_blob('/etc/passwd')",
    "FROM read_csv('/etc/passwd')",
    "FROM read_json('/etc/passwd')",
    "FROM read_parquet('{there}')",
    "FROM parquet_scan('{there}')",
    "FROM read_duckdb('{archive}')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM glob('/etc/*')",
    "FROM seq_scan('runs')",
    "FROM arrow_scan(1, 2, 3)",
    "FROM arrow_scan_dumb(1, 2, 3)",
    "FROM pandas_scan(1)",
    "FROM python_map_function(1)",
    "FROM duckdb_secrets()",
    "FROM duckdb_settings()",
    "FROM duckdb_logs()",
    "FROM read_ndjson_objects('{archive}')",
    "FROM parquet_metadata('{archive}')",
    "SELECT current_setting('secret_directory')",
    "FROM which_secret('a', 's3')",
    "FROM '/etc/passwd.csv'",
    "FROM '{archive}'",
    'FROM "{archive}.wal"',
    "SELECT nextval('mine')",
    "SELECT setval('mine', 3)",
    "SELECT setseed(0.5)",
    "SELECT getenv('HOME')",
    "SELECT write_log('mine')",
    "SELECT sleep_ms(5000)",
    "SELECT pg_sleep(5)",
)
"""None of these may be answered."""

AROUND = (
    "{}",
    "{};",
    "  /* a /* b */ {} -- c",
    "-- EXPLAIN\n{}",
    "EXPLAIN {}",
    "EXPLAIN ANALYZE {}",
    "explain/**/analyze--\n{}",
    "EXPLAIN (ANALYZE, FORMAT json) {}",
    "EXPLAIN EXPLAIN {}",
    "DESCRIBE {}",
    "SUMMARIZE {}",
    "SHOW {}",
    "({})",
    "WITH x AS ({}) SELECT 1",
    "WITH x AS MATERIALIZED ({}) FROM x",
    "WITH x AS (WITH y AS ({}) FROM y) FROM x",
    "WITH RECURSIVE x AS (SELECT 1 UNION ALL ({})) FROM x",
    "EXPLAIN ANALYZE WITH x AS ({}) SELECT 1",
    "SELECT * FROM ({}) AS x",
    "SELECT ({}) AS x",
    "SELECT 1 WHERE EXISTS ({})",
    "SELECT 1 UNION ALL {}",
    "SELECT * FROM range(1), LATERAL ({}) AS x",
    "SELECT list_transform([1], lambda x: ({}))",
    "CREATE MACRO mine() AS TABLE {}",
    "PREPARE mine AS {}",
    "SELECT 1; {}",
    "{}; SELECT 1",
    "PIVOT ({}) ON run",
    "COPY ({}) TO '{{there}}'",
)


def attempts(archive: Path) -> Iterator[str]:
    """Yield each statement in each surrounding, for this archive."""
    there = archive.with_name("there.csv")
    for statement in STATEMENTS:
        for around in AROUND:
            yield around.format(statement).replace("{archive}", str(archive)).replace("{there}", str(there))


def spellings(name: str) -> tuple[str, ...]:
    return name, name.upper(), f'"{name.title()}"'


CATALOG = "__ducklake_metadata_lake"
"""Under this name DuckLake attaches PostgreSQL, and hides it from DuckDB's lists."""


def internal_names(connection: Any, *tables: str) -> list[str]:
    """Return the names of the views of DuckDB, and of tables in the catalog of a lake, in three spellings."""
    views = connection.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE internal").fetchall()
    named = [
        qualified + spelt
        for schema, view in views
        for spelt in spellings(view)
        for qualified in ("", f"{schema}.", f"system.{schema}.", f"{schema.upper()}.")
    ]
    return named + [f"{spelt}.{table}" for spelt in spellings(CATALOG) for table in tables]
