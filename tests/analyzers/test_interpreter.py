import tracemalloc
from itertools import product
from math import inf

import numpy as np
import pytest
from msgspec.structs import replace

from analyzers.dispatch.pending import MAX_ASKED, Pending
from analyzers.fleet import fleet
from analyzers.interpreter import sessions
from analyzers.interpreter.interpreter import Calibrated, Interpreter, Logged, ProfilesForgotten
from analyzers.measurement.sensors import Gain
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.memory import Memory
from analyzers.results.readings import READING
from analyzers.results.result import ApplyControl, GiveAnswer, RestoreControl
from analyzers.results.rows import (
    CommandRow,
    DecisionRow,
    GapRow,
    GpuRow,
    MetricRow,
    ProfileRow,
    RecallRow,
    RunRow,
    StepColumns,
    TrialRow,
    WindowRow,
)
from collectors.devices.simulated_spec import parse
from tests.analyzers.readings import steady
from tests.messages import COLLECTOR_STARTED, LEASE_ENDED, RUN_ADMITTED, RUN_STARTED
from tests.simulation.simulated_site import START_NS, Training
from tests.simulation.world import BEGIN_NS, FLUSH_NS, QUICK, World, asked, outputs_of, replayed
from zeus_stream.protocol.events import (
    Ask,
    EventsDropped,
    Metric,
    RunEnded,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
)
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import (
    ControlApplied,
    DeviceGone,
    Lost,
    Notes,
    SessionEnded,
)
from zeus_stream.protocol.readings import Readings, Seen

S = 1_000_000_000
ONE = "simulated:v100x1"
TRAINING = Training("imagenet", 0.02, 300)


def world(training: Training = TRAINING, plan: RunSettings = QUICK, device: str = ONE) -> World:
    return World(device, training, plan)


def only_measuring(seconds: float = 2.0) -> World:
    made = world(replace(TRAINING, steps=500), replace(QUICK, selector=None))
    made.run(seconds)
    return made


def after(earlier: World, training: Training, plan: RunSettings = QUICK) -> World:
    """Return a world on another host, on a GPU of that model, whose interpreter has heard an earlier one."""
    made = World(f"{ONE},seed=9", training, plan, host="elsewhere")
    made.interpreter = Interpreter(plan)
    for frame, body in (*earlier.frames, *made.frames):
        outputs_of(made.interpreter, frame, body)
    return made


def gpu(made: World) -> str:
    return next(iter(made.hosts[0].gpus))


# ---- the whole way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("exhaustive", [True, False])
def test_the_same_frames_give_the_same_outputs(exhaustive: bool) -> None:  # noqa: FBT001 - parametrized
    plan = replace(QUICK, exhaustive=exhaustive)
    made = world(plan=plan)
    made.run()
    again = Interpreter(plan)
    assert replayed(again, made.frames) == made.outputs
    assert made.rows(ApplyControl)


def test_a_gain_is_taken_out_of_every_window_and_its_bounds_and_named() -> None:
    made = only_measuring()
    gain = Gain(0.5, 0.001, 0.0, "meter.csv", "today")
    again = Interpreter(replace(QUICK, selector=None))
    again.handle(Calibrated({gpu(made): gain}), 0)
    outputs = replayed(again, made.frames)
    plain = [row for row in made.rows(WindowRow) if row.energy_j is not None]
    rows = [row for row in outputs if isinstance(row, WindowRow) and row.energy_j is not None]
    assert len(rows) == len(plain) > 0
    for before, row in zip(plain, rows, strict=True):
        for name in ("energy_j", "energy_low_j", "energy_high_j"):
            assert getattr(row, name) == pytest.approx(2 * getattr(before, name), abs=1e-5)
        assert "gain 0.500" in row.quality


def test_a_run_is_profiled_measured_and_given_back() -> None:
    made = world()
    made.run()
    *profile, confirmation = made.rows(TrialRow)
    (decision,) = made.rows(DecisionRow)
    assert [trial.power_limit_w for trial in profile] == [250, 175, 100]
    assert (confirmation.power_limit_w, confirmation.confirms) == (decision.power_limit_w, True)
    (run,) = [row for row in made.rows(WindowRow) if row.kind == "run"]
    steps = [row for row in made.rows(WindowRow) if row.kind == "step"]
    assert run.energy_j is not None
    assert sum(step.energy_j or 0 for step in steps) == pytest.approx(run.energy_j, rel=0.03)
    assert [step.index for step in steps] == list(range(300))
    assert made.limits_mw() == [250_000]
    assert [row.ended_how for row in made.rows(RunRow)] == [None, None, "ended"]
    outcomes = [
        (row.limit_w, row.outcome, row.outcome_limit_w) for row in made.rows(CommandRow) if row.outcome
    ]
    assert outcomes[0] == (250.0, "applied", 250.0)
    assert outcomes[-1] == (None, "applied", 250.0)


