"""Searches of the graphics clock, and of both controls, for jobs of simulated GPUs."""

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.levels import (
    LOWEST,
    MOST,
    Level,
    both_levels,
    clock_levels,
    limit_levels,
    nominal_mw,
)
from analyzers.power_limit.visits import limits_mw
from analyzers.results.result import ApplyControl, RestoreControl
from analyzers.results.rows import CommandRow, DecisionRow, ProfileRow, RecallRow, TrialRow
from tests.analyzers.power_limit.known_curve import KnownCurve, goal
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.notes import ControlLeaseEnded, LeaseCause
from zeus_stream.settings import Settings
from zeus_stream.simulated_gpu.workloads import load

CLOCKS_MHZ = range(1380, 134, -15)
SEARCH = RunSettings(selector=selectors.parse("cost:0.5"), refreshes=2, control="graphics_clock")
QUICK = replace(SEARCH, exhaustive=True, warmup_steps=2, profile_steps=3, settle_ns=0)
TRAINING = Training("imagenet", 0.05, 180)


def played(plan: RunSettings, training: Training = TRAINING, seconds: float = float("inf")) -> World:
    made = World("simulated:v100x1", training, plan)
    made.run(seconds)
    return made


def decided(world: World) -> list[DecisionRow]:
    return [row for row in world.rows(DecisionRow) if row.power_limit_w is not None]


def locked_mhz(world: World) -> list[int]:
    return [gpu.device.locked_mhz("graphics_clock") for host in world.hosts for gpu in host.gpus.values()]


def test_of_hundreds_of_clocks_a_search_visits_no_more_than_of_limits() -> None:
    listed = list(CLOCKS_MHZ)
    Random(1).shuffle(listed)
    levels = clock_levels(listed, 250_000)
    clocks = [level.clock_mhz or 0 for level in levels]
    assert len(levels) == MOST
    assert clocks == sorted(clocks, reverse=True)
    assert (clocks[0], levels[0].limit_mw) == (1380, 250_000)
    assert clocks[-1] == pytest.approx(LOWEST * 1380, abs=15)
    assert all(level.limit_mw == nominal_mw(level.clock_mhz or 0, 1380, 250_000) for level in levels)


def test_a_gpu_without_clocks_has_no_levels() -> None:
    assert clock_levels((), 250_000) == ()
    assert [level.clock_mhz for level in clock_levels((900, 900), 250_000)] == [900]


def test_every_clock_is_measured_and_the_best_is_locked_until_the_end() -> None:
    world = played(QUICK)
    (decision,) = decided(world)
    truth = load()["v100"].workloads["imagenet"]
    rows = [row for row in world.rows(TrialRow) if not row.confirms]

    def cost(clock_mhz: int) -> float:
        time = truth.slowdown(250_000, clock_mhz)
        return time * (truth.power_mw(250_000, clock_mhz) + 250_000)

    measured = [row.clock_mhz or 0 for row in rows]
    assert len(measured) == MOST
    assert measured == sorted(measured, reverse=True)
    assert cost(decision.clock_mhz or 0) == pytest.approx(min(map(cost, measured)), rel=0.01)
    assert decision.default_clock_mhz == 1380
    assert f"{MOST} clocks measured" in decision.reason
    assert decision.energy_per_step_j is not None
    assert decision.default_energy_per_step_j is not None
    assert decision.energy_per_step_j < decision.default_energy_per_step_j
    asked = [row for row in world.rows(CommandRow) if row.outcome == "applied" and row.clock_mhz]
    assert {row.control for row in asked} == {"graphics_clock"}
    assert asked[-1].clock_mhz == decision.clock_mhz
    assert {each.control for each in world.rows(ApplyControl)} == {"graphics_clock"}
    assert locked_mhz(world) == [UNLOCKED]


