"""The whole pipeline under 50 seeds of trouble; `make soak` runs 1000."""

from pathlib import Path

import pytest

from tests.simulation.pipeline import World


@pytest.mark.parametrize("seed", range(50))
def test_through_all_trouble_every_event_is_archived_once_and_every_limit_returns(
    tmp_path: Path, seed: int
) -> None:
    try:
        report = World(seed, tmp_path / "log.sqlite").run()
    except AssertionError as wrong:
        wrong.add_note(f"Repeat it with: python -m pytest tests/simulation/test_pipeline.py -k '[{seed}]'")
        raise
    assert report.archived > 100
    assert report.windows > 50