def test_a_command_does_not_wait_for_the_fit_of_the_steps_before_it() -> None:
    plan = replace(QUICK, stride_mw=1_000, warmup_steps=1, profile_steps=1, refreshes=0)
    made, interpreter = world(plan=plan), Interpreter(plan, pending=Pending(at_once=True))
    made.run(8)
    gave = [interpreter.handle(Logged(frame, body), frame.t_ns) for frame, body in made.frames]
    commands = [
        result
        for (_, body), result in zip(made.frames, gave, strict=True)
        if isinstance(body, Events) and any(isinstance(each, ApplyControl) for each in result.instructions)
    ]
    measured = [row for result in gave for row in result.rows if isinstance(row, StepColumns)]
    assert (len(commands) > 20, len(measured) > 4) == (True, True)
    assert not any(isinstance(row, StepColumns) for result in commands for row in result.rows)


def test_a_trial_holds_the_truth_of_its_steps() -> None:
    made = world(Training("imagenet", 0.02, 500, load_s=0.004), replace(QUICK, profile_steps=60))
    made.run()
    device = made.hosts[0].gpus[gpu(made)].device
    for trial in made.rows(TrialRow):
        truth_j = device.energy_mj(trial.began_ns, trial.ended_ns) / 1000
        assert trial.energy_j == pytest.approx(truth_j, rel=0.01)
        assert trial.duration_s == pytest.approx((trial.ended_ns - trial.began_ns) / 1e9)
        assert trial.average_power_w == pytest.approx(trial.energy_j / trial.duration_s)


def test_the_energy_of_every_step_is_within_its_bounds() -> None:
    made = world(Training("imagenet", 0.03, 300, load_s=0.01, noise=0.2))
    made.run()
    device = made.hosts[0].gpus[gpu(made)].device
    rows = [row for row in made.rows(WindowRow) if row.energy_j is not None]
    assert len(rows) >= 300
    for row in rows:
        assert row.energy_low_j is not None
        assert row.energy_high_j is not None
        truth_j = device.energy_mj(row.begin_ns, row.end_ns) / 1000
        assert row.energy_low_j - 1e-9 <= truth_j <= row.energy_high_j + 1e-9


def test_ranks_on_hosts_with_other_clocks_are_one_job() -> None:
    alone = world(device="simulated:v100x2")
    alone.run()
    hosts = World(ONE, TRAINING, QUICK, more=(("simulated:v100x1,seed=1", 7_654 * S),))
    hosts.run()
    both = [row.energy_j for row in hosts.rows(TrialRow)]
    assert both == pytest.approx([row.energy_j for row in alone.rows(TrialRow)], rel=0.02)
    assert {command.host for command in hosts.rows(ApplyControl)} == {"h0", "h1"}
    assert hosts.rows(DecisionRow)[0].power_limit_w == alone.rows(DecisionRow)[0].power_limit_w
    assert hosts.limits_mw() == [250_000, 250_000]


# ---- what may go wrong ---------------------------------------------------------------------------------


def test_without_permission_the_reason_the_cure_and_what_is_missing_are_told() -> None:
    made = world(replace(TRAINING, may_command=False))
    made.run()
    (decision,) = made.rows(DecisionRow)
    assert (decision.power_limit_w, decision.applied, decision.default_limit_w) == (None, False, 250.0)
    assert "Run the collector as root" in decision.reason
    assert "Let one run of it set power limits" in decision.reason


def test_a_run_that_is_only_profiled_ends_at_the_limit_found_and_says_what_would_be_saved() -> None:
    chose, profiled = world(), world(plan=replace(QUICK, profile_only=True))
    chose.run()
    profiled.run()
    (chosen,), (decision,) = chose.rows(DecisionRow), profiled.rows(DecisionRow)
    assert (decision.power_limit_w, decision.applied) == (chosen.power_limit_w, False)
    assert decision.default_limit_w == 250
    assert decision.default_energy_per_step_j == pytest.approx(chosen.default_energy_per_step_j, rel=0.02)
    assert decision.energy_per_step_j == pytest.approx(chosen.energy_per_step_j, rel=0.02)
    assert [trial.power_limit_w for trial in profiled.rows(TrialRow)] == [250, 175, 100]
    steps = [row for row in profiled.rows(WindowRow) if row.kind == "step"]
    assert steps[-1].power_limit_w == 250


def test_without_permission_earlier_trials_of_the_job_tell_what_would_be_saved() -> None:
    profiled = world()
    profiled.run()
    (chosen,) = profiled.rows(DecisionRow)
    made = after(profiled, replace(TRAINING, run="second", may_command=False))
    made.run()
    (decision,) = made.rows(DecisionRow)
    assert decision.trials_run == "run"
    assert (decision.power_limit_w, decision.applied) == (chosen.power_limit_w, False)
    assert decision.energy_per_step_j == pytest.approx(chosen.energy_per_step_j)
    assert decision.default_energy_per_step_j == pytest.approx(chosen.default_energy_per_step_j)


