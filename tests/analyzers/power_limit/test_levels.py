"""Searches of the graphics clock, and of both controls, for jobs of simulated GPUs."""

from random import Random

import pytest
from msgspec.structs import replace

from analyzers.power_limit import limit_search, selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.belief import Confidence
from analyzers.power_limit.search.levels import LOWEST, MOST, clock_levels, foretold, nominal_mw
from analyzers.power_limit.selectors import Trial
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


@pytest.mark.parametrize("text", ["cost:0.5", "slowdown:1.1"])
@pytest.mark.parametrize("name", ["a100", "h100", "v100"])
def test_the_search_finds_a_clock_in_about_as_many_steps_as_a_limit(name: str, text: str) -> None:
    model = load()[name]
    truth = model.workloads["imagenet"]
    levels = clock_levels(range(model.max_clock_mhz, model.idle_clock_mhz, -15), model.default_limit_mw)
    clocks = {level.limit_mw: level.clock_mhz or 0 for level in levels}

    def seconds(nominal: int) -> float:
        return 0.25 * truth.slowdown(model.default_limit_mw, clocks[nominal])

    def watts(nominal: int) -> float:
        return truth.power_mw(model.default_limit_mw, clocks[nominal]) / 1000

    limits = tuple(round(model.default_limit_mw - 5000 * at) for at in range(MOST))
    by_limit = KnownCurve(
        limits,
        lambda limit_mw: 0.25 * truth.slowdown(limit_mw),
        lambda limit_mw: truth.power_mw(limit_mw) / 1000,
        noise=0.02,
    )
    by_clock = KnownCurve(tuple(clocks), seconds, watts, noise=0.02, clocks=True)
    by_limit.searched(goal(text))
    chosen = by_clock.searched(goal(text))
    assert by_clock.steps <= 1.6 * by_limit.steps + 40
    truths = {
        each: goal(text).of_step(seconds(each) * watts(each) * 1000, seconds(each), model.default_limit_mw)
        for each in clocks
    }
    if goal(text).factor is None:
        assert truths[chosen.limit_mw] <= 1.04 * min(truths.values())
    else:
        assert seconds(chosen.limit_mw) <= 1.1 * 1.04 * seconds(limits[0])


def test_of_both_controls_the_clock_is_kept_where_no_limit_is_better() -> None:
    world = played(replace(QUICK, control="both", stride_mw=75_000))
    clock, again = decided(world)
    assert clock.clock_mhz is not None
    assert (again.clock_mhz, again.round, clock.round) == (clock.clock_mhz, 1, 1)
    assert "a step at the best limit, " in again.reason
    of_limits = [row for row in world.rows(TrialRow) if row.round == 2]
    assert [row.clock_mhz for row in of_limits] == [None] * 3, "limits are measured without a locked clock"
    asked = [each for each in world.outputs if isinstance(each, ApplyControl | RestoreControl)]
    assert [
        (type(each), each.control) for each in asked if each.control == "power_limit" or each is asked[-1]
    ][-2:] == [(RestoreControl, "power_limit"), (RestoreControl, "graphics_clock")]
    locked = [each.value for each in asked if isinstance(each, ApplyControl)][-1]
    assert locked == clock.clock_mhz
    assert (world.limits_mw(), locked_mhz(world)) == ([250_000], [UNLOCKED])


def test_of_both_controls_the_limit_is_taken_where_it_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_search, "BETTER", -1.0)  # no simulated GPU does better at a limit
    world = played(replace(QUICK, control="both", stride_mw=75_000))
    clock, limit = decided(world)
    assert (clock.clock_mhz is not None, limit.clock_mhz, limit.round) == (True, None, 2)
    assert (world.limits_mw(), locked_mhz(world)) == ([250_000], [UNLOCKED])


def test_when_the_workload_changes_both_controls_are_searched_again_the_clock_first() -> None:
    plan = replace(QUICK, control="both", stride_mw=75_000, profiling_share=1.0)
    world = played(plan, replace(TRAINING, steps=420, heavier=(200, 1.5)))
    clock, kept, again, kept_again = decided(world)
    assert "searched again" not in clock.reason + kept.reason
    assert "searched again as the workload changed: a step now takes" in again.reason
    assert [row.round for row in (clock, kept, again, kept_again)] == [1, 1, 3, 3]
    assert {row.clock_mhz is None for row in world.rows(TrialRow) if row.round == 4} == {True}
    assert (world.limits_mw(), locked_mhz(world)) == ([250_000], [UNLOCKED])


def trial(limit_mw: int, step_ms: float, watts: float) -> Trial:
    return Trial(limit_mw, round(watts * step_ms * 12), round(step_ms * 12e6), 12)


def test_clocks_foretell_limits_by_their_power_and_no_lower_ones() -> None:
    measured = [trial(250_000, 100, 240), trial(180_000, 105, 200), trial(120_000, 130, 150)]
    known = {each.limit_mw: each for each in foretold((250_000, 200_000, 175_000, 100_000), measured, 1)}
    assert list(known) == [250_000, 200_000, 175_000], "nothing is said of 100 W"
    assert known[250_000].step_ns == pytest.approx(100e6)
    assert known[200_000].step_ns == pytest.approx(105e6)
    assert 105e6 < known[175_000].step_ns < 130e6
    assert foretold((200_000,), [], 1) == ()


def test_limits_beside_a_clock_take_few_steps_where_clocks_foretell_them() -> None:
    plan = replace(SEARCH, selector=selectors.parse("energy"), control="both")
    world = played(plan, replace(TRAINING, steps=1_000, noise=0.01))
    clock, kept = decided(world)[:2]
    assert kept.clock_mhz == clock.clock_mhz
    assert kept.excess_p95_percent is not None
    assert clock.excess_p95_percent is not None
    assert kept.excess_p95_percent >= clock.excess_p95_percent, "the best limit may be better by more"
    of_limits = [row for row in world.rows(TrialRow) if row.round == 2 and not row.confirms]
    assert len({row.number for row in of_limits}) <= 4
    kept_rows = [row.power_limit_w for row in world.rows(ProfileRow) if row.control == "power_limit"]
    assert set(kept_rows) <= {row.power_limit_w for row in of_limits}, "what was foretold is no measurement"


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        pytest.param(0.2, 0.01, id="a dear choice of the other search says nothing"),
        pytest.param(0.0, 0.03, id="an equal one may leave a better one"),
        pytest.param(-0.05, 1.03 / 0.95 - 1, id="so does a cheaper one"),
    ],
)
def test_the_bound_of_both_controls_is_over_the_best_of_both(more: float, bound: float) -> None:
    found = Confidence(0.004, 0.01).beside(Confidence(0.01, 0.03), more)
    assert found.p95 == pytest.approx(bound)
    assert found.expected <= found.p95


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
