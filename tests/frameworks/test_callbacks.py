"""The newest torch, Accelerate, Hugging Face, Lightning and Keras: a training is recorded as it ran."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from tests.directories import short_directory
from tests.frameworks.told import POWER_W, Told, absent, train
from tests.frameworks.trainings.common import STEP_S
from zeus_stream.protocol.events import RunStarted

NEEDED = {
    "torch": ("torch", "accelerate"),
    "huggingface": ("transformers", "tensorboard"),
    "lightning": ("lightning",),
    "keras on torch": ("keras", "torch"),
    "keras on jax": ("keras", "jax"),
}
"""By training: what it needs."""


class Ran(NamedTuple):
    """The report of one publisher about its training; None: it does not matter."""

    steps: Sequence[int]
    epochs: Sequence[int] | None = None
    pauses: Mapping[str, int] = {}
    phases: set[str] | None = None
    batch_size: int | None = None


KERAS = {
    # 20 batches make 6 steps of 3
    "everything": Ran(range(6), [0, 1], {"evaluation": 2}, {"forward, backward and optimizer", "data"}),
    "scaled": Ran(range(5)),  # an optimizer that scales its losses accumulates inside
    "stopped": Ran(range(5), [0]),
    "broken": Ran(range(2 + 10)),  # a step that an exception cut short is none, and numbers go on
    "resumed": Ran(range(10, 30), [1, 2]),
    "evaluated": Ran([], [], {"evaluation": 1}),
}
RAN: dict[str, dict[str, Ran]] = {
    "torch": {
        "accumulated": Ran(range(4)),  # a step of the optimizer, however many batches it takes
        "accelerated": Ran(range(4)),
        "pair": Ran(range(5)),  # of two optimizers that take turns one counts
        "successors": Ran(range(24)),  # the optimizer of the next phase takes over
        "compiled": Ran(range(5)),
        "broken": Ran(range(4 + 12 - 1)),  # the first step of the new optimizer is seen late
        "logged": Ran(range(36), None, {"evaluation": 3}),
    },
    "huggingface": {
        "everything": Ran(
            range(12),
            None,
            {"evaluation": 3, "checkpoint": 2},
            {"forward and backward", "optimizer", "data"},
        ),
        "epochs": Ran(range(10), [0, 1], {"evaluation": 2}),  # with a last step of fewer batches
        "huggingface": Ran(range(2), batch_size=4 * 2),
        "stopped": Ran(range(5)),
        "broken": Ran(range(4 + 12)),
        "resumed": Ran(range(6, 12)),
        "evaluated": Ran([], [], {"evaluation": 2}),
    },
    "lightning": {
        # 10 batches an epoch make 3 steps of 3 and one of 1
        "everything": Ran(
            range(8), [0, 1], {"validation": 1 + 4}, {"forward", "backward", "optimizer", "data"}
        ),
        "pair": Ran(range(20)),  # two optimizers make one step of a batch
        "lightning": Ran(range(5), batch_size=4 * 2),
        "stopped": Ran(range(5)),
        "broken": Ran(range(2 + 20)),
        "resumed": Ran(range(10, 30), [1, 2]),
        "tested": Ran([], [], {"test": 1}),
    },
    "keras on torch": KERAS,
    "keras on jax": KERAS | {"execution": Ran(range(4))},  # batches in one go are one step; torch has none
}
LOGGED = {"torch": (1, 7), "huggingface": (1, 4 * 8), "lightning": (2, 2 * 4 * 4), "keras": (1, 0)}
"""By script: batches and tokens of a step whose energies are logged."""
of_each = pytest.mark.parametrize("training", NEEDED)


@cache
def trained(training: str) -> Told:
    script, _, backend = training.partition(" on ")
    with short_directory() as directory:
        return train(script, directory, KERAS_BACKEND=backend or "torch")


def told(training: str) -> Told:
    if reason := absent(*NEEDED[training]):
        pytest.skip(reason)
    return trained(training)


@of_each
def test_results_are_the_same_bit_by_bit_with_and_without_and_with_no_collector(training: str) -> None:
    printed = told(training).printed
    assert printed["with"] == printed["without"] == printed["alone"]
    assert all(printed["with"].values())
    assert printed.get("closed", printed["with"]) == printed["with"]
    for name in ("accelerated", "resumed"):
        assert printed.get(name) == printed.get(f"{name} without")


@of_each
def test_steps_epochs_and_pauses_are_those_of_the_training(training: str) -> None:
    sessions = told(training).sessions
    for job, ran in RAN[training].items():
        said = sessions[job]
        assert said.steps == list(ran.steps), job
        assert ran.epochs is None or said.epochs == ran.epochs, job
        assert {name: said.windows.count(name) for name in ran.pauses} == ran.pauses, job
        assert ran.phases is None or said.phases == ran.phases, job
        assert ran.batch_size is None or said.batch_size == ran.batch_size, job


@of_each
def test_energies_of_steps_and_tokens_are_in_the_logs(training: str) -> None:
    batches, tokens = LOGGED[training.partition(" ")[0]]
    known = [log for log in told(training).printed["logs"] if log.get("energy_per_step_j")]
    assert known
    for log in known:
        assert float(log["average_power_w"]) == pytest.approx(POWER_W)
        energy_j = float(log["energy_per_step_j"])
        assert energy_j > batches * POWER_W * STEP_S
        assert not tokens or float(log["energy_per_token_j"]) == pytest.approx(energy_j / tokens)


@of_each
def test_nothing_is_complained_about(training: str) -> None:
    assert told(training).complaints == []
    assert "Dynamo does not know" not in told(training).stderr


def test_energies_are_late_never_of_an_evaluation_and_whoever_writes_logs_sees_them() -> None:
    printed = told("huggingface").printed
    [first, *_] = [log for log in printed["logs"] if "loss" in log]
    assert "energy_per_step_j" not in first, "nothing is known yet"
    assert not [log for log in printed["logs"] if "eval_loss" in log and "energy_per_step_j" in log]
    for name in ("energy_per_step_j", "energy_per_token_j", "average_power_w"):
        (written,) = [values for tag, values in printed["tensorboard"].items() if tag.endswith(name)]
        logged = [(log["step"], log[name]) for log in printed["logs"] if name in log]
        assert [step for step, _ in written] == [step for step, _ in logged]
        assert [value for _, value in written] == pytest.approx([value for _, value in logged], rel=1e-5)


def test_ranks_share_the_tokens_and_each_has_its_steps() -> None:
    if reason := absent("transformers"):
        pytest.skip(reason)
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    with short_directory() as directory:
        ranks = train("ranks", directory, launcher)
    assert ranks.printed["world_size"] == 2
    for rank in range(2):
        assert ranks.sessions[f"rank {rank}"].steps == list(range(12))
    known = [log for log in ranks.printed["logs"] if "energy_per_step_j" in log]
    assert len(known) >= 3
    for log in known:
        assert log["energy_per_token_j"] == pytest.approx(log["energy_per_step_j"] / (4 * 8))


def test_ranks_that_lightning_starts_by_itself_are_one_run() -> None:
    if reason := absent("lightning"):
        pytest.skip(reason)
    with short_directory() as directory:
        ranks = train("lightning_ranks", directory)
    began = [ranks.sessions[f"rank {rank}"].events[0] for rank in range(2)]
    assert [(each.rank, each.world_size) for each in began if isinstance(each, RunStarted)] == [
        (0, 2),
        (1, 2),
    ]
    assert len({each.run for each in began if isinstance(each, RunStarted)}) == 1