def test_a_run_that_ends_within_its_search_says_how_sure_its_saving_is() -> None:
    """Its highest limit is a remembered one, whose doubt was left out: the interval had no width."""
    searching = replace(QUICK, exhaustive=False)
    profiled = world(replace(TRAINING, noise=0.02), searching)
    profiled.run()
    made = after(profiled, replace(TRAINING, run="second", steps=110, noise=0.02), searching)
    made.run()
    (decision,) = made.rows(DecisionRow)
    assert not decision.applied
    assert "ended before a limit was chosen: 1 of 3 was measured." in decision.reason
    workload = parse(ONE)[0].model.workloads["imagenet"]
    found, chosen = (workload.power_mw(mw) * workload.slowdown(mw) for mw in (250_000, 175_000))
    assert decision.energy_saved_low_percent is not None
    assert decision.energy_saved_high_percent is not None
    assert decision.energy_saved_low_percent < 100 * (1 - chosen / found) < decision.energy_saved_high_percent
    assert 0.5 < decision.energy_saved_high_percent - decision.energy_saved_low_percent < 10
    assert decision.excess_p95_percent is not None


def test_a_killed_run_is_given_back_and_its_windows_end_with_it() -> None:
    made = world()
    made.at(START_NS + 3 * S, made.kill)
    made.run()
    assert made.rows(ApplyControl)
    assert made.limits_mw() == [250_000]
    (run,) = [row for row in made.rows(WindowRow) if row.kind == "run"]
    assert run.end_ns == pytest.approx(START_NS + 3 * S)
    assert run.energy_j is not None
    assert made.rows(RunRow)[-1].ended_how == "killed by signal 9"


def test_a_stranger_s_limit_stays_and_ends_the_commands() -> None:
    made = world(device="simulated:v100x2")
    first, second = made.hosts[0].gpus

    def interfere() -> None:
        made.hosts[0].set_limit(first, 120_000)
        made.hosts[0].note(
            replace(LEASE_ENDED, t_ns=made.now_ns, gpu=first, reason="somebody set 120 W", value=120_000)
        )

    made.at(START_NS + 1_500_000_000, interfere)
    made.run()
    assert made.limits_mw() == [120_000, 250_000]
    assert [restore.gpu for restore in made.rows(RestoreControl)] == [second]
    assert "somebody set 120 W" in made.rows(DecisionRow)[-1].reason
    assert made.rows(DecisionRow)[-1].applied is False


def test_after_a_collector_started_anew_its_limit_is_asked_for_again() -> None:
    made = world(plan=replace(QUICK, timeout_ns=S))
    host = made.hosts[0]
    again = replace(COLLECTOR_STARTED, t_ns=START_NS + 1)
    made.at(BEGIN_NS + 300_000_000, lambda: host.note(again))
    made.run()
    asked = [(row.asked_ns, row.limit_w) for row in made.rows(CommandRow) if row.outcome is None]
    lapsed = max(limit for limit in asked if limit[0] <= BEGIN_NS + 300_000_000)
    resumed = min(limit for limit in asked if limit[0] > BEGIN_NS + 300_000_000)
    assert lapsed[1] == resumed[1]
    assert resumed[0] - BEGIN_NS > 1_200_000_000
    assert [row.power_limit_w for row in made.rows(TrialRow) if not row.confirms] == [250, 175, 100]


@pytest.mark.parametrize("open_run", [True, False], ids=["a run was open", "no run was open"])
def test_a_collector_that_was_away_from_a_run_is_a_gap_that_says_what_it_means(*, open_run: bool) -> None:
    """Each report of `zeus-stream run` named the time since the run before it as missing."""
    made = world(plan=replace(QUICK, selector=None))
    made.run(3.0 if open_run else inf)
    host = made.hosts[0]
    made.ended = True
    started_ns = host.now() + 35 * S
    host.note(replace(COLLECTOR_STARTED, t_ns=started_ns))
    gaps = [row for row in made.rows(GapRow) if row.what == "collector"]
    assert len(gaps) == open_run
    for gap in gaps:
        assert gap.t_ns == pytest.approx(started_ns - 35 * S, abs=S)
        assert gap.reason.startswith("no collector ran for 35 s: the power limits found were in force")


