"""The live state of a site, against the rows of the interpreter that it is made from."""

from collections import defaultdict
from dataclasses import replace

import pytest

from analyzers.interpreter import Interpreter, Logged
from analyzers.live.live_site import LiveSite, site_head
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import DecisionRow, GapRow, WindowRow
from tests.analyzers.archives import RUN
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.clock import monotonic_ns
from zeus_stream.live.answer import LiveAnswers, encoded
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import MOST_COUNT, MOST_WALL_NS, MOST_WORDS
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.queries import No
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import AskNow, Snapshot

PLAN = RunSettings(
    selector=selectors.parse("energy"),
    stride_mw=75_000,
    warmup_steps=2,
    profile_steps=8,
    refreshes=2,
    exhaustive=True,
)


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


def saved_j(world: World) -> float:
    """Return the joules saved, from rows alone, as the view ``savings`` has it."""
    decision = world.rows(DecisionRow)[-1]
    steps: defaultdict[int, list[WindowRow]] = defaultdict(list)
    for row in world.rows(WindowRow):
        if row.kind == "step":
            steps[row.index].append(row)
    at = [
        sum(row.energy_j or 0 for row in rows)
        for rows in steps.values()
        if max(row.power_limit_w or 0 for row in rows) == decision.power_limit_w
        and all(row.power_limit_w is not None and row.energy_j is not None for row in rows)
    ]
    assert decision.default_energy_per_step_j is not None
    return len(at) * decision.default_energy_per_step_j - sum(at)


def test_a_run_is_followed_from_waiting_over_its_trials_to_what_it_saves() -> None:
    training = Training("imagenet", 0.05, 400, epoch_steps=100)
    world = Watched("simulated:v100x2", training, PLAN)
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
    assert run.search.saved_percent == pytest.approx(now.totals.saved_percent, abs=3)
    assert {trial.limit_mw for trial in run.search.trials} == {250_000, 175_000, 100_000}
    of_run = [row for row in world.rows(WindowRow) if row.kind == "run"]
    assert run.energy_j == pytest.approx(sum(row.energy_j or 0 for row in of_run), rel=0.02)
    assert now.totals.hour_mj == sum(gpu.energy_mj or 0 for gpu in now.gpus)
    assert codec.decode(encoded(now), Snapshot) == now


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
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 80, may_command=False), PLAN)
    world.run(4)
    (run,) = world.now().runs
    assert run.search is not None
    assert run.search.phase == "observing"
    assert "Run the collector as root" in run.search.reason
    assert (run.search.saved_j, world.now().totals.saved_j) == (None, None)


def test_what_comes_from_the_archive_is_old_and_its_ended_runs_are_not_shown() -> None:
    world = Watched("simulated:v100x1", Training("imagenet", 0.05, 80), PLAN, live=False)
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
    world = Watched("simulated:v100x1", Training("imagenet", 0.02, 5), PLAN)
    world.run()
    monkeypatch.delattr(world.site, "_runs")
    (gap,) = world.site.follow(world.frames[:1], [], 1, live=True).rows
    assert isinstance(gap, GapRow)
    assert "offset 0: the live state could not follow" in gap.reason
    answers = LiveAnswers(world.now)
    refused = codec.decode(answers.answer(AskNow(), monotonic_ns()), No)
    assert refused.reason.startswith("now: could not be answered")
