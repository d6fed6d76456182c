"""The newest TRL: its `SFTTrainer` is measured as the trainer that it is, and counts tokens by itself."""

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, need, train

need("trl")


@pytest.fixture(scope="module")
def told() -> Told:
    with short_directory() as directory:
        return train("trl", directory)


def test_results_are_the_same_bit_by_bit(told: Told) -> None:
    tuned, without = told.printed["tuned"], told.printed["without"]
    assert len(tuned["losses"]) == 6
    assert (tuned["losses"], tuned["weights"]) == (without["losses"], without["weights"])


def test_a_step_of_the_optimizer_is_a_step(told: Told) -> None:
    assert told.sessions["tuned"].steps == list(range(12))


def test_energies_of_steps_and_tokens_are_in_the_logs(told: Told) -> None:
    known = [log for log in told.printed["tuned"]["logs"] if "energy_per_step_j" in log]
    assert len(known) >= 4
    for log in known:
        assert log["average_power_w"] == pytest.approx(POWER_W)
        assert log["energy_per_token_j"] == pytest.approx(log["energy_per_step_j"] / (2 * 4 * 8))