def test_steps_without_a_collector_have_their_energy_and_no_limit() -> None:
    """A killed collector gives the limit back: steps stood at the limit before, and were said to save."""
    plan = replace(QUICK, profiling_share=0.0)
    made = world(Training("imagenet", 0.037, 600, noise=0.02), plan, "simulated:a40x1")
    host, (name,) = made.hosts[0], made.hosts[0].gpus
    begin_ns, end_ns = START_NS + 9 * S, START_NS + 14 * S
    made.at(begin_ns, lambda: host.set_limit(name, 300_000))
    made.run()
    again, rows, waiting = Interpreter(plan), list[WindowRow](), list[tuple[Frame, Body]]()
    for frame, body in made.frames:
        if begin_ns < frame.t_ns < end_ns:  # its readings are lost, and events wait for the next collector
            if not isinstance(body, Readings):
                waiting.append((replace(frame, t_ns=end_ns + S), body))
            continue
        kept = [(frame, body)]
        if isinstance(body, Readings) and frame.t_ns >= end_ns and waiting:
            read = np.frombuffer(body.rows, READING).copy()
            read = read[read["t_hi_ns"] > end_ns]
            if not len(read):
                continue
            read["seen"][0] = Seen.FIRST
            kept, waiting = [*waiting, (frame, replace(body, rows=read.tobytes()))], []
        for each in kept:
            rows += [row for row in outputs_of(again, *each) if isinstance(row, WindowRow)]
    limits = {
        row.power_limit_w for row in rows if row.kind == "step" and begin_ns < row.begin_ns < end_ns - S
    }
    assert limits == {None}
    (run,) = [row for row in rows if row.kind == "run"]
    true_j = host.gpus[name].device.energy_mj(run.begin_ns, run.end_ns) / 1000
    assert run.energy_p2_5_j is not None
    assert run.energy_p97_5_j is not None
    assert run.energy_p2_5_j < true_j < run.energy_p97_5_j


def test_a_host_that_was_restarted_has_lost_its_runs_and_its_clock() -> None:
    made = world(plan=replace(QUICK, selector=None))
    made.run(3.0)
    host = made.hosts[0]
    made.ended = True
    host._offset_ns = -made.now_ns + 1 * S
    host.note(replace(COLLECTOR_STARTED, t_ns=host.now(), boot_id="another boot"))
    (run,) = [row for row in made.rows(WindowRow) if row.kind == "run"]
    assert (run.begin_ns, made.rows(RunRow)[-1].ended_how) == (BEGIN_NS, "the host was restarted")
    assert not made.interpreter.site.sessions


def test_a_second_run_on_a_gpu_does_not_command_and_both_are_marked_shared() -> None:
    made = world()
    host, second = made.hosts[0], "second-session"

    def publish(*events: object) -> None:
        host.log(Events(second, 0, 0, 2, events))  # type: ignore[arg-type]  # events as the callers give them

    def intrude() -> None:
        now_ns = made.now_ns
        publish(replace(RUN_STARTED, t_ns=now_ns, run="intruder", gpus=(gpu(made),), pid=2, wall_ns=now_ns))
        host.note(replace(RUN_ADMITTED, t_ns=now_ns, session=second, run="intruder", gpus=(gpu(made),)))
        publish(StepBoundary(0, None, now_ns + 1))
        publish(StepBoundary(1, now_ns + 2, now_ns + 2))

    begin_ns, end_ns = START_NS + 3 * S, START_NS + 4 * S
    made.at(begin_ns, intrude)
    made.at(end_ns, lambda: publish(RunEnded(end_ns)))
    made.run()
    reasons = {row.run: row.reason for row in made.rows(DecisionRow) if not row.applied}
    assert "run run sets its power limit already" in reasons["intruder"]
    assert {command.run for command in made.rows(ApplyControl)} == {"run"}
    for row in made.rows(WindowRow):
        if row.run == "run" and row.kind == "step":
            assert row.shared == (row.begin_ns < end_ns and row.end_ns > begin_ns)


def test_a_run_that_was_over_at_the_start_of_the_analyzer_has_shared_the_gpu() -> None:
    made, end_ns = world(), START_NS + 2 * S
    use = EarlierUse(made.hosts[0].name, "earlier", (gpu(made),), START_NS, end_ns)
    made.interpreter = Interpreter(QUICK, Memory(uses=(use,)))
    made.run(4)
    steps = [row for row in made.rows(WindowRow) if row.kind == "step"]
    assert [row.shared for row in steps] == [row.begin_ns < end_ns for row in steps]
    assert {row.shared for row in steps} == {False, True}


def test_a_gpu_that_no_run_uses_takes_at_most_30_kb() -> None:
    gpus, rows = 10, steady(250, 600)  # a minute, ten a second
    heard = Interpreter(QUICK)
    tracemalloc.start()
    try:
        for at, gpu in product(range(0, len(rows), 10), range(gpus)):
            body = Readings((f"GPU-{gpu}",), rows[at : at + 10].tobytes())
            outputs_of(
                heard, Frame(log_id="log", offset=0, host="host", t_ns=60 * S, topic="", body=b""), body
            )
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < gpus * 30_000


