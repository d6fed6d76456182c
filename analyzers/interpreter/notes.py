"""Notes of collectors: GPUs, admissions, outcomes of commands, ends of leases, our own use. Pure."""

from functools import partial

from msgspec.structs import replace

from analyzers.fleet.fleet import FULL
from analyzers.interpreter.sessions import admit, attempt, drop, end, measure
from analyzers.interpreter.state import SiteState
from analyzers.pipeline.pipeline_run import ClockLost, ClockSettled
from analyzers.power_budget.enforcer import CollectorRestarted, CommandSettled
from analyzers.power_limit.run import LimitLost, LimitSet, SetRefused
from analyzers.results.result import NOTHING, OWN, Result, in_order, rows_only
from analyzers.results.rows import CommandRow, GapRow, OwnUseRow
from zeus_stream.own_cost import own_energy
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
    GpuShared,
    Lost,
    Note,
    Notes,
    OwnUse,
    PowerProfiles,
    RunAdmitted,
    SessionEnded,
)

AWAY_S = 3.0
"""A collector that was away for so long leaves a row in ``gaps``."""
NO_MORE_NS = 2**62
"""Frame time at which nothing is waited for."""
MAX_HOSTS = 100_000
"""Hosts whose latest power is kept; past them, the oldest goes."""


def handle(site: SiteState, frame: Frame, body: Notes) -> Result:
    return in_order(
        [
            attempt(site, frame, "notes", partial(_note, site, frame.host, note))
            for note in body.notes
            if not isinstance(note, Unknown)
        ]
    )


def _note(site: SiteState, host: str, note: Note) -> Result:
    now = site.now_ns
    match note:
        case BudgetsSet():
            return site.enforcer.handle(note, now) if host == OWN else NOTHING
        case CollectorStarted(t_ns=t_ns, boot_id=boot_id):
            site.pending.collector_started(host)
            site.enforcer.handle(CollectorRestarted(host), now)
            return rows_only(_away(site, host, boot_id, t_ns)) | _collector_started(site, host, boot_id)
        case DeviceFound() | DeviceGone():
            return _device(site, host, note)
        case PowerProfiles(gpu=uuid):
            if site.fleet.belongs(host, uuid) and (row := site.fleet.requested(host, note)) is not None:
                return rows_only([row])
            return NOTHING
        case GpuShared(gpu=uuid):
            if site.fleet.belongs(host, uuid):
                site.fleet.shared(host, note)
            return NOTHING
        case RunAdmitted(t_ns=t_ns, gpus=gpus) if site.fleet.full(gpus):
            return rows_only([GapRow(host, "runs", t_ns, 1, FULL)])
        case RunAdmitted() | SessionEnded():
            return _session(site, host, note)
        case ControlApplied() | ControlRefused() | ControlLeaseEnded():
            return _control(site, host, note)
        case OwnUse():
            return rows_only([_own_use(site, note)])
        case Lost(t_ns, what, count, reason):
            return rows_only([GapRow(host, what, t_ns, count, reason)])
        case _:
            return NOTHING  # clock anchors are the archive's, uses of GPUs the live state's


def _device(site: SiteState, host: str, note: DeviceFound | DeviceGone) -> Result:
    now = site.now_ns
    if site.fleet.full((note.gpu,)):
        return rows_only([GapRow(host, "devices", note.t_ns, 1, FULL)])
    if (owner := site.fleet.owner(host, note.gpu, now)) != host:
        return rows_only(site.fleet.objection(host, note.gpu, owner, "devices", now))
    if isinstance(note, DeviceGone):
        return rows_only(site.fleet.gone(host, note))
    row = site.fleet.found(host, note)
    return rows_only([row]) | site.enforcer.handle(note, now)


def _session(site: SiteState, host: str, note: RunAdmitted | SessionEnded) -> Result:
    now = site.now_ns
    session = site.sessions.get(note.session)
    if session is None:
        return NOTHING
    if session.host != host:
        return rows_only(site.fleet.objection(host, f"session {note.session}", session.host, "runs", now))
    if isinstance(note, SessionEnded):
        return end(site, session, note.t_ns, note.reason)
    owned, gaps = site.fleet.owned(host, note.gpus, "runs", now)
    ours = tuple(uuid for uuid in note.gpus if uuid in owned)
    return rows_only(gaps) | admit(site, host, replace(note, gpus=ours))


# ---- controls


def _control(site: SiteState, host: str, note: ControlApplied | ControlRefused | ControlLeaseEnded) -> Result:
    now = site.now_ns
    other = site.fleet.gpus.get(note.gpu)
    if other is not None and other.host != host:
        return rows_only(site.fleet.objection(host, note.gpu, other.host, "commands", now))
    match note:
        case ControlApplied() | ControlRefused():
            row = site.pending.settle(host, note)
            clocks = site.pipelines.handle(ClockSettled(host, note), now)
            return clocks | _outcome(site, host, note, row)
        case ControlLeaseEnded(control=control, gpu=uuid, cause=cause, reason=reason):
            site.pending.lost(host, note)
            clocks = NOTHING
            if control == "graphics_clock":
                clocks = site.pipelines.handle(ClockLost(uuid, cause, reason), now)
            elif control == "power_limit" and site.fleet.belongs(host, uuid):
                site.enforcer.handle(note, now)
            lost = LimitLost(uuid, cause, reason, note.t_ns, control)
            runs = site.runs.values()
            return clocks | in_order([run.handle(lost, now) for run in runs])


