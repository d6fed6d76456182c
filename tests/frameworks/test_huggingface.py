"""The newest `transformers`: what its trainer does is what is told, and energies reach its logs."""

from pathlib import Path

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, need, train
from tests.frameworks.trainings.common import STEP_S

INTERVALS = "logging interval"


need("transformers", "tensorboard")


@pytest.fixture(scope="module")
def told() -> Told:
    with short_directory() as directory:
        return train("huggingface", Path(directory))


def test_results_are_the_same_bit_by_bit_with_and_without_and_with_no_collector(told: Told) -> None:
    assert told.printed["with"] == told.printed["without"] == told.printed["alone"]
    assert len(told.printed["with"]["logs"]) == 4 + 3 + 1


def test_a_step_of_the_optimizer_is_a_step_and_pauses_are_windows(told: Told) -> None:
    session = told.sessions["everything"]
    assert session.steps == list(range(12))
    assert session.windows.count("evaluation") == 3
    assert session.windows.count("checkpoint") == 2
    assert session.phases == {"forward and backward", "optimizer", "data"}
    assert session.rows == 4, "in a row, but for evaluations after 4 and 8, and the checkpoint after 6"


def test_epochs_and_a_last_step_of_fewer_batches(told: Told) -> None:
    session = told.sessions["epochs"]
    assert session.epochs == [0, 1]
    assert session.steps == list(range(10))
    assert session.windows.count("evaluation") == 2
    assert 1 <= session.windows.count("checkpoint") <= 2, "the first is the best so far"


def test_the_samples_of_a_step_are_told_with_the_run(told: Told) -> None:
    assert told.sessions["huggingface"].batch_size == 4 * 2


def test_a_training_that_stops_early(told: Told) -> None:
    assert told.sessions["stopped"].steps == list(range(5))


def test_a_step_that_an_exception_cut_short_is_none_and_numbers_go_on(told: Told) -> None:
    session = told.sessions["broken"]
    assert session.steps == list(range(4 + 12))


def test_a_resumed_training_goes_on_with_its_numbers(told: Told) -> None:
    assert told.sessions["resumed"].steps == list(range(6, 12))
    assert told.printed["resumed"]["weights"] == told.printed["not resumed"]["weights"]


def test_energies_are_in_the_logs_late_and_never_in_those_of_evaluations(told: Told) -> None:
    logs = told.printed["logs"]
    training = [log for log in logs if "loss" in log]
    assert "energy_per_step_j" not in training[0], "nothing is known yet"
    known = [log for log in logs if "energy_per_step_j" in log]
    assert len(known) >= 4
    for log in known:
        assert log["average_power_w"] == pytest.approx(POWER_W)
        assert log["energy_per_step_j"] > POWER_W * STEP_S
        assert log["energy_per_token_j"] == pytest.approx(log["energy_per_step_j"] / (4 * 8))
    assert not [log for log in logs if "eval_loss" in log and "energy_per_step_j" in log]


def test_who_writes_logs_sees_them(told: Told) -> None:
    seen = told.printed["tensorboard"]
    for name in ("energy_per_step_j", "energy_per_token_j", "average_power_w"):
        (written,) = [values for tag, values in seen.items() if tag.endswith(name)]
        logged = [(log["step"], log[name]) for log in told.printed["logs"] if name in log]
        assert [step for step, _ in written] == [step for step, _ in logged]
        assert [value for _, value in written] == pytest.approx([value for _, value in logged], rel=1e-5)


def test_an_evaluation_without_a_training_is_a_window(told: Told) -> None:
    assert told.sessions["evaluated"].windows == ["evaluation", "evaluation"]
    assert told.sessions["evaluated"].steps == []


def test_nothing_is_complained_about(told: Told) -> None:
    assert told.complaints == []


def test_ranks_share_the_tokens_and_each_has_its_steps() -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    with short_directory() as directory:
        told = train("ranks", directory, launcher)
    assert told.printed["world_size"] == 2
    for rank in range(2):
        assert told.sessions[f"rank {rank}"].steps == list(range(12))
    known = [log for log in told.printed["logs"] if "energy_per_step_j" in log]
    assert len(known) >= 3
    for log in known:
        assert log["energy_per_token_j"] == pytest.approx(log["energy_per_step_j"] / (4 * 8))
