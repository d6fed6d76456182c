import re
import sys

import pytest

from analyzers.pipeline.pipeline_run import ClockLost
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.fleet_rows import CommandRow
from analyzers.results.pipeline_rows import InstructionRow, PipelineRow, PlanPointRow, PlanRow
from analyzers.results.result import NOTHING, ApplyControl, ApplyPlan, Result
from tests.analyzers.pipeline.stages import CLOCKS_MHZ, Stages


def test_a_pipeline_is_profiled_from_high_to_low_and_then_follows_a_plan() -> None:
    world = Stages()
    world.play(160)
    assert world.state == "following"
    visited = [each.value for each in world.sent if isinstance(each, ApplyControl) and each.gpu.endswith("0")]
    assert visited == sorted(visited, reverse=True)
    assert visited[0] == CLOCKS_MHZ[0]
    plan = world.last_plan()
    assert plan.state == "followed"
    assert plan.first_iteration is not None
    assert plan.promised_s <= plan.unplanned_s * (1 + 1e-9)
    assert plan.promised_j < 0.97 * plan.unplanned_j
    assert plan.measured_s == pytest.approx(plan.promised_s, rel=0.01)
    offered = [each for each in world.sent if isinstance(each, ApplyPlan)]
    assert [each.first_iteration is None for each in offered] == [True] * 4 + [False] * 4
    assert len({each.first_iteration for each in offered[4:]}) == 1
    commands = [row for row in world.rows if isinstance(row, CommandRow)]
    asked = [each for each in world.sent if isinstance(each, (ApplyControl, ApplyPlan))]
    assert [row.command for row in commands] == [each.command for each in asked]
    assert {row.clock_mhz for row in commands if row.plan is None} == set(visited)
    assert [row.plan for row in commands[-8:]] == [plan.number] * 8
    first = next(each for each in offered if each.gpu == commands[-8].gpu)
    turns = zip(first.clocks_mhz, (*first.clocks_mhz[1:], first.clocks_mhz[0]), strict=True)
    assert commands[-8].plan_changes == sum(before != after for before, after in turns) > 0
    assert commands[-8].clock_mhz == max(first.clocks_mhz)
    assert world.pending.leases() == {"host": frozenset(f"GPU-{stage}" for stage in range(4))}
    world.end(0)
    assert world.pending.leases() == {}
    given_back = [row for row in world.rows if isinstance(row, CommandRow)][len(commands) :]
    assert [(row.control, row.clock_mhz, row.plan) for row in given_back] == [
        ("graphics_clock", None, None)
    ] * 4


def test_times_are_known_within_a_percent_and_energies_within_five() -> None:
    world = Stages(PipelineSettings(iterations=30), noise=0.02)
    world.play(330)
    measured = [row for row in world.rows if isinstance(row, InstructionRow)]
    assert len(measured) >= 4 * 2 * 4
    for row in measured:
        time_s, power_w = world.time_and_power(row.stage, row.kind, row.clock_mhz)
        assert row.time_s == pytest.approx(time_s, rel=0.01)
        assert row.energy_j == pytest.approx(time_s * power_w, rel=0.05)
        assert row.energy_low_j <= row.energy_j <= row.energy_high_j


def test_a_slowdown_chooses_a_point_of_the_frontier() -> None:
    world = Stages(PipelineSettings(iterations=5, slowdown=1.1))
    world.play(110)
    plan = world.last_plan()
    points = [row for row in world.rows if isinstance(row, PlanPointRow)]
    assert [point.energy_j for point in points] == sorted((p.energy_j for p in points), reverse=True)
    assert plan.unplanned_s < plan.promised_s <= plan.unplanned_s * 1.1 * (1 + 1e-9)
    assert plan.promised_j == pytest.approx(next(p.energy_j for p in points if p.slowdown == 1.1), rel=0.002)


