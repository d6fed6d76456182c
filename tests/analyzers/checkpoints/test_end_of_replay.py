"""Windows measured for a question before a restart come in the replay, or not at all: they are stored."""

from functools import cache

import pytest

from analyzers.interpreter.interpreter import Interpreter, Logged, ProgressAsked
from analyzers.interpreter.sessions import FEW
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.result import Result
from analyzers.results.rows import WindowRow, each_row
from tests.analyzers.many_sessions import MS, START_NS, S, frames
from zeus_stream.protocol.events import Ask, WindowBegan, WindowEnded
from zeus_stream.protocol.frames import Body, Events, Frame

HOST, WINDOW, SESSIONS = "host", 7, 5 * FEW
ENDED_NS = START_NS + 3 * S // 2
Key = tuple[str, str, int, str | None]


@cache
def stream() -> tuple[tuple[Frame, Body], ...]:
    """Return the frames of so many sessions that they are looked at in turn. One of them ends a window."""
    logged, ended = list[tuple[int, Body]](), False
    for t_ns, body in frames(SESSIONS, 50, 2.5):
        if t_ns > ENDED_NS and not ended:
            ended = True
            window = WindowBegan(t_ns - 20 * MS, WINDOW, "w"), WindowEnded(t_ns - 10 * MS, WINDOW)
            logged.append((t_ns, Events("s0", 10**6, 0, 1, window)))
        logged.append((t_ns, body))
    return tuple(
        (Frame(log_id="log", offset=at, host=HOST, t_ns=t_ns, topic="", body=b""), body)
        for at, (t_ns, body) in enumerate(logged)
    )


def keys(result: Result) -> set[Key]:
    rows = each_row(result.rows)
    return {(row.session, row.kind, row.index, row.gpu) for row in rows if isinstance(row, WindowRow)}


@pytest.mark.parametrize("after_ns", [after_ms * MS for after_ms in range(200, 700, 200)])
def test_rows_that_are_stored_do_not_come_again_after_the_replay(after_ns: int) -> None:
    interpreters = [Interpreter(RunSettings(selector=None)) for _ in range(2)]
    stored, again, later = set[Key](), set[Key](), set[Key]()
    killed = restarted = asked = False
    for frame, body in stream():
        killed = frame.t_ns > ENDED_NS + after_ns
        if killed and not restarted:
            restarted = True
            again |= keys(interpreters[1].measure_all())
        found = keys(interpreters[1].handle(Logged(frame, body), frame.t_ns))
        if killed:
            later |= found
            continue
        again |= found
        stored |= keys(interpreters[0].handle(Logged(frame, body), frame.t_ns))
        if frame.t_ns > ENDED_NS and not asked:
            asked = True
            interpreters[0].handle(ProgressAsked(HOST, Ask("question", "s0", WINDOW)), frame.t_ns)
    assert ("s0", "window", WINDOW) in {key[:3] for key in stored}, "it was measured as it was asked for"
    assert stored <= again
    assert not later & again
