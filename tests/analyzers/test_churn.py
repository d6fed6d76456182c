"""What an analyzer keeps does not grow with the number of sessions that have come and gone."""

import gc
from collections.abc import Iterator
from itertools import count

import pytest
from msgspec.structs import replace

from analyzers.checkpoints.machine_state import live_state_of, state_of
from analyzers.fleet import questions
from analyzers.interpreter import sessions
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.live import live_runs
from analyzers.live.live_site import LiveSite
from analyzers.measurement import counter_kind, cuts, energy_fit, fixed_energies
from analyzers.power_limit.run_settings import RunSettings
from tests.analyzers.many_sessions import MS, START_NS, WALL_NS, S, begin, gpu, readings
from tests.messages import RUN_STARTED
from zeus_stream.protocol.events import RunEnded, StepBoundary, WindowBegan, WindowEnded
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes, RunAdmitted

GPUS = 4
STEPS = 10
STEP_NS = 100 * MS


def generation(number: int, begin_ns: int) -> Iterator[tuple[int, Body]]:
    """Yield a session on each GPU that takes some steps, measures a window and ends."""
    for at in range(GPUS):
        name = f"session-{number}-{at}"
        started = replace(
            RUN_STARTED,
            t_ns=begin_ns,
            run=f"run-{number}-{at}",
            gpus=(gpu(at),),
            pid=number * GPUS + at,
            wall_ns=WALL_NS + begin_ns,
        )
        yield begin_ns, Events(name, 0, 0, 1, (started, WindowBegan(begin_ns, 0, "w")))
        admitted = RunAdmitted(
            t_ns=begin_ns, session=name, run=started.run, gpus=(gpu(at),), may_command=False, reason="x"
        )
        yield begin_ns, Notes((admitted,))
    for step in range(STEPS):
        t_ns = begin_ns + step * STEP_NS
        for at in range(GPUS):
            boundary = StepBoundary(step, t_ns - MS if step else None, t_ns)
            yield t_ns, Events(f"session-{number}-{at}", 2 + step, 0, 1, (boundary,))
    end_ns = begin_ns + STEPS * STEP_NS
    yield end_ns, readings(GPUS, end_ns)
    for at in range(GPUS):
        last = WindowEnded(end_ns, 0), RunEnded(end_ns)
        yield end_ns, Events(f"session-{number}-{at}", 2 + STEPS, 0, 1, last)


@pytest.mark.sweep
def test_sessions_that_come_and_go_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of what is remembered are reached at once here; the rest has none, and is not to grow."""
    monkeypatch.setattr(sessions, "MAX_REMEMBERED", 20)
    monkeypatch.setattr(questions, "MAX_ANSWERS", 20)
    monkeypatch.setattr(live_runs, "KEPT_NS", 2 * S)
    monkeypatch.setattr(cuts, "MAX_CUTS", 64)
    monkeypatch.setattr(counter_kind, "MOST_LOOKS", 16)
    for module in (energy_fit, fixed_energies):
        monkeypatch.setattr(module, "MAX_POINTS", 256)
    interpreter, live, offset = Interpreter(RunSettings(selector=None)), LiveSite(), count()

    def put(t_ns: int, body: Body) -> None:
        frame = Frame(log_id="log", offset=next(offset), host="host", t_ns=t_ns, topic="t", body=b"")
        rows = interpreter.handle(Logged(frame, body), t_ns).rows
        interpreter.validate()
        live.take([(frame, body)], rows, t_ns, live=True)

    for body in begin(GPUS):
        if isinstance(body, Notes) and not isinstance(body.notes[0], RunAdmitted):
            put(START_NS, body)
    kept: list[tuple[int, int, int]] = []
    for number in range(50):
        for t_ns, body in generation(number, START_NS + number * (STEPS + 1) * STEP_NS):
            put(t_ns, body)
        if number in (24, 49):
            gc.collect()
            kept.append((len(state_of(interpreter.site)), len(live_state_of(live)), len(gc.get_objects())))
    (state, shown, objects), (later_state, later_shown, later_objects) = kept
    assert later_state < 1.1 * state
    assert later_shown < 1.1 * shown
    assert later_objects - objects < 50 * GPUS, "an object of each session stays"
