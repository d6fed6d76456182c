"""Write the migration that row classes need: ``python -m tests.analyzers.archive.migration NAME``."""

import re
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb

from analyzers.archive.opening import MIGRATIONS
from analyzers.archive.tables import KINDS
from analyzers.results.table import columns, create_table, quoted

FOLDER = Path(__file__).parents[3] / "analyzers" / "archive" / "migrations"
META = "CREATE TABLE meta (application VARCHAR, schema_version INTEGER, archive_id VARCHAR, starts BIGINT)"
Schema = Mapping[str, Mapping[str, str]]
"""Columns and their types, by table."""


def migrated(migrations: Iterable[str] = MIGRATIONS) -> duckdb.DuckDBPyConnection:
    """Return a database in memory after these migrations."""
    connection = duckdb.connect()
    connection.execute(META)
    for name in migrations:
        text = files("analyzers.archive").joinpath("migrations", name).read_text(encoding="utf-8")
        connection.execute(text)
    return connection


def schema(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """Return the tables of a database."""
    found: dict[str, dict[str, str]] = {}
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns()"
        " WHERE NOT internal AND table_name IN (SELECT table_name FROM duckdb_tables()) ORDER BY column_index"
    ).fetchall()
    for table, column, type_ in rows:
        found.setdefault(table, {})[column] = type_
    return found


def difference(actual: Schema, kinds: Iterable[Any] = KINDS) -> str:
    """Return the SQL that makes tables and columns which row classes have and a schema has not."""
    statements = []
    for kind in kinds:
        table = kind.TABLE.name
        if table not in actual:
            statements.append(create_table(kind))
            continue
        statements += [
            f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {type_};\n"
            for name, type_ in columns(kind)
            if name not in actual[table]
        ]
    return "\n".join(statements)


def other_columns(actual: Schema, kinds: Iterable[Any] = KINDS) -> list[str]:
    """Return columns that a table has and its row class has not, or of another type."""
    wrong = []
    for kind in kinds:
        wanted = dict(columns(kind))
        for name, type_ in actual.get(kind.TABLE.name, {}).items():
            if _plain(type_) != _plain(wanted.get(name, "")):
                wrong.append(f"{kind.TABLE.name}.{name}: {type_}, {kind.__name__} has {wanted.get(name)}")
    return wrong


def _plain(type_: str) -> str:
    return re.sub(r'[\s"]', "", type_).lower()


def main(name: str) -> None:
    """Write the next migration, if there is anything to migrate."""
    text = difference(schema(migrated()))
    if not text:
        print("The archive has all tables and columns of the row classes.")
        return
    path = FOLDER / f"{len(MIGRATIONS) + 1:04}_{name}.sql"
    path.write_text(f"-- Version {len(MIGRATIONS) + 1}.\n\n{text}", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1])