def _outcome(
    site: SiteState, host: str, note: ControlApplied | ControlRefused, row: CommandRow | None
) -> Result:
    """Take in the outcome of a command. Those of other analyzers are none of ours."""
    now = site.now_ns
    is_limit = note.control == "power_limit" if isinstance(note, ControlApplied) else True
    if row is not None:
        is_limit = row.control == "power_limit"
    if is_limit and site.fleet.belongs(host, note.gpu):
        site.enforcer.handle(CommandSettled(row, note), now)
    if row is None:
        return NOTHING
    sets = row.limit_w is not None or row.clock_mhz is not None or row.control == "power_profile"
    of_pipeline = row.control == "graphics_clock" and site.pipelines.plans_for(row.run)
    run = site.runs.get(row.run) if sets and not of_pipeline else None
    match note:
        case ControlApplied(t_ns=t_ns, value=value):
            limit_w = value / 1000 if is_limit else None
            settled = replace(row, outcome="applied", outcome_ns=t_ns, outcome_limit_w=limit_w)
            follows = NOTHING if run is None else run.handle(LimitSet(host, note), now)
        case ControlRefused(t_ns=t_ns, reason=reason):
            settled = replace(row, outcome="refused", outcome_ns=t_ns, reason=reason)
            follows = NOTHING if run is None else run.handle(SetRefused(note), now)
    return rows_only([settled]) | follows


def _away(site: SiteState, host: str, boot_id: str, started_ns: int) -> tuple[GapRow, ...]:
    """Return a gap if no collector has read the GPUs of a host for a while, and a run there was open."""
    read = (gpu.timeline.received_ns for gpu in site.fleet.gpus.values() if gpu.host == host)
    last_ns = max(filter(None, read), default=None)
    for_s = 0.0 if last_ns is None else (started_ns - last_ns) / 1e9
    if last_ns is None or site.boots.get(host) != boot_id or for_s < AWAY_S or not site.on[host]:
        return ()
    reason = (
        f"no collector ran for {for_s:.0f} s: the power limits found were in force, trainings went on,"
        " and their events waited. The energy of that time is known as a whole where a counter cannot have"
        " begun again"
    )
    return (GapRow(host, "collector", last_ns, 1, reason),)


def _collector_started(site: SiteState, host: str, boot_id: str) -> Result:
    """Take in that a collector started, which has given limits back, or its host, which has lost all."""
    site.fleet.parts.pop(host, None)  # it may not look at them any more
    result = NOTHING
    for run in list(site.runs.values()):
        for gpu, control in run.holds(host):
            lost = LimitLost(gpu, "restart", "its collector started again", control=control)
            result |= run.handle(lost, site.now_ns)
    if site.boots.setdefault(host, boot_id) == boot_id:
        return result
    site.boots[host] = boot_id
    for session in tuple(site.on[host].values()):
        result |= end(site, session, session.received_ns, "the host was restarted")
        result |= measure(site, session, NO_MORE_NS)
        drop(site, session)
    site.host_uses.pop(host, None)  # its clock began again
    site.earlier_uses.pop(host, None)
    site.fleet.host_restarted(host)
    return result


# ---- our own services


def _own_use(site: SiteState, use: OwnUse) -> OwnUseRow:
    """Return the row of a record. An analyzer, which may not read RAPL, has the power of its host."""
    seconds = use.took_ns / 1e9
    host_j = None if use.host_energy_mj is None else use.host_energy_mj / 1000
    if host_j is not None and seconds:
        site.host_power_w[use.host] = host_j / seconds
        if len(site.host_power_w) > MAX_HOSTS:
            del site.host_power_w[next(iter(site.host_power_w))]
    elif use.service == "analyzer" and use.host in site.host_power_w:
        host_j = site.host_power_w[use.host] * seconds
    energy = own_energy(use, host_j)
    reason = "" if energy is not None else use.reason or "the kernel does not say what others used"
    return OwnUseRow(
        host=use.host,
        service=use.service,
        began_wall_ns=use.wall_ns - use.took_ns,
        ended_wall_ns=use.wall_ns,
        duration_s=seconds,
        cpu_s=use.cpu_ns / 1e9,
        host_cpu_s=None if use.host_cpu_ns is None else use.host_cpu_ns / 1e9,
        processors=use.processors,
        host_energy_j=host_j,
        energy_low_j=None if energy is None else energy.low_j,
        energy_high_j=None if energy is None else energy.high_j,
        reason=reason,
    )
