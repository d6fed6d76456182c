"""Plans that answer a slower replica and a power budget."""

import pytest

from analyzers.fleet.fleet import Allocation
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.pipeline_rows import PipelineRow, PlanRow
from analyzers.results.result import ApplyControl, ApplyPlan
from tests.analyzers.pipeline.stages import Stages


def following(**more: object) -> Stages:
    """Return a pipeline that follows its plan."""
    return Stages(PipelineSettings(iterations=4), **more).follow(8)  # type: ignore[arg-type]  # its fields


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


def test_a_replica_that_is_late_when_the_straggler_recovers_does_not_keep_the_plan_of_the_straggler() -> None:
    world = following(replicas=2)
    usual_s = max(world.own_s)
    world.slow[1] = 1.2
    world.play(6)
    world.slow = {0: 1.05}
    world.play(12)
    assert "replica 0 takes 5 % longer" in world.last_plan().reason
    assert world.took_s[-1] == pytest.approx(1.05 * usual_s, rel=0.005)
    world.slow.clear()
    world.play(6)
    assert world.took_s[-1] == pytest.approx(usual_s, rel=0.005)


def test_tensor_parallel_ranks_of_a_stage_act_together() -> None:
    alone, world = following(replicas=2), following(replicas=2, tensor_parallel=2)
    assert [row.replicas for row in world.rows if isinstance(row, PipelineRow)][-1] == 2
    assert world.last_plan().promised_j == pytest.approx(2 * alone.last_plan().promised_j, rel=0.001)
    usual = plans(world)
    assert len(usual) == 16
    assert len(set(usual.values())) == 1
    world.slow[1] = 1.2
    world.play(6)
    answered = plans(world)
    assert {gpu for gpu in usual if answered[gpu] == usual[gpu]} == {f"GPU-{rank}" for rank in range(8, 16)}


def test_number_and_range_of_the_profiled_clocks_are_settings() -> None:
    world = Stages(PipelineSettings(iterations=3, clocks=5, lowest=0.8)).follow()
    visited = [each.value for each in world.sent if isinstance(each, ApplyControl) and each.gpu == "GPU-0"]
    assert (len(visited), visited[0], visited[-1]) == (5, 1410, 1140)


def test_a_straggler_is_answered_on_a_busy_host_where_every_replica_is_late() -> None:
    world = following(replicas=2)
    world.slow.update({0: 1.05, 1: 1.05})
    world.play(4)
    assert world.last_plan().number == 1, "no replica is slower than the others"
    world.slow[1] = 1.05 * 1.2
    world.play(2)
    plan = world.last_plan()
    assert plan.reason == "replica 1 takes 20 % longer than promised"
    assert plan.first_iteration is not None
    assert plan.first_iteration <= world.iteration + 1
    world.play(6)
    assert world.own_s[0] <= world.own_s[1] * 1.001
    world.slow[1] = 1.05
    world.play(3)
    assert world.last_plan().reason == "no replica is slower than the others any more"


def test_noise_is_no_straggler() -> None:
    world = following(replicas=2, noise=0.01)
    world.play(60)
    assert {row.number for row in world.rows if isinstance(row, PlanRow)} == {1}


def test_a_power_budget_is_kept_by_clocks_that_its_limits_leave_and_the_usual_plan_returns() -> None:
    world = following()
    usual = world.last_plan()
    world.shares |= {f"GPU-{stage}": Allocation("b", 390_000) for stage in range(4)}
    world.play(2)
    assert world.last_plan() == usual, "these limits allow every clock"
    world.shares |= {f"GPU-{stage}": Allocation("b", 160_000) for stage in range(4)}
    world.play(18)
    plan = world.last_plan()
    assert (plan.state, plan.reason) == ("followed", "power budgets allow a GPU 160 W")
    assert plan.promised_j / plan.promised_s <= 4 * 160
    assert plan.measured_s == pytest.approx(plan.promised_s, rel=0.02), "a limit is filled to 97 %"
    assert usual.promised_s < plan.promised_s == pytest.approx(plan.slowdown * plan.unplanned_s, rel=0.005)
    world.shares.clear()
    world.play(4)
    assert world.last_plan().promised_s == usual.promised_s
    assert world.took_s[-1] == pytest.approx(usual.promised_s, rel=0.01)


def test_a_budget_of_one_stage_makes_the_others_no_faster_than_that() -> None:
    world = following()
    world.shares["GPU-3"] = Allocation("b", 150_000)
    world.play(18)
    plan = world.last_plan()
    assert plan.state == "followed"
    assert plan.measured_s == pytest.approx(plan.promised_s, rel=0.01)
    assert plan.promised_j < 0.97 * plan.unplanned_j, "the others wait for it, and have lower clocks"
    world.shares["GPU-3"] = Allocation("b", 20_000)
    world.play(24)
    assert (world.state, world.last_plan().number) == ("following", plan.number + 1)
    assert "less than it draws at the lowest clock" in world.last_plan().reason
    lowest_mhz = min(each.value for each in world.sent if isinstance(each, ApplyControl))
    assert set(world.plans["GPU-3"].clocks_mhz) == {lowest_mhz}, "no clock draws so little"


def test_the_plan_of_a_straggler_is_sent_with_its_first_iteration_at_once() -> None:
    world = following(replicas=2)
    sent = len(world.sent)
    world.slow[0] = 1.2
    world.play(3)
    offered = [each for each in world.sent[sent:] if isinstance(each, ApplyPlan)]
    assert {each.gpu for each in offered} == {f"GPU-{rank}" for rank in range(4, 8)}
    assert all(each.first_iteration is not None for each in offered)
