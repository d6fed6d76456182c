"""The sessions that are followed and the runs that they make, from their begin to their end. Pure.

Nearly all events are boundaries of steps, and most runs search for nothing. On a host with many sessions
their frames wait until somebody asks for more than that they came:

    boundaries of a run that rests -> wait, with their frame times
    other boundaries               -> are taken in now, with those that wait

Those that wait are taken in together: before the session's windows are measured, before other events of its
run or GPUs, notes and questions.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar, cast

from msgspec.structs import replace

from analyzers.batch_size.tracker import RankJoined, TryRankEnded, WindowsMeasured
from analyzers.fleet.fleet import Use
from analyzers.fleet.ownership import name_of
from analyzers.fleet.questions import answer_of
from analyzers.fleet.session import Session, WaitingSteps
from analyzers.interpreter.state import SiteState
from analyzers.measurement.energy import Meter
from analyzers.measurement.phases.phase_tracker import PhaseTracker
from analyzers.measurement.windows import Owner, Windows
from analyzers.pipeline.pipeline_run import StageEnded
from analyzers.power_limit.limit_search import NOTHING_USED
from analyzers.power_limit.run import RankEnded, Run, SetAside, StepsPassed
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GapRow, Row, StepColumns, WindowRow
from zeus_stream.protocol.events import RunStarted, StepBoundary
from zeus_stream.protocol.fields import are_of_one_run, of_host, part_name
from zeus_stream.protocol.frames import Events, Frame
from zeus_stream.protocol.notes import RunAdmitted

FEW = 4
"""Sessions of a host that are looked at after each of its frames."""
MAX_WAITING = 100
"""Frames of a session that wait, at most."""
MAX_SESSIONS = 10_000
"""At once; the events of one more are not interpreted."""
MAX_REMEMBERED = 1_000
"""Unknown sessions and names of ended runs kept; the oldest go."""
MAX_USES = 100
"""Runs of a GPU remembered, to know who shared it."""
MAX_UNCERTAINTY_NS = 1_000_000_000
"""A boundary that is less certain says nothing about power, so it is no mark."""
PLACED_NS = 1_100_000_000
"""A boundary that is placed where the GPU got there is handed over so much later, at the most."""

K = TypeVar("K")
V = TypeVar("V")


def attempt(
    site: SiteState,
    frame: Frame,
    what: str,
    work: Callable[[], Result],
    *,
    session: Session | None = None,
    otherwise: Result = NOTHING,
) -> Result:
    """Return the result of some work on what another program wrote.

    If it fails: ``otherwise``, and a gap that says where; the session it is about is set aside.
    """
    try:
        return work()
    except Exception as wrong:  # noqa: BLE001  (no frame ends the process: it becomes a row in ``gaps``)
        who = "it" if session is None else f"session {session.session}"
        reason = (
            f"log {frame.log_id}, offset {frame.offset}: {who} could not be interpreted:"
            f" {repr(wrong)[:500]}. Report this with the log."
        )
        result = otherwise | rows_only([GapRow(frame.host, what, frame.t_ns, 1, reason)])
        return result if session is None else result | _set_aside(site, session, frame.t_ns)


def is_new(site: SiteState, session: str) -> bool:
    """Return whether the events of a session are to be left out for the first time."""
    if session in site.unknown:
        return False
    _remember(site.unknown, session, None)
    return True


def host_of(site: SiteState, session: str, host: str) -> str:
    """Return the host of a session, followed or over; it is this one's if no other had it."""
    known = site.sessions.get(session)
    return known.host if known else site.session_hosts.owner(session, host)


# ---- who uses what


def devices(site: SiteState, session: Session) -> list[str]:
    """Return the GPUs of a session, and the parts of its host, which all its sessions use."""
    return [*session.gpus, *site.fleet.parts.get(session.host, ())]


def users(site: SiteState, uuid: str) -> Collection[Session]:
    """Return the sessions that use a GPU, or a part of their host."""
    gpu = site.fleet.gpus[uuid]
    return site.on[gpu.host].values() if of_host(uuid) else gpu.sessions.values()


