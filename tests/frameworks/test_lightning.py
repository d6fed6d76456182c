"""The newest Lightning: what its trainer does is what is told, and energies reach its loggers."""

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, need, train
from tests.frameworks.trainings.common import STEP_S

need("lightning")


@pytest.fixture(scope="module")
def told() -> Told:
    with short_directory() as directory:
        return train("lightning", directory)


def test_results_are_the_same_bit_by_bit_with_and_without_and_with_no_collector(told: Told) -> None:
    assert told.printed["with"] == told.printed["without"] == told.printed["alone"]
    assert len(told.printed["with"]["losses"]) == 20


def test_a_step_of_the_optimizer_is_a_step_and_validations_are_windows(told: Told) -> None:
    session = told.sessions["everything"]
    assert session.phases == {"forward", "backward", "optimizer", "data"}
    assert session.steps == list(range(8)), "10 batches an epoch make 3 steps of 3 and one of 1"
    assert session.epochs == [0, 1]
    assert session.windows.count("validation") == 1 + 4


def test_two_optimizers_make_one_step_of_a_batch(told: Told) -> None:
    assert told.sessions["pair"].steps == list(range(20))


def test_the_samples_of_a_step_are_told_with_the_run(told: Told) -> None:
    assert told.sessions["lightning"].batch_size == 4 * 2


def test_a_training_that_stops_early(told: Told) -> None:
    assert told.sessions["stopped"].steps == list(range(5))


def test_a_step_that_an_exception_cut_short_is_none_and_numbers_go_on(told: Told) -> None:
    session = told.sessions["broken"]
    assert session.steps == list(range(2 + 20))


def test_a_resumed_training_goes_on_with_its_numbers(told: Told) -> None:
    session = told.sessions["resumed"]
    assert session.steps == list(range(10, 30))
    assert session.epochs == [1, 2]


def test_a_test_without_a_training_is_a_window(told: Told) -> None:
    assert told.sessions["tested"].windows == ["test"]


def test_energies_of_steps_and_tokens_are_logged(told: Told) -> None:
    rows = told.printed["logs"]
    known = [row for row in rows if row.get("energy_per_step_j")]
    assert len(known) >= 3
    for row in known:
        energy_j = float(row["energy_per_step_j"])
        assert energy_j > 2 * POWER_W * STEP_S
        assert float(row["average_power_w"]) == pytest.approx(POWER_W)
        assert float(row["energy_per_token_j"]) == pytest.approx(energy_j / (2 * 4 * 4))


def test_nothing_is_complained_about(told: Told) -> None:
    assert told.complaints == []
