"""The route of notes of collectors: GPUs, admissions, outcomes of commands, ends of leases. Pure."""

from functools import partial

from msgspec.structs import replace

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Clocks, Fleet
from analyzers.pipeline.pipeline_events import ClockLost, ClockSettled
from analyzers.pipeline.pipelines import Pipelines
from analyzers.power_budget.enforcer import CollectorRestarted, CommandSettled, Enforcer
from analyzers.power_limit import run_events
from analyzers.power_limit.run_events import LimitLost, LimitSet
from analyzers.results.result import NOTHING, OWN, Result, in_order, rows_only
from analyzers.results.rows import CommandRow, GapRow
from analyzers.routes.attempts import Attempts
from analyzers.routes.followed_gpus import FULL, FollowedGpus
from analyzers.routes.open_sessions import OpenSessions
from analyzers.routes.own_use_route import OwnUseRoute
from analyzers.routes.window_route import WindowRoute
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.notes import (
    BudgetsSet,
    CollectorStarted,
    ControlApplied,
    ControlLeaseEnded,
    ControlRefused,
    DeviceFound,
    DeviceGone,
    Lost,
    Note,
    Notes,
    OwnUse,
    RunAdmitted,
    SessionEnded,
)

NO_MORE_NS = 2**62
"""Frame time at which nothing is waited for."""


