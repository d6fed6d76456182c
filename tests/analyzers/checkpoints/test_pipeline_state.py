"""A pipeline that goes on from its state, as after a restart, does what it would have done."""

from analyzers.checkpoints import object_graph
from analyzers.power_limit.run_settings import PipelineSettings
from tests.analyzers.pipeline.stages import Stages


def restart(world: Stages) -> None:
    """Put a run that was decoded from its state into the place of the run."""
    outside = {"fleet": world.fleet, "shares": world.shares, "known": world.known}
    outside |= {session.session: session for session in world.sessions}
    state = object_graph.encode([world.run], {id(each): name for name, each in outside.items()})
    [world.run] = object_graph.decode(state, outside)


def test_restarts_while_it_profiles_and_under_a_plan_change_nothing() -> None:
    settings = PipelineSettings(iterations=3, slowdown=1.1)
    whole, restarted = Stages(settings, noise=0.01), Stages(settings, noise=0.01)
    states = set()
    for iteration in range(75):
        whole.play(1)
        restarted.play(1)
        if iteration % 5 == 0:
            states.add(restarted.state)
            restart(restarted)
    assert states >= {"profiling", "following"}
    assert restarted.rows == whole.rows
    assert restarted.sent == whole.sent