def uses(site: SiteState, host: str, uuid: str) -> Iterable[Use]:
    """Return the uses of a GPU, or of a part of a host, by runs."""
    earlier = (
        Use(use.run, use.began_ns, use.ended_ns)
        for use in site.earlier_uses.get(host, ())
        if of_host(uuid) or uuid in use.gpus
    )
    return chain(earlier, site.host_uses[host] if of_host(uuid) else site.fleet.gpus[uuid].uses)


def needed_ns(site: SiteState, uuid: str) -> list[int]:
    """Return the instants at which the energy of a GPU is still to be asked for."""
    needed: list[int] = []
    for session in users(site, uuid):
        run = site.runs.get(session.started.run)
        needed += [
            *site.windows[session.session].needed_ns(),
            *(run.search.needed_ns(session) if run else ()),
        ]
    return needed


# ---- beginnings


def begin(site: SiteState, host: str, body: Events, started: RunStarted) -> Result:
    if body.session in site.sessions:
        return NOTHING
    if len(site.sessions) >= MAX_SESSIONS:
        _remember(site.unknown, body.session, None)
        reason = f"session {body.session}: not interpreted: {MAX_SESSIONS} others are. End some."
        return rows_only([GapRow(host, "events", started.t_ns, 1, reason)])
    living = [session for session in site.sessions.values() if session.ended is None]
    # A publisher whose collector lost its log goes on in a session that begins as the last did.
    before = next((each for each in living if each.same_process(host, body.uid, started)), None)
    started, barred = (
        (before.started, before.barred) if before else _named_apart(site, host, body, started, living)
    )
    run = _run(site, started.run, body.session)
    session = Session(
        body.session,
        host,
        body.uid,
        started,
        steps_kept=run.settings.steps_kept,
        start=run.settings.start,
        barred=barred,
    )
    owner = Owner(body.session, started.run, started.job, started.rank, host)
    windows = site.windows[body.session] = Windows(owner, run.settings.timeout_ns)
    site.phases[body.session] = PhaseTracker(owner)
    if started.world_size:  # a program that only watches GPUs is no run of theirs
        windows.begin("run", 0, started.run, started.t_ns)
        _remember_use(site.host_uses[host], Use(started.run, started.t_ns))
    site.sessions[body.session] = site.on[host][body.session] = session
    run.sessions[body.session] = session
    site.jobs.handle(RankJoined(session, run), site.now_ns)
    result = rows_only(session.rows())
    if before:
        result |= end(site, before, before.received_ns, "it goes on in another session")
    return result


def _named_apart(
    site: SiteState, host: str, body: Events, started: RunStarted, living: Iterable[Session]
) -> tuple[RunStarted, str | None]:
    """Return the beginning of a session whose run and rank another process is already, under a name of
    its own, and why it may not command; as it is and None if there is no other.

    A job and a run belong to their user, on all hosts: that of another user has a name of its own,
    unless the job is shared. A second session of a script's process, or of a process that it started,
    is a part of the run: it has a name of its own, is no other run to its GPUs, and may command while
    the run does not. So the search follows the session whose steps began first.
    """
    if started.allocation is not None:
        return started, None
    if body.uid is not None and started.job not in site.shared_jobs:
        job = site.jobs.known.name_of(started.job, body.uid)
        started = replace(started, job=job, run=name_of(site.run_owners, started.run, body.uid))
    run, rank = started.run, started.rank
    if all((other.started.run, other.started.rank) != (run, rank) for other in living):
        return started, None
    if any(_of_one_script(host, body.uid, started, other) for other in living):
        return replace(started, run=part_name(run, body.session), world_size=0), None
    why = f"run {run} has a rank {rank} already, in another process. Give each training a name of its own."
    return replace(started, run=f"{run[:180]} ({body.session[:8]})"), why


def _of_one_script(host: str, uid: int | None, started: RunStarted, other: Session) -> bool:
    """Tell whether a session that begins is of the same process as another one, or of a child of it."""
    run, there = started.run, other.started
    return (
        are_of_one_run(there.run, run)
        and (other.host, there.boot_id, other.uid) == (host, started.boot_id, uid)
        and there.pid in (started.pid, started.parent_pid)
    )


