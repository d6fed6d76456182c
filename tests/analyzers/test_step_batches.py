"""Steps that come together are taken in and measured together. That gives the rows of one after the other."""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from analyzers.fleet.session import Session
from analyzers.interpreter import events, sessions
from analyzers.interpreter.interpreter import Interpreter, Logged
from analyzers.interpreter.state import SiteState
from analyzers.measurement import windows
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.selectors import parse
from analyzers.results.rows import GapRow, Row, StepColumns, WindowRow, each_row
from tests.analyzers.many_sessions import BATCH_NS, MS, START_NS, S, begin, gpu, readings
from zeus_stream.protocol.events import EpochBegan, EpochEnded, Event, StepBoundary, WindowBegan, WindowEnded
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import Notes, RunAdmitted

SESSIONS, SECONDS, STEP_NS = 3, 2, 5 * MS
SEARCHED = RunSettings(
    selector=parse("energy"), warmup_steps=5, profile_steps=20, settle_ns=0, timeout_ns=S // 2
)


def events_of(rng: random.Random) -> Iterator[tuple[int, Event | Unknown]]:
    """Yield the events of one session and their times: nearly all are plain steps."""
    for index in range(SECONDS * S // STEP_NS):
        t_ns = START_NS + index * STEP_NS + rng.randrange(MS)
        ended_ns, began_ns = None if index == 0 else t_ns - rng.randrange(2 * MS), t_ns
        uncertainty_ns = rng.choice([None, 0, 20_000, 2 * S])
        plain = StepBoundary(
            index, ended_ns, began_ns, rng.choice(["dispatch", "device", "ready"]), uncertainty_ns
        )
        match rng.randrange(150):
            case 0:
                continue  # it was lost
            case 1:
                yield t_ns, replace(plain, began_ns=None)
                plain = replace(plain, ended_ns=None)
            case 2:
                yield t_ns, replace(plain, began_ns=None, ended_ns=None)
                continue
            case 3:
                yield t_ns, EpochBegan(t_ns, index)
            case 4:
                yield t_ns, EpochEnded(t_ns, index - 1)
            case 5:
                yield t_ns, WindowBegan(t_ns, index, "w")
                yield t_ns, WindowEnded(t_ns + MS, index)
            case 6:
                yield t_ns, Unknown("Newer")
            case 7:
                yield t_ns, plain  # as no publisher does it, twice
            case _:
                pass
        yield t_ns, plain


def bodies(seed: int, sessions: int = SESSIONS) -> Iterator[tuple[int, Body]]:
    """Yield what a collector logs: sessions on a GPU each but the last, whose GPU is not its own."""
    rng = random.Random(seed)
    for body in begin(sessions):
        if isinstance(body, Notes) and isinstance(note := body.notes[0], RunAdmitted):
            shared = note.session == f"s{sessions - 1}"
            admitted = replace(note, gpus=(gpu(0),) if shared else note.gpus, may_command=not shared)
            yield START_NS, Notes((admitted,))
        else:
            yield START_NS, body
    sent, flushed_ns = [list(events_of(rng)) for _ in range(sessions)], START_NS
    for now_ns in range(START_NS + BATCH_NS, START_NS + (SECONDS + 3) * S, BATCH_NS):
        for session, own in enumerate(sent):
            due = tuple(event for t_ns, event in own if now_ns - BATCH_NS < t_ns <= now_ns)
            if due:
                yield now_ns, Events(f"s{session}", 1, 0, session + 1, due)
        if now_ns - flushed_ns >= 50 * MS:
            flushed_ns += 50 * MS
            yield now_ns, readings(sessions, flushed_ns)


def derived(
    seed: int, settings: RunSettings, *, hurried: bool, sessions: int = SESSIONS
) -> tuple[list[Row], int]:
    """Return the rows of an interpreter, and how many of them were in columns."""
    interpreter, rows, offset, in_columns = Interpreter(settings), list[Row](), count(), 0
    for t_ns, body in bodies(seed, sessions):
        frame = Frame(log_id="log", offset=next(offset), host="host", t_ns=t_ns, topic="t", body=b"")
        found = interpreter.handle(Logged(frame, body, hurried), t_ns).rows
        in_columns += sum(len(each) for each in found if isinstance(each, StepColumns))
        rows += each_row(found)
    return rows, in_columns


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("seed", "settings", "hurried"),
    [
        pytest.param(0, RunSettings(selector=None), True, id="without the fit"),
        pytest.param(1, SEARCHED, True, id="while a limit is searched for"),
        pytest.param(2, RunSettings(selector=None), False, id="with the fit"),
    ],
)
def test_steps_that_come_together_give_the_rows_of_one_after_the_other(
    seed: int, settings: RunSettings, *, hurried: bool
) -> None:
    together, in_columns = derived(seed, settings, hurried=hurried)
    take_steps = sessions.take_steps

    def one_by_one(site: SiteState, session: Session, steps: Sequence[StepBoundary], *args: Any) -> None:
        received_ns, given = args
        for step, t_ns in zip(steps, received_ns, strict=True):
            take_steps(site, session, (step,), (t_ns,), given)

    with (
        patch.object(events, "take_steps", one_by_one),
        patch.object(sessions, "take_steps", one_by_one),
        patch.object(windows, "MANY", 2**40),
    ):
        single, none = derived(seed, settings, hurried=hurried)
    assert together == single
    steps = sum(isinstance(row, WindowRow) and row.kind == "step" for row in together)
    assert none == 0
    assert steps >= in_columns > steps // 2
    assert not [row for row in together if isinstance(row, GapRow) and row.what != "frames"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("seed", "settings", "hurried"),
    [
        pytest.param(3, RunSettings(selector=None), True, id="without the fit"),
        pytest.param(4, SEARCHED, True, id="while a limit is searched for"),
        pytest.param(5, RunSettings(selector=None), False, id="with the fit"),
    ],
)
def test_steps_that_wait_until_they_are_measured_give_the_same_rows(
    seed: int, settings: RunSettings, *, hurried: bool
) -> None:
    waited, let_wait = list[bool](), sessions.let_wait

    def watched(site: SiteState, frame: Frame, body: Events) -> bool:
        waited.append(let_wait(site, frame, body))
        return waited[-1]

    with patch.object(sessions, "let_wait", watched):
        late, _ = derived(seed, settings, hurried=hurried, sessions=6)
    with patch.object(sessions, "let_wait", lambda *_: False):
        at_once, _ = derived(seed, settings, hurried=hurried, sessions=6)
    assert late == at_once
    assert sum(waited) > len(waited) // 10
