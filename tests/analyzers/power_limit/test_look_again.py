"""The best limit moves while steps at the chosen one stay as they are: it is looked at again."""

from random import Random

import pytest
from msgspec.structs import replace

from analyzers.power_limit.profiler import AGAIN_STEPS
from benchmarks.noise.driven import Driven
from benchmarks.noise.published import STEP_NS, Curve, Training, named

LIMITS_MW = tuple(range(300_000, 90_000, -30_000))
SLOWER = (1.0, 1.01, 1.03, 1.07, 1.13, 1.2, 1.3)
BEFORE, AFTER = (100, 92, 88, 92, 97, 105, 118), (112, 98, 88, 81, 76, 79, 84)
"""Energy of a step at each limit; at the third it is the same."""


def training(seed: int) -> Training:
    of = tuple(STEP_NS * slower for slower in SLOWER)
    return Training(Curve("", LIMITS_MW, of, tuple(500.0 * mj for mj in BEFORE)), 0.01, Random(seed))


@pytest.mark.parametrize("moves", [True, False])
def test_another_limit_is_looked_at_after_some_thousand_steps(moves: bool) -> None:  # noqa: FBT001
    of = training(1)
    driven = Driven(of, named("energy"))
    while not driven.watched:
        driven.steps(1)
    assert [decided.limit_mw for _, decided in driven.decided] == [LIMITS_MW[2]]
    if moves:
        of.curve = replace(of.curve, step_mj=tuple(500.0 * mj for mj in AFTER))
    driven.steps(AGAIN_STEPS + 400)
    (_, first), (at_step, second) = driven.decided
    assert "searched again after" in second.reason
    assert second.limit_mw == (LIMITS_MW[4] if moves else first.limit_mw)
    elsewhere = sum(LIMITS_MW[at] != first.limit_mw for at in of.spent[driven.rounds[1] : at_step])
    assert moves or elsewhere < 60
    if not moves:
        driven.steps(AGAIN_STEPS)
        assert len(driven.decided) == 2, "the next time after twice as many"
