"""Searches over a driver that rounds the limits it is asked for."""

import pytest

from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import DecisionRow, TrialRow
from tests.simulation.simulated_site import Training
from tests.simulation.world import World

TRAINING = Training("imagenet", 0.05, 600)
MULTIPLES_W = {250.0, 230.0, 200.0, 180.0, 150.0, 130.0, 100.0}


@pytest.mark.sweep
@pytest.mark.parametrize("exhaustive", [False, True])
def test_the_candidates_follow_what_the_driver_makes_of_them(*, exhaustive: bool) -> None:
    settings = RunSettings(
        selector=selectors.parse("cost:0.5"),
        refreshes=2,
        exhaustive=exhaustive,
        warmup_steps=2,
        profile_steps=3,
        settle_ns=0,
    )
    world = World("simulated:v100x1", TRAINING, settings)
    world.rounding_mw = 10_000
    world.run(float("inf"))
    trials = world.rows(TrialRow)
    measured_w = {row.power_limit_w for row in trials}
    assert measured_w <= MULTIPLES_W
    assert len(measured_w) >= 4
    decided = [row for row in world.rows(DecisionRow) if row.power_limit_w is not None]
    assert decided[-1].power_limit_w in MULTIPLES_W