def test_a_plan_that_makes_iterations_longer_than_promised_is_replaced_and_given_up_at_last() -> None:
    world = Stages(PipelineSettings(iterations=5), late=1.05)
    world.play(250)
    assert world.state == "over"
    assert "were promised, after 4 plans" in world.reason
    assert world.locked_mhz == {}


def test_a_plan_that_changes_nothing_is_not_checked_and_names_what_more_time_would_save() -> None:
    world = Stages(PipelineSettings(iterations=5), stages=1, late=1.05)
    world.play(150)
    assert world.state == "following"
    plan = world.last_plan()
    assert (plan.number, plan.state, plan.promised_j) == (1, "followed", plan.unplanned_j)
    assert plan.reason.startswith("little is to save without more time; 5 % more would save 9")


def test_a_script_that_runs_ahead_of_its_gpu_gets_no_plan_and_the_reason() -> None:
    world = Stages(PipelineSettings(iterations=5), stamped_s=0.0035)
    world.play(160)
    assert (world.state, world.locked_mhz) == ("over", {})
    assert world.reason == "no plan: no instruction takes longer at a lower clock"
    assert not [row for row in world.rows if isinstance(row, PlanRow)]


@pytest.mark.parametrize("by_device", [False, True])
def test_a_profile_that_does_not_fill_its_iterations_is_measured_three_times(*, by_device: bool) -> None:
    world = Stages(PipelineSettings(iterations=5), between_s=0.05, by_device=by_device)
    world.play(250)
    reasons = {row.reason for row in world.rows if isinstance(row, PipelineRow)}
    if by_device:  # an optimizer's step between iterations: the stages themselves are as profiled
        assert (world.state, reasons) == ("following", {""})
    else:
        assert (world.state, world.locked_mhz) == ("over", {})
        assert world.reason.startswith(
            "no plan: by the profile an iteration takes 0.69 s, and it took 0.74 s; "
        )
        assert len(reasons) == 3


def test_a_saving_is_measured_with_its_interval_and_an_optimizer_between_counts() -> None:
    world = Stages(PipelineSettings(iterations=20), noise=0.01, between_s=0.02)
    world.play(330)
    plan = world.last_plan()
    assert plan.iterations > 80
    true = 1 - sum(world.spent_j[-80:]) / 80 / (sum(world.spent_j[4:18]) / 14)
    assert plan.saved_low is not None
    assert plan.saved_high is not None
    assert plan.saved_low < true < plan.saved_high
    assert plan.saved_high - plan.saved_low < 0.02
    assert plan.longer == pytest.approx(0.0, abs=0.005)


def test_other_instructions_run_at_the_highest_clocks_and_are_learned_and_remembered() -> None:
    world = Stages(PipelineSettings(iterations=5))
    world.play(110)
    assert world.state == "following"
    usual = world.last_plan()
    world.fewer = True
    world.play(2)
    world.fewer = False
    world.play(12)
    assert (world.state, world.last_plan().number) == ("following", 1), "two odd iterations change nothing"
    world.fewer = True
    world.play(30)
    plan = world.last_plan()
    assert (world.state, plan.state, plan.number) == ("following", "followed", 2)
    assert plan.promised_s < 0.7 * usual.promised_s
    assert plan.measured_s == pytest.approx(plan.promised_s, rel=0.01)
    assert plan.saved is None, "these iterations were not measured at the highest clocks"
    assert {len(each.codes) for each in world.plans.values()} == {8}
    world.fewer = False
    world.play(40)
    plan = world.last_plan()
    assert (plan.number, plan.promised_j) == (3, usual.promised_j)
    assert plan.saved is not None
    assert [row.reason for row in world.rows if isinstance(row, PlanRow) and row.state == "replaced"] == [
        "iterations have another order of instructions"
    ] * 2


def test_other_instructions_while_profiling_are_no_part_of_it() -> None:
    world = Stages(PipelineSettings(iterations=5))
    world.play(12)
    world.fewer = True
    world.play(2)
    world.fewer = False
    world.play(120)
    assert world.state == "following"
    assert world.last_plan().measured_s == pytest.approx(world.last_plan().promised_s, rel=0.01)
    rows = [row for row in world.rows if isinstance(row, InstructionRow)]
    assert {row.samples for row in rows} == {40}