def _run(site: SiteState, name: str, session: str) -> Run:
    """Return a run; a session begins it if it is not there."""
    if (run := site.runs.get(name)) is None:
        run = site.runs[name] = Run(
            name,
            site.fleet,
            site.pending,
            site.began_under.get(session, site.settings),
            site.profiles,
            site.enforcer.allocations,
            site.ended_runs.pop(name, NOTHING_USED),
        )
    return run


def admit(site: SiteState, host: str, admitted: RunAdmitted) -> Result:
    session = site.sessions[admitted.session]
    for uuid in admitted.gpus if session.started.world_size else ():
        if uuid not in session.gpus:
            use = Use(session.started.run, session.started.t_ns, session.ended and session.ended[0])
            _remember_use(site.fleet.follow(host, uuid).uses, use)
    for uuid in session.gpus:
        site.fleet.follow(host, uuid).sessions.pop(session.session, None)
    session.admitted = admitted
    for uuid in session.gpus:
        site.fleet.follow(host, uuid).sessions[session.session] = session
    if session.ended is None:
        mark(site, session, admitted.t_ns)
    return rows_only(session.rows())


def mark(site: SiteState, session: Session, t_ns: int) -> None:
    """Mark that a session's GPUs do something else from here on. By an allocation nothing changes there."""
    if session.started.allocation is not None:
        return
    for gpu in session.gpus:
        site.fleet.gpus[gpu].shape.mark(session.session, t_ns, session.phase)


def mark_steps(site: SiteState, session: Session, boundaries: Sequence[StepBoundary]) -> None:
    name, phases = session.session, {loop: session.phase_in(loop) for loop in ("rest", "gap", "step")}
    marks = []
    for boundary in boundaries:
        ended_ns, began_ns = boundary.ended_ns, boundary.began_ns
        uncertainty_ns = boundary.uncertainty_ns or 0
        if uncertainty_ns > MAX_UNCERTAINTY_NS:
            continue
        if ended_ns is not None:
            marks.append((ended_ns, name, phases["rest" if began_ns is None else "gap"], uncertainty_ns))
        if began_ns is not None:
            marks.append((began_ns, name, phases["step"], uncertainty_ns))
    last = boundaries[-1]
    if last.began_ns is not None or last.ended_ns is not None:
        session.loop = "rest" if last.began_ns is None else "step"
    for gpu in session.gpus:
        site.fleet.gpus[gpu].shape.mark_all(marks)


# ---- steps


def take_steps(
    site: SiteState,
    session: Session,
    boundaries: Sequence[StepBoundary],
    received_ns: Sequence[int],
    given: list[Result],
) -> None:
    """Take in steps of a session; add what they give to ``given``. ``received_ns``: frame time of each."""
    if session.ended is not None:
        return
    site.windows[session.session].pass_steps(boundaries, received_ns)
    mark_steps(site, session, boundaries)
    at = [each.placed for each in boundaries if (each.ended_ns, each.began_ns) != (None, None)]
    session.placed = at[-1] if at else session.placed  # a step that is cancelled says nothing
    session.step = None if boundaries[-1].began_ns is None else boundaries[-1].index
    result = site.runs[session.started.run].handle(StepsPassed(session, boundaries), site.now_ns)
    if result is not NOTHING:
        given.append(result)


def let_wait(site: SiteState, frame: Frame, body: Events) -> bool:
    """Let a frame of steps wait if nothing depends on it. Return False if it has to be taken in now."""
    session = site.sessions.get(body.session)
    if session is None or session.host != frame.host or session.ended is not None:
        return False
    if len(site.on[frame.host]) <= FEW or len(session.waiting) >= MAX_WAITING:
        return False
    if set(map(type, body.events)) != {StepBoundary}:
        return False
    if not site.runs[session.started.run].rests(session):
        return False
    session.received_ns = frame.t_ns
    steps = cast("Sequence[StepBoundary]", body.events)
    session.waiting.append(WaitingSteps(frame.log_id, frame.offset, frame.t_ns, steps))
    site.waiting[body.session] = session
    return True


