"""The route of what waits: windows, trials and tries that can be measured by now, and questions. Pure."""

from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from analyzers.batch_size import job_events
from analyzers.batch_size.tracker import Jobs
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.fleet.questions import Questions, answer_of
from analyzers.fleet.session import Session
from analyzers.measurement.energy import Meter
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_events import ReadingsCame
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import WindowRow
from analyzers.results.windows.step_columns import StepColumns
from analyzers.routes.attempts import Attempts
from analyzers.routes.open_sessions import OpenSessions
from analyzers.routes.step_route import FEW, StepRoute
from zeus_stream.protocol.fields import are_of_one_run
from zeus_stream.protocol.frames import Body, Events, Frame

LOOK_NS, LOOK_MORE_NS, LOOK_SELDOM_NS = 20_000_000, 200_000, 1_000_000_000
"""Between two looks at the windows of a session: alone on its host, more for each other, and at most."""
PLACED_NS = 1_100_000_000
"""A boundary that is placed where the GPU got there is handed over so much later, at the most."""


class WindowRoute:
    """The route of what waits for readings or for a timeout."""

    def __init__(
        self,
        fleet: Fleet,
        sessions: OpenSessions,
        jobs: Jobs,
        questions: Questions,
        attempts: Attempts,
        steps: StepRoute,
        *,
        timeout_ns: int,
    ) -> None:
        """``timeout_ns``: that questions wait for, twice. ``steps``: those that wait are to be measured."""
        self._fleet = fleet
        self._sessions = sessions
        self._jobs = jobs
        self._questions = questions
        self._attempts = attempts
        self._steps = steps
        self._timeout_ns = timeout_ns
        self._looked_ns: dict[str, int] = {}
        """By host, frame time at which windows were looked at."""

    def handle(self, frame: Frame, body: Body, now: Clocks, *, hurried: bool) -> Result:
        """Measure what can be measured by now, after a frame of its host.

        Args:
            frame: with its body.
            body: events, readings or notes.
            now: frame times, by host.
            hurried: leave out the fit of the energy of single steps.
        """
        host, pause_ns = frame.host, frame.t_ns - self._looked_ns.get(frame.host, 0)
        due, result = self._due(host, frame.t_ns), NOTHING
        for session in self._to_measure(frame, body, pause_ns if due else None):
            result |= self._session(frame, session, now, hurried=hurried)
        for run in self._searching(frame, body, due=due):
            work = partial(run.handle, ReadingsCame(), now)
            result |= self._attempts.make(frame, "trials", now, work, session=run.lead)
        look = partial(self._jobs.handle, job_events.FrameMeasured(host), now)
        result |= self._attempts.make(frame, "tries", now, look)
        if due:
            given = tuple(self._questions.time_out(host, frame.t_ns, 2 * self._timeout_ns))
            result |= Result((), given) if given else NOTHING
        return result

    def _searching(self, frame: Frame, body: Body, *, due: bool) -> list[Run]:
        """Return the runs whose trials are looked at after a frame: those that wait for one's cost."""
        on_host = self._sessions.on[frame.host]
        if len(on_host) > FEW and not due and isinstance(body, Events):
            return []
        if len(on_host) <= FEW and isinstance(body, Events):
            sessions: Iterable[Session] = [on_host[body.session]] if body.session in on_host else ()
        else:
            sessions = on_host.values()
        names = dict.fromkeys(session.started.run for session in sessions)
        runs = [run for name in names if (run := self._sessions.runs.get(name)) is not None]
        return [run for run in runs if run.search.waits]

    def is_due(self, host: str, now_ns: int) -> bool:
        """Return whether it is time to look at all sessions of a host."""
        pause_ns = max(LOOK_NS, len(self._sessions.on[host]) * LOOK_MORE_NS)
        return not 0 <= now_ns - self._looked_ns.get(host, 0) < pause_ns

    def _due(self, host: str, now_ns: int) -> bool:
        """Return whether all sessions of a host are looked at now."""
        if not self.is_due(host, now_ns):
            return False
        self._looked_ns[host] = now_ns
        return True

    def _to_measure(self, frame: Frame, body: Body, pause_ns: int | None) -> list[Session]:
        """Return the sessions whose windows are looked at after a frame of their host.

        The more sessions a host has, the less often each is looked at, and the longest ago first: the work
        for a frame stays the same. ``pause_ns``: since the last look at all of them; None: it is not due.
        """
        on_host = self._sessions.on[frame.host]
        if len(on_host) <= FEW:
            if isinstance(body, Events):
                return [on_host[body.session]] if body.session in on_host else []
            return list(on_host.values())
        if pause_ns is None:
            return []
        every_ns = min(len(on_host) * LOOK_NS, LOOK_SELDOM_NS)
        asked = self._questions.sessions(frame.host)
        old = [each for each in on_host.values() if not 0 <= frame.t_ns - each.measured_ns < every_ns]
        if 0 <= pause_ns < every_ns:  # those that began together are measured one after the other
            old = sorted(old, key=attrgetter("measured_ns"))[: 1 + len(on_host) * pause_ns // every_ns]
        chosen = asked.union([each.session for each in old])
        return [each for each in on_host.values() if each.session in chosen]

    def _session(self, frame: Frame, session: Session, now: Clocks, *, hurried: bool) -> Result:
        caught_up = self._steps.catch_up_with(session.session, now)
        if session.session not in self._sessions.of:
            return caught_up  # it was set aside
        session.measured_ns = frame.t_ns
        work = partial(self.measure, session, frame.t_ns, now, hurried=hurried)
        result = caught_up | self._attempts.make(frame, "windows", now, work, session=session)
        over = session.ended is not None and session.windows.empty
        if session.phases.marked:
            look = partial(self._phases, session, frame.t_ns, ended=over)
            result |= self._attempts.make(frame, "phases", now, look)
        if over and session.session in self._sessions.of:
            self._sessions.drop(session)
        return result

    def measure_all(self, now: Clocks) -> Result:
        """Measure what can be measured of all sessions by now, whenever they were looked at."""
        result = NOTHING
        for session in list(self._sessions.of.values()):
            session.windows.hasten()
            t_ns = now[session.host]
            frame = Frame(log_id="", offset=0, host=session.host, t_ns=t_ns, topic="", body=b"")
            result |= self._session(frame, session, now, hurried=False)
        return result

    def measure(self, session: Session, now_ns: int, now: Clocks, *, hurried: bool = False) -> Result:
        """Measure the windows of a session that have ended, as far as that can be done.

        Args:
            session: of the windows.
            now_ns: frame time of its host; 2**62: nothing is waited for.
            now: frame times, by host.
            hurried: leave out the fit of the energy of single steps.
        """
        if session.placed != "dispatch":
            now_ns -= PLACED_NS
        if not session.windows.ready(now_ns):
            return NOTHING
        measured = session.windows.measured(
            self._meters(session, hurried=hurried), now_ns, partial(self._shared, session)
        )
        remarks = {gpu: self._remarks(gpu) for gpu in {row.gpu for row in measured}}
        measured = [_remarked(row, remarks[row.gpu]) if remarks[row.gpu] else row for row in measured]
        rows = [row for row in measured if not isinstance(row, StepColumns)]
        instructions = self._jobs.handle(job_events.WindowsMeasured(rows), now).instructions
        for window in dict.fromkeys(row.index for row in rows if row.kind == "window"):
            of_window = [row for row in rows if row.kind == "window" and row.index == window]
            answer = answer_of(of_window)
            instructions += tuple(self._questions.settle(session.session, window, answer))
        return Result(tuple(measured), instructions)

    def _phases(self, session: Session, now_ns: int, *, ended: bool) -> Result:
        """Return rows of the phases of a session, as far as readings have come."""
        meters = {gpu: self._fleet.gpus[gpu].meter for gpu in session.gpus}
        return rows_only(session.phases.measure(meters, now_ns, ended=ended))

    def _meters(self, session: Session, *, hurried: bool) -> Mapping[str, Meter] | None:
        """Return the meters of a session's devices; None while its GPUs are not known."""
        if session.admitted is None:
            return None
        return {
            gpu: replace(self._fleet.gpus[gpu].meter, hurried=hurried)
            for gpu in self._sessions.devices(session)
        }

    def _shared(self, session: Session, gpu: str, begin_ns: int, end_ns: int) -> bool:
        """Return whether another run used a device of a session between two instants."""
        return any(
            not are_of_one_run(use.run, session.started.run)
            and use.began_ns < end_ns
            and (use.ended_ns is None or use.ended_ns > begin_ns)
            for use in self._sessions.uses(session.host, gpu)
        )

    def _remarks(self, gpu: str | None) -> list[str]:
        """Return whose energy rows of a GPU have, where that is not the GPU's for this run alone."""
        found = None if gpu is None else self._fleet.gpus[gpu].found
        if found is None:
            return []
        whole = ["whole GPU, MIG"] if found.mig else []
        return [*whole, "whole module, with its CPU"] if found.scope == "module" else whole


def _remarked(row: WindowRow | StepColumns, remarks: list[str]) -> WindowRow | StepColumns:
    """Return rows whose quality has these remarks as well."""
    if isinstance(row, StepColumns):
        return replace(row, quality=tuple(_with_remarks(quality, remarks) for quality in row.quality))
    return replace(row, quality=_with_remarks(row.quality, remarks))


def _with_remarks(quality: str, remarks: list[str]) -> str:
    known = [] if quality == "ok" else [quality]
    return "; ".join([*known, *remarks])
