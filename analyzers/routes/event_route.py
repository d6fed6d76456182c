"""The route of events of training processes: to sessions, windows, runs and jobs. Pure."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import cast

from analyzers.batch_size import job_events
from analyzers.batch_size.tracker import Jobs
from analyzers.fleet.fleet import Clocks
from analyzers.fleet.questions import Questions, missing
from analyzers.fleet.session import Session
from analyzers.pipeline.pipeline_events import StageBegan, StageRan
from analyzers.pipeline.pipelines import Pipelines
from analyzers.power_limit.run_events import EpochPassed, PipelineJoined, SearchAsked
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GapRow, MetricRow
from analyzers.routes.attempts import Attempts
from analyzers.routes.followed_gpus import FollowedGpus
from analyzers.routes.open_sessions import OpenSessions
from analyzers.routes.step_route import StepRoute, begin_window
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    Event,
    EventsDropped,
    Metric,
    RunEnded,
    RunPlanned,
    RunStarted,
    SearchWanted,
    StepBoundary,
    TryBegan,
    TryEnded,
    TryWanted,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
)
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events, Frame
from zeus_stream.protocol.phases import PhasesRan
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan


class EventRoute:
    """The route of events."""

    def __init__(
        self,
        sessions: OpenSessions,
        gpus: FollowedGpus,
        jobs: Jobs,
        questions: Questions,
        attempts: Attempts,
        pipelines: Pipelines,
        steps: StepRoute,
    ) -> None:
        """``questions``: those that wait for the energy of a window. ``steps``: takes in boundaries."""
        self._sessions = sessions
        self._gpus = gpus
        self._jobs = jobs
        self._questions = questions
        self._attempts = attempts
        self._pipelines = pipelines
        self._steps = steps

    def handle(self, frame: Frame, body: Events, now: Clocks) -> Result:
        """Take in the events of one session."""
        host, result = frame.host, NOTHING
        if (owner := self._sessions.host_of(body.session, host)) != host:
            return rows_only(self._gpus.objection(host, f"session {body.session}", owner, "events", now))
        events, kinds = cast("Sequence[Event]", body.events), set(map(type, body.events))
        if Unknown in kinds:
            events = [event for event in body.events if not isinstance(event, Unknown)]
        if RunStarted in kinds:
            for started in [event for event in events if isinstance(event, RunStarted)]:
                begin = partial(self._sessions.begin, host, body, started, now)
                result |= self._attempts.make(frame, "events", now, begin)
        if session := self._sessions.of.get(body.session):
            session.received_ns = now[host]
            given: list[Result] = []
            work = partial(self._events, session, events, now, given)
            failed = self._attempts.make(frame, "events", now, work, session=session)
            result |= in_order(given) | failed
        elif events and self._sessions.unknown(body.session):
            reason = f"session {body.session}: its beginning is not in the log, so it is not interpreted"
            result |= rows_only([GapRow(host, "events", now[host], len(body.events), reason)])
        return result

    def _events(self, session: Session, events: Sequence[Event], now: Clocks, given: list[Result]) -> Result:
        """Take in events of a session, one after the other; add what they gave to ``given``.

        If one of them fails, what came before it stays.
        """
        received_ns = [now[session.host]] * len(events)
        if self._steps.plain(session, events, received_ns, now, given):
            return NOTHING
        for plain, group in groupby(events, _is_plain_step):
            part = tuple(group)
            if plain and self._steps.plain(session, part, received_ns[: len(part)], now, given):
                continue
            for event in part:
                if (result := self._event(session, event, now)) is not NOTHING:
                    given.append(result)  # noqa: PERF401  (what came before a failure stays)
        return NOTHING

    def _event(self, session: Session, event: Event, now: Clocks) -> Result:
        if session.ended is not None:
            if isinstance(event, TryEnded):  # late, but it says what became of the try
                self._jobs.handle(job_events.RankDone(session, event), now)
            return NOTHING
        match event:
            case StepBoundary():
                return self._steps.single(session, event, now)
            case EpochBegan() | EpochEnded():
                return self._epoch(session, event, now)
            case WindowBegan() | WindowEnded() | WindowCancelled():
                return self._window(session, event, now[session.host])
            case TryWanted() | TryBegan() | TryEnded() | Metric():
                return self._try(session, event, now)
            case SearchWanted():
                return self._sessions.runs[session.started.run].handle(SearchAsked(event), now)
            case EventsDropped(t_ns, count, reason):
                why = f"session {session.session}: {reason[:200]}"  # it is in the status of all users
                dropped = GapRow(session.host, "events", t_ns, count, why)
                return rows_only([dropped])
            case PipelineBegan():
                left = self._sessions.runs[session.started.run].handle(PipelineJoined(), now)
                return left | self._pipelines.handle(StageBegan(session, event), now)
            case IterationRan():
                return self._pipelines.handle(StageRan(session, event), now)
            case PhasesRan():
                session.phases.take(event)
                return NOTHING
            case RunEnded(t_ns, failure):
                return self._sessions.end(session, t_ns, failure or "ended", now)
            case RunStarted() | RunPlanned():
                return NOTHING  # the first began the session; the second is for its forecast

    def _epoch(self, session: Session, event: EpochBegan | EpochEnded, now: Clocks) -> Result:
        began = isinstance(event, EpochBegan)
        session.phases.epoch(event.t_ns, event.index if began else None)
        if not began:
            session.windows.end("epoch", event.index, event.t_ns, now[session.host])
        self._jobs.handle(job_events.EpochPassed(session, event.index, began), now)
        if began:
            return begin_window(session, "epoch", event.index, "epoch", event.t_ns)
        return self._sessions.runs[session.started.run].handle(EpochPassed(session), now)

    def _window(
        self, session: Session, event: WindowBegan | WindowEnded | WindowCancelled, now_ns: int
    ) -> Result:
        t_ns, window, result = event.t_ns, event.window, NOTHING
        match event:
            case WindowBegan(name=name):
                result = begin_window(session, "window", window, name, t_ns)
                if not result.rows:
                    session.named[window] = name
                    self._sessions.mark(session, t_ns)
                return result
            case WindowEnded():
                session.windows.end("window", window, t_ns, now_ns)
            case WindowCancelled():
                session.windows.cancel("window", window)
                cancelled = missing("the window was cancelled")
                result = Result((), tuple(self._questions.settle(session.session, window, cancelled)))
        if session.named.pop(window, None) is not None:
            self._sessions.mark(session, t_ns)
        return result

    def _try(self, session: Session, event: TryWanted | TryBegan | TryEnded | Metric, now: Clocks) -> Result:
        match event:
            case TryWanted():
                run = self._sessions.runs[session.started.run]
                return self._jobs.handle(job_events.SizeWanted(session, run, event), now)
            case TryBegan(batch_size=batch_size):
                session.batch_size = batch_size
                return self._jobs.handle(job_events.RankBegan(session, event), now)
            case TryEnded():
                return self._jobs.handle(job_events.RankDone(session, event), now)
            case Metric():
                result = self._jobs.handle(job_events.MetricSent(session, event.name, event.value), now)
                metric = MetricRow(
                    session=session.session,
                    run=session.started.run,
                    name=event.name,
                    t_ns=event.t_ns,
                    step=session.step if event.step is None else event.step,
                    value=event.value,
                    epoch=event.epoch,
                )
                return result | rows_only([metric])


def _is_plain_step(event: Event) -> bool:
    """Return whether an event ends a step and begins one."""
    return isinstance(event, StepBoundary) and event.ended_ns is not None and event.began_ns is not None