def test_who_only_watches_a_gpu_is_no_run_of_it_and_shares_it_with_nobody() -> None:
    made = world()
    host, watcher = made.hosts[0], "watcher"

    def look() -> None:
        now_ns = made.now_ns
        started = replace(begins(made, 2), job="measure", run="watching", world_size=0)
        host.log(Events(watcher, 0, 0, 2, (started, WindowBegan(now_ns, 0, "w"))))
        host.note(replace(RUN_ADMITTED, t_ns=now_ns, session=watcher, run="watching", gpus=(gpu(made),)))

    def look_away() -> None:
        host.log(Events(watcher, 2, 0, 2, (WindowEnded(made.now_ns, 0), RunEnded(made.now_ns))))

    made.at(START_NS + 3 * S, look)
    made.at(START_NS + 4 * S, look_away)
    made.run()
    rows = made.rows(WindowRow)
    assert not any(row.shared for row in rows if row.run == "run")
    (watched,) = [row for row in rows if row.run == "watching"]
    assert (watched.kind, watched.name) == ("window", "w")
    assert watched.duration_s == pytest.approx(1.0)
    assert watched.shared  # it says what the GPU used, whoever used it
    assert watched.energy_j is not None
    assert {row.run for row in made.rows(DecisionRow)} == {"run"}


def test_a_gpu_that_goes_away_leaves_a_reason() -> None:
    made = only_measuring()
    made.hosts[0].note(DeviceGone(made.now_ns, gpu(made), "it fell off the bus"))
    assert made.rows(GpuRow)[-1].gone == "it fell off the bus"
    made.hosts[0].publish(WindowBegan(made.now_ns, 0, "w"))
    made.hosts[0].publish(WindowEnded(made.now_ns + 1, 0))
    made.hosts[0].flush_events()
    (row,) = [row for row in made.rows(WindowRow) if row.kind == "window"]
    assert "it fell off the bus" in row.quality


def test_what_was_lost_becomes_a_gap() -> None:
    made = only_measuring()
    made.hosts[0].note(Lost(5, "readings", 12, "the disk is full"))
    made.hosts[0].publish(EventsDropped(6, 3, "the buffer was full"))
    made.hosts[0].flush_events()
    made.hosts[0].log(Events("unheard", 9, 0, 1, (RunEnded(7), RunEnded(8))))
    made.hosts[0].log(Events("unheard", 11, 0, 1, (RunEnded(9),)))
    gaps = [(gap.what, gap.count) for gap in made.rows(GapRow)]
    assert gaps == [("readings", 12), ("events", 3), ("events", 2)]


def test_of_sessions_without_a_beginning_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_REMEMBERED", 2)
    made = only_measuring(0.1)
    for name in ("a", "b", "c", "c", "a"):
        made.hosts[0].log(Events(name, 5, 0, 1, (RunEnded(7),)))
    assert [gap.reason.split()[1] for gap in made.rows(GapRow)] == ["a:", "b:", "c:", "a:"]


def test_a_step_whose_end_was_dropped_has_no_row_and_harms_no_other() -> None:
    made = only_measuring()
    host, now_ns = made.hosts[0], made.now_ns
    index = made.step
    for boundary in (StepBoundary(index + 5, None, now_ns), StepBoundary(index + 6, now_ns + 9, now_ns + 10)):
        host.publish(boundary)
    host.flush_events()
    made.run(0.2)
    steps = [row.index for row in made.rows(WindowRow) if row.kind == "step"]
    assert index not in steps
    assert index + 5 in steps


def test_a_cancelled_step_has_no_row_and_belongs_to_no_trial() -> None:
    made = world()
    cancelled = set()
    while not made.rows(TrialRow):
        made.run(0.03)
        if made.step % 3:
            cancelled.add(made.step)
            made.hosts[0].publish(StepBoundary(made.step + 1, None, None))
            made.hosts[0].flush_events()
    [trial] = made.rows(TrialRow)
    made.run(1.0)
    steps = {row.index: row for row in made.rows(WindowRow) if row.kind == "step"}
    assert cancelled
    assert not cancelled & set(steps)
    within = [
        row for row in steps.values() if trial.began_ns <= row.begin_ns and row.end_ns <= trial.ended_ns
    ]
    assert trial.steps == len(within)


@pytest.mark.parametrize(
    ("named", "step", "epoch"),
    [
        pytest.param((), None, None, id="to the step under way"),
        pytest.param((3, 2), 3, 2, id="to the step and epoch that it names, also after the loop"),
    ],
)
def test_a_metric_belongs(named: tuple[int, ...], step: int | None, epoch: int | None) -> None:
    made = only_measuring()
    made.hosts[0].publish(Metric(made.now_ns, "loss", 0.5, *named))
    made.hosts[0].flush_events()
    (row,) = made.rows(MetricRow)
    assert (row.session, row.run, row.name, row.value) == ("session-h0", "run", "loss", 0.5)
    assert (row.step, row.epoch) == (made.step if step is None else step, epoch)


def test_what_a_newer_sender_says_and_outcomes_of_others_commands_are_passed_over() -> None:
    made = only_measuring(1.5)
    before = len(made.outputs)
    made.hosts[0].log(Events("session-h0", 9_999, 0, 1, (Unknown("Novelty"),)))
    made.hosts[0].note(ControlApplied(made.now_ns, "somebody/1", gpu(made), "power_limit", 200_000))
    assert len(made.outputs) == before


