"""The whole pipeline under trouble, with a broker that loses: the lake has each frame of the log once."""

from collections import Counter

import pytest

from tests.simulation.lossy_broker import run

SEEDS = (*range(8), 26, 30)
"""In the last two, commits of an archiver that was replaced are refused."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """Return what happened in the worlds of a module."""
    return Counter()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_broker_loses_repeats_or_forgets_is_in_the_lake_once(seed: int, seen: Counter[str]) -> None:
    played = run(seed)
    assert played.report.archived > 100
    assert played.commits > 10
    seen.update(faults=played.faults, refused=played.refused, lost=played.lost, repeated=played.repeated)
    assert seed != SEEDS[-1] or all(seen.values()), f"the worlds had too little trouble: {seen}"
