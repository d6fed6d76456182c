"""The live state of a site, against the rows of the interpreter that it is made from."""

from collections import defaultdict

import pytest
from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.live.live_runs import LiveRuns
from analyzers.live.live_site import LiveSite, site_head
from analyzers.power_limit.run_settings import PipelineSettings, RunSettings
from analyzers.results.rows import DecisionRow, GapRow, RunRow, WindowRow
from tests.analyzers.archives import RUN
from tests.analyzers.pipeline.stages import Stages
from tests.analyzers.test_run_forecast import QUICK, OfTwoRanks
from tests.messages import RUN_ADMITTED, RUN_STARTED
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.clock import monotonic_ns
from zeus_stream.live.answer import LiveAnswers, encoded
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import MOST_COUNT, MOST_WALL_NS, MOST_WORDS
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Pod, RunAdmitted, SessionEnded
from zeus_stream.protocol.queries import No
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.screens.metrics.job_metrics import JobMetrics
from zeus_stream.screens.terminal.history import History
from zeus_stream.screens.terminal.panels.run_page import Details, run_page
from zeus_stream.views.run_view import run_of_live


class Watched(World):
    """A world whose interpreter is looked at, as the service looks at it."""

    def __init__(self, *arguments: object, live: bool = True, **more: object) -> None:
        self.site = LiveSite()
        self._are_live = live
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def hear(self, frame: Frame, body: Body) -> None:
        before = len(self.outputs)
        super().hear(frame, body)
        self.site.take([(frame, body)], self.outputs[before:], self.now_ns, live=self._are_live)

    def now(self, host: str | None = None) -> Snapshot:
        head = site_head({}, "archive", 1, 0, {})
        return self.site.snapshot(head, self.interpreter.searches(), self.now_ns, host)

    def idle(self, seconds: float) -> None:
        """Let time pass after the training has ended: its GPUs go on drawing power."""
        until_ns = self.now_ns + seconds * 1e9
        while self._due[0][0] <= until_ns:
            self.do_next()


def step_energies(world: World) -> dict[int, tuple[float, float]]:
    """Return of each measured step its energy (J) and its limit (W)."""
    steps: defaultdict[int, list[WindowRow]] = defaultdict(list)
    for row in world.rows(WindowRow):
        if row.kind == "step":
            steps[row.index].append(row)
    return {
        index: (sum(row.energy_j or 0 for row in rows), max(row.power_limit_w or 0 for row in rows))
        for index, rows in steps.items()
        if all(row.power_limit_w is not None and row.energy_j is not None for row in rows)
    }


def saved_j(world: World) -> float:
    """Return the joules saved, from rows alone: of each step, by the decision in force."""
    decisions = [row for row in world.rows(DecisionRow) if row.power_limit_w is not None]
    total = 0.0
    for index, (energy_j, limit_w) in step_energies(world).items():
        decision = next(
            (row for row in reversed(decisions) if (row.changed_step or row.steps) <= index), decisions[0]
        )
        if limit_w == decision.power_limit_w:
            assert decision.default_energy_per_step_j is not None
            assert decision.energy_per_step_j is not None
            total += energy_j * (decision.default_energy_per_step_j / decision.energy_per_step_j - 1)
    return total


