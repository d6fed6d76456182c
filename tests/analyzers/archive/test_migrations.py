"""The schema: numbered migrations, row classes and the page of tables agree."""

import re
from pathlib import Path
from typing import ClassVar

import duckdb
import pytest

from analyzers.archive.duckdb_file import Archive
from analyzers.archive.opening import MIGRATIONS
from analyzers.results.limit_rows import AtLimit
from analyzers.results.table import Computed, Table
from tests.analyzers.archive.migration import FOLDER, META, difference, migrated, other_columns, schema
from zeus_stream.records import record
from zeus_stream.settings import Settings

SQL_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sql.md"
WRITE = "Write the migration: python -m tests.analyzers.archive.migration NAME."


@record(kw_only=True)
class Example:
    """A row class with every kind of column."""

    TABLE: ClassVar = Table("examples", ("a",), computed=(Computed("at", "a", "when"),))

    a: str
    b: int | None
    offset: tuple[float, ...]
    limits: tuple[AtLimit, ...]


@pytest.fixture(scope="module")
def newest() -> dict[str, dict[str, str]]:
    return schema(migrated())


def test_migrations_are_numbered_without_holes() -> None:
    numbers = [int(name[:4]) for name in MIGRATIONS]
    assert numbers == list(range(1, len(MIGRATIONS) + 1)), "two of one number: give the newer the next number"
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in MIGRATIONS)


def test_the_archive_has_the_tables_and_columns_of_the_row_classes(
    newest: dict[str, dict[str, str]],
) -> None:
    assert difference(newest) == "", WRITE
    assert other_columns(newest) == [], "add a migration, or the field"


def test_a_new_class_and_a_new_field_are_a_migration() -> None:
    connection = duckdb.connect()
    text = difference({}, [Example])
    connection.execute(text)
    made = schema(connection)
    assert (difference(made, [Example]), other_columns(made, [Example])) == ("", [])
    assert list(made["examples"]) == ["a", "at", "b", "offset", "limits"]
    del made["examples"]["offset"]
    assert difference(made, [Example]) == 'ALTER TABLE examples ADD COLUMN "offset" DOUBLE[];\n'
    made["examples"] |= {"offset": "VARCHAR", "more": "BIGINT"}
    assert other_columns(made, [Example]) == [
        "examples.offset: VARCHAR, Example has DOUBLE[]",
        "examples.more: BIGINT, Example has None",
    ]


def first_archive(path: Path) -> dict[str, dict[str, str]]:
    """Make an archive of the first schema, with a row in each table. Return its columns, by table."""
    with duckdb.connect(path) as file:
        file.execute(META)
        file.execute("INSERT INTO meta VALUES ('zeus-stream', 1, 'the-id', 41)")
        file.execute((FOLDER / MIGRATIONS[0]).read_text(encoding="utf-8"))
        before = schema(file)
        for table, columns in before.items():
            if table != "meta":
                file.execute(f"INSERT INTO {table} SELECT {', '.join(map(example, columns.values()))}")
    return before


def test_an_archive_of_the_first_schema_becomes_one_of_today(
    tmp_path: Path, newest: dict[str, dict[str, str]]
) -> None:
    """Rows of the first release stay, also where their table has another name today."""
    path = tmp_path / "energy.duckdb"
    before = first_archive(path)
    Archive.open(path, Settings(memory_mb=128)).close()
    with duckdb.connect(path) as file:
        lifted = schema(file)
        assert {table: set(columns.items()) for table, columns in lifted.items()} == {
            table: set(columns.items()) for table, columns in newest.items()
        }
        for table in before.keys() - {"meta", "settings"}:
            [(count,)] = file.execute(f"SELECT count(*) FROM {NAMES_TODAY.get(table, table)}").fetchall()  # noqa: S608
            assert count == 1, table
        assert file.execute("SELECT control, clock_mhz FROM commands").fetchall() == [("power_limit", None)]
        assert file.execute("SELECT archive_id, starts FROM meta").fetchall() == [("the-id", 42)]


NAMES_TODAY = {"rations": "budget_shares"}


def example(type_: str) -> str:
    """Return some value of a SQL type."""
    if "STRUCT" in type_ or type_.endswith("]"):
        return "NULL"
    value = {"TIMESTAMP": "'1970-01-01'", "VARCHAR": "'a'", "BLOB": "'a'"}.get(type_, "1")
    return f"CAST({value} AS {type_})"


def test_every_table_and_view_is_described_with_all_its_columns() -> None:
    """Sections of row classes are generated; the others are written by hand."""
    connection = migrated()
    page = SQL_PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE))
    views = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    wrong = []
    for name in sorted({*schema(connection), *(view for (view,) in views)}):
        described = connection.execute(f"DESCRIBE {name}").fetchall()
        told = re.findall(r"^\| (`.*?) \|", sections.get(name, ""), re.MULTILINE)
        named = {column for row in told for column in re.findall(r"`(\w+)`", row)}
        if missing := {column for column, *_ in described} ^ named:
            wrong.append(f"{name}: {', '.join(sorted(missing))}")
    assert wrong == [], f"describe these columns in {SQL_PAGE.name}"