def test_a_refusal_gives_every_clock_back_and_says_why() -> None:
    world = Stages(refused="GPU-0: could not lock: Insufficient Permissions.")
    world.play(5)
    assert (world.state, world.reason) == ("over", "GPU-0: could not lock: Insufficient Permissions.")
    assert world.locked_mhz == {}


def test_a_run_that_may_not_command_is_left_alone() -> None:
    world = Stages(may_command=False)
    world.play(5)
    assert (world.state, world.reason) == ("over", "it only watches")
    assert world.sent == []


def test_the_end_of_a_rank_gives_every_clock_back() -> None:
    world = Stages()
    world.play(20)
    assert len(world.locked_mhz) == 4
    world.end(3)
    assert (world.state, world.reason) == ("over", "rank 3 has ended")
    assert world.locked_mhz == {}


def test_after_a_lease_has_ended_a_plan_is_offered_again_but_not_for_ever() -> None:
    world = Stages(PipelineSettings(iterations=5))
    for again in range(7):
        world.play(130 if not again else 9)
        world.locked_mhz.pop("GPU-1", None)
        world._take(world.run.handle(ClockLost("GPU-1", "plan", "backward 1 came"), {"host": world.t_ns}))
    assert world.state == "over"
    assert "6 plans were not followed to the end" in world.reason
    assert world.locked_mhz == {}


def lose_all(world: Stages) -> list[Result]:
    """Let the leases of all GPUs lapse before any command arrives, as those of an analyzer that was away."""
    gpus = list(world.locked_mhz)
    world.locked_mhz.clear()
    world.plans.clear()
    results = [
        world.run.handle(ClockLost(gpu, "lapsed", "its owner was silent for too long"), {"host": world.t_ns})
        for gpu in gpus
    ]
    world.play(1)
    for result in results:
        world._take(result)
    return results


def test_after_an_analyzer_was_away_the_same_plan_is_offered_once_and_nothing_is_profiled_again() -> None:
    world = Stages(PipelineSettings(iterations=5))
    for _ in range(7):  # more often than a plan may be offered without being kept
        world.play(130 if not world.plans else 30)
        assert world.state == "following"
        plan, profiled = world.last_plan(), world.run._visits.visited
        offered, *others = lose_all(world)
        assert len(offered.instructions) == 4
        assert others == [NOTHING] * 3
    world.play(30)
    assert world.state == "following"
    assert (world.last_plan().promised_s, world.last_plan().number) == (plan.promised_s, plan.number + 1)
    assert world.run._visits.visited == profiled


def test_a_clock_that_is_lost_while_profiling_is_measured_again_and_no_other() -> None:
    world = Stages(PipelineSettings(iterations=5))
    world.play(14)
    assert world.state == "profiling"
    before = [each.value for each in world.sent if isinstance(each, ApplyControl)]
    again, *others = lose_all(world)
    assert {each.value for each in again.instructions if isinstance(each, ApplyControl)} == {before[-1]}
    assert others == [NOTHING] * 3
    world.play(130)
    assert world.state == "following"
    visited = [each.value for each in world.sent if isinstance(each, ApplyControl) and each.gpu == "GPU-0"]
    assert visited == sorted(visited, reverse=True)
    assert len(visited) == len(set(visited)) + 1
    rows = [row for row in world.rows if isinstance(row, InstructionRow) and row.clock_mhz == before[-1]]
    assert {row.samples for row in rows} == {5 * 8}, "iterations without the clock are no part of it"


def test_without_scipy_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    world = Stages(PipelineSettings(iterations=3))
    world.play(60)
    assert world.state == "over"
    assert re.search(r"pip install .*\[pipeline\]", world.reason)
    assert world.locked_mhz == {}
