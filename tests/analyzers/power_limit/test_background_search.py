"""A search that is not sure when its steps end states its bound and goes on in the background."""

import numpy as np
from msgspec.structs import replace

from analyzers.power_limit.profiler import BACKGROUND
from analyzers.power_limit.search.advice import most_blocks
from analyzers.power_limit.search.belief import TOLERATED
from analyzers.power_limit.visits import Purpose
from tests.analyzers.power_limit.test_profiler import ADAPTIVE, BLOCK, Bench

LIMITS_MW = (250_000, 200_000, 150_000)
STEPS = 6_000


class Noisy(Bench):
    """Three limits that differ by 1 %, under levels that scatter by 20 % and last for 20 steps."""

    levels = np.repeat(1 + 0.2 * np.random.default_rng(4).normal(size=STEPS // 20 + 1), 20)

    def step_mj(self, limit_mw: int) -> float:
        return float(self.levels[self.index]) * (1_000_000 + (limit_mw - LIMITS_MW[-1]) / 5)


def test_the_bound_is_stated_and_the_search_goes_on_within_its_share() -> None:
    bench = Noisy(replace(ADAPTIVE, limits_mw=LIMITS_MW))
    while not bench.decided and bench.index < STEPS / 2:
        bench.steps(10)
    (first,) = bench.decided
    assert first.confidence is not None
    assert first.confidence.p95 > TOLERATED
    bound = f"it may cost {100 * first.confidence.p95:.1f} % more than the best"
    assert f"not sure: {bound}; searched further in the background until the run ends" in first.reason
    began, budget = bench.index, most_blocks(len(LIMITS_MW)) * BLOCK
    assert began >= budget
    while len(bench.decided) == 1 and bench.index < STEPS - 20:
        bench.steps(10)
    second = bench.decided[1]
    assert "the search went on in the background, part 1" in second.reason
    assert len(second.trials) == len(first.trials)
    assert sum(one.steps for one in second.trials) > sum(one.steps for one in first.trials)
    while bench.index < STEPS / 2:
        bench.steps(10)
    searched = [one for one in bench.trials if one.purpose is Purpose.PROFILE and one.spans[0].first >= began]
    at_once = BACKGROUND * BLOCK
    assert 0 < sum(one.steps for one in searched) <= bench.plan.profiling_share * bench.index + at_once