def test_an_end_is_heard_once() -> None:
    made = only_measuring(1.5)
    made.hosts[0].publish(RunEnded(made.now_ns))
    made.hosts[0].flush_events()
    made.hosts[0].note(SessionEnded(made.now_ns, "session-h0", "exited"))
    made.hosts[0].publish(RunEnded(made.now_ns))
    made.hosts[0].flush_events()
    assert [row.ended_how for row in made.rows(RunRow)] == [None, None, "ended"]


def test_a_run_taken_up_again_goes_on_counting_its_trials() -> None:
    made = world()
    made.run()
    host, now_ns = made.hosts[0], made.now_ns
    trials = made.rows(TrialRow)[-1].number
    uuid = gpu(made)
    opens(made, "again", replace(RUN_STARTED, t_ns=now_ns, gpus=(uuid,), pid=2, wall_ns=now_ns))
    before = len(made.outputs)
    index, made.ended = 0, False

    def step() -> None:
        nonlocal index
        ended_ns = made.now_ns if index else None
        host.log(Events("again", index + 1, 0, 2, (StepBoundary(index, ended_ns, made.now_ns),)))
        index += 1
        made.at(made.now_ns + FLUSH_NS, step)

    step()
    made.run(3.0)
    numbers = [row.number for row in made.outputs[before:] if isinstance(row, TrialRow)]
    assert numbers[0] > trials
    ids = [row.command for row in made.rows(ApplyControl)]
    assert len(ids) == len(set(ids)) < MAX_ASKED


# ---- what is remembered --------------------------------------------------------------------------------

SHORT = replace(TRAINING, steps=150, batch_size=32)


@pytest.fixture(scope="module")
def first() -> World:
    """A run that searched, as its host's collector and interpreter left it."""
    made = world(SHORT)
    made.run()
    return made


def remembered(
    earlier: World, training: Training, plan: RunSettings = QUICK
) -> tuple[str | None, int, list[float]]:
    """Return whose profile a second run on another host begins with, which round's, and of which limits."""
    made = after(earlier, replace(training, run="second"), plan)
    made.run(1.3)
    (recalled,) = made.rows(RecallRow)
    limits = [at.power_limit_w for at in recalled.limits]
    machine = made.interpreter.site.runs["second"].search.plan
    assert machine is not None
    assert [trial.limit_mw / 1000 for trial in machine.remembered] == limits
    return recalled.profile_run, recalled.profile_round or 0, limits


def test_a_later_run_starts_from_what_an_earlier_one_measured_elsewhere(first: World) -> None:
    (recalled,) = first.rows(RecallRow)
    assert (recalled.profile_run, recalled.limits) == (None, ())
    assert remembered(first, SHORT) == ("run", 1, [250.0, 175.0, 100.0])


def test_a_run_that_profiles_knows_what_it_measured_and_elsewhere_what_is_remembered(first: World) -> None:
    made = after(first, replace(SHORT, run="second"))
    while not made.rows(TrialRow):
        made.run(0.1)
    assert not made.rows(DecisionRow)
    known = {trial.limit_mw / 1000: trial for trial in made.interpreter.site.runs["second"].search.profile}
    measured = {row.power_limit_w: row for row in made.rows(TrialRow)}
    assert set(known) == {250.0, 175.0, 100.0} > set(measured)
    for limit_w, row in measured.items():
        assert known[limit_w].energy_mj == pytest.approx(row.energy_j * 1000)


@pytest.mark.parametrize(
    "other",
    [{"job": "other"}, {"batch_size": 64}, {"batch_size": None}],
    ids=["job", "batch size", "batch size unknown"],
)
def test_a_run_of_another_workload_starts_from_nothing(first: World, other: dict[str, object]) -> None:
    training = replace(SHORT, **other)
    assert remembered(first, training) == (None, 0, [])


def test_what_was_forgotten_meanwhile_is_not_started_from(first: World) -> None:
    made = after(first, replace(SHORT, run="second"))
    made.interpreter.handle(ProfilesForgotten({"other": 2**60, "job": first.now_ns}), 0)
    made.run(1.3)
    (recalled,) = made.rows(RecallRow)
    assert recalled.limits == ()


def test_a_run_that_was_killed_while_it_searched_leaves_what_it_measured() -> None:
    cut = world(SHORT)
    while not cut.rows(TrialRow):
        cut.run(0.1)
    cut.kill()
    measured = [row.power_limit_w for row in cut.rows(TrialRow)]
    assert 0 < len(measured) < 3
    assert remembered(cut, SHORT) == ("run", 1, measured)
    assert {row.chosen_limit_w for row in cut.rows(ProfileRow)} == {None}


def test_the_newest_round_of_a_run_that_changed_is_what_it_leaves() -> None:
    changed = world(replace(SHORT, steps=200, heavier=(80, 2.0)))
    changed.run()
    rounds = {row.round for row in changed.rows(DecisionRow)}
    assert len(rounds) > 1
    _, whose_round, _ = remembered(changed, SHORT)
    assert whose_round == max(rounds)


