"""Machines that are restarted from their state at random instants do what they would have done."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from analyzers.checkpoints.machine_state import (
    live_state_of,
    parts_of,
    restore,
    restore_live,
    state_of,
)
from analyzers.checkpoints.object_graph import attributes, decode, encode
from analyzers.dispatch.pending import Pending
from analyzers.interpreter.interpreter import Interpreter, LinkSeen, Logged
from analyzers.live.live_site import LiveSite, site_head
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import PipelineSettings
from analyzers.results.result import ApplyControl
from analyzers.results.rows import DecisionRow, TryRow
from tests.analyzers.archives import plan_of
from tests.analyzers.batch_size.test_history import Turns
from tests.analyzers.batch_size.test_tracker import PLAN as OF_JOBS
from tests.analyzers.batch_size.test_tracker import again, training
from tests.analyzers.checkpoints.restarted import Restarted
from tests.analyzers.pipeline.stages import Stages
from tests.analyzers.power_budget.test_enforcer import PLAN as OF_BUDGETS
from tests.analyzers.power_budget.test_enforcer import Site, budget
from tests.simulation.simulated_site import Training
from tests.simulation.world import World, outputs_of, replayed
from zeus_stream.errors import MalformedError
from zeus_stream.settings import Settings

MORE = (("simulated:v100x1,seed=9", 77_000_000_000),)
QUICK = Settings(search="exhaustive", stride_w=50, warmup_steps=1, profile_steps=5, settle_ms=0, refreshes=2)
TRAINING = Training("imagenet", 0.02, 60, epoch_steps=30, noise=0.02)


@pytest.mark.parametrize(
    ("settings", "of", "gpus"),
    [
        pytest.param(
            replace(QUICK, select="energy"),
            replace(TRAINING, planned=(None, TRAINING.steps)),
            1,
            id="an exhaustive search of a planned run",
        ),
        pytest.param(
            replace(QUICK, select="cost:0.5", per_gpu=True),
            replace(TRAINING, steps=120),
            2,
            id="single GPUs",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            replace(QUICK, select="time"),
            replace(TRAINING, steps=150, heavier=(70, 2.0)),
            1,
            id="drift",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_a_search_that_is_restarted_at_random_instants_decides_and_measures_the_same(
    settings: Settings, of: Training, gpus: int
) -> None:
    plan = plan_of(settings, 1)
    worlds = []
    for restarted in (False, True):
        world = World(f"simulated:v100x{gpus},seed=3,noise=0.02", of, plan, seed=3, more=MORE)
        if restarted:
            world.interpreter = cast("Interpreter", Restarted(lambda: Interpreter(plan), seed=1, share=0.04))
            replayed(world.interpreter, world.frames)
        world.run()
        worlds.append(world)
    undisturbed, disturbed = worlds
    assert cast("Any", disturbed.interpreter).restarts > 10
    assert undisturbed.rows(DecisionRow)
    assert disturbed.outputs == undisturbed.outputs
    assert [frame for frame, _ in disturbed.frames] == [frame for frame, _ in undisturbed.frames]


def test_tries_of_a_job_that_recurs_are_the_same() -> None:
    once = training()
    frames = [part for number in range(3) for part in again(once, number)]

    def make() -> Interpreter:
        return Interpreter(OF_JOBS, None, ("turns", Turns()))

    undisturbed, disturbed = make(), Restarted(make, seed=2, share=0.05)
    expected = replayed(undisturbed, frames)
    assert replayed(cast("Interpreter", disturbed), frames) == expected
    assert disturbed.restarts > 5
    assert len({row.number for row in expected if isinstance(row, TryRow)}) == 3


def test_power_budgets_are_kept_the_same() -> None:
    sites = []
    for restarted in (False, True):
        site = Site(4)
        if restarted:
            made = Restarted(lambda: Interpreter(OF_BUDGETS), seed=3, share=0.3)
            site = Site(4, interpreter=cast("Interpreter", made))
        site.set(budget(700))
        site.begin("r0", ["g0", "g1"])
        site.train("r0", 30)
        site.set(budget(500))
        site.train("r0", 20)
        site.end("r0")
        site.go_on(3_000_000_000)
        sites.append(site)
    assert sites[1].outputs == sites[0].outputs
    assert sites[1].limits == sites[0].limits
    assert any(limit < max(sites[0].limits.values()) for limit in sites[0].limits.values())


def test_a_pipeline_follows_the_same_plan() -> None:
    worlds = []
    for every in (0, 7):
        world = Stages(PipelineSettings(iterations=5))
        for played in range(110):
            world.play(1)
            if every and played % every == 0:
                state = encode([world.run, world.sessions, world.fleet])
                world.run, world.sessions, world.fleet = decode(state)
        worlds.append(world)
    assert worlds[1].state == "following"
    assert worlds[1].rows == worlds[0].rows
    assert worlds[1].sent == worlds[0].sent


def test_a_command_without_outcome_is_sent_again_by_its_name_once_its_host_is_caught_up() -> None:
    plan = plan_of(replace(QUICK, select="energy"), 1)
    world = World("simulated:v100x1", TRAINING, plan)
    while not world.rows(ApplyControl):
        world.run(0.02)
    (sent,) = world.rows(ApplyControl)[:1]
    host = sent.host
    first = Interpreter(plan, pending=Pending())
    at = next(
        number for number, (frame, body) in enumerate(world.frames)
        if sent in Interpreter.handle(first, Logged(frame, body), frame.t_ns).instructions
        or first.site.pending.waiting().get(host)
    )  # fmt: skip
    released = first.handle(LinkSeen(host, connected=True, behind=0), 0).instructions
    assert released == (sent,)
    other = Interpreter(plan, pending=Pending())
    restore(other.site, state_of(first.site), selectors.parse)
    assert other.handle(LinkSeen(host, connected=True, behind=5), 0).instructions == ()
    assert other.handle(LinkSeen(host, connected=True, behind=0), 0).instructions == (sent,)
    assert other.site.pending.leases() == {host: frozenset({sent.gpu})}
    third = Interpreter(plan, pending=Pending())
    restore(third.site, state_of(first.site), selectors.parse)
    replayed(third, world.frames[at + 1 :])
    outcome = any(sent.command in repr(body) for _, body in world.frames[at + 1 :])
    assert third.site.pending.waiting().get(host, 0) == (0 if outcome else 1)


@pytest.mark.parametrize(("whole", "count"), [(Interpreter(OF_JOBS).site, 10), (LiveSite(), 2)])
def test_attributes_that_are_no_state_exist(whole: Any, count: int) -> None:
    parts = parts_of(whole)
    assert len(parts) == count
    for path, part in parts.items():
        assert attributes(part).keys() >= part.NOT_STATE, path


def test_a_state_of_other_parts_is_refused() -> None:
    with pytest.raises(MalformedError, match="other parts"):
        restore(Interpreter(OF_JOBS).site, encode([{}, {}]), selectors.parse)


def test_screens_show_the_open_run_of_before() -> None:
    plan, live = plan_of(replace(QUICK, select="energy"), 1), LiveSite()
    world = World("simulated:v100x1", TRAINING, plan)
    while not world.rows(DecisionRow):
        world.run(0.1)
    interpreter = Interpreter(plan)
    for frame, body in world.frames:
        live.take([(frame, body)], outputs_of(interpreter, frame, body), frame.t_ns, live=True)
    now_ns = world.frames[-1][0].t_ns
    other = LiveSite()
    restore_live(other, live_state_of(live), now_ns)
    head = site_head({}, "archive", 0, 0, {})
    (before,), (after,) = (
        each.snapshot(head, interpreter.searches(), now_ns, None).runs for each in (live, other)
    )
    assert replace(after, watts=None) == replace(before, watts=None)
    assert before.search is not None
    assert before.search.phase == "chosen"
    assert {gpu.state for gpu in other.snapshot(head, {}, now_ns, None).gpus} == {"silent"}
    last = next(part for part in reversed(world.frames) if hasattr(part[1], "gpus"))
    other.take([last], [], now_ns, live=True)
    assert {gpu.state for gpu in other.snapshot(head, {}, now_ns, None).gpus} == {"there"}