class NoteRoute:
    """The route of notes."""

    def __init__(
        self,
        fleet: Fleet,
        pending: Pending,
        gpus: FollowedGpus,
        sessions: OpenSessions,
        enforcer: Enforcer,
        windows: WindowRoute,
        attempts: Attempts,
        pipelines: Pipelines,
    ) -> None:
        """``windows``: of sessions that end with their host."""
        self._fleet = fleet
        self._pending = pending
        self._gpus = gpus
        self._sessions = sessions
        self._enforcer = enforcer
        self._windows = windows
        self._attempts = attempts
        self._pipelines = pipelines
        self._own_use = OwnUseRoute()
        self._boots: dict[str, str] = {}
        """By host, the id of its boot."""

    def handle(self, frame: Frame, body: Notes, now: Clocks) -> Result:
        """Take in the notes of a collector, in order."""
        return in_order(
            [
                self._attempts.make(frame, "notes", now, partial(self._note, frame.host, note, now))
                for note in body.notes
                if not isinstance(note, Unknown)
            ]
        )

    def _note(self, host: str, note: Note, now: Clocks) -> Result:
        match note:
            case BudgetsSet():
                return self._enforcer.handle(note, now) if host == OWN else NOTHING
            case CollectorStarted(boot_id=boot_id):
                self._pending.collector_started(host)
                self._enforcer.handle(CollectorRestarted(host), now)
                return self._collector_started(host, boot_id, now)
            case DeviceFound() | DeviceGone():
                return self._device(host, note, now)
            case RunAdmitted(t_ns=t_ns, gpus=gpus) if self._gpus.full(gpus):
                return rows_only([GapRow(host, "runs", t_ns, 1, FULL)])
            case RunAdmitted() | SessionEnded():
                return self._session(host, note, now)
            case ControlApplied() | ControlRefused() | ControlLeaseEnded():
                return self._control(host, note, now)
            case OwnUse():
                return self._own_use.handle(note)
            case Lost(t_ns, what, count, reason):
                return rows_only([GapRow(host, what, t_ns, count, reason)])
            case _:
                return NOTHING  # clock anchors are the archive's

    def _device(self, host: str, note: DeviceFound | DeviceGone, now: Clocks) -> Result:
        if self._gpus.full((note.gpu,)):
            return rows_only([GapRow(host, "devices", note.t_ns, 1, FULL)])
        if (owner := self._gpus.owner(host, note.gpu, now)) != host:
            return rows_only(self._gpus.objection(host, note.gpu, owner, "devices", now))
        if isinstance(note, DeviceGone):
            return rows_only(self._gpus.gone(host, note))
        row = self._gpus.found(host, note)
        return rows_only([row]) | self._enforcer.handle(note, now)

    def _session(self, host: str, note: RunAdmitted | SessionEnded, now: Clocks) -> Result:
        session = self._sessions.of.get(note.session)
        if session is None:
            return NOTHING
        if session.host != host:
            return rows_only(self._gpus.objection(host, f"session {note.session}", session.host, "runs", now))
        if isinstance(note, SessionEnded):
            return self._sessions.end(session, note.t_ns, note.reason, now)
        owned, gaps = self._gpus.owned(host, note.gpus, "runs", now)
        ours = tuple(uuid for uuid in note.gpus if uuid in owned)
        return rows_only(gaps) | self._sessions.admit(host, replace(note, gpus=ours))

    # ---- controls

    def _control(
        self, host: str, note: ControlApplied | ControlRefused | ControlLeaseEnded, now: Clocks
    ) -> Result:
        other = self._fleet.gpus.get(note.gpu)
        if other is not None and other.host != host:
            return rows_only(self._gpus.objection(host, note.gpu, other.host, "commands", now))
        match note:
            case ControlApplied() | ControlRefused():
                row = self._pending.settle(host, note)
                clocks = self._pipelines.handle(ClockSettled(host, note), now)
                return clocks | self._outcome(host, note, row, now)
            case ControlLeaseEnded(control=control, gpu=uuid, cause=cause, reason=reason):
                self._pending.lost(host, note)
                clocks = NOTHING
                if control == "graphics_clock":
                    clocks = self._pipelines.handle(ClockLost(uuid, cause, reason), now)
                elif control == "power_limit" and self._gpus.belongs(host, uuid):
                    self._enforcer.handle(note, now)
                lost = LimitLost(uuid, cause, reason, note.t_ns, control)
                runs = self._sessions.runs.values()
                return clocks | in_order([run.handle(lost, now) for run in runs])

    def _outcome(
        self, host: str, note: ControlApplied | ControlRefused, row: CommandRow | None, now: Clocks
    ) -> Result:
        """Take in the outcome of a command. Those of other analyzers are none of ours."""
        is_limit = note.control == "power_limit" if isinstance(note, ControlApplied) else True
        if row is not None:
            is_limit = row.control == "power_limit"
        if is_limit and self._gpus.belongs(host, note.gpu):
            self._enforcer.handle(CommandSettled(row, note), now)
        if row is None:
            return NOTHING
        sets = row.limit_w is not None or row.clock_mhz is not None
        of_pipeline = row.control == "graphics_clock" and self._pipelines.plans_for(row.run)
        run = self._sessions.runs.get(row.run) if sets and not of_pipeline else None
        match note:
            case ControlApplied(t_ns=t_ns, value=value):
                limit_w = value / 1000 if is_limit else None
                settled = replace(row, outcome="applied", outcome_ns=t_ns, outcome_limit_w=limit_w)
                follows = NOTHING if run is None else run.handle(LimitSet(host, note), now)
            case ControlRefused(t_ns=t_ns, reason=reason):
                settled = replace(row, outcome="refused", outcome_ns=t_ns, reason=reason)
                follows = NOTHING if run is None else run.handle(run_events.LimitRefused(note), now)
        return rows_only([settled]) | follows

    def _collector_started(self, host: str, boot_id: str, now: Clocks) -> Result:
        """Take in that a collector started, which has given limits back, or its host, which has lost all."""
        self._fleet.parts.pop(host, None)  # it may not look at them any more
        result = NOTHING
        for run in list(self._sessions.runs.values()):
            for gpu, control in run.holds(host):
                lost = LimitLost(gpu, "restart", "its collector started again", control=control)
                result |= run.handle(lost, now)
        if self._boots.setdefault(host, boot_id) == boot_id:
            return result
        self._boots[host] = boot_id
        for session in tuple(self._sessions.on[host].values()):
            result |= self._sessions.end(session, session.received_ns, "the host was restarted", now)
            result |= self._windows.measure(session, NO_MORE_NS, now)
            self._sessions.drop(session)
        self._sessions.host_restarted(host)
        self._gpus.host_restarted(host)
        return result
