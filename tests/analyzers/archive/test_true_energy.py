"""Joules of the sensor and true joules: the doubt of the gain is in the view, and in no window."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.results.rows import GpuRow, Row
from tests.analyzers.archives import GPU, RUN, A, B, asked, window

Ask = Callable[[Sequence[Row]], dict[str, Any]]
PRIOR = replace(GPU, sensor_gain=0.98, sensor_gain_error=0.049, sensor_calibrated=False)
FITTED = replace(GPU, gpu=B, sensor_gain=0.95, sensor_gain_error=0.0095, sensor_calibrated=True)


@pytest.fixture
def ask(archive: DuckdbFile) -> Ask:
    """Store rows, and return the row of the view for the run."""

    def answer(rows: Sequence[Row]) -> dict[str, Any]:
        archive.put([], [RUN, *rows])
        [row] = asked(archive, "FROM true_energy")
        return row

    return answer


def whole(gpu: str, quality: str = "ok") -> Any:
    return replace(
        window("run", 0, 10, 50, gpu),
        energy_j=980.0,
        energy_p2_5_j=977.0,
        energy_p97_5_j=983.0,
        quality=quality,
    )


def test_a_gain_that_is_not_calibrated_is_divided_out_and_its_doubt_is_in_the_interval(ask: Ask) -> None:
    row = ask([PRIOR, whole(A)])
    assert (row["sensor_j"], row["sensor_p2_5_j"], row["sensor_p97_5_j"]) == (980.0, 977.0, 983.0)
    assert row["true_j"] == pytest.approx(1000.0)
    assert row["true_p97_5_j"] - 1000 == pytest.approx((50**2 + (3 / 0.98) ** 2) ** 0.5)
    assert (row["doubt_percent"], row["calibrated"]) == (pytest.approx(5.0), False)


def test_a_gain_that_was_taken_out_is_not_taken_out_again(ask: Ask) -> None:
    row = ask([FITTED, whole(B, "counter kind not known yet (doctor --sensor); gain 0.950")])
    assert row["true_j"] == row["sensor_j"] == 980.0
    assert (row["doubt_percent"], row["calibrated"]) == (pytest.approx(1.0), True)


def test_a_window_from_before_the_calibration_has_its_gain_taken_out_here(ask: Ask) -> None:
    assert ask([FITTED, whole(B)])["true_j"] == pytest.approx(980 / 0.95)


def test_cards_are_taken_to_be_off_in_one_direction(ask: Ask) -> None:
    row = ask([PRIOR, replace(PRIOR, gpu=B), whole(A), whole(B)])
    assert row["true_j"] - row["true_p2_5_j"] == pytest.approx((100**2 + 2 * (3 / 0.98) ** 2) ** 0.5)


@pytest.mark.parametrize("gpu", [replace(GPU, sensor_gain=None), GPU])
def test_where_nothing_is_known_of_a_gain_there_are_no_true_joules(ask: Ask, gpu: GpuRow) -> None:
    row = ask([gpu, whole(A)])
    assert (row["sensor_j"], row["true_j"], row["true_p2_5_j"]) == (980.0, None, None)


def test_a_window_that_is_missing_leaves_no_sum(ask: Ask) -> None:
    row = ask([PRIOR, replace(PRIOR, gpu=B), whole(A), replace(whole(B), energy_j=None)])
    assert (row["sensor_j"], row["true_j"]) == (None, None)