def test_a_run_is_followed_from_waiting_over_its_trials_to_what_it_saves() -> None:
    training = Training("imagenet", 0.05, 400, epoch_steps=100)
    world = Watched("simulated:v100x2", training, QUICK)
    phases, trials = [], set()
    while not world.ended:
        world.run(0.5)
        for run in world.now().runs:
            assert run.search is not None
            phases.append(run.search.phase)
            if run.search.trial is not None:
                trials.add((run.search.trial, run.search.trials_planned))
                assert (run.search.steps_done or 0) <= (run.search.steps_wanted or 0)
    world.run()
    now = world.now()
    (run,) = now.runs
    assert list(dict.fromkeys(phases)) == ["waiting", "measuring", "chosen"]
    assert trials == {(1, 3), (2, 3), (3, 3)}
    assert (run.epoch, run.step, run.ranks, run.gpus) == (3, 399, 0, tuple(world.hosts[0].gpus))
    assert run.ended_wall_ns is not None
    assert run.search is not None
    assert run.search.limit_mw == round(1000 * (world.rows(DecisionRow)[-1].power_limit_w or 0))
    assert run.search.saved_j == pytest.approx(saved_j(world))
    assert now.totals.saved_j == pytest.approx(saved_j(world))
    assert run.search.saved_percent == pytest.approx(now.totals.saved_percent)
    assert {trial.limit_mw for trial in run.search.trials} == {250_000, 175_000, 100_000}
    of_run = [row for row in world.rows(WindowRow) if row.kind == "run"]
    assert run.energy_j == pytest.approx(sum(row.energy_j or 0 for row in of_run), rel=0.02)
    assert run.watts is None
    assert now.totals.hour_mj == sum(gpu.energy_mj or 0 for gpu in now.gpus)
    assert codec.decode(encoded(now), Snapshot) == now


class FollowedTwice(Watched):
    """A world whose host a second part of the site follows as well, without a job there."""

    def __init__(self, *arguments: object) -> None:
        self.other = LiveSite()
        super().__init__(*arguments)

    def hear(self, frame: Frame, body: Body) -> None:
        super().hear(frame, body)
        self.other.take([(frame, body)], [], self.now_ns, live=True)


def test_parts_of_a_site_that_follow_the_same_host_are_one_site() -> None:
    world = FollowedTwice("simulated:v100x2", Training("imagenet", 0.05, 400, epoch_steps=100), QUICK)
    world.run()
    head, searches = site_head({}, "archive", 1, 0, {}), world.interpreter.searches()
    joined = LiveSite.joined(head, [world.other, world.site], searches, world.now_ns, None)
    assert joined.totals.saved_j
    assert joined.totals.hour_mj
    assert joined == replace(world.now(), counters=()), "commands are seen by both, and counted by neither"
    nothing = LiveSite.joined(head, [], {}, world.now_ns, None)
    assert (nothing.runs, nothing.totals.saved_j) == ((), None)


def test_a_gpu_that_two_ranks_share_counts_once_when_they_have_ended() -> None:
    """It counted once while they went on, and then twice."""
    training = Training("imagenet", 0.05, 40)
    world = Watched("simulated:v100x1", training, replace(QUICK, selector=None))
    world.run(1.5)
    host = world.hosts[0]
    (first,) = {row.session: row for row in world.rows(RunRow)}.values()
    started = replace(
        RUN_STARTED,
        t_ns=host.now(),
        job=first.job,
        run=first.run,
        rank=1,
        world_size=2,
        gpus=first.gpus,
        pid=9,
    )
    host.log(Events("session-2", 0, 0, 9, (started,)))
    admitted = RunAdmitted(
        t_ns=host.now(), session="session-2", run=first.run, gpus=first.gpus, may_command=False, reason=""
    )
    host.note(admitted)
    world.run(0.5)
    host.note(SessionEnded(host.now(), "session-2", "ended"))
    world.run()
    world.idle(2)
    wholes = {row.rank: row.energy_j for row in world.rows(WindowRow) if row.kind == "run"}
    assert wholes[1]
    (run,) = world.now().runs
    assert run.energy_j == wholes[0]


class WatchedRanks(OfTwoRanks, Watched):
    """A world of two ranks that is looked at."""


def test_a_step_of_two_ranks_on_one_gpu_has_its_energy_once() -> None:
    """It was twice as much live, and so were savings."""
    training = Training("imagenet", 0.05, 40)
    settings = replace(QUICK, selector=None)
    alone, shared = (kind("simulated:v100x1", training, settings) for kind in (Watched, WatchedRanks))
    alone.run()
    shared.run()
    (of_one,), (of_two,) = alone.now().runs, shared.now().runs
    assert of_one.step_j
    assert of_two.step_j == pytest.approx(of_one.step_j)