def _catch_up(site: SiteState, session: Session) -> Result:
    if not session.waiting:
        return NOTHING
    waiting, session.waiting, given = session.waiting, [], list[Result]()
    del site.waiting[session.session]
    log_id, offset, t_ns, _ = waiting[0]
    first = Frame(log_id=log_id, offset=offset, host=session.host, t_ns=t_ns, topic="", body=b"")

    def work() -> Result:
        steps = [step for each in waiting for step in each.steps]
        received_ns = [each.t_ns for each in waiting for _ in each.steps]
        take_steps(site, session, steps, received_ns, given)
        return NOTHING

    failed = attempt(site, first, "events", work, session=session)
    return in_order([*given, failed])


def catch_up_with(site: SiteState, name: str) -> Result:
    """Take in what waits of a session, of its run and of those that use its GPUs."""
    session = site.sessions.get(name)
    if session is None or not site.waiting:
        return NOTHING
    run = site.runs.get(session.started.run)
    ranks = () if run is None else tuple(run.sessions.values())
    others = [user for gpu in session.gpus for user in users(site, gpu)]
    return in_order([_catch_up(site, each) for each in (session, *ranks, *others)])


def catch_up_all(site: SiteState) -> Result:
    return in_order([_catch_up(site, session) for session in list(site.waiting.values())])


# ---- what is measured


def measure(site: SiteState, session: Session, now_ns: int, *, hurried: bool = False) -> Result:
    """Measure the windows of a session that have ended. ``now_ns``: 2**62: nothing is waited for."""
    if session.placed != "dispatch":
        now_ns -= PLACED_NS
    windows = site.windows[session.session]
    if not windows.ready(now_ns):
        return NOTHING
    measured = windows.measured(
        _meters(site, session, hurried=hurried), now_ns, partial(_shared, site, session)
    )
    alone = not session.started.world_size
    measured = [_remarked(row, site, alone=alone) for row in measured]
    rows = [row for row in measured if not isinstance(row, StepColumns)]
    about: tuple[Row, ...] = ()
    instructions = site.jobs.handle(WindowsMeasured(rows), site.now_ns).instructions
    for window in dict.fromkeys(row.index for row in rows if row.kind == "window"):
        of_window = [row for row in rows if row.kind == "window" and row.index == window]
        answer = answer_of(of_window)
        if session.started.allocation is not None:
            session.allocated = of_window
            about = session.rows()
        instructions += tuple(site.questions.settle(session.session, window, answer))
    return Result((*measured, *about), instructions)


def _meters(site: SiteState, session: Session, *, hurried: bool) -> Mapping[str, Meter] | None:
    """Return the meters of a session's devices; None while its GPUs are not known."""
    if session.admitted is None:
        return None
    return {gpu: replace(site.fleet.gpus[gpu].meter, hurried=hurried) for gpu in devices(site, session)}


def _shared(site: SiteState, session: Session, gpu: str, begin_ns: int, end_ns: int) -> bool:
    """Return whether another run used a device of a session between two instants."""
    return any(
        not are_of_one_run(use.run, session.started.run)
        and use.began_ns < end_ns
        and (use.ended_ns is None or use.ended_ns > begin_ns)
        for use in uses(site, session.host, gpu)
    )


def _remarked(row: WindowRow | StepColumns, site: SiteState, *, alone: bool) -> WindowRow | StepColumns:
    """Return rows whose quality says whose energy they have, unless the GPU's for this run ``alone``."""
    gpu = None if row.gpu is None else site.fleet.gpus[row.gpu]
    if gpu is None or gpu.found is None:
        return row
    remarks = ["whole GPU, MIG"] if gpu.found.mig else []
    if gpu.found.scope == "module":
        remarks.append("whole module, with its CPU")
    others = () if alone else tuple(gpu.others)
    if isinstance(row, WindowRow):
        met = _others_within(others, row.begin_ns, row.end_ns)
        return replace(row, quality=_with_remarks(row.quality, remarks, met)) if remarks or met else row
    if not remarks and not _others_within(others, int(row.begin_ns.min()), int(row.end_ns.max())):
        return row
    spans = zip(row.quality, row.begin_ns.tolist(), row.end_ns.tolist(), strict=True)
    said = [_with_remarks(quality, remarks, _others_within(others, *span)) for quality, *span in spans]
    return replace(row, quality=tuple(said))


