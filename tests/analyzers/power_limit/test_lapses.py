"""Leases that lapse in the middle of a trial, as on a host whose cores are all taken."""

import pytest
from msgspec.structs import replace

from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import DecisionRow, TrialRow
from tests.messages import LEASE_ENDED
from tests.simulation.simulated_site import Training
from tests.simulation.world import QUICK, World

S = 1_000_000_000
PLAN = replace(QUICK, profile_steps=60, timeout_ns=S // 2)
TRAINING = Training("imagenet", 0.02, 900)


def lapse(world: World) -> None:
    """The collector restores the limit, since nobody renewed its lease."""
    (host,), (gpu,) = world.hosts, world.hosts[0].gpus
    world._advance()
    host.set_limit(gpu, host.gpus[gpu].found_mw)
    host.note(
        replace(
            LEASE_ENDED,
            t_ns=host.now(),
            gpu=gpu,
            cause="lapsed",
            reason="its owner was silent",
            value=host.gpus[gpu].found_mw,
        )
    )
    world._go_on()


def played(lapses_s: tuple[float, ...], plan: RunSettings = PLAN) -> World:
    world = World("simulated:v100x1", TRAINING, plan)
    for at_s in lapses_s:
        world.at(world.now_ns + round(at_s * S), lambda: lapse(world))
    while not world.rows(DecisionRow):
        assert not world.ended, "the training ended before a decision"
        world.run(0.1)
    return world


def test_a_trial_goes_on_after_a_lapse_and_measures_the_same() -> None:
    """Each of two trials of 60 steps is cut by a lapse after some 0.8 s, of 1.2 s."""
    quiet, lapsed = played(()), played((3.4, 6.2))
    first, second = quiet.rows(TrialRow), lapsed.rows(TrialRow)
    assert [row.power_limit_w for row in second] == [row.power_limit_w for row in first]
    assert [row.steps for row in second] == [row.steps for row in first]
    for one, other in zip(first, second, strict=True):
        assert other.energy_j == pytest.approx(one.energy_j, rel=0.01)
    undisturbed, late = quiet.rows(DecisionRow)[0], lapsed.rows(DecisionRow)[0]
    assert late.power_limit_w == undisturbed.power_limit_w
    assert late.steps < undisturbed.steps + 90  # else 120 more


def test_a_decision_is_reached_though_no_lease_lasts_as_long_as_a_trial() -> None:
    """A lapse every 0.9 s; a trial takes 1.2 s, and until a limit is asked for again 0.5 s pass."""
    world = played(tuple(2.5 + 0.9 * number for number in range(12)))
    (decision,) = world.rows(DecisionRow)
    assert decision.applied
    assert decision.steps < 650  # 700, if every trial began from its first step
    assert decision.power_limit_w == played(()).rows(DecisionRow)[0].power_limit_w
