"""GPUs + CPUs + memory + rest = wall: what the views make of the minutes of hosts with a meter."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import hypot, sqrt
from statistics import stdev
from typing import Any

import duckdb
import pytest

from zeus_stream.questions.asking import answered
from zeus_stream.screens.site.period import Period
from zeus_stream.screens.site.site_report import whole_hosts

BEGAN = datetime(2026, 1, 1, 7, 0)  # noqa: DTZ001  (a column without a zone is UTC)
HOST = {
    "GPU-1": 300.0,
    "GPU-2": 200.0,
    "CPU-h-package-0": 100.0,
    "DRAM-h-package-0": 20.0,
    "WALL-h-wall": 800.0,
}
GAINS = {"GPU-1": (1.0, 0.05), "GPU-2": (0.8, 0.04), "WALL-h-wall": (1.0, 0.01)}


def fill(
    tables: duckdb.DuckDBPyConnection, minutes: Iterable[Mapping[str, float]], host: str = "h",
    covered_s: Mapping[str, float] | None = None, gains: Mapping[str, tuple[float, float]] = GAINS,
) -> None:  # fmt: skip
    """Store minutes of a host, each the watts of its devices."""
    known: set[str] = set()
    for number, watts in enumerate(minutes):
        for gpu, power_w in watts.items():
            if gpu not in known:
                gain, error = gains.get(gpu, (None, None))
                tables.execute(
                    "INSERT INTO gpus BY NAME"
                    " SELECT $1 AS gpu, $2 AS host, $3 AS sensor_gain, $4 AS sensor_gain_error",
                    [gpu, host, gain, error],
                )
            known.add(gpu)
            lasted_s = (covered_s or {}).get(gpu, 60.0)
            tables.execute(
                "INSERT INTO minutes BY NAME SELECT $1 AS gpu, $2 AS host, $3::TIMESTAMP AS began_at,"
                " $4 AS energy_j, $5 AS covered_s, 9 AS readings",
                [gpu, host, BEGAN + timedelta(minutes=number), power_w * lasted_s, lasted_s],
            )


def ask(tables: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tables.sql(sql).to_arrow_table().to_pylist()
    return rows


def test_the_parts_and_the_rest_add_up_to_the_wall(tables: duckdb.DuckDBPyConnection) -> None:
    fill(tables, [HOST] * 10)
    (row,) = ask(tables, "FROM balance")
    assert (row["host"], row["began_at"], row["covered_s"]) == ("h", BEGAN, 600.0)
    parts = [row[f"{part}_j"] / 600 for part in ("gpu", "cpu", "memory", "rest", "wall")]
    assert parts == pytest.approx([300 + 200 / 0.8, 100, 20, 130, 800])  # a GPU reads 20 % low
    assert row["wall_per_gpu"] == pytest.approx(800 / 550)


def test_the_interval_of_the_rest_has_gains_and_the_scatter_of_minutes(
    tables: duckdb.DuckDBPyConnection,
) -> None:
    walls_w = [790.0, 810.0, 795.0, 805.0, 800.0]
    fill(tables, [{**HOST, "WALL-h-wall": each} for each in walls_w])
    (row,) = ask(tables, "FROM balance")
    gpus_w, wall_w, scatter_w = 0.05 * 300 + 0.05 * 250, 0.01 * 800, 2 * stdev(walls_w) / sqrt(5)
    assert row["rest_within_j"] == pytest.approx(300 * hypot(gpus_w, wall_w, scatter_w))


@pytest.mark.parametrize(
    ("minutes", "gains"),
    [
        pytest.param(10, {name: GAINS[name] for name in ("GPU-1", "GPU-2")}, id="the error of the meter"),
        pytest.param(3, GAINS, id="minutes enough"),
    ],
)
def test_a_rest_without_what_its_interval_needs_has_none(
    tables: duckdb.DuckDBPyConnection, minutes: int, gains: Mapping[str, tuple[float, float]]
) -> None:
    fill(tables, [HOST] * minutes, gains=gains)
    (row,) = ask(tables, "FROM balance")
    assert row["rest_j"] is not None
    assert row["rest_within_j"] is None


def test_minutes_that_a_device_does_not_cover_are_left_out(tables: duckdb.DuckDBPyConnection) -> None:
    lost = {name: each for name, each in HOST.items() if name != "GPU-2"}
    fill(tables, [*[HOST] * 3, lost, HOST])
    (row,) = ask(tables, "FROM balance")
    assert row["covered_s"] == 240
    fill(tables, [HOST] * 5, host="i", covered_s={"GPU-1": 30.0})
    assert [row["host"] for row in ask(tables, "FROM balance")] == ["h"]


def test_a_host_without_a_meter_has_no_row(tables: duckdb.DuckDBPyConnection) -> None:
    fill(tables, [{name: each for name, each in HOST.items() if not name.startswith("WALL")}] * 10)
    assert ask(tables, "FROM balance") == []


def test_what_is_not_read_is_in_the_rest(tables: duckdb.DuckDBPyConnection) -> None:
    fill(tables, [{"GPU-1": 300.0, "WALL-h-wall": 800.0}] * 10)
    (row,) = ask(tables, "FROM balance")
    assert (row["cpu_j"], row["memory_j"]) == (None, None)
    assert row["rest_j"] == pytest.approx(500 * 600)


def test_the_report_of_a_site_shows_hosts_with_a_meter(tables: duckdb.DuckDBPyConnection) -> None:
    fill(tables, [HOST] * 10)
    whole = Period(0, 2 * round(BEGAN.replace(tzinfo=UTC).timestamp()) * 10**9)
    panel = answered(whole_hosts(whole), lambda sql: tables.sql(sql).to_arrow_table())
    assert panel is not None
    for words in ("330.0 kJ", "60,000 J", "12,000 J", "78,000 J", "480.0 kJ", "1.455"):
        assert words in str(panel.body), str(panel.body)
    assert answered(whole_hosts(Period(0, 1)), lambda sql: tables.sql(sql).to_arrow_table()) is None


def test_a_site_with_a_meter_has_its_pue(tables: duckdb.DuckDBPyConnection) -> None:
    second = {"GPU-3": 400.0, "WALL-i-wall": 700.0, "SITE-i-site": 1800.0}
    fill(tables, [HOST] * 10)
    fill(tables, [second] * 10, host="i", gains={"GPU-3": (1.0, 0.05), "WALL-i-wall": (1.0, 0.01)})
    (row,) = ask(tables, "FROM site_pue")
    assert (row["hosts"], row["site_j"], row["hosts_j"]) == (2, 1800 * 600, pytest.approx(1500 * 600))
    assert row["pue"] == pytest.approx(1.2)
    assert row["of_gpus"] == pytest.approx(1800 / (550 + 400))


@pytest.mark.parametrize(
    ("pue", "site_w", "amount", "basis"),
    [
        pytest.param("0.0", None, 1.5, "GPUs x PUE, by meters", id="measured at the host"),
        pytest.param("0.0", 1200.0, 3.0, "GPUs x PUE, by meters", id="measured at the site"),
        pytest.param("1.1", 1200.0, 1.1, "GPUs x PUE", id="set by a person"),
    ],
)
def test_costs_are_of_what_the_meters_saw_unless_a_pue_is_set(
    tables: duckdb.DuckDBPyConnection, pue: str, site_w: float | None, amount: float, basis: str
) -> None:
    watts = {"GPU-1": 400.0, "WALL-h-wall": 600.0} | ({} if site_w is None else {"SITE-h-site": site_w})
    fill(tables, [watts] * 20)
    tables.execute(f"INSERT INTO settings BY NAME SELECT 1 AS start, 'pue' AS name, '{pue}' AS value")
    tables.execute("INSERT INTO sessions BY NAME SELECT 's' AS session, 'r' AS run, 'j' AS job, 'h' AS host")
    tables.execute(
        "INSERT INTO windows BY NAME SELECT 's' AS session, 'r' AS run, 'j' AS job, 0 AS rank, 'h' AS host,"
        " 'run' AS kind, 'GPU-1' AS gpu, 3.6e6 AS energy_j, $1::TIMESTAMP AS began_at, 0 AS begin_ns,"
        " 600_000_000_000 AS end_ns, 600.0 AS duration_s, 'ok' AS quality, false AS shared",
        [BEGAN],
    )
    tables.execute(
        "INSERT INTO signals BY NAME SELECT 'price' AS name, 1.0 AS value, 'EUR/kWh' AS unit,"
        " TIMESTAMP '2020-01-01' AS begins_at, 1 AS imported_ns, '' AS source"
    )
    (row,) = ask(tables, "FROM costs")
    assert row["amount"] == pytest.approx(amount)
    assert row["basis"] == basis
