"""The schema: row classes, `schema.sql` and the page of tables agree; other versions are not read."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
from msgspec import Struct

from analyzers.archive import schema
from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.rows.tables import KINDS
from analyzers.results.limit_rows import AtLimit
from analyzers.results.table import Computed, Table, columns, create_table
from tests.empty_archive import archive_at
from zeus_stream.errors import StorageError
from zeus_stream.settings import Settings

SQL_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sql.md"
GUIDE = SQL_PAGE.parents[1] / "how-to" / "add-a-table.md"
SETTINGS = Settings(memory_mb=128)
FIRST_TABLES = Path(__file__).parents[2] / "data" / "tables_0.1.0.sql"
LATER = "CREATE TABLE later AS SELECT 42 AS answer"


class Example(Struct, frozen=True, kw_only=True):
    """A row class with every kind of column."""

    TABLE: ClassVar = Table("examples", ("a",), computed=(Computed("at", "a", help="when"),))

    a: str
    b: int | None
    offset: tuple[float, ...]
    limits: tuple[AtLimit, ...]


def columns_of(connection: duckdb.DuckDBPyConnection, database: str = "memory") -> dict[str, dict[str, str]]:
    """Return the columns of the tables of a database, with their types."""
    found: dict[str, dict[str, str]] = {}
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns()"
        " JOIN duckdb_tables() USING (database_name, table_name) WHERE database_name = $1"
        " ORDER BY column_index",
        [database],
    ).fetchall()
    for table, column, type_ in rows:
        found.setdefault(table, {})[column] = type_
    return found


def made() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    schema.make(connection)
    return connection


def test_the_table_of_the_guide_is_a_new_one() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102  (our own guide)
    (kind,) = (each for name, each in names.items() if name.endswith("Row"))
    assert kind.__name__ not in {each.__name__ for each in KINDS}
    made().execute(create_table(kind))


def different(actual: Mapping[str, Mapping[str, str]], kinds: Iterable[Any]) -> list[str]:
    """Return the tables whose columns are not those of their row class."""
    return [
        kind.TABLE.name
        for kind in kinds
        if [(name, _plain(type_)) for name, type_ in actual[kind.TABLE.name].items()]
        != [(name, _plain(type_)) for name, type_ in columns(kind)]
    ]


def _plain(type_: str) -> str:
    return re.sub(r'[\s"]', "", type_).lower()


def test_each_kind_of_field_becomes_a_column() -> None:
    connection = duckdb.connect()
    connection.execute(create_table(Example))
    found = columns_of(connection)
    assert list(found["examples"]) == ["a", "at", "b", "offset", "limits"]
    assert different(found, [Example]) == []


def test_a_new_archive_has_the_tables_of_the_row_classes() -> None:
    assert different(columns_of(made()), KINDS) == []


def of_version(path: Path, version: int) -> None:
    with duckdb.connect(archive_at(path)) as file:
        file.execute("UPDATE meta SET schema_version = $1", [version])


@pytest.mark.parametrize("version", [0, schema.newest() + 1])
@pytest.mark.parametrize("open_it", [DuckdbFile.open, DuckdbFile.open_read_only])
def test_an_archive_of_an_unknown_version_is_refused_and_stays_as_it_is(
    tmp_path: Path, version: int, open_it: Any
) -> None:
    path = tmp_path / "energy.duckdb"
    of_version(path, version)
    content = path.read_bytes()
    with pytest.raises(StorageError, match=rf"version {version}, this zeus-stream reads \d+\. Open it"):
        open_it(path, SETTINGS)
    assert path.read_bytes() == content


def test_a_file_without_anything_in_it_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    duckdb.connect(path).close()
    with pytest.raises(StorageError, match="nothing is stored in it"):
        DuckdbFile.open_read_only(path, SETTINGS)


def test_an_archive_of_an_earlier_version_is_migrated_by_its_next_analyzer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "energy.duckdb"
    with duckdb.connect(archive_at(path)) as file:
        [(archive_id, version)] = file.execute("SELECT archive_id, schema_version FROM meta").fetchall()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, LATER))
    with pytest.raises(
        StorageError, match=rf"version {version}, not {version + 1}\. Run `zeus-stream analyze`"
    ):
        DuckdbFile.open_read_only(path, SETTINGS)
    for starts in (1, 2):  # the second has nothing to migrate
        archive = DuckdbFile.open(path, SETTINGS)
        assert (archive.archive_id, archive.starts) == (archive_id, starts)
        archive.close()
    with duckdb.connect(path) as file:
        found = file.execute("SELECT schema_version, answer FROM meta, later").fetchall()
    assert found == [(version + 1, 42)]


def definitions(connection: duckdb.DuckDBPyConnection) -> list[Any]:
    """Return the views and macros of a database."""
    return [
        *connection.execute(
            "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
        ).fetchall(),
        *connection.execute(
            "SELECT function_name, macro_definition FROM duckdb_functions() WHERE NOT internal ORDER BY ALL"
        ).fetchall(),
    ]


def test_the_tables_of_0_1_0_become_those_of_this_version() -> None:
    """A column added without a migration is missing in every archive of an earlier version."""
    old = duckdb.connect()
    old.execute(FIRST_TABLES.read_text(encoding="utf-8"))
    old.execute("INSERT INTO meta VALUES ('zeus-stream', 1, 'id', 7)")
    old.execute("INSERT INTO gaps BY NAME SELECT 'alpha' AS host, 7 AS count")
    schema.migrate(old, 1)
    now = made()
    assert {name: set(each.items()) for name, each in columns_of(old).items()} == {
        name: set(each.items()) for name, each in columns_of(now).items()
    }, "analyzers/archive/schema.py: add what brings tables of 0.1.0 to these to MIGRATIONS"
    assert definitions(old) == definitions(now)
    assert old.execute("SELECT schema_version, starts FROM meta").fetchall() == [(schema.newest(), 7)]
    assert old.execute("SELECT host, count FROM gaps").fetchall() == [("alpha", 7)]
    old.execute("FROM waste")


def test_a_migration_makes_views_and_macros_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stayed those of the version that made the archive: its screens had other figures."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, LATER))
    now = made()
    before = definitions(now)
    now.execute("CREATE OR REPLACE VIEW steps AS SELECT 1 AS stale")
    now.execute("CREATE OR REPLACE MACRO of_host(gpu) AS false")
    schema.migrate(now, schema.newest() - 1)
    assert definitions(now) == before


def test_an_archive_that_cannot_be_migrated_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "energy.duckdb"
    of_version(path, schema.newest())
    with duckdb.connect(path) as file:
        before = file.execute("FROM meta").fetchall()
    failing = "CREATE TABLE later (a INTEGER); CREATE TABLE runs (mine INTEGER)"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, failing))
    with pytest.raises(StorageError, match=r"could not be opened.*runs.*already exists"):
        DuckdbFile.open(path, SETTINGS)
    with duckdb.connect(path) as file:
        assert file.execute("FROM meta").fetchall() == before
        assert file.execute("FROM duckdb_tables() WHERE table_name = 'later'").fetchall() == []


def named_columns(section: str, name: str, columns: Mapping[str, set[str]]) -> set[str]:
    """Return the columns that a section describes for a table, with those that it takes from another table.

    Sections of several tables name the columns of the first: ``step`` is ``epoch`` in ``epochs``.
    """
    found: set[str] = set()
    for cell in re.findall(r"^\| ((?:those of )?`.*?) \|", section, re.MULTILINE):
        names = re.findall(r"`(\w+)`", cell)
        if cell.startswith("those of "):
            found |= columns[next((each for each in names if name.endswith(each)), names[0])]
        else:
            found |= {*names}
    return {"epoch" if name == "epochs" and each == "step" else each for each in found}


def test_every_table_and_view_is_described_with_all_its_columns() -> None:
    """Sections of row classes are generated; the others are written by hand."""
    connection = made()
    page = SQL_PAGE.read_text(encoding="utf-8")
    views = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    columns = {
        name: {column for column, *_ in connection.execute(f"DESCRIBE {name}").fetchall()}
        for name in {*columns_of(connection), *(view for (view,) in views)}
    }
    described: dict[str, set[str]] = {}
    for heading, section in re.findall(r"^### (`.*?)\n(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE):
        for name in re.findall(r"`(\w+)`", heading):
            described[name] = named_columns(section, name, columns)
    wrong = {
        name: missing for name in columns if (missing := sorted(columns[name] ^ described.get(name, set())))
    }
    assert wrong == {}, f"describe these columns in {SQL_PAGE.name}"
