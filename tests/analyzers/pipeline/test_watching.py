"""Plans that answer a slower replica and a power budget."""

import pytest

from analyzers.fleet.fleet import Allocation
from analyzers.pipeline.plan import FrequencyPlan
from analyzers.pipeline.watching.power_share import plan_within
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.instructions import ApplyPlan
from analyzers.results.pipeline.pipeline_rows import PipelineRow, PlanRow
from tests.analyzers.pipeline.stages import Stages


def following(**more: object) -> Stages:
    """Return a pipeline that follows its plan."""
    world = Stages(PipelineSettings(iterations=4), **more)  # type: ignore[arg-type]  # fields of the world
    while world.state != "following":
        world.play(1)
    world.play(8)
    return world


def plans(world: Stages) -> dict[str, str]:
    return {gpu: plan.plan for gpu, plan in world.plans.items()}


@pytest.mark.sweep
def test_a_slower_replica_is_answered_within_two_iterations_and_so_is_its_recovery() -> None:
    world = following(replicas=3)
    usual, usual_s = plans(world), max(world.own_s)
    assert len(set(usual.values())) == 1
    world.slow[1] = 1.1
    before = len(world.spent_j)
    world.play(2)  # it is noticed at the end of the second
    row = world.last_plan()
    assert row.first_iteration is not None
    assert row.first_iteration <= world.iteration + 1
    assert "replica 1 takes 10 % longer than promised" in row.reason
    world.play(4)
    answered = plans(world)
    straggling = {f"GPU-{rank}" for rank in range(4, 8)}
    assert {gpu for gpu in usual if answered[gpu] == usual[gpu]} == straggling
    assert world.took_s[-1] == pytest.approx(1.1 * usual_s, rel=0.005)
    assert max(world.own_s[0], world.own_s[2]) <= world.own_s[1] * 1.001
    assert world.spent_j[-1] < 0.97 * world.spent_j[before]
    world.slow.clear()
    world.play(2)
    assert world.last_plan().reason == "no replica is slower than the others any more"
    world.play(3)
    assert world.took_s[-1] == pytest.approx(usual_s, rel=0.005)
    assert world.state == "following"
    assert [row.number for row in world.rows if isinstance(row, PlanRow)][-1] == 3


def test_a_straggler_that_becomes_still_slower_is_sent_no_plan_of_the_same_clocks() -> None:
    world = following(replicas=2)
    for slower in (1.9, 2.5, 1.9):
        world.slow[1] = slower
        world.play(5)
    assert world.last_plan().number == 2, "no plan is slower than that of the least energy"
    world.slow.clear()
    world.play(5)
    assert world.last_plan().number == 3
    world.end(0)
    assert [row.replicas for row in world.rows if isinstance(row, PipelineRow)][-1] == 2


def test_noise_is_no_straggler() -> None:
    world = following(replicas=2, noise=0.01)
    world.play(60)
    assert {row.number for row in world.rows if isinstance(row, PlanRow)} == {1}


def test_a_power_budget_is_kept_by_a_slower_point_and_the_usual_one_returns() -> None:
    world = following()
    usual = world.last_plan()
    allowed_w = 0.9 * usual.promised_j / usual.promised_s
    world.shares |= {f"GPU-{stage}": Allocation("b", round(allowed_w * 250)) for stage in range(4)}
    world.play(4)
    plan = world.last_plan()
    assert plan.promised_j / plan.promised_s <= allowed_w
    assert plan.promised_s > usual.promised_s
    assert "power budgets allow" in plan.reason
    assert world.spent_j[-1] / world.took_s[-1] <= 1.01 * allowed_w
    world.shares.clear()
    world.play(4)
    assert world.last_plan().promised_s == usual.promised_s
    assert world.took_s[-1] == pytest.approx(usual.promised_s, rel=0.01)


def test_of_plans_within_a_power_the_fastest_is_taken_or_else_the_slowest() -> None:
    def plan_of(deadline_s: float) -> FrequencyPlan:
        return FrequencyPlan((), min(deadline_s, 3.0), 100.0 + 20.0 * min(deadline_s, 3.0), 0.0)

    assert plan_within(None, 1.0, 4.0, plan_of).time_s == 1.0
    assert plan_within(130.0, 1.0, 4.0, plan_of).time_s == 1.0
    found = plan_within(80.0, 1.0, 4.0, plan_of)
    assert found.energy_j / found.time_s <= 80.0
    assert found.time_s == pytest.approx(100 / 60, abs=0.05)
    assert plan_within(10.0, 1.0, 4.0, plan_of).time_s == 3.0


def test_the_plan_of_a_straggler_is_sent_with_its_first_iteration_at_once() -> None:
    world = following(replicas=2)
    sent = len(world.sent)
    world.slow[0] = 1.2
    world.play(3)
    offered = [each for each in world.sent[sent:] if isinstance(each, ApplyPlan)]
    assert {each.gpu for each in offered} == {f"GPU-{rank}" for rank in range(4, 8)}
    assert all(each.first_iteration is not None for each in offered)