# ---- questions -----------------------------------------------------------------------------------------


def answered(made: World) -> list[tuple[str, str | None, int]]:
    return [(given.answer.question, given.answer.missing, len(given.answer.gpus)) for given in made.answers]


def test_a_question_waits_for_its_window_and_is_answered_at_once_afterwards() -> None:
    made = only_measuring()
    host = made.hosts[0]
    host.publish(WindowBegan(made.now_ns - S, 7, "w"))
    assert asked(made.interpreter, "h0", Ask("early", "session-h0", 7)) == []
    host.publish(WindowEnded(made.now_ns, 7))
    made.run(0.4)
    assert answered(made) == [("early", None, 1)]
    (late,) = asked(made.interpreter, "h0", Ask("late", "session-h0", 7))
    assert isinstance(late, GiveAnswer)
    assert late.answer == replace(made.answers[0].answer, question="late")
    assert late.answer.duration_s == pytest.approx(1.0)
    assert late.answer.gpus[0].energy_low_j <= late.answer.gpus[0].energy_j


def test_a_question_about_a_window_that_never_ends_is_answered_in_vain() -> None:
    made = only_measuring()
    asked(made.interpreter, "h0", Ask("q", "session-h0", 8))
    made.run(11.0)
    ((question, missing, gpus),) = answered(made)
    assert (question, gpus) == ("q", 0)
    assert missing is not None
    assert "its end has not arrived" in missing


def test_a_question_about_a_cancelled_window_is_answered_at_once() -> None:
    made = only_measuring()
    made.hosts[0].publish(WindowBegan(made.now_ns, 9, "w"))
    made.hosts[0].publish(WindowCancelled(made.now_ns, 9))
    asked(made.interpreter, "h0", Ask("q", "session-h0", 9))
    made.hosts[0].flush_events()
    assert answered(made) == [("q", "the window was cancelled", 0)]


# ---- two of a name, and one in two sessions --------------------------------------------------------------


def opens(made: World, session: str, started: RunStarted) -> None:
    """Let another session of the host begin, and be admitted."""
    host = made.hosts[0]
    host.log(Events(session, 0, 0, started.pid, (started,)))
    host.note(replace(RUN_ADMITTED, t_ns=host.now(), session=session, run=started.run, gpus=started.gpus))


def also_trains(made: World, session: str, started: RunStarted, steps: int = 100) -> None:
    """Let another session of the host begin, be admitted, and take 10 ms steps from now on."""
    host = made.hosts[0]
    opens(made, session, started)

    def take(step: int) -> None:
        ended_ns = host.now() if step else None
        host.log(Events(session, step + 1, 0, started.pid, (StepBoundary(step, ended_ns, host.now()),)))
        if step < steps:
            made.at(made.now_ns + 10_000_000, lambda: take(step + 1))

    take(0)


def begins(made: World, pid: int) -> RunStarted:
    now_ns = made.hosts[0].now()
    return replace(RUN_STARTED, t_ns=now_ns, gpus=(gpu(made),), pid=pid, wall_ns=now_ns)


def test_a_second_training_of_the_same_name_is_measured_apart_and_sets_no_limit() -> None:
    made = world()
    made.at(BEGIN_NS + S, lambda: also_trains(made, "session-2", begins(made, 2)))
    made.run()
    mine, other = (
        [row for row in made.rows(RunRow) if row.session == session][-1]
        for session in ("session-h0", "session-2")
    )
    assert (mine.run, mine.may_command) == ("run", True)
    assert (other.run, other.may_command) == ("run (session-)", False)
    assert "name of its own" in other.command_reason
    assert {command.run for command in made.rows(ApplyControl)} == {"run"}
    refusals = [row.reason for row in made.rows(DecisionRow) if row.run == other.run]
    assert any("name of its own" in reason for reason in refusals)
    steps = [row for row in made.rows(WindowRow) if row.session == "session-2" and row.kind == "step"]
    assert len(steps) == 100
    assert all(step.shared for step in steps)


@pytest.mark.parametrize(("pid", "parent_pid"), [(1, None), (2, 1)], ids=["the same process", "a child"])
def test_a_second_session_of_a_script_is_part_of_its_run(pid: int, parent_pid: int | None) -> None:
    made = world()
    started = replace(begins(made, pid), t_ns=made.hosts[0].now() + 1, parent_pid=parent_pid)
    made.at(BEGIN_NS + S, lambda: also_trains(made, "session-2", started))
    made.run()
    part = [row for row in made.rows(RunRow) if row.session == "session-2"][-1]
    assert (part.run, part.world_size, part.may_command) == ("run (part session-)", 0, True)
    assert {command.run for command in made.rows(ApplyControl)} == {"run"}, "its steps began first"
    windows = made.rows(WindowRow)
    assert not any(row.shared for row in windows)
    assert len([row for row in windows if row.session == "session-2" and row.kind == "step"]) == 100
    (reason,) = [row.reason for row in made.rows(DecisionRow) if row.run == part.run]
    assert "the search follows run, the session of this script whose steps began first" in reason


