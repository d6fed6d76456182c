"""Each query that is shipped, asked of a world whose every figure is known."""

from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from typing import Any

import pyarrow as pa
import pytest

from analyzers.archive.sandbox.bounded_queries import Queries
from tests.analyzers.archives import HOST, RUN, A, B, fill, opened
from zeus_stream.protocol.queries import Query
from zeus_stream.settings import Settings

FOLDER = files("analyzers.archive").joinpath("queries")
J_A, J_B = 200, 100
"""Joules a second of the run."""


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    with opened(tmp_path_factory.mktemp("archive") / "energy.duckdb") as archive:
        fill(archive)
        queries = Queries(archive, Settings())
        yield queries
        queries.stop()


def ask(queries: Queries, sql: str) -> list[dict[str, Any]]:
    done, parts = queries.answer(Query(sql, 1000, 10_000))
    rows: list[dict[str, Any]] = pa.ipc.open_stream(b"".join(parts)).read_all().to_pylist()
    assert done.rows == len(rows)
    return rows


def shipped(queries: Queries, name: str) -> list[dict[str, Any]]:
    return ask(queries, FOLDER.joinpath(f"{name}.sql").read_text(encoding="utf-8"))


def test_an_epoch_costs_what_its_gpus_used(queries: Queries) -> None:
    epochs = shipped(queries, "epochs")
    assert [row["epoch"] for row in epochs] == [0, 1, 2, 3]
    assert {row["energy_j"] for row in epochs} == {10 * (J_A + J_B)}
    assert {row["average_power_w"] for row in epochs} == {J_A + J_B}
    assert epochs[0]["began_at"] == datetime(2026, 1, 1, 0, 0, 10)  # noqa: DTZ001  (UTC without zone)
    assert epochs[0]["give_or_take_percent"] == pytest.approx(50 * 0.7 * 2**0.5 / 3000)
    assert [row["power_limit_w"] for row in epochs] == [300, 300, 200, 200]


def test_the_ten_most_expensive_steps_are_ten(queries: Queries) -> None:
    steps = shipped(queries, "steps")
    assert [row["step"] for row in steps] == list(range(10))
    assert {row["energy_j"] for row in steps} == {J_A + J_B}


def test_the_power_of_a_minute_is_that_of_the_counter(queries: Queries) -> None:
    minutes = shipped(queries, "power")
    assert [(row["gpu"], row["minute"].minute) for row in minutes] == [
        (gpu, minute) for gpu in (A, B) for minute in (0, 1, 2)
    ]
    assert minutes[0]["power_w"] == pytest.approx(200)
    # The change that is read just after the full minute is of the minute before.
    assert minutes[1]["power_w"] == pytest.approx(50, rel=0.01)
    assert minutes[3]["power_w"] == pytest.approx(100)


def test_idle_energy_is_what_no_run_used(queries: Queries) -> None:
    by_gpu = {row["gpu"]: row for row in shipped(queries, "idle")}
    read_j = {A: J_A * 59 + 50 * 60.9, B: J_B * 59 + 50 * 60.9}  # from 1 s to 120.9 s
    assert by_gpu[A]["energy_j"] == pytest.approx(read_j[A] - 40 * J_A)
    assert by_gpu[B]["energy_j"] == pytest.approx(read_j[B] - 40 * J_B)
    assert by_gpu[B]["percent"] == pytest.approx(100 * (1 - 40 * J_B / read_j[B]))


def test_the_parts_that_a_script_named_are_added_up(queries: Queries) -> None:
    [validation] = shipped(queries, "windows")
    assert validation == {
        "job": "train",
        "name": "validation",
        "windows": 4,
        "gpu_s": 16,
        "energy_j": 8 * (J_A + J_B),
        "unmeasured": 0,
    }


def test_the_trials_of_the_last_run_are_in_order(queries: Queries) -> None:
    trials = shipped(queries, "trials")
    assert [(row["power_limit_w"], row["confirms"]) for row in trials] == [
        (300, False),
        (200, False),
        (200, True),
    ]
    assert trials[0]["step_ms"] == 1000
    assert trials[1]["step_j"] == 200


