"""An analyzer that is behind: what it leaves out first, and what its decisions say."""

import pytest
from msgspec.structs import replace

from analyzers.results.rows import DecisionRow, TrialRow, WindowRow
from tests.simulation.simulated_site import Training
from tests.simulation.world import QUICK, World

S = 1_000_000_000
PLAN = replace(QUICK, profile_steps=20, timeout_ns=S)
TRAINING = Training("imagenet", 0.02, 2_000)


def played(*, hurried: bool = False, command_ns: int = 2_000_000) -> World:
    """Return a world at its first decision."""
    world = World("simulated:v100x1", TRAINING, PLAN, hurried=hurried, command_ns=command_ns)
    while not world.rows(DecisionRow):
        assert not world.ended, "the training ended before a decision"
        world.run(0.1)
    return world


def test_the_fit_of_steps_is_left_out_before_anything_of_a_trial() -> None:
    at_leisure, hurried = played(), played(hurried=True)
    behind = {row.quality for row in hurried.rows(WindowRow) if row.kind == "step" and row.energy_j}
    assert any("the analyzer was behind" in quality for quality in behind)
    assert not any("behind" in row.quality for row in at_leisure.rows(WindowRow))
    assert hurried.rows(TrialRow) == at_leisure.rows(TrialRow)
    assert hurried.rows(DecisionRow) == at_leisure.rows(DecisionRow)


@pytest.mark.parametrize(("late_s", "said"), [(0.1, ""), (5.0, "; the analyzer was behind by up to 5 s")])
def test_limits_that_come_late_are_waited_for_and_the_decision_says_so(late_s: float, said: str) -> None:
    """Outcomes later than the timeout were given up, so that on a busy host nothing was chosen."""
    prompt, late = played().rows(DecisionRow)[0], played(command_ns=round(late_s * S)).rows(DecisionRow)[0]
    assert late.applied
    assert late.power_limit_w == prompt.power_limit_w
    assert late.reason == f"{prompt.reason}{said}"
