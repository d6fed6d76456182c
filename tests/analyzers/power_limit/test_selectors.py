import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzers.power_limit import selectors
from analyzers.power_limit.selectors import Selector, Trial
from zeus_stream.errors import SettingsError

PROFILES = Path(__file__).parents[2] / "data/a40_profiles"
ASKED = (
    *("energy", "time"),
    *(f"cost:{eta}" for eta in (0, 0.25, 0.5, 0.75, 1)),
    *(f"slowdown:{factor}" for factor in (1.0, 1.1, 1.2, 1.5, 2, 3, 5, 100)),
)
GOLDEN = {
    "bert-base-uncased+gpu0": "200 275 275 275 275 200 200 275 250 200 175 150 125 100 100",
    "resnet18+gpu0,1,2,3": "100 275 275 275 300 300 100 275 125 100 100 100 100 100 100",
    "resnet18+gpu0": "175 175 175 175 175 175 175 175 175 150 150 125 100 100 100",
    "resnet50+gpu0,1,2,3": "100 150 150 150 150 100 100 125 100 100 100 100 100 100 100",
    "resnet50+gpu0": "175 300 300 225 200 200 175 300 200 175 175 150 100 100 100",
    "shufflenetv2+gpu0": "150 300 300 300 150 150 150 300 150 150 125 125 100 100 100",
}


def parsed(text: str) -> Selector:
    selector = selectors.parse(text)
    assert selector is not None
    return selector


def published(name: str) -> tuple[list[Trial], int]:
    """Return a published profile's trials and its number of GPUs."""
    with (PROFILES / f"A40+{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    gpus = [column for column in rows[0] if column.endswith("_energy")]
    trials = [
        Trial(
            1000 * int(row["window_name"].rpartition("_")[2]),
            round(1000 * sum(float(row[gpu]) for gpu in gpus)),
            round(1e9 * float(row["elapsed_time"])),
            40,
        )
        for row in rows
    ]
    return trials, len(gpus)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("index", range(len(ASKED)), ids=ASKED)
def test_published_profiles_give_the_published_limits(name: str, index: int) -> None:
    trials, gpus = published(name)
    assert parsed(ASKED[index]).choose(trials, gpus) == 1000 * int(GOLDEN[name].split()[index])


def test_trials_of_different_lengths_are_compared_per_step() -> None:
    trials = (Trial(300_000, 40_000, 4_000, 40), Trial(200_000, 60_000, 10_000, 80))
    assert parsed("energy").choose(trials, 1) == 200_000
    assert parsed("time").choose(trials, 1) == 300_000


@pytest.mark.parametrize("text", ["energy", "time", "cost:0.5"])
def test_ties_go_to_the_higher_limit(text: str) -> None:
    trials = (Trial(200_000, 10, 10, 1), Trial(300_000, 10, 10, 1), Trial(100_000, 10, 10, 1))
    assert parsed(text).choose(trials, 1) == 300_000


def test_the_price_of_time_counts_every_gpu_of_the_job() -> None:
    trials = (Trial(300_000, 1_000_000, 1_000_000_000, 1), Trial(100_000, 800_000, 1_500_000_000, 1))
    assert parsed("cost:0.5").choose(trials, 1) == 100_000
    assert parsed("cost:0.5").choose(trials, 4) == 300_000


def highest(trials: Sequence[Trial], gpus: int) -> int:
    assert gpus == 2
    return max(trial.limit_mw for trial in trials)


def none_of_them(trials: Sequence[Trial], gpus: int) -> int:
    return len(trials) + gpus


def failing(trials: Sequence[Trial], gpus: int) -> int:
    return trials[gpus].limit_mw


def test_a_function_of_the_user_chooses() -> None:
    trials = (Trial(200_000, 1, 1, 1), Trial(300_000, 2, 2, 1))
    assert parsed(f"{__name__}:highest").choose(trials, 2) == 300_000


@pytest.mark.parametrize("name", ["none_of_them", "failing"])
def test_a_mistake_in_a_function_of_the_user_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}.*Correct the function\."):
        parsed(f"{__name__}:{name}").choose((Trial(200_000, 1, 1, 1),), 1)


def test_none_chooses_nothing() -> None:
    assert selectors.parse("none") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "enregy", "energy:1", "cost", "cost:", "cost:x", "cost:1.1", "cost:nan", "cost:-1"),
        *("slowdown:0.9", "slowdown:inf", "none:1", "no_such_module:f", "math:no_such_function", "math:pi"),
        *(":f", "math:", "..:f"),
    ],
)
def test_what_is_no_selector_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(SettingsError, match=r"Choose energy, time, cost:ETA, slowdown:FACTOR"):
        selectors.parse(text)
