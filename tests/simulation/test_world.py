"""Limits chosen, against what the simulator itself says is best."""

import pytest
from msgspec.structs import replace

from analyzers.measurement.timeline import RECENT_NS
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import Trial
from analyzers.results.result import ApplyControl
from analyzers.results.rows import DecisionRow, GpuRow, TrialRow, WindowRow
from tests.simulation.simulated_site import Training
from tests.simulation.world import QUICK, World
from zeus_stream.protocol.notes import PowerProfiles
from zeus_stream.settings import Settings
from zeus_stream.simulated_gpu.workloads import load


def best_limits(model: str, workload: str, selector: str) -> tuple[int, dict[int, Trial]]:
    """Return the simulator's own choice, mW, and a second of every limit."""
    gpu = load()[model]
    profile = gpu.workloads[workload]
    trials = {}
    for limit_mw in range(gpu.min_limit_mw, gpu.default_limit_mw + 1, 25_000):
        slow = profile.slowdown(limit_mw)
        trials[limit_mw] = Trial(limit_mw, round(profile.power_mw(limit_mw) * slow), round(1e9 * slow), 1)
    found = selectors.parse(selector)
    assert found is not None
    return found.choose(list(trials.values()), 1), trials


def decided(world: World) -> World:
    """Run a world until its first decision, or to its end."""
    while not world.rows(DecisionRow) and not world.ended:
        world.run(1)
    return world


@pytest.mark.parametrize(
    ("model", "workload", "step_s", "selector"),
    [
        ("v100", "imagenet", 0.01, "energy"),
        ("v100", "imagenet", 0.02, "cost:0.5"),
        ("a40", "cifar100", 0.05, "slowdown:1.2"),
    ],
)
def test_the_limit_chosen_costs_within_half_a_percent_of_the_best(
    model: str, workload: str, step_s: float, selector: str
) -> None:
    plan = RunSettings(selector=selectors.parse(selector))
    world = World(f"simulated:{model}x1,noise=0.02", Training(workload, step_s, round(60 / step_s)), plan)
    chosen_mw = round(decided(world).rows(DecisionRow)[0].power_limit_w or 0) * 1000
    best_mw, trials = best_limits(model, workload, selector)
    chosen, best = trials[chosen_mw], trials[best_mw]
    match selector:
        case "energy":
            assert chosen.energy_mj <= 1.005 * best.energy_mj
        case "cost:0.5":
            assert selectors.Goal(0.5).more(chosen, best, max(trials), 1) <= 0.005
        case _:
            assert chosen.duration_ns <= 1.205 * trials[max(trials)].duration_ns
            assert chosen_mw <= best_mw + 25_000


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_a_run_that_says_its_length_has_compared_limits_at_two_thirds_of_it(noise: float) -> None:
    """The tutorial's 800 steps of 20 ms, as a busy machine spreads them."""
    plan = RunSettings(selector=selectors.parse("cost:0.5"))
    training = Training("imagenet", 0.02, 800, epoch_steps=200, pause_s=0.2, noise=noise)
    world = decided(World("simulated:a40x1", replace(training, planned=(4, 800)), plan))
    [decision] = world.rows(DecisionRow)
    assert decision.power_limit_w is not None
    assert decision.power_limit_w < 300
    assert decision.steps < 2 / 3 * training.steps
    assert len({row.power_limit_w for row in world.rows(TrialRow)}) > 2


@pytest.mark.parametrize(("epoch_steps", "noise"), [(7, 0.15), (50, 0.02)])
def test_epochs_of_7_and_of_50_steps_decide_an_adaptive_search(epoch_steps: int, noise: float) -> None:
    training = Training("imagenet", 0.05, 2_000, epoch_steps=epoch_steps, pause_s=0.2, noise=noise)
    world = World("simulated:v100x1", training, RunSettings(selector=selectors.parse("energy")))
    decision = decided(world).rows(DecisionRow)[0]
    assert decision.applied
    assert decision.excess_percent is not None
    assert decision.excess_p95_percent is not None
    best_mw, trials = best_limits("v100", "imagenet", "energy")
    chosen = trials[round((decision.power_limit_w or 0) * 1000)]
    assert chosen.energy_mj <= trials[best_mw].energy_mj * (1.005 if noise < 0.1 else 1.05)


