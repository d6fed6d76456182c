"""The sessions that are followed and the runs that they make: begun, admitted, ended, set aside. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, compress
from typing import TypeVar

from msgspec.structs import replace

from analyzers.batch_size import job_events
from analyzers.batch_size.history import Known
from analyzers.batch_size.tracker import Jobs
from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Allocation, Clocks, Fleet, Use
from analyzers.fleet.ownership import Owners, name_of
from analyzers.fleet.session import Session
from analyzers.measurement.marks.cuts import StepMarks
from analyzers.measurement.marks.plain_steps import PlainSteps
from analyzers.pipeline.pipeline_events import StageEnded
from analyzers.pipeline.pipelines import Pipelines
from analyzers.power_limit.drivers.limit_search import NOTHING_USED, Used
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.run import Run
from analyzers.power_limit.run_events import RankEnded, SetAside
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.fleet_rows import EarlierUse
from analyzers.results.result import NOTHING, Result, rows_only
from analyzers.results.rows import GapRow
from analyzers.routes.followed_gpus import FollowedGpus
from zeus_stream.protocol.events import RunStarted
from zeus_stream.protocol.fields import are_of_one_run, of_host, part_name
from zeus_stream.protocol.frames import Events
from zeus_stream.protocol.notes import RunAdmitted

MAX_SESSIONS = 10_000
"""At once; the events of one more are not interpreted."""
MAX_REMEMBERED = 1_000
"""Unknown sessions and names of ended runs kept; the oldest go."""
MAX_USES = 100
"""Runs of a GPU remembered, to know who shared it."""
MAX_UNCERTAINTY_NS = 1_000_000_000
"""A boundary that is less certain says nothing about power, so it is no mark."""

K = TypeVar("K")
V = TypeVar("V")


class OpenSessions:
    """The sessions that have begun and are not measured to their end, and their runs."""

    def __init__(
        self,
        fleet: Fleet,
        pending: Pending,
        gpus: FollowedGpus,
        jobs: Jobs,
        runs: dict[str, Run],
        allocations: Mapping[str, Allocation],
        pipelines: Pipelines,
        *,
        settings: RunSettings,
        known: KnownProfiles,
        began_under: Mapping[str, RunSettings],
        names: Known,
        earlier: Iterable[EarlierUse] = (),
    ) -> None:
        """Begin with none.

        Args:
            fleet: the GPUs.
            pending: commands on their way, and limits in force.
            gpus: which host may speak for each.
            jobs: those that recur.
            runs: those that are open, by name; this alone changes it.
            allocations: by GPU, its share of a power budget.
            pipelines: those of runs.
            settings: of runs that begin from now on.
            known: profiles of earlier runs.
            began_under: by session, the settings of runs that began under an earlier analyzer.
            names: to whom runs and sessions of earlier starts belong, and the jobs that are every user's.
            earlier: uses that were over when the analyzer started.
        """
        self.of: dict[str, Session] = {}
        """By name."""
        self.on: defaultdict[str, dict[str, Session]] = defaultdict(dict)
        """By host."""
        self.runs = runs
        self.ended_runs: dict[str, Used] = {}
        """By name."""
        self._fleet = fleet
        self._pending = pending
        self._gpus = gpus
        self._jobs = jobs
        self._allocations = allocations
        self._pipelines = pipelines
        self._settings = settings
        self._known = known
        self._began_under = began_under
        self._shared_jobs = names.shared
        self._run_owners = Owners(names.run_owners)
        self._hosts = Owners(names.hosts)
        self._earlier: defaultdict[str, list[EarlierUse]] = defaultdict(list)
        """By host."""
        for use in earlier:
            self._earlier[use.host].append(use)
        self._unknown: dict[str, None] = {}
        """Sessions whose beginning is not in the log."""
        self._host_uses: defaultdict[str, list[Use]] = defaultdict(list)
        """By host: runs on it, all of which use its CPUs."""

    def unknown(self, session: str) -> bool:
        """Return whether the events of a session are to be left out for the first time."""
        if session in self._unknown:
            return False
        _remember(self._unknown, session, None)
        return True

    def host_of(self, session: str, host: str) -> str:
        """Return the host of a session, followed or over; it is this one's if no other had it."""
        known = self.of.get(session)
        return known.host if known else self._hosts.owner(session, host)

    # ---- who uses what

    def devices(self, session: Session) -> list[str]:
        """Return the GPUs of a session, and the parts of its host, which all its sessions use."""
        return [*session.gpus, *self._fleet.parts.get(session.host, ())]

    def users(self, uuid: str) -> Collection[Session]:
        """Return the sessions that use a GPU, or a part of their host."""
        gpu = self._fleet.gpus[uuid]
        if of_host(uuid):
            return self.on[gpu.host].values()
        return gpu.sessions.values()

    def uses(self, host: str, uuid: str) -> Iterable[Use]:
        """Return the uses of a GPU, or of a part of a host, by runs."""
        earlier = (
            Use(use.run, use.began_ns, use.ended_ns)
            for use in self._earlier.get(host, ())
            if of_host(uuid) or uuid in use.gpus
        )
        return chain(earlier, self._host_uses[host] if of_host(uuid) else self._fleet.gpus[uuid].uses)

    def needed_ns(self, users: Iterable[Session]) -> list[int]:
        """Return the instants at which the energy of what they use is still to be asked for."""
        return [
            t_ns
            for session in users
            for t_ns in (*session.windows.needed_ns(), *self._trials_need_ns(session))
        ]

    def _trials_need_ns(self, session: Session) -> list[int]:
        run = self.runs.get(session.started.run)
        return run.search.needed_ns(session) if run else []

    # ---- beginnings

    def begin(self, host: str, body: Events, started: RunStarted, now: Clocks) -> Result:
        """Follow a session from its first event on."""
        if body.session in self.of:
            return NOTHING
        if len(self.of) >= MAX_SESSIONS:
            _remember(self._unknown, body.session, None)
            reason = f"session {body.session}: not interpreted: {MAX_SESSIONS} others are. End some."
            return rows_only([GapRow(host, "events", started.t_ns, 1, reason)])
        living = [session for session in self.of.values() if session.ended is None]
        # A publisher whose collector lost its log goes on in a session that begins as the last did.
        before = next((each for each in living if each.same_process(host, body.uid, started)), None)
        started, barred = (
            (before.started, before.barred) if before else self._named_apart(host, body, started, living)
        )
        run = self._run(started.run, body.session)
        session = Session(
            body.session,
            host,
            body.uid,
            started,
            timeout_ns=run.settings.timeout_ns,
            steps_kept=run.settings.steps_kept,
            start=run.settings.start,
            barred=barred,
        )
        if started.world_size:  # a program that only watches GPUs is no run of theirs
            session.windows.begin("run", 0, started.run, started.t_ns)
            host_uses = self._host_uses[host]
            host_uses.append(Use(started.run, started.t_ns))
            del host_uses[:-MAX_USES]
        self.of[body.session] = self.on[host][body.session] = session
        run.sessions[body.session] = session
        self._jobs.handle(job_events.RankJoined(session, run), now)
        result = rows_only([session.row()])
        if before:
            result |= self.end(before, before.received_ns, "it goes on in another session", now)
        return result

    def _named_apart(
        self, host: str, body: Events, started: RunStarted, living: Iterable[Session]
    ) -> tuple[RunStarted, str | None]:
        """Return the beginning of a session whose run and rank another process is already, under a name of
        its own, and why it may not command; as it is and None if there is no other.

        A job and a run belong to their user, on all hosts: that of another user has a name of its own,
        unless the job is shared. A second session of a script's process, or of a process that it started,
        is a part of the run: it has a name of its own, is no other run to its GPUs, and may command while
        the run does not. So the search follows the session whose steps began first.
        """
        if body.uid is not None and started.job not in self._shared_jobs:
            job = self._jobs.known.name_of(started.job, body.uid)
            started = replace(started, job=job, run=name_of(self._run_owners, started.run, body.uid))
        run, rank = started.run, started.rank
        if all((other.started.run, other.started.rank) != (run, rank) for other in living):
            return started, None
        if any(_of_one_script(host, body.uid, started, other) for other in living):
            return replace(started, run=part_name(run, body.session), world_size=0), None
        why = (
            f"run {run} has a rank {rank} already, in another process. Give each training a name of its own."
        )
        return replace(started, run=f"{run[:180]} ({body.session[:8]})"), why

    def _run(self, name: str, session: str) -> Run:
        """Return a run; a session begins it if it is not there."""
        if (run := self.runs.get(name)) is None:
            run = self.runs[name] = Run(
                name,
                self._fleet,
                self._pending,
                self._began_under.get(session, self._settings),
                self._known,
                self._allocations,
                self.ended_runs.pop(name, NOTHING_USED),
            )
        return run

    def admit(self, host: str, admitted: RunAdmitted) -> Result:
        """Take in the GPUs of a session, and whether it may set their limits."""
        session = self.of[admitted.session]
        if session.admitted is None and session.started.world_size:
            for uuid in admitted.gpus:
                uses = self._gpus.get(host, uuid).uses
                uses.append(
                    Use(session.started.run, session.started.t_ns, session.ended and session.ended[0])
                )
                del uses[:-MAX_USES]
        for uuid in session.gpus:
            self._gpus.get(host, uuid).sessions.pop(session.session, None)
        session.admitted = admitted
        for uuid in session.gpus:
            self._gpus.get(host, uuid).sessions[session.session] = session
        if session.ended is None:
            self.mark(session, admitted.t_ns)
        return rows_only([session.row()])

    def mark(
        self, session: Session, t_ns: int, loop: str | None = None, uncertainty_ns: int | None = None
    ) -> None:
        """Mark that a session's GPUs do something else from here on. ``loop``: its place there, if new."""
        session.loop = loop or session.loop
        if session.admitted is None or (uncertainty_ns is not None and uncertainty_ns > MAX_UNCERTAINTY_NS):
            return
        name, phase = session.session, session.phase
        for gpu in session.admitted.gpus:
            self._fleet.gpus[gpu].shape.mark(name, t_ns, phase, uncertainty_ns or 0)

    def mark_steps(self, session: Session, steps: PlainSteps) -> None:
        """Mark the ends and begins of steps of a session on its GPUs."""
        session.loop = "gap"
        gap = session.phase
        session.loop = "step"
        if session.admitted is None:
            return
        pairs: Iterable[tuple[int, int]] = zip(steps.ended_ns, steps.began_ns, strict=True)
        doubts_ns = [boundary.uncertainty_ns or 0 for boundary in steps.boundaries]
        if max(doubts_ns) > MAX_UNCERTAINTY_NS:
            sure = [doubt_ns <= MAX_UNCERTAINTY_NS for doubt_ns in doubts_ns]
            pairs, doubts_ns = compress(pairs, sure), list(compress(doubts_ns, sure))
        t_ns = list(chain.from_iterable(pairs))
        if not t_ns:
            return
        uncertainty_ns = list(chain.from_iterable(zip(doubts_ns, doubts_ns, strict=True)))
        phases = gap, session.phase
        marks = StepMarks(who=session.session, phases=phases, t_ns=t_ns, uncertainty_ns=uncertainty_ns)
        for gpu in session.admitted.gpus:
            self._fleet.gpus[gpu].shape.mark_steps(marks)

    # ---- ends

    def end(self, session: Session, t_ns: int, how: str, now: Clocks) -> Result:
        """End a session: with its last event, or with its process."""
        if session.ended is not None:
            return NOTHING
        session.ended = (t_ns, how)
        session.windows.end_all(t_ns, now[session.host])
        run = self.runs[session.started.run]
        uses = [self._fleet.gpus[gpu].uses for gpu in session.gpus]
        if not any(rank.ended is None and rank.host == session.host for rank in run.sessions.values()):
            uses.append(self._host_uses[session.host])  # its last rank on the host
        for use in (use for of_one in uses for use in of_one):
            if use.run == run.name and use.ended_ns is None:
                use.ended_ns = t_ns
        for gpu in session.gpus:
            self._fleet.gpus[gpu].shape.mark(session.session, t_ns, None)
        result = rows_only([session.row()]) | run.handle(RankEnded(session), now)
        result |= self._pipelines.handle(StageEnded(session), now)
        self._jobs.handle(job_events.RankEnded(session, t_ns, how), now)
        if run.over:
            del self.runs[run.name]
            self._pending.forget(run.name)
            _remember(self.ended_runs, run.name, run.used)
        return result

    def drop(self, session: Session) -> None:
        """Forget a session of which nothing more is to come."""
        del self.of[session.session]
        self.on[session.host].pop(session.session, None)
        if run := self.runs.get(session.started.run):
            run.sessions.pop(session.session, None)
        for gpu in session.gpus:
            self._fleet.gpus[gpu].sessions.pop(session.session, None)

    def host_restarted(self, host: str) -> None:
        """Forget the uses of a host, whose clock began again."""
        self._host_uses.pop(host, None)
        self._earlier.pop(host, None)

    def set_aside(self, session: Session, t_ns: int, now: Clocks) -> Result:
        """End a session that cannot be interpreted; its later events are left out."""
        how = "set aside: it could not be interpreted"
        run = self.runs.get(session.started.run)
        try:
            result = self.end(session, t_ns, how, now)
        except Exception:  # noqa: BLE001  (what failed once may fail again; it is in ``gaps`` already)
            session.ended = session.ended or (t_ns, how)
            result = rows_only([session.row()])
            result |= run.handle(SetAside(), now) if run is not None else NOTHING
            for gpu in session.gpus:
                for use in self._fleet.gpus[gpu].uses:
                    if use.run == session.started.run and use.ended_ns is None:
                        use.ended_ns = t_ns
        result |= rows_only(session.windows.abandon(t_ns, how))
        self.drop(session)
        if run is not None and not run.sessions:
            self.runs.pop(run.name, None)
            self._pending.forget(run.name)
        _remember(self._unknown, session.session, None)
        return result


def _of_one_script(host: str, uid: int | None, started: RunStarted, other: Session) -> bool:
    """Tell whether a session that begins is of the same process as another one, or of a child of it."""
    run, there = started.run, other.started
    return (
        are_of_one_run(there.run, run)
        and (other.host, there.boot_id, other.uid) == (host, started.boot_id, uid)
        and there.pid in (started.pid, started.parent_pid)
    )


def _remember(kept: dict[K, V], key: K, value: V) -> None:
    """Keep a value; of too many, the oldest goes."""
    kept[key] = value
    if len(kept) > MAX_REMEMBERED:
        del kept[next(iter(kept))]
