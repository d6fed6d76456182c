"""Frames that cannot be interpreted: no frame ends the analyzer, live or over its archive."""

from collections.abc import Sequence
from functools import cache

import pytest
from msgspec.structs import replace

from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.measurement.energy import KnownEnergy, Meter
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.fixed_energies import FIT_FAILED, SHED
from analyzers.measurement.timeline import Timeline
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.results.result import RestoreControl
from analyzers.results.rows import GapRow, RunRow, WindowRow, each_row
from analyzers.service.replay import interpret
from tests.analyzers.readings import steady
from tests.simulation.simulated_site import Training
from tests.simulation.world import QUICK, Output, World, outputs_of, replayed
from zeus_stream.protocol.events import Event, StepBoundary
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame

S = 1_000_000_000
STEPS = 100
MEASURE_ONLY = RunSettings(selector=None)


@cache
def recorded() -> tuple[tuple[Frame, Body], ...]:
    world = World("simulated:v100x1", Training("imagenet", 0.037, STEPS), MEASURE_ONLY)
    world.run()
    return tuple(world.frames)


def uncertain(uncertainty_ns: int) -> list[tuple[Frame, Body]]:
    """Return the frames of steps of 37 ms, every second one with a boundary that is this uncertain."""

    def published(event: Event | Unknown) -> Event | Unknown:
        if isinstance(event, StepBoundary):
            return replace(event, uncertainty_ns=event.index % 2 * uncertainty_ns)
        return event

    def sent(body: Body) -> Body:
        return replace(body, events=tuple(map(published, body.events))) if isinstance(body, Events) else body

    return [(frame, sent(body)) for frame, body in recorded()]


@pytest.mark.parametrize("uncertainty_ns", [2**62, S])
def test_a_boundary_of_any_uncertainty_is_interpreted_and_every_step_is_measured(uncertainty_ns: int) -> None:
    frames = uncertain(uncertainty_ns)
    interpreter = Interpreter(MEASURE_ONLY)
    outputs = replayed(interpreter, frames)
    steps = [row for row in outputs if isinstance(row, WindowRow) and row.kind == "step"]
    assert len(steps) == STEPS
    assert all(row.energy_j is not None for row in steps)
    assert not [row for row in outputs if isinstance(row, GapRow)]
    assert interpret(frames, MEASURE_ONLY, {}).frames == len(frames)  # `replay` ends in order, too


def test_a_fit_that_fails_leaves_its_stretch_to_the_counter_and_says_so() -> None:
    timeline = Timeline()
    timeline.add(steady(200, 40))
    shape = EnergyFit()
    for step in range(100):
        shape.mark("s", step * 37_000_000, "step" if step % 3 else "gap", step % 2 * 2**62)
    found = Meter(timeline, shape).measure((1 * S,), (2 * S,), 4 * S)
    straight = Meter(timeline).measure((1 * S,), (2 * S,), 4 * S)
    for energy, plain in zip(found, straight, strict=True):
        assert isinstance(energy, KnownEnergy)
        assert isinstance(plain, KnownEnergy)
        assert energy.energy_uj == plain.energy_uj
        assert (energy.estimator, FIT_FAILED in energy.quality) == ("counter", True)
        assert FIT_FAILED not in plain.quality


def _divide(trials: Sequence[Trial], gpus: int) -> int:
    return trials[0].limit_mw // (gpus - 1)


def test_a_session_that_cannot_be_interpreted_is_set_aside_and_the_others_go_on() -> None:
    """A selector of the user's own fails in the middle of a run; its limits are given back."""
    quick = replace(QUICK, selector=Selector("mine", _divide))
    world = World("simulated:v100x1", Training("imagenet", 0.02, 500), quick)
    world.run()
    (gap,) = world.rows(GapRow)
    session = world.hosts[0].session
    for part in ("log ", "offset ", session, "ZeroDivisionError"):
        assert part in gap.reason
    last = [row for row in world.rows(RunRow) if row.session == session][-1]
    assert last.ended_how == "set aside: it could not be interpreted"
    assert world.rows(RestoreControl)
    assert [row.kind for row in world.rows(WindowRow)][-1] == "run"  # so a start does not begin before it

    outputs: list[Output] = []
    both = Interpreter(quick)
    other = World("simulated:v100x1,seed=9", Training("imagenet", 0.02, 100), quick, host="other")
    other.run()
    for frame, body in (*world.frames, *other.frames):
        outputs += outputs_of(both, frame, body)
    others = [row for row in outputs if isinstance(row, WindowRow) and row.session == other.hosts[0].session]
    assert others


def test_an_analyzer_that_is_behind_measures_every_step_by_the_counter_and_says_so() -> None:
    interpreter = Interpreter(MEASURE_ONLY)
    rows = [
        row
        for frame, body in recorded()
        for row in each_row(interpreter.handle(Logged(frame, body, hurried=True), frame.t_ns).rows)
    ]
    steps = [row for row in rows if isinstance(row, WindowRow) and row.kind == "step"]
    assert len(steps) == STEPS
    assert all(row.estimator == "counter" and SHED in row.quality for row in steps)
    for row in steps:  # the bounds are those of the counter, and hold
        assert row.energy_low_j is not None
        assert row.energy_j is not None
        assert row.energy_high_j is not None
        assert row.energy_low_j <= row.energy_j <= row.energy_high_j