@pytest.fixture(scope="module")
def searched() -> World:
    """A world at its first decision, which no test changes."""
    training = Training("imagenet", 0.05, 800, noise=0.02)
    return decided(World("simulated:v100x1", training, RunSettings(selector=selectors.parse("energy"))))


def test_each_visit_says_which_limit_is_best_so_far_and_by_how_much_it_may_be_off(searched: World) -> None:
    decision = searched.rows(DecisionRow)[0]
    last = {row.number: row for row in searched.rows(TrialRow) if not row.confirms}
    visits = [last[number] for number in sorted(last)]
    for at, row in enumerate(visits):
        assert row.best_w in {each.power_limit_w for each in visits[: at + 1]}
    assert any(row.best_w != row.power_limit_w for row in visits), "a visit of another than the best"
    bounds = [row.best_excess_p95_percent for row in visits]
    assert (visits[-1].best_w, bounds[-1]) == (decision.power_limit_w, decision.excess_p95_percent)
    assert None not in bounds
    assert (bounds[0] or 0.0) > 3 > (bounds[-1] or 0.0)


def test_a_search_over_long_steps_takes_one_of_them_for_a_block() -> None:
    """A step in which a limit came soon after its begin was left out: 20 steps of 20 s and more."""
    plan = RunSettings(selector=selectors.parse("energy"))
    world = decided(World("simulated:v100x1", Training("imagenet", 20.0, 40, noise=0.005), plan))
    best_mw, trials = best_limits("v100", "imagenet", "energy")
    decision = world.rows(DecisionRow)[0]
    chosen = trials[round((decision.power_limit_w or 0) * 1000)]
    assert decision.applied
    assert decision.steps <= 16
    assert chosen.energy_mj <= 1.01 * trials[best_mw].energy_mj


def test_the_rows_of_a_search_are_visits_that_add_up_their_blocks(searched: World) -> None:
    device = next(iter(searched.hosts[0].gpus.values())).device
    last = {row.number: row for row in searched.rows(TrialRow)}
    visits = [row for row in last.values() if not row.confirms]
    assert 4 <= len(visits) <= 10
    for row in visits:
        assert row.steps >= 12
        assert row.duration_s >= 1.5
        assert row.duration_s == pytest.approx((row.ended_ns - row.began_ns) / 1e9)
        truth_j = device.energy_mj(row.began_ns, row.ended_ns) / 1000
        assert row.energy_j == pytest.approx(truth_j, rel=0.005)
        assert row.average_power_w == pytest.approx(row.energy_j / row.duration_s)


def test_trials_and_runs_longer_than_what_is_remembered_of_readings_are_measured() -> None:
    plan = RunSettings(
        selector=selectors.parse("energy"),
        stride_mw=150_000,
        warmup_steps=1,
        profile_steps=20,
        exhaustive=True,
    )
    world = World("simulated:v100x1", Training("imagenet", 2.0, 50), plan)
    world.run()
    device = next(iter(world.hosts[0].gpus.values())).device
    trials = world.rows(TrialRow)
    assert [trial.power_limit_w for trial in trials] == [250, 100]
    assert min(trial.duration_s for trial in trials) * 1e9 > RECENT_NS
    for trial in trials:
        truth_j = device.energy_mj(trial.began_ns, trial.ended_ns) / 1000
        assert trial.energy_j == pytest.approx(truth_j, rel=0.001)
    (run,) = [row for row in world.rows(WindowRow) if row.kind == "run"]
    assert run.energy_j == pytest.approx(device.energy_mj(run.begin_ns, run.end_ns) / 1000, rel=0.001)


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (
            0.05,
            "as measured before; searched again as the workload changed: a step now takes 33 % more",
        ),
        (0.0, "kept for now: a step now takes 33 % more energy"),
    ],
)
def test_a_workload_that_grows_is_checked_as_far_as_its_share_allows(share: float, reason: str) -> None:
    settings = Settings(select="energy", profiling_share=share)
    training = Training("imagenet", 0.1, 700, heavier=(500, 1.33))
    world = World("simulated:v100x1", training, RunSettings.of(settings, selectors.parse("energy")))
    world.run()
    first, again = world.rows(DecisionRow)
    assert again.power_limit_w == first.power_limit_w
    assert reason in again.reason


