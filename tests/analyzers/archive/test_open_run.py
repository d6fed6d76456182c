"""The energy so far of a run that is open, of the parts that the archive keeps."""

from datetime import datetime, timedelta

import duckdb
import pytest

from zeus_stream.questions.run_questions import SO_FAR

BEGAN = datetime(2026, 1, 1, 7, 20, 30)  # noqa: DTZ001  (a column without a zone is UTC)
HOUR = datetime(2026, 1, 1, 7)  # noqa: DTZ001
MINUTE = datetime(2026, 1, 1, 7, 20)  # noqa: DTZ001
POWER_W = 100.0


def begin(tables: duckdb.DuckDBPyConnection) -> None:
    tables.execute(
        "INSERT INTO sessions BY NAME SELECT 'run' AS run, ['gpu'] AS gpus, $1::TIMESTAMP AS began_at",
        [BEGAN],
    )


def store(
    tables: duckdb.DuckDBPyConnection, table: str, began_at: datetime, length_s: int, covered_s: float
) -> None:
    """Store a part of which a collector has seen some seconds, and say that its seconds are removed."""
    tables.execute(
        f"INSERT INTO {table} BY NAME SELECT 'gpu' AS gpu, $1::TIMESTAMP AS began_at,"
        " $2::DOUBLE AS energy_j, $3::DOUBLE AS covered_s",
        [began_at, POWER_W * covered_s, covered_s],
    )
    finer = {60: ["seconds"], 3600: ["seconds", "minutes"]}.get(length_s, [])
    for each in finer:
        tables.execute(
            'INSERT INTO removed BY NAME SELECT $1 AS "table", $2::TIMESTAMP AS before',
            [each, began_at + timedelta(seconds=length_s)],
        )


def so_far_j(tables: duckdb.DuckDBPyConnection) -> float:
    (row,) = tables.sql(SO_FAR.format(run="'run'")).to_arrow_table().to_pylist()
    return float(row["energy_j"])


@pytest.mark.parametrize(
    ("table", "began_at", "length_s", "covered_s", "seconds"),
    [
        pytest.param("hours", HOUR, 3600, 3600.0, 2370.0, id="an hour that began before the run"),
        pytest.param("hours", HOUR, 3600, 2370.0, 2370.0, id="an hour in which nothing was seen before it"),
        pytest.param("minutes", MINUTE, 60, 60.0, 30.0, id="a minute that began before the run"),
        pytest.param("seconds", BEGAN, 1, 1.0, 1.0, id="a second"),
    ],
)
def test_the_first_part_of_an_open_run_counts_from_its_begin(
    tables: duckdb.DuckDBPyConnection,
    table: str,
    began_at: datetime,
    length_s: int,
    covered_s: float,
    seconds: float,
) -> None:
    """The hour in which it began was left out, once its seconds and minutes were removed."""
    begin(tables)
    store(tables, table, began_at, length_s, covered_s)
    later = datetime(2026, 1, 1, 8)  # noqa: DTZ001
    store(tables, "seconds", later, 1, 1.0)
    assert so_far_j(tables) == pytest.approx(POWER_W * (seconds + 1))
    store(tables, table, began_at - timedelta(seconds=length_s), length_s, covered_s)
    assert so_far_j(tables) == pytest.approx(POWER_W * (seconds + 1)), "what ended before it is no part of it"