def test_a_run_whose_counter_may_have_been_reset_says_so_instead_of_an_energy() -> None:
    """It said that a GPU has no energy counter."""
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 20), QUICK)
    world.run()
    world.idle(1)
    why = "the counter started over (reset, or its collector was gone)"
    (whole,) = [row for row in world.rows(WindowRow) if row.kind == "run"]
    world.site.take([], [replace(whole, energy_j=None, quality=why)], world.now_ns, live=True)
    (run,) = world.now().runs
    view = run_of_live(run, world.now_ns)
    assert view.energy_words == f"missing: {why}"
    page = ["".join(span.text for span in line) for line in run_page(view, History(), 100, Details())]
    assert f"Energy: missing: {why}" in "\n".join(page)


def test_a_run_that_goes_on_says_why_the_energy_of_its_earlier_attempt_is_missing() -> None:
    """It said that a GPU has no energy counter."""
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 20), QUICK)
    world.run()
    world.idle(1)
    why = "the counter started over (reset, or its collector was gone)"
    (whole,) = [row for row in world.rows(WindowRow) if row.kind == "run"]
    first = world.rows(RunRow)[0]
    lost, again = replace(whole, energy_j=None, quality=why), replace(first, session="again")
    world.site.take([], [lost, again], world.now_ns, live=True)
    (run,) = world.now().runs
    assert run.ended_wall_ns is None
    assert run_of_live(run, world.now_ns).energy_words == f"missing: {why}"


def test_the_energy_of_a_run_that_has_ended_is_what_was_measured_and_stays_so_while_its_gpus_idle() -> None:
    world = Watched("simulated:v100x2", Training("imagenet", 0.05, 100), QUICK)
    world.run()
    world.idle(1)
    of_run = [row.energy_j or 0 for row in world.rows(WindowRow) if row.kind == "run"]
    (at_end,) = world.now().runs
    world.idle(30)
    (later,) = world.now().runs
    assert (later.energy_j, later.watts) == (at_end.energy_j, None)
    assert at_end.energy_j == pytest.approx(sum(of_run), rel=1e-9)


def test_the_energy_of_a_run_that_is_resumed_has_that_of_its_earlier_attempt() -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 100), QUICK)
    world.run(3)
    world.kill()
    world.idle(3)
    world.restart(20)
    world.run()
    world.idle(1)
    of_run = [row.energy_j or 0 for row in world.rows(WindowRow) if row.kind == "run"]
    assert len(of_run) == 2
    (run,) = world.now().runs
    assert run.energy_j == pytest.approx(sum(of_run), rel=1e-3)


def test_steps_of_two_hosts_are_added_up_and_a_host_can_be_asked_for() -> None:
    training = Training("imagenet", 0.05, 80)
    world = Watched(
        "simulated:v100x1", training, RunSettings(selector=None), more=(("simulated:v100x1,seed=1", 10**15),)
    )
    world.run(4)
    now = world.now()
    (run,) = now.runs
    assert (run.ranks, run.hosts, len(run.gpus), run.search) == (2, ("h0", "h1"), 2, None)
    rows = [row for row in world.rows(WindowRow) if row.kind == "step" and row.index == 5]
    assert run.step_j == pytest.approx(sum(row.energy_j or 0 for row in rows), rel=0.1)
    assert run.step_ms == pytest.approx(50, rel=0.05)
    assert run.watts == pytest.approx(sum(gpu.power_mw or 0 for gpu in now.gpus) / 1000)
    assert [gpu.host for gpu in world.now("h1").gpus] == ["h1"]
    assert len(world.now("h1").runs) == 1


def test_a_run_that_may_not_command_observes_and_says_why() -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 80, may_command=False), QUICK)
    world.run(4)
    (run,) = world.now().runs
    assert run.search is not None
    assert run.search.phase == "observing"
    assert "Run the collector as root" in run.search.reason
    assert (run.search.saved_j, world.now().totals.saved_j) == (None, None)


def test_what_comes_from_the_archive_is_old_and_its_ended_runs_are_not_shown() -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 80), QUICK, live=False)
    world.run()
    assert world.ended
    assert world.now().runs == ()
    assert {gpu.state for gpu in world.now().gpus} == {"silent"}