def test_where_steps_beat_with_a_boxcar_sensor_a_limit_is_measured_for_longer() -> None:
    """At 150 W a step takes 100 ms, the period of the sensor, which looks at the last quarter of each."""
    training = Training("imagenet", 0.075, 400, load_s=0.01)
    world = World(
        "simulated:v100x1,kind=boxcar,period_ms=100,window_ms=25",
        training,
        RunSettings(selector=selectors.parse("time")),
    )
    world.run()
    steps = {row.power_limit_w: row.steps for row in world.rows(TrialRow) if not row.confirms}
    assert steps.pop(150.0) >= 2 * max(steps.values())
    assert len(world.rows(DecisionRow)) == 1


def test_steps_of_a_blind_counter_have_no_bounds_until_its_kind_is_known() -> None:
    world = World(
        "simulated:a100x1,kind=boxcar,period_ms=100",
        Training("imagenet", 0.03, 100),
        RunSettings(selector=None),
    )
    world.run()
    bounds = {row.energy_low_j for row in world.rows(WindowRow) if row.kind == "step"}
    assert bounds == {None}


def test_a_limit_the_device_refuses_is_left_out() -> None:
    plan = RunSettings(
        selector=selectors.parse("energy"), stride_mw=75_000, profile_steps=20, exhaustive=True
    )
    training = Training("imagenet", 0.02, 300)
    world = World("simulated:v100x1", training, plan, refuse={175_000: "device"})
    world.run()
    assert [row.power_limit_w for row in world.rows(TrialRow) if not row.confirms] == [250, 100]
    assert len([command for command in world.rows(ApplyControl) if command.value == 175_000]) == 1
    assert world.limits_mw() == [250_000]


def test_gpus_without_a_counter_are_profiled_by_their_power() -> None:
    plan = RunSettings(selector=selectors.parse("energy"), stride_mw=75_000)
    world = World("simulated:v100x1,power_only=1", Training("imagenet", 0.02, 2_000), plan)
    best_mw, _ = best_limits("v100", "imagenet", "energy")
    assert abs((decided(world).rows(DecisionRow)[0].power_limit_w or 0) * 1000 - best_mw) <= 50_000


def test_every_trial_has_the_power_profile_that_was_in_force() -> None:
    world = World(
        "simulated:v100x1", Training("imagenet", 0.02, 1_500), QUICK, more=(("simulated:v100x1,seed=1", 0),)
    )
    first, second = ((host, next(iter(host.gpus))) for host in world.hosts)
    while not world.rows(TrialRow):
        world.run(0.2)
    assert world.rows(TrialRow)[-1].power_profile is None, "these GPUs have none"
    first[0].note(PowerProfiles(first[0].now(), first[1], 0b110, 0b010))
    second[0].note(PowerProfiles(second[0].now(), second[1], 0, 0))
    known = len(world.rows(TrialRow))
    while len(world.rows(TrialRow)) == known:
        world.run(0.2)
    assert world.rows(TrialRow)[-1].power_profile == "max_q/none"
    shown = {row.gpu: row.power_profile for row in world.rows(GpuRow)}
    assert shown == {first[1]: "max_q", second[1]: "none"}
