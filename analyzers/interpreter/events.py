"""Events of training processes: to sessions, windows, runs and jobs. Pure."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import cast

from analyzers.batch_size.tracker import MetricSent, RankBegan, RankDone, SizeWanted, TryEpochPassed
from analyzers.fleet.questions import missing
from analyzers.fleet.session import Session
from analyzers.interpreter.sessions import (
    attempt,
    begin,
    catch_up_all,
    catch_up_with,
    end,
    host_of,
    is_new,
    mark,
    take_steps,
)
from analyzers.interpreter.state import SiteState
from analyzers.measurement.windows import MAX_OPEN, Kind
from analyzers.pipeline.pipeline_run import StageBegan, StageRan
from analyzers.power_limit.run import EpochPassed, LengthPlanned, PipelineJoined, SearchAsked
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GapRow, MetricRow
from zeus_stream.protocol import events as wire
from zeus_stream.protocol.events import PhasesRan
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Events, Frame
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan


def handle(site: SiteState, frame: Frame, body: Events) -> Result:
    host, result = frame.host, catch_up_with(site, body.session)
    if (owner := host_of(site, body.session, host)) != host:
        gaps = site.fleet.objection(host, f"session {body.session}", owner, "events", site.now_ns)
        return result | rows_only(gaps)
    events, kinds = cast("Sequence[wire.Event]", body.events), set(map(type, body.events))
    if Unknown in kinds:
        events = [event for event in body.events if not isinstance(event, Unknown)]
    if wire.RunStarted in kinds:
        result |= catch_up_all(site)  # it may end a session of the same process
        for started in [event for event in events if isinstance(event, wire.RunStarted)]:
            result |= attempt(site, frame, "events", partial(begin, site, host, body, started))
    if session := site.sessions.get(body.session):
        session.received_ns = site.now_ns[host]
        given: list[Result] = []
        failed = attempt(site, frame, "events", partial(_take, site, session, events, given), session=session)
        result |= in_order(given) | failed
    elif events and is_new(site, body.session):
        reason = f"session {body.session}: its beginning is not in the log, so it is not interpreted"
        result |= rows_only([GapRow(host, "events", site.now_ns[host], len(body.events), reason)])
    return result


def _take(site: SiteState, session: Session, events: Iterable[wire.Event], given: list[Result]) -> Result:
    """Take in events in order; add what they gave to ``given``, where it stays if a later one fails."""
    now_ns = site.now_ns[session.host]
    for kind, group in groupby(events, type):
        if kind is wire.StepBoundary:
            steps = cast("list[wire.StepBoundary]", list(group))
            take_steps(site, session, steps, [now_ns] * len(steps), given)
            continue
        for event in group:
            if (result := _event(site, session, event)) is not NOTHING:
                given.append(result)  # noqa: PERF401  (what came before a failure stays)
    return NOTHING


def _event(site: SiteState, session: Session, event: wire.Event) -> Result:
    now = site.now_ns
    if session.ended is not None:
        if isinstance(event, wire.TryEnded):  # late, but it says what became of the try
            site.jobs.handle(RankDone(session, event), now)
        return NOTHING
    match event:
        case wire.EpochBegan() | wire.EpochEnded():
            return _epoch(site, session, event)
        case wire.WindowBegan() | wire.WindowEnded() | wire.WindowCancelled():
            return _window(site, session, event)
        case wire.TryWanted() | wire.TryBegan() | wire.TryEnded() | wire.Metric():
            return _try(site, session, event)
        case wire.SearchWanted():
            return site.runs[session.started.run].handle(SearchAsked(event), now)
        case wire.RunPlanned():  # its forecast takes it in after this frame
            return site.runs[session.started.run].handle(LengthPlanned(event.all_steps), now)
        case wire.EventsDropped(t_ns, count, reason):
            why = f"session {session.session}: {reason[:200]}"  # it is in the status of all users
            return rows_only([GapRow(session.host, "events", t_ns, count, why)])
        case PipelineBegan():
            left = site.runs[session.started.run].handle(PipelineJoined(), now)
            return left | site.pipelines.handle(StageBegan(session, event), now)
        case IterationRan():
            return site.pipelines.handle(StageRan(session, event), now)
        case PhasesRan():
            site.phases[session.session].take(event)
            return NOTHING
        case wire.RunEnded(t_ns, failure):
            return end(site, session, t_ns, failure or "ended")
        case _:
            return NOTHING  # `RunStarted` began the session


def _epoch(site: SiteState, session: Session, event: wire.EpochBegan | wire.EpochEnded) -> Result:
    now, began = site.now_ns, isinstance(event, wire.EpochBegan)
    site.phases[session.session].epoch(event.t_ns, event.index if began else None)
    if not began:
        site.windows[session.session].end("epoch", event.index, event.t_ns, now[session.host])
    site.jobs.handle(TryEpochPassed(session, event.index, began), now)
    if began:
        return _begin_window(site, session, "epoch", event.index, "epoch", event.t_ns)
    return site.runs[session.started.run].handle(EpochPassed(session), now)


def _window(
    site: SiteState, session: Session, event: wire.WindowBegan | wire.WindowEnded | wire.WindowCancelled
) -> Result:
    t_ns, window, result = event.t_ns, event.window, NOTHING
    match event:
        case wire.WindowBegan(name=name):
            result = _begin_window(site, session, "window", window, name, t_ns)
            if not result.rows:
                session.named[window] = name
                mark(site, session, t_ns)
            return result
        case wire.WindowEnded():
            site.windows[session.session].end("window", window, t_ns, site.now_ns[session.host])
        case wire.WindowCancelled():
            site.windows[session.session].cancel("window", window)
            cancelled = missing("the window was cancelled")
            result = Result((), tuple(site.questions.settle(session.session, window, cancelled)))
    if session.named.pop(window, None) is not None:
        mark(site, session, t_ns)
    return result


def _begin_window(site: SiteState, session: Session, kind: Kind, index: int, name: str, t_ns: int) -> Result:
    if site.windows[session.session].begin(kind, index, name, t_ns):
        return NOTHING
    reason = f"session {session.session}: {MAX_OPEN} windows are open, so {name} is not measured. End some."
    return rows_only([GapRow(session.host, "windows", t_ns, 1, reason)])


def _try(
    site: SiteState, session: Session, event: wire.TryWanted | wire.TryBegan | wire.TryEnded | wire.Metric
) -> Result:
    jobs, now = site.jobs, site.now_ns
    match event:
        case wire.TryWanted():
            return jobs.handle(SizeWanted(session, site.runs[session.started.run], event), now)
        case wire.TryBegan(batch_size=batch_size):
            session.batch_size = batch_size
            return jobs.handle(RankBegan(session, event), now)
        case wire.TryEnded():
            return jobs.handle(RankDone(session, event), now)
        case wire.Metric():
            metric = MetricRow(
                session=session.session,
                run=session.started.run,
                name=event.name,
                t_ns=event.t_ns,
                step=session.step if event.step is None else event.step,
                value=event.value,
                epoch=event.epoch,
            )
            result = jobs.handle(MetricSent(session, event.name, event.value), now)
            return result | rows_only([metric])