def test_the_search_follows_the_session_of_a_script_that_takes_steps() -> None:
    made = world(replace(TRAINING, may_command=False))

    def measure() -> None:
        script = replace(begins(made, 7), run="script")
        opens(made, "windows", script)
        child = replace(script, t_ns=script.t_ns + 1, pid=8, parent_pid=7)
        also_trains(made, "training", child, steps=500)

    made.at(BEGIN_NS + S, measure)
    made.run()
    assert {command.run for command in made.rows(ApplyControl)} == {"script (part training)"}


def test_a_run_of_hours_shares_its_gpu_with_the_last_of_many_short_ones() -> None:
    made = only_measuring(1.0)
    host = made.hosts[0]
    for number in range(sessions.MAX_USES):
        opens(made, f"short-{number}", replace(begins(made, 100 + number), run=f"short-{number}"))
        host.note(SessionEnded(host.now(), f"short-{number}", "ended"))
    also_trains(made, "last", replace(begins(made, 2), run="last"), 20)
    made.run(2.0)
    steps = [row for row in made.rows(WindowRow) if row.session == "last" and row.kind == "step"]
    assert {row.shared for row in steps} == {True}


def test_a_gpu_is_shared_until_the_last_rank_of_a_run_has_left_it() -> None:
    made = only_measuring(1.0)
    host, started = made.hosts[0], replace(begins(made, 2), run="pair", world_size=2)
    opens(made, "rank-0", started)
    opens(made, "rank-1", replace(started, rank=1, pid=3))
    host.note(SessionEnded(since_ns := host.now(), "rank-0", "ended"))
    made.run(2.0)
    steps = [row for row in made.rows(WindowRow) if row.session == host.session and row.kind == "step"]
    assert {row.shared for row in steps if row.begin_ns > since_ns} == {True}


def test_a_gpu_that_a_run_is_given_later_is_shared_from_its_begin() -> None:
    """A collector finds a GPU after it has admitted the run."""
    made = World("simulated:v100x2", replace(TRAINING, steps=500), replace(QUICK, selector=None))
    made.run(1.0)
    host, (first, second) = made.hosts[0], tuple(made.hosts[0].gpus)
    opens(made, "late", replace(begins(made, 2), run="late", gpus=(first,)))
    host.note(replace(RUN_ADMITTED, t_ns=host.now(), session="late", run="late", gpus=(first, second)))
    since_ns = host.now()
    made.run(2.0)
    steps = [row for row in made.rows(WindowRow) if row.session == host.session and row.kind == "step"]
    shared = {(row.gpu, row.shared) for row in steps if row.begin_ns > since_ns}
    assert shared == {(first, True), (second, True)}


def test_a_process_that_goes_on_in_another_session_is_the_same_run() -> None:
    made = world(Training("imagenet", 0.02, 300))
    first = replace(begins(made, 2), run="own")
    made.at(BEGIN_NS + S, lambda: also_trains(made, "session-2", first, 20))
    made.at(BEGIN_NS + 2 * S, lambda: also_trains(made, "session-3", first, 20))
    made.run(4)
    rows = {row.session: row for row in made.rows(RunRow)}
    assert (rows["session-2"].run, rows["session-3"].run) == ("own", "own")
    assert rows["session-2"].ended_how == "it goes on in another session"
    assert rows["session-3"].ended_ns is None


def test_of_more_gpus_than_there_may_be_nothing_is_kept_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "MAX_GPUS", 2)
    heard, rows = Interpreter(QUICK), steady(100, 2)
    rows["gpu"] = 0, 1, 1

    def hear(body: Body) -> list[str]:
        outputs = outputs_of(
            heard, Frame(log_id="log", offset=0, host="host", t_ns=S, topic="", body=b""), body
        )
        return [row.what for row in outputs if isinstance(row, GapRow)]

    assert hear(Readings(("GPU-a", "GPU-b"), rows.tobytes())) == []
    assert hear(Readings(("GPU-a", "GPU-c"), rows.tobytes())) == ["readings"]
    lost = Notes((DeviceGone(S, "GPU-c", "lost"), DeviceGone(S, "GPU-a", "lost")))
    assert hear(lost) == ["devices", "devices"]
    assert hear(Readings(("GPU-b", "GPU-a"), rows.tobytes())) == []


def test_a_state_whose_parts_contradict_each_other_is_found() -> None:
    made = world(Training("imagenet", 0.02, 300))
    made.run(2)
    made.interpreter.validate()
    (name,) = made.interpreter.site.sessions
    del made.interpreter.site.sessions[name]
    with pytest.raises(AssertionError, match=name):
        made.interpreter.validate()
