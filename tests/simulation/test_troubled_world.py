"""The whole pipeline under a few seeds of trouble; `make soak` runs 1000."""

from pathlib import Path

import pytest

from tests.simulation.troubled_world import TroubledWorld, run


@pytest.mark.parametrize("seed", range(5))
def test_through_all_trouble_every_event_is_archived_once_and_every_limit_returns(seed: int) -> None:
    report = run(seed)
    assert report.archived > 100
    assert report.windows > 50


@pytest.mark.parametrize("seed", [39])  # an open run goes on in a new log
def test_the_real_archive_stores_all_of_it_once_and_replays_it_through_kills_of_the_analyzer(
    seed: int,
) -> None:
    assert run(seed, stored=True).archived > 100


def test_the_same_seed_gives_the_same_report() -> None:
    assert run(0) == run(0)


@pytest.mark.parametrize("seed", [0, 3])
def test_steps_of_the_wall_clock_change_no_energy_and_no_duration(tmp_path: Path, seed: int) -> None:
    stepped, steady = (
        TroubledWorld(seed, tmp_path / "a"),
        TroubledWorld(seed, tmp_path / "b", wall_steps=False),
    )
    assert stepped.run().wall_steps > 0
    steady.run()
    assert stepped.windows == steady.windows