def known_curve(
    name: str, levels: Sequence[Level], offset: float = 0.0, seed: int = 0, job: str = "imagenet"
) -> KnownCurve:
    """Return levels of one GPU; steps at a limit that binds take longer by a share."""
    model = load()[name]
    truth, top_mw = model.workloads[job], model.default_limit_mw
    of = {level.limit_mw: level.clock_mhz for level in levels}

    def at(level_mw: int) -> tuple[int, int]:
        clock_mhz = of[level_mw]
        return (level_mw, UNLOCKED) if clock_mhz is None else (top_mw, clock_mhz)

    def seconds(level_mw: int) -> float:
        binds = of[level_mw] is None and truth.power_mw(level_mw) < 0.97 * truth.power_mw(top_mw)
        return 0.25 * truth.slowdown(*at(level_mw)) * (1 + offset * binds)

    def watts(level_mw: int) -> float:
        return truth.power_mw(*at(level_mw)) / 1000

    locked = tuple(level.limit_mw for level in levels if level.clock_mhz is not None)
    return KnownCurve(tuple(of), seconds, watts, noise=0.02, seed=seed, clocks=locked)


def clocks_of(name: str) -> tuple[Level, ...]:
    model = load()[name]
    return clock_levels(range(model.max_clock_mhz, model.idle_clock_mhz, -15), model.default_limit_mw)


def both_of(name: str) -> tuple[Level, ...]:
    model = load()[name]
    limits = limits_mw(model.default_limit_mw, model.min_limit_mw, 15_000)
    return both_levels(limit_levels(limits), clocks_of(name))


def costs_of(curve: KnownCurve, text: str) -> dict[int, float]:
    """Return what a step costs at each level."""
    figures = {level_mw: (curve.seconds(level_mw), curve.watts(level_mw)) for level_mw in curve.limits}
    top_mw = curve.limits[0]
    return {mw: float(goal(text).of_step(s * watts * 1000, s, top_mw)) for mw, (s, watts) in figures.items()}


@pytest.mark.parametrize("text", ["cost:0.5", "slowdown:1.1"])
@pytest.mark.parametrize("name", ["a100", "h100", "v100"])
def test_the_search_finds_a_clock_in_about_as_many_steps_as_a_limit(name: str, text: str) -> None:
    top_mw = load()[name].default_limit_mw
    by_limit = known_curve(name, limit_levels(top_mw - 5000 * at for at in range(MOST)))
    by_clock = known_curve(name, clocks_of(name))
    by_limit.searched(goal(text))
    chosen_mw = by_clock.searched(goal(text)).limit_mw
    assert by_clock.steps <= 1.6 * by_limit.steps + 40
    costs = costs_of(by_clock, text)
    if goal(text).factor is None:
        assert costs[chosen_mw] <= 1.04 * min(costs.values())
    else:
        assert by_clock.seconds(chosen_mw) <= 1.1 * 1.04 * by_limit.seconds(top_mw)


def test_of_both_controls_all_is_compared_with_the_limit_found_without_a_locked_clock() -> None:
    limits, clocks = limit_levels((250_000, 200_000, 150_000)), clock_levels((1380, 1200, 900), 250_000)
    levels = both_levels(limits, clocks)
    assert levels[0] == Level(250_000)
    assert set(levels) == {*limits, *clocks[1:]}
    assert [each.limit_mw for each in levels] == sorted((each.limit_mw for each in levels), reverse=True)
    assert both_levels(limits, ()) == limits
    assert both_levels((), clocks) == clocks


def test_of_both_controls_each_level_is_measured_without_the_other_control() -> None:
    world = played(replace(QUICK, control="both", stride_mw=75_000))
    (decision,) = decided(world)
    assert (decision.power_limit_w or 0) < 250
    assert (decision.default_limit_w, decision.default_clock_mhz) == (250, None)
    assert f"{MOST + 2} clocks and limits measured" in decision.reason
    rows = [row for row in world.rows(TrialRow) if not row.confirms]
    assert [row.power_limit_w for row in rows if row.clock_mhz is None] == [250, 175, 100]
    held = dict.fromkeys(("power_limit", "graphics_clock"), False)
    for each in world.outputs:
        if isinstance(each, ApplyControl | RestoreControl):
            held[each.control] = isinstance(each, ApplyControl)
            assert not all(held.values()), (
                "a clock is locked at the limit found, a limit is set without a lock"
            )
    assert {row.control for row in world.rows(ProfileRow)} == {"both"}
    assert (world.limits_mw(), locked_mhz(world)) == ([250_000], [UNLOCKED])


