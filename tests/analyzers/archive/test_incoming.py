"""Arrow tables under names: what SQL reads, and that a name is registered once."""

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from analyzers.archive.incoming import IncomingTables


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def rows(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    return connection.execute("FROM incoming_kept").fetchall()


def registration(connection: duckdb.DuckDBPyConnection) -> int:
    """Return the number of the view that stands for the name: each registration has another."""
    [(number,)] = connection.execute(
        "SELECT view_oid FROM duckdb_views() WHERE view_name = 'incoming_kept'"
    ).fetchall()
    return int(number)


def test_a_name_is_registered_once_and_reads_the_table_of_the_moment(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    incoming = IncomingTables(connection)
    numbers = set()
    for count in (2, 5, 1):
        with incoming.named({"kept": pa.table({"value": list(range(count))})}):
            assert rows(connection) == [(n,) for n in range(count)]
            numbers.add(registration(connection))
        assert rows(connection) == [], "a table of an earlier commit is kept"
    assert len(numbers) == 1


def test_a_table_of_another_schema_is_read_by_its_own(connection: duckdb.DuckDBPyConnection) -> None:
    incoming = IncomingTables(connection)
    word = pa.array(["a", "b", "a"]).dictionary_encode()
    for table in (
        pa.table({"value": [1]}),
        pa.table({"value": word}),
        pa.table({"value": [1], "more": [2.5]}),
    ):
        with incoming.named({"kept": table}):
            assert rows(connection) == [tuple(row.values()) for row in table.to_pylist()]


def test_names_outlast_a_transaction_that_is_rolled_back(connection: duckdb.DuckDBPyConnection) -> None:
    incoming, table = IncomingTables(connection), pa.table({"value": [7]})
    with incoming.named({"kept": table}):
        connection.execute("BEGIN")
        connection.execute("ROLLBACK")
    with incoming.named({"kept": table}):
        assert rows(connection) == [(7,)]