def test_what_was_saved_counts_the_steps_at_the_chosen_limit(queries: Queries) -> None:
    [saved] = shipped(queries, "savings")
    assert saved["energy_saved_percent"] == pytest.approx(25)
    assert saved["time_added_percent"] == pytest.approx(25)
    assert saved["steps_at_limit"] == 20
    assert saved["saved_j"] == pytest.approx(20 * (400 - 300))


def test_step_times_are_told_apart_by_limit(queries: Queries) -> None:
    times = shipped(queries, "limits")
    assert [(row["power_limit_w"], row["steps"]) for row in times] == [(300, 20), (200, 20)]
    assert {row["median_ms"] for row in times} == {1000}


def test_what_is_missing_is_named(queries: Queries) -> None:
    [gap] = shipped(queries, "gaps")
    assert (gap["host"], gap["what"], gap["gaps"], gap["missing"]) == (HOST, "events", 1, 3)


def test_the_energy_between_two_instants_is_interpolated(queries: Queries) -> None:
    rows = shipped(queries, "between")
    assert [row["gpu"] for row in rows] == [A, B]
    assert {row["duration_s"] for row in rows} == {10}
    assert [row["energy_j"] for row in rows] == pytest.approx([500, 500])


def test_a_run_costs_its_kilowatt_hours(queries: Queries) -> None:
    [cost] = shipped(queries, "money")
    assert cost["energy_kwh"] == pytest.approx(40 * (J_A + J_B) / 3.6e6)
    assert cost["cost"] == pytest.approx(0.3 * cost["energy_kwh"])


def test_runs_have_their_energy_and_its_interval(queries: Queries) -> None:
    [run] = ask(queries, "SELECT energy_j, energy_p2_5_j, energy_p97_5_j FROM runs WHERE world_size > 0")
    assert run["energy_j"] == pytest.approx(40 * (J_A + J_B))
    assert run["energy_p2_5_j"] <= run["energy_j"] <= run["energy_p97_5_j"]


def test_the_tables_that_are_shown_are_a_screen_of_them_and_exist(queries: Queries) -> None:
    shown = ask(queries, "show tables;")
    assert shown == shipped(queries, "tables")
    assert len(shown) == 15
    known = {row["name"] for row in ask(queries, "SHOW ALL TABLES")}
    assert {row["name"] for row in shown} <= known


def test_jobs_are_compared_by_run(queries: Queries) -> None:
    [job] = shipped(queries, "jobs")
    assert job == {
        "job": "train",
        "runs": 1,
        "duration_s": 40,
        "energy_j": 40 * (J_A + J_B),
        "average_power_w": J_A + J_B,
    }


def test_the_parts_of_a_job_add_up_to_all_of_it(queries: Queries) -> None:
    steps, idle = shipped(queries, "waste")
    assert (steps["job"], steps["cause"], steps["energy_j"]) == ("train", "steps", 40 * (J_A + J_B))
    assert steps["percent"] == 100
    assert (idle["job"], idle["cause"]) == (None, "idle GPU")


def test_a_metric_has_the_energy_of_the_steps_until_then(queries: Queries) -> None:
    rows = shipped(queries, "metrics")
    assert [(row["value"], row["energy_j"]) for row in rows] == [(0.8, 10 * 300), (0.9, 30 * 300)]
    assert {row["run"] for row in rows} == {RUN.run}


def test_the_widths_of_the_parts_add_up_in_squares(queries: Queries) -> None:
    """Each GPU's step is known to -0.3, +0.4 J."""
    [step] = ask(queries, "SELECT energy_j, energy_p2_5_j, energy_p97_5_j FROM steps WHERE step = 3")
    assert step["energy_j"] - step["energy_p2_5_j"] == pytest.approx(0.3 * 2**0.5)
    assert step["energy_p97_5_j"] - step["energy_j"] == pytest.approx(0.4 * 2**0.5)
