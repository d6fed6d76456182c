"""The newest Keras 3: what `fit` does is what is told, and energies reach the logs of its epochs."""

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, need, train
from tests.frameworks.trainings.common import STEP_S

need("keras", "torch", "jax")


@pytest.fixture(scope="module", params=["torch", "jax"])
def told(request: pytest.FixtureRequest) -> Told:
    with short_directory() as directory:
        return train("keras", directory, KERAS_BACKEND=request.param)


def test_results_are_the_same_bit_by_bit_with_and_without_and_with_no_collector(told: Told) -> None:
    assert told.printed["with"] == told.printed["without"] == told.printed["alone"]
    assert len(told.printed["with"]["history"]["val_loss"]) == 2


def test_a_step_of_the_optimizer_is_a_step_and_evaluations_are_windows(told: Told) -> None:
    session = told.sessions["everything"]
    assert session.steps == list(range(6)), "20 batches make 6 steps of 3"
    assert session.epochs == [0, 1]
    assert session.windows.count("evaluation") == 2
    assert session.phases == {"forward, backward and optimizer", "data"}


def test_batches_that_are_executed_in_one_go_are_one_step(told: Told) -> None:
    if told.printed["backend"] == "torch":
        pytest.skip("with torch, Keras executes one batch at a time")
    assert told.sessions["execution"].steps == list(range(4))


def test_an_optimizer_that_scales_its_losses_accumulates_inside(told: Told) -> None:
    assert told.sessions["scaled"].steps == list(range(told.printed["scaled"])) == list(range(5))


def test_a_training_that_stops_early(told: Told) -> None:
    assert told.sessions["stopped"].steps == list(range(5))
    assert told.sessions["stopped"].epochs == [0]


def test_a_step_that_an_exception_cut_short_is_none_and_numbers_go_on(told: Told) -> None:
    assert told.sessions["broken"].steps == list(range(2 + 10))


def test_a_resumed_training_goes_on_with_its_numbers(told: Told) -> None:
    session = told.sessions["resumed"]
    assert session.steps == list(range(10, 30))
    assert session.epochs == [1, 2]


def test_an_evaluation_without_a_training_is_a_window(told: Told) -> None:
    assert told.sessions["evaluated"].windows == ["evaluation"]


def test_energies_are_in_the_history(told: Told) -> None:
    history = told.printed["logs"]
    assert history["average_power_w"] == pytest.approx([POWER_W] * len(history["average_power_w"]))
    assert history["energy_per_step_j"]
    assert min(history["energy_per_step_j"]) > POWER_W * STEP_S


def test_nothing_is_complained_about(told: Told) -> None:
    assert told.complaints == []
