"""A power budget over the stages of a pipeline: the busiest stage has the most, and the sum is kept."""

from itertools import pairwise

import pytest

from analyzers.fleet.fleet import Allocation
from analyzers.interpreter.interpreter import Interpreter
from analyzers.pipeline.pipeline_run import StageEnded
from analyzers.pipeline.stage_limits import divide
from benchmarks.pipeline.groupings import draw
from benchmarks.pipeline.schedules import SCHEDULES
from tests.analyzers.pipeline.stages import HOST
from tests.analyzers.pipeline.test_watching import following
from tests.analyzers.power_budget.test_enforcer import PLAN, Site, budget

LIMITS_MW = tuple(range(100_000, 300_001, 50_000))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", [801, 802])
def test_limits_of_stages_keep_to_their_sum_and_more_is_never_slower(schedule: str, seed: int) -> None:
    graph, profile = draw(seed, schedule, long=True)
    gpus = [2] * graph.stages
    shares = divide(graph, profile, LIMITS_MW, gpus)
    for limit_mw, (of_stages, _) in zip(LIMITS_MW, shares, strict=True):
        assert 2 * sum(of_stages) <= limit_mw * sum(gpus)
        assert all(LIMITS_MW[0] <= each <= LIMITS_MW[-1] for each in of_stages)
    assert all(one[1] >= two[1] for one, two in pairwise(shares))
    assert shares[0][0] == (LIMITS_MW[0],) * graph.stages


def test_iterations_are_shorter_than_under_equal_limits() -> None:
    """Stages with .8, 1, .9 and 1.1 times the work."""
    equal, divided = following(), following()
    gpus = [f"GPU-{stage}" for stage in range(4)]
    division = divided.run.divide(gpus, LIMITS_MW)
    assert division is not None
    at = LIMITS_MW.index(200_000)
    for gpu in gpus:
        equal.shares[gpu] = Allocation("b", 200_000)
        divided.shares[gpu] = Allocation("b", division.limits_mw[gpu][at])
    assert sum(share.most_mw for share in divided.shares.values()) <= 4 * 200_000
    for world in (equal, divided):
        world.play(18)
        assert world.last_plan().state == "followed"
    assert "power budgets allow a GPU 1" in divided.last_plan().reason
    assert divided.took_s[-1] < 0.97 * equal.took_s[-1]
    assert divided.took_s[-1] == pytest.approx(divided.last_plan().promised_s, rel=0.02)


def test_a_budget_is_shared_by_what_stages_run_and_equally_once_that_is_not_known() -> None:
    world = following(prefix="g")
    site = Site(4, interpreter=Interpreter(PLAN))
    site.begin("run", [f"g{stage}" for stage in range(4)])
    site.set(budget(800))
    site.settle()
    assert site.limits == dict.fromkeys(("g0", "g1", "g2", "g3"), 200_000)
    pipelines = site.interpreter.site.pipelines.runs
    pipelines["run"] = world.run
    site.settle()
    assert site.limits["g0"] < site.limits["g2"] < site.limits["g1"] < site.limits["g3"]
    assert 750_000 < sum(site.limits.values()) <= 800_000
    site.set(budget(800), budget(380, "rack2", ("g0", "g1")))
    site.settle()
    assert len({site.limits[gpu] for gpu in ("g0", "g1")}) == 1, "a budget is about a part of them"
    world.run.handle(StageEnded(world.sessions[0]), {HOST: world.t_ns})
    assert world.run.divide(["g1", "g2", "g3"], LIMITS_MW) is None
    site.set(budget(800))
    site.settle()
    assert site.limits == dict.fromkeys(("g0", "g1", "g2", "g3"), 200_000), "a stage is gone"