def _others_within(others: Iterable[tuple[int, int, int]], begin_ns: int, end_ns: int) -> int:
    """Return the most processes of no run that there were between two instants."""
    met = (count for since_ns, until_ns, count in others if since_ns < end_ns and begin_ns < until_ns)
    return max(met, default=0)


def _with_remarks(quality: str, remarks: list[str], others: int) -> str:
    known = [] if quality == "ok" else [quality]
    shared = [f"shared with {others} other process{'es' if others > 1 else ''}"] if others else []
    return "; ".join([*known, *remarks, *shared]) or quality


# ---- ends


def end(site: SiteState, session: Session, t_ns: int, how: str) -> Result:
    """End a session: with its last event, or with its process."""
    if session.ended is not None:
        return NOTHING
    session.ended = (t_ns, how)
    site.windows[session.session].end_all(t_ns, site.now_ns[session.host])
    run = site.runs[session.started.run]
    others = [rank for rank in run.sessions.values() if rank.ended is None and rank.host == session.host]
    left = set(session.gpus).difference(*(rank.gpus for rank in others))
    used = [site.fleet.gpus[gpu].uses for gpu in left]
    if not others:
        used.append(site.host_uses[session.host])  # its last rank on the host
    for use in chain.from_iterable(used):
        if use.run == run.name and use.ended_ns is None:
            use.ended_ns = t_ns
    for gpu in session.gpus:
        site.fleet.gpus[gpu].shape.mark(session.session, t_ns, None)
    result = rows_only(session.rows()) | run.handle(RankEnded(session), site.now_ns)
    result |= site.pipelines.handle(StageEnded(session), site.now_ns)
    site.jobs.handle(TryRankEnded(session, t_ns, how), site.now_ns)
    if run.over:
        del site.runs[run.name]
        site.pending.forget(run.name)
        _remember(site.ended_runs, run.name, run.used)
    return result


def drop(site: SiteState, session: Session) -> None:
    """Forget a session of which nothing more is to come."""
    for kept in (site.sessions, site.windows, site.phases):
        del kept[session.session]
    site.on[session.host].pop(session.session, None)
    site.waiting.pop(session.session, None)
    if run := site.runs.get(session.started.run):
        run.sessions.pop(session.session, None)
    for gpu in session.gpus:
        site.fleet.gpus[gpu].sessions.pop(session.session, None)


def _set_aside(site: SiteState, session: Session, t_ns: int) -> Result:
    """End a session that cannot be interpreted; its later events are left out."""
    how = "set aside: it could not be interpreted"
    run = site.runs.get(session.started.run)
    try:
        result = end(site, session, t_ns, how)
    except Exception:  # noqa: BLE001  (what failed once may fail again; it is in ``gaps`` already)
        session.ended = session.ended or (t_ns, how)
        result = rows_only(session.rows())
        result |= run.handle(SetAside(), site.now_ns) if run is not None else NOTHING
        for gpu in session.gpus:
            for use in site.fleet.gpus[gpu].uses:
                if use.run == session.started.run and use.ended_ns is None:
                    use.ended_ns = t_ns
    result |= rows_only(site.windows[session.session].abandon(t_ns, how))
    drop(site, session)
    if run is not None and not run.sessions:
        site.runs.pop(run.name, None)
        site.pending.forget(run.name)
    _remember(site.unknown, session.session, None)
    return result


def _remember_use(uses: list[Use], use: Use) -> None:
    """Keep a use; of too many, the oldest that is over goes: the others go on."""
    uses.append(use)
    over = next((each for each in uses if each.ended_ns is not None), None)
    if len(uses) > MAX_USES and over is not None:
        uses.remove(over)


def _remember(kept: dict[K, V], key: K, value: V) -> None:
    """Keep a value; of too many, the oldest goes."""
    kept[key] = value
    if len(kept) > MAX_REMEMBERED:
        del kept[next(iter(kept))]