def test_a_gap_of_the_interpreter_is_counted() -> None:
    site = LiveSite()
    site.take([], [GapRow("h", "events", 1, 2, "why")], 1, live=True)
    now = site.snapshot(site_head({}, "archive", 1, 0, {}), {}, 1, None)
    assert [(gap.host, gap.what, gap.count, gap.reason) for gap in now.gaps] == [("h", "events", 2, "why")]


def test_steps_without_energy_are_shown_without_it() -> None:
    world = World("simulated:v100x1", Training("imagenet", 0.02, 100), RunSettings(selector=None))
    world.run()
    site, interpreter = LiveSite(), Interpreter(RunSettings(selector=None))
    for frame, body in world.frames:
        if isinstance(body, Readings):
            body = Readings((), b"")  # noqa: PLW2901  (no reading comes)
        rows = interpreter.handle(Logged(frame, body), frame.t_ns).rows
        site.take([(frame, body)], rows, frame.t_ns, live=True)
    assert [gpu.step_j for gpu in site.snapshot(site_head({}, "a", 1, 0, {}), {}, 1, None).gpus] == [None]


def test_whatever_a_script_counts_or_says_the_answer_can_be_read() -> None:
    site = LiveSite()
    gap = GapRow("h", "events", 1, MOST_COUNT, "r" * (MOST_WORDS + 20))
    late = replace(RUN, began_wall_ns=MOST_WALL_NS, ended_ns=2**62, ended_how="ended")
    site.take([], [gap, gap, RUN, late], 1, live=True)
    read = codec.decode(encoded(site.snapshot(site_head({}, "a", 1, 0, {}), {}, 1, None)), Snapshot)
    assert (read.totals.gaps, read.gaps[0].count) == (MOST_COUNT, MOST_COUNT)
    assert [run.ended_wall_ns for run in read.runs] == [MOST_WALL_NS]


def test_a_frame_that_the_live_state_cannot_follow_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.02, 5), QUICK)
    world.run()
    monkeypatch.delattr(world.site, "_runs")
    (gap,) = world.site.follow(world.frames[:1], [], 1, live=True).rows
    assert isinstance(gap, GapRow)
    assert "offset 0: the live state could not follow" in gap.reason
    answers = LiveAnswers(world.now)
    refused = codec.decode(answers.answer(AskNow(), monotonic_ns()), No)
    assert refused.reason.startswith("now: could not be answered")


def test_a_run_has_the_pods_of_its_ranks_in_its_rows_live_and_in_metrics() -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 400), QUICK)
    world.run(1.0)
    rank = world.rows(RunRow)[-1]
    pod = Pod(namespace="ml", name="train-0", container="main")
    said = replace(RUN_ADMITTED, session=rank.session, run=rank.run, gpus=rank.gpus)
    world.hosts[0].note(replace(said, cgroup="/kubepods/1", pod=pod))
    row = world.rows(RunRow)[-1]
    assert (row.cgroup, row.namespace, row.pod, row.container) == ("/kubepods/1", "ml", "train-0", "main")
    world.site.take([], [replace(row, session="other", rank=1, pod="train-1")], world.now_ns, live=True)
    (run,) = world.now().runs
    assert [each.name for each in run.pods] == ["train-0", "train-1"]
    families = JobMetrics().families(world.now())
    [info] = next(each for each in families if each.name == "zeus_stream_run_info").samples
    assert {("namespace", "ml"), ("pod", "train-0,train-1"), ("container", "main")} <= set(info.labels)


def test_a_pipeline_says_how_far_the_plan_of_its_clocks_is() -> None:
    """It has no search for a power limit, and is not only measured."""
    world = Stages(PipelineSettings(iterations=4, slowdown=1.05))
    world.play(2)
    runs = LiveRuns(lambda _gpu: None)
    runs.take_rows([replace(RUN, run="run", job="job"), *world.rows], 0)
    (run,) = runs.now({}, 0, RUN.began_wall_ns)
    assert (run.search, run.pipeline) == (None, "profiling")
