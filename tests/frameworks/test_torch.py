"""The newest torch and Accelerate: the optimizer's own step is what counts."""

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, need, train
from tests.frameworks.trainings.common import STEP_S

need("torch", "accelerate")


@pytest.fixture(scope="module")
def told() -> Told:
    with short_directory() as directory:
        return train("torch", directory)


def test_results_are_the_same_bit_by_bit_with_and_without_and_with_no_collector(told: Told) -> None:
    printed = told.printed
    assert printed["with"] == printed["without"] == printed["alone"] == printed["closed"]
    assert printed["accelerated"] == printed["accelerated without"]


def test_a_step_of_the_optimizer_is_a_step_however_many_batches_it_takes(told: Told) -> None:
    assert told.sessions["accumulated"].steps == list(range(4))
    assert told.sessions["accelerated"].steps == list(range(4))


def test_of_two_optimizers_that_take_turns_one_counts(told: Told) -> None:
    assert told.sessions["pair"].steps == list(range(5))


def test_the_optimizer_of_the_next_phase_takes_over(told: Told) -> None:
    assert told.sessions["successors"].steps == list(range(24))


def test_a_compiled_step_is_a_step(told: Told) -> None:
    assert told.sessions["compiled"].steps == list(range(5))
    assert "Dynamo does not know" not in told.stderr


def test_a_loop_that_breaks_and_begins_anew(told: Told) -> None:
    assert told.sessions["broken"].steps == list(range(4 + 12 - 1)), (
        "the first of the new optimizer is seen late"
    )


def test_energies_can_be_logged_and_pauses_are_in_none(told: Told) -> None:
    session = told.sessions["logged"]
    assert session.steps == list(range(36))
    assert session.windows.count("evaluation") == 3
    known = [log for log in told.printed["logs"] if log]
    assert len(known) > 20
    for log in known:
        assert log["average_power_w"] == pytest.approx(POWER_W)
        assert log["energy_per_step_j"] > POWER_W * STEP_S
        assert log["energy_per_token_j"] == pytest.approx(log["energy_per_step_j"] / 7)


def test_nothing_is_complained_about(told: Told) -> None:
    assert told.complaints == []
