"""The route of step boundaries: to windows, marks and runs. Pure.

Nearly all events are boundaries of steps in a row, and most runs search for nothing. On a host with many
sessions their frames wait until somebody asks for more than that they came:

    boundaries of a run that rests -> wait, with their frame times
                                   -> are taken in together, as one by one: before the session's windows are
                                      measured, before other events of its run or GPUs, notes and questions
    other boundaries               -> are taken in now
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from analyzers.fleet.fleet import Clocks
from analyzers.fleet.session import PutOff, Session
from analyzers.measurement.marks.plain_steps import PlainSteps
from analyzers.measurement.windows import MAX_OPEN, Kind
from analyzers.power_limit.run_events import StepPassed, StepsPassed
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GapRow
from analyzers.routes.attempts import Attempts
from analyzers.routes.open_sessions import OpenSessions
from zeus_stream.protocol.events import Event, StepBoundary
from zeus_stream.protocol.frames import Events, Frame

FEW = 4
"""Sessions of a host that are looked at after each of its frames."""
MAX_PUT_OFF = 100
"""Frames of a session that wait, at most."""


class StepRoute:
    """The route of steps."""

    def __init__(self, sessions: OpenSessions, attempts: Attempts) -> None:
        self._sessions = sessions
        self._attempts = attempts
        self._waiting: dict[str, Session] = {}
        """Sessions with frames that wait, by name."""

    # ---- what waits

    def put_off(self, frame: Frame, body: Events, now: Clocks) -> bool:
        """Let a frame of steps wait if nothing depends on it. Return False if it has to be taken in now."""
        session = self._sessions.of.get(body.session)
        if session is None or session.host != frame.host or session.ended is not None:
            return False
        if len(self._sessions.on[frame.host]) <= FEW or len(session.put_off) >= MAX_PUT_OFF:
            return False
        if set(map(type, body.events)) != {StepBoundary}:
            return False
        if not self._sessions.runs[session.started.run].rests(session):
            return False
        session.received_ns = now[frame.host]
        steps = cast("Sequence[StepBoundary]", body.events)
        session.put_off.append(PutOff(frame.log_id, frame.offset, session.received_ns, steps))
        self._waiting[body.session] = session
        return True

    def catch_up(self, session: Session, now: Clocks) -> Result:
        """Take in what waits of a session."""
        if not session.put_off:
            return NOTHING
        waiting, session.put_off, given = session.put_off, [], list[Result]()
        self._waiting.pop(session.session, None)
        log_id, offset, t_ns, _ = waiting[0]
        first = Frame(log_id=log_id, offset=offset, host=session.host, t_ns=t_ns, topic="", body=b"")
        work = partial(self._take_in, session, waiting, now, given)
        failed = self._attempts.make(first, "events", now, work, session=session)
        return in_order([*given, failed])

    def catch_up_with(self, name: str, now: Clocks) -> Result:
        """Take in what waits of a session, of its run and of those that use its GPUs."""
        session = self._sessions.of.get(name)
        if session is None or not self._waiting:
            return NOTHING
        run = self._sessions.runs.get(session.started.run)
        ranks = () if run is None else tuple(run.sessions.values())
        users = [user for gpu in session.gpus for user in self._sessions.users(gpu)]
        return in_order([self.catch_up(each, now) for each in (session, *ranks, *users)])

    def catch_up_all(self, now: Clocks) -> Result:
        """Take in all that waits."""
        return in_order([self.catch_up(session, now) for session in list(self._waiting.values())])

    def _take_in(
        self, session: Session, waiting: Sequence[PutOff], now: Clocks, given: list[Result]
    ) -> Result:
        steps = [step for each in waiting for step in each.steps]
        received_ns = [each.t_ns for each in waiting for _ in each.steps]
        if not self.plain(session, steps, received_ns, now, given):
            for each in waiting:
                then: Mapping[str, int] = {**now, session.host: each.t_ns}
                given += [self.single(session, step, then) for step in each.steps]
        return NOTHING

    # ---- what is taken in

    def plain(
        self,
        session: Session,
        events: Sequence[Event],
        received_ns: Sequence[int],
        now: Clocks,
        given: list[Result],
    ) -> bool:
        """Take in steps in a row at once, as `single` does one by one. Return False if that cannot be done.

        Args:
            session: of the events.
            events: of any kind.
            received_ns: frame time of each.
            now: frame times, by host.
            given: takes what they give.
        """
        steps = None if session.ended is not None else PlainSteps.of(events)
        if steps is None or not session.windows.pass_steps(steps, session.step, received_ns):
            return False
        session.placed = steps.boundaries[-1].placed
        self._sessions.mark_steps(session, steps)
        session.step = steps.index[-1]
        result = self._sessions.runs[session.started.run].handle(StepsPassed(session, steps), now)
        if result is not NOTHING:
            given.append(result)
        return True

    def single(self, session: Session, event: StepBoundary, now: Clocks) -> Result:
        """Take in one boundary."""
        windows, index = session.windows, event.index
        ended_ns, began_ns, uncertainty_ns = event.ended_ns, event.began_ns, event.uncertainty_ns
        if (ended_ns, began_ns) != (None, None):  # as of a step that is cancelled
            session.placed = event.placed
        if ended_ns is not None:
            windows.end("step", index - 1, ended_ns, now[session.host])
            self._sessions.mark(session, ended_ns, "rest" if began_ns is None else "gap", uncertainty_ns)
        if began_ns is not None:
            self._sessions.mark(session, began_ns, "step", uncertainty_ns)
        if session.step is not None:
            windows.cancel("step", session.step)  # its end was lost, or it has just ended
        session.step = None if began_ns is None else index
        result = NOTHING if began_ns is None else begin_window(session, "step", index, "step", began_ns)
        return result | self._sessions.runs[session.started.run].handle(StepPassed(session, event), now)


def begin_window(session: Session, kind: Kind, index: int, name: str, t_ns: int) -> Result:
    """Begin to measure a window, unless too many are open."""
    if session.windows.begin(kind, index, name, t_ns):
        return NOTHING
    reason = f"session {session.session}: {MAX_OPEN} windows are open, so {name} is not measured. End some."
    return rows_only([GapRow(session.host, "windows", t_ns, 1, reason)])