@pytest.mark.parametrize("offset", [-0.08, 0.0, 0.08])
@pytest.mark.parametrize("text", ["energy", "cost:0.5", "slowdown:1.1"])
@pytest.mark.parametrize("seed", [1, 2])
def test_of_both_controls_the_better_is_chosen_after_clocks_were_measured(
    text: str, offset: float, seed: int
) -> None:
    curve = known_curve("a100", both_of("a100"), offset, seed)
    chosen = curve.searched(goal(text))
    costs = costs_of(curve, text)
    if goal(text).factor is None:
        assert costs[chosen.limit_mw] <= 1.02 * min(costs.values())
    else:
        assert curve.seconds(chosen.limit_mw) <= 1.1 * 1.01 * curve.seconds(curve.limits[0])
    if offset:
        assert (chosen.limit_mw in curve.clocks) is (offset > 0)
    kinds = [level_mw in curve.clocks for level_mw in curve.visited[1:]]
    assert kinds[0], "clocks come first"
    assert not all(kinds), "a limit is the guard"


@pytest.mark.parametrize("name", ["v100", "h100"])
def test_of_both_controls_a_limit_is_measured_although_none_is_likely_to_be_better(name: str) -> None:
    curve = known_curve(name, both_of(name), seed=1, job="movielens-1m")
    curve.searched(goal("energy"))
    assert set(curve.visited) - set(curve.clocks) - {curve.limits[0]}


def test_when_the_workload_changes_both_controls_are_searched_again() -> None:
    plan = replace(QUICK, control="both", stride_mw=75_000, profiling_share=1.0)
    world = played(plan, replace(TRAINING, steps=420, heavier=(200, 1.5)))
    first, again = decided(world)
    assert "searched again" not in first.reason
    assert "searched again as the workload changed: a step now takes" in again.reason
    assert {row.clock_mhz is None for row in world.rows(TrialRow) if row.round == 2} == {True, False}
    assert (world.limits_mw(), locked_mhz(world)) == ([250_000], [UNLOCKED])


def test_a_later_run_starts_from_the_clocks_of_an_earlier_one_and_not_from_limits() -> None:
    first = played(QUICK)
    again = World("simulated:v100x1", replace(TRAINING, run="second"), QUICK)
    again.interpreter.site.profiles._of = first.interpreter.site.profiles._of
    again.run(2)
    (recalled,) = again.rows(RecallRow)
    assert recalled.profile_run == "run"
    assert len(recalled.limits) == MOST
    assert {row.control for row in first.rows(ProfileRow)} == {"graphics_clock"}
    other = World("simulated:v100x1", TRAINING, replace(SEARCH, control="power_limit"))
    other.interpreter.site.profiles._of = first.interpreter.site.profiles._of
    other.run(2)
    assert other.rows(RecallRow)[0].profile_run is None


@pytest.mark.parametrize(("cause", "again"), [("lapsed", True), ("device", True), ("other_program", False)])
def test_a_lease_on_the_clock_that_ends_is_asked_for_again_or_ends_the_search(
    cause: LeaseCause,
    again: bool,  # noqa: FBT001  (a column of the table above)
) -> None:
    world = played(QUICK, seconds=3)
    host = world.hosts[0]
    gpu = next(iter(host.gpus))
    before = len(world.rows(ApplyControl))
    host.note(
        ControlLeaseEnded(
            t_ns=host.now(), gpu=gpu, control="graphics_clock", owner="owner", cause=cause,
            reason="it ended", value=UNLOCKED,
        )
    )  # fmt: skip
    world.run(6)
    assert (len(world.rows(ApplyControl)) > before) is again
    if not again:
        assert "the lease on its graphics clock ended" in world.rows(DecisionRow)[-1].reason


def test_gpus_without_clocks_are_only_observed() -> None:
    world = World("simulated:v100x1", TRAINING, SEARCH)
    gpu = next(iter(world.interpreter.site.fleet.gpus.values()))
    assert gpu.found is not None
    gpu.found = replace(gpu.found, graphics_clocks_mhz=())
    world.run(3)
    assert "have no graphics clock in common that could be set" in world.rows(DecisionRow)[-1].reason


def test_an_unknown_control_is_named_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match="Choose power_limit, graphics_clock or both"):
        RunSettings.of(Settings(control="memory_clock"), None)
    with pytest.raises(SettingsError, match="there is no such profile"):
        RunSettings.of(Settings(power_profile="max_r"), None)
