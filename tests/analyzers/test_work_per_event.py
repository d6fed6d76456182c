"""The work for an event does not depend on how many sessions there are. Counted in calls, not in seconds."""

import cProfile
import pstats

import pytest

from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import parse
from analyzers.results.rows import StepColumns
from tests.analyzers.many_sessions import frames
from zeus_stream.protocol.frames import Events, Frame

RATE, SECONDS = 200, 1.5
MEASURES = RunSettings(selector=None)


def calls_per_step(sessions: int, settings: RunSettings = MEASURES) -> float:
    """Return the number of function calls that a step event takes, with its share of measuring windows."""
    interpreter, steps, profile = Interpreter(settings), 0, cProfile.Profile()
    for offset, (t_ns, body) in enumerate(frames(sessions, RATE, SECONDS)):
        frame = Frame(log_id="log", offset=offset, host="host", t_ns=t_ns, topic="t", body=b"")
        logged = Logged(frame, body, hurried=True)
        if not isinstance(body, Events) or body.sequence == 0:
            interpreter.handle(logged, t_ns)
            continue
        profile.enable()
        interpreter.handle(logged, t_ns)
        profile.disable()
        steps += len(body.events)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]  # not in the stubs
    return calls / steps


def test_sessions_that_began_together_are_measured_one_after_the_other() -> None:
    interpreter, at_once = Interpreter(MEASURES), list[int]()
    for offset, (t_ns, body) in enumerate(frames(32, 50, 3)):
        frame = Frame(log_id="log", offset=offset, host="host", t_ns=t_ns, topic="t", body=b"")
        rows = interpreter.handle(Logged(frame, body, hurried=True), t_ns).rows
        at_once.append(len({row.session for row in rows if isinstance(row, StepColumns)}))
    assert sum(at_once) >= 2 * 32
    assert max(at_once) <= 3


@pytest.mark.sweep
def test_the_work_for_an_event_does_not_grow_with_the_number_of_sessions() -> None:
    few, many = calls_per_step(64), calls_per_step(256)  # of 16, each is measured less often
    assert many <= 1.1 * few


def test_a_run_that_may_not_command_takes_no_more_work_than_one_that_searches_for_nothing() -> None:
    barred = calls_per_step(16, RunSettings(selector=parse("cost:0.5")))
    assert barred == pytest.approx(calls_per_step(16), rel=0.6)
