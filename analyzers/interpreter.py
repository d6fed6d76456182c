"""The stream of frames -> rows of the archive, and what is to be done. Pure.

    Readings -> timelines of GPUs --.
    Events   -> sessions, windows ---+-> rows of windows, trials, ... and commands, answers
    Notes    -> GPUs, admissions, outcomes of commands

Time is that of the frames, by host. The same frames give the same outputs, command ids included.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from analyzers.batch_size.history import Known
from analyzers.batch_size.policy import Policy
from analyzers.batch_size.registry import Default
from analyzers.batch_size.tracker import Jobs
from analyzers.fleet.fleet import Fleet, Gpu, Use, gpu_row, hangs
from analyzers.fleet.ownership import Claims
from analyzers.fleet.questions import Questions, answer_of, missing
from analyzers.fleet.session import Session
from analyzers.measurement import sensors
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import IDLE_NS, RECENT_NS
from analyzers.measurement.windows import MAX_OPEN, Kind
from analyzers.power_budget.enforcer import Ledger
from analyzers.power_limit.profiles import KnownProfiles, Memory
from analyzers.power_limit.run import NOTHING_USED, Output, Run, Used
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.readings import READING, well_formed
from analyzers.results.rows import GapRow, Instruction, MetricRow, WindowRow
from zeus_stream.protocol.events import (
    Ask,
    AskTry,
    EpochBegan,
    EpochEnded,
    Event,
    EventsDropped,
    Metric,
    RunEnded,
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
from zeus_stream.protocol.fields import Unknown, of_host
from zeus_stream.protocol.frames import Body, Events, Frame
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
    RunAdmitted,
    SessionEnded,
)
from zeus_stream.protocol.readings import Readings

MAX_SESSIONS = 10_000
"""At once; the events of one more are not interpreted."""
MAX_GPUS = 50_000
"""Of a site; what is said of one more is not interpreted."""
MAX_REMEMBERED = 1_000
"""Unknown sessions and names of ended runs kept; the oldest go."""
LOOK_NS, LOOK_MORE_NS, LOOK_SELDOM_NS = 20_000_000, 200_000, 1_000_000_000
"""Between two looks at the windows of a session: alone on its host, more for each other, and at most."""
FEW = 4
"""Sessions of a host that are looked at after each of its frames."""
MAX_UNCERTAINTY_NS = 1_000_000_000
"""A boundary that is less certain says nothing about power, so it is no mark."""
PLACED_NS = 1_100_000_000
"""A boundary that is placed where the GPU got there is handed over so much later, at the most."""
AHEAD_NS = 1_000_000_000
"""Readings cannot be later than their frame; so much is forgiven."""
OWN = ""
"""Host of the frames that are the analyzer's own; no collector can speak for it."""
NO_MORE_NS = 2**62
"""Frame time at which nothing is waited for."""
MAX_USES = 100
"""Runs of a GPU remembered, to know who shared it."""

_FULL = f"{MAX_GPUS} GPUs are known, so others are not interpreted. Start the analyzer anew, or another."

K = TypeVar("K")
V = TypeVar("V")


class Interpreter:
    """Hears everything, in the order of each log. Holds what is open, and little else."""

    def __init__(
        self,
        settings: RunSettings,
        memory: Memory | None = None,
        policy: tuple[str, Policy[Any]] | None = None,
        jobs: Known | None = None,
        began_under: Mapping[str, RunSettings] | None = None,
    ) -> None:
        """Begin with no run.

        Args:
            settings: of runs that begin from now on.
            memory: what earlier runs left.
            policy: name and policy that chooses batch sizes; the default sizes if not given.
            jobs: what is known of jobs that recur.
            began_under: by session, the settings of runs that began under an earlier analyzer.
        """
        self._settings = settings
        self._began_under = began_under or {}
        self._fleet = Fleet()
        self._known = KnownProfiles(memory)
        name, chooser = policy or ("default", Default())
        self._jobs = Jobs(chooser, name, self._fleet, jobs or Known(), settings.timeout_ns)
        self._claims = Claims()
        self._boots: dict[str, str] = {}
        self._sessions: dict[str, Session] = {}
        self._on_host: defaultdict[str, dict[str, Session]] = defaultdict(dict)
        self._looked_ns: dict[str, int] = {}
        """By host, frame time at which windows were looked at."""
        self._runs: dict[str, Run] = {}
        self._ledger = Ledger(self._fleet, self._runs, settings)
        self._ended_runs: dict[str, Used] = {}
        """By name."""
        self._strangers: dict[str, None] = {}
        """Sessions whose beginning was not heard."""
        self._questions = Questions()
        self._host_uses: defaultdict[str, list[Use]] = defaultdict(list)
        """By host: runs on it, all of which use its CPUs."""
        self.hurried = False
        """Frames wait: leave out what can be left out, the fit of the energy of single steps."""
        self.gains: Mapping[str, Gain] = {}
        """Calibrations, by GPU."""

    @property
    def forgotten_wall_ns(self) -> Mapping[str, int]:
        """By job, until when profiles are forgotten (UTC, ns)."""
        return self._known.forgotten_wall_ns

    def calibrate(self, gains: Mapping[str, Gain]) -> None:
        """From now on, take these gains of GPUs (UUIDs) out of their energies."""
        self.gains = gains
        for uuid, gpu in self._fleet.gpus.items():
            gpu.timeline.gain = gains.get(uuid)

    def forget_profiles(self, forgotten_wall_ns: Mapping[str, int]) -> None:
        """From now on, let no run start from profiles of these jobs measured until then (UTC, ns)."""
        self._known.forgotten_wall_ns = forgotten_wall_ns

    def cross_checks(self) -> dict[str, float]:
        """Return, by GPU, the energy its counter shows over that of its power readings, lately."""
        ratios = {uuid: gpu.timeline.counter_to_power for uuid, gpu in self._fleet.gpus.items()}
        return {uuid: ratio for uuid, ratio in ratios.items() if ratio is not None}

    def hear(self, frame: Frame, body: Body) -> list[Output]:
        """Take in the next frame of a log. Returns rows and instructions, in order."""
        self._fleet.now_ns[frame.host] = frame.t_ns
        outputs: list[Output] = []
        match body:
            case Readings():
                outputs += self._attempt(frame, "readings", lambda: self._readings(frame, body))
            case Events():
                outputs += self._events(frame, body)
            case Notes():
                for note in body.notes:
                    if not isinstance(note, Unknown):
                        outputs += self._attempt(frame, "notes", partial(self._note, frame.host, note))
        outputs += self._measure(frame, body)
        return outputs + self._attempt(frame, "budgets", lambda: self._ledger.keep(frame.host, outputs))

    # ---- what cannot be interpreted

    def _attempt(
        self,
        frame: Frame,
        what: str,
        work: Callable[[], list[Output]],
        session: Session | None = None,
    ) -> list[Output]:
        """Return the outputs of some work. If it fails: a gap that says where; its session is set aside."""
        try:
            return work()
        except Exception as wrong:  # noqa: BLE001  (no frame ends the process: it becomes a row in ``gaps``)
            who = "it" if session is None else f"session {session.session}"
            reason = (
                f"log {frame.log_id}, offset {frame.offset}: {who} could not be interpreted:"
                f" {repr(wrong)[:500]}. Report this with the log."
            )
            outputs: list[Output] = [GapRow(frame.host, what, frame.t_ns, 1, reason)]
            return outputs if session is None else [*outputs, *self._set_aside(session, frame.t_ns)]

    def _set_aside(self, session: Session, t_ns: int) -> list[Output]:
        """End a session that cannot be interpreted; its later events are left out."""
        how = "set aside: it could not be interpreted"
        run = self._runs.get(session.started.run)
        outputs: list[Output] = []
        try:
            outputs += self._end(session, t_ns, how)
        except Exception:  # noqa: BLE001  (what failed once may fail again; it is in ``gaps`` already)
            session.ended = session.ended or (t_ns, how)
            outputs = [session.row(), *(run.abandon() if run is not None else ())]
            for gpu in session.gpus:
                for use in self._fleet.gpus[gpu].uses:
                    if use.run == session.started.run and use.ended_ns is None:
                        use.ended_ns = t_ns
        outputs += session.windows.abandon(t_ns, how)
        self._drop(session)
        if run is not None and not run.sessions:
            self._runs.pop(run.name, None)
        _remember(self._strangers, session.session, None)
        return outputs

    def ask(self, host: str, ask: Ask | AskTry) -> list[Instruction]:
        """Take in a question. It is answered now, or by `hear` once it can be, or in vain."""
        if isinstance(ask, AskTry):
            self._jobs.ask(host, ask)
            return []
        return [*self._questions.ask(host, ask, self._fleet.now_ns.get(host, 0))]

    def forget(self, job: str) -> tuple[int, list[Output]] | None:
        """Let a job begin anew: how many tries count no more, and its row. None: it is not known."""
        count = self._jobs.forget(job)
        return None if count is None else (count, [*self._jobs.told()])

    # ---- readings

    def _readings(self, frame: Frame, body: Readings) -> list[Output]:
        host, outputs = frame.host, list[Output]()
        if not well_formed(body):
            return [GapRow(host, "readings", frame.t_ns, 1, "a frame of them has figures that cannot be")]
        rows = np.frombuffer(body.rows, READING)
        if rows.size and rows["t_hi_ns"].max() > frame.t_ns + AHEAD_NS:
            return [GapRow(host, "readings", frame.t_ns, len(rows), "they are later than they were logged")]
        if self._full(body.gpus):
            return [GapRow(host, "readings", frame.t_ns, len(rows), _FULL)]
        owned, outputs = self._owned(host, body.gpus, "readings")
        rows = rows.take(np.argsort(rows["gpu"], kind="stable"))
        indices, starts = np.unique(rows["gpu"], return_index=True)
        for index, (start, end) in zip(
            indices.tolist(), pairwise([*starts.tolist(), len(rows)]), strict=True
        ):
            uuid = body.gpus[index]
            if uuid not in owned:
                continue
            gpu = self._gpu(host, uuid)
            gpu.timeline.add(rows[start:end])
            outputs += hangs(host, uuid, gpu.timeline)
            if gpu.timeline.crowded:
                users = self._users(uuid)
                gpu.timeline.forget(self._needed_ns(users), RECENT_NS if users else IDLE_NS)
            if gpu.shaped and gpu.shaped.crowded:
                gpu.shaped.forget(self._needed_ns(self._users(uuid)))
            if not gpu.found or (gpu.told[0] and not gpu.sessions):
                continue  # nothing is learned of a GPU that no run uses, but its period
            learned = gpu.timeline.period_ns is not None, gpu.counter_kind, gpu.window_ns
            if learned != gpu.told:
                gpu.told = learned
                outputs.append(gpu_row(host, gpu, gpu.found))
        return outputs

    def _gpu(self, host: str, uuid: str) -> Gpu:
        gpu = self._fleet.gpus.get(uuid)
        if gpu is None:
            gpu = self._fleet.gpus[uuid] = Gpu(host)
            if of_host(uuid):
                self._fleet.parts.setdefault(host, {})[uuid] = None
        return gpu

    def _owner(self, host: str, uuid: str) -> str:
        """Return the host that may speak for a GPU; a host that claims it may follow a silent one."""
        gpu = self._fleet.gpus.get(uuid)
        if gpu is None or gpu.host == host:
            return host
        if self._claims.passes(host, uuid, gpu.host, self._fleet.now_ns):
            self._fleet.gpus[uuid] = Gpu(host)
            return host
        return gpu.host

    def _owned(self, host: str, gpus: Iterable[str], what: str) -> tuple[set[str], list[Output]]:
        """Return the GPUs for which a host may speak, and a gap for each of another host."""
        owners = {uuid: self._owner(host, uuid) for uuid in gpus}
        gaps = [
            gap
            for uuid, owner in owners.items()
            if owner != host
            for gap in self._objection(host, uuid, owner, what)
        ]
        return {uuid for uuid, owner in owners.items() if owner == host}, gaps

    def _objection(self, host: str, name: str, owner: str, what: str) -> list[Output]:
        """Return a gap the first time that a host speaks for what belongs to another."""
        reason = self._claims.objection(host, name, owner)
        return [] if reason is None else [GapRow(host, what, self._fleet.now_ns[host], 1, reason)]

    def _devices(self, session: Session) -> list[str]:
        """Return the GPUs of a session, and the parts of its host, which everybody uses."""
        return [*session.gpus, *self._fleet.parts.get(session.host, ())]

    def _users(self, uuid: str) -> Collection[Session]:
        """Return the sessions that use a GPU, or a part of their host."""
        gpu = self._fleet.gpus[uuid]
        if of_host(uuid):
            return self._on_host[gpu.host].values()
        return gpu.sessions.values()

    def _is_of(self, host: str, uuid: str) -> bool:
        """Whether a GPU is known, and its host is the one that speaks of it."""
        gpu = self._fleet.gpus.get(uuid)
        return gpu is not None and gpu.host == host

    def _full(self, gpus: Collection[str]) -> bool:
        """Whether there is no room for those that are not known yet."""
        known = self._fleet.gpus
        if len(known) + len(gpus) <= MAX_GPUS:
            return False
        return len(known) + sum(gpu not in known for gpu in set(gpus)) > MAX_GPUS

    def _needed_ns(self, users: Iterable[Session]) -> list[int]:
        """Return the instants at which the energy of what they use is still to be asked for."""
        return [
            t_ns
            for session in users
            for t_ns in (*session.windows.needed_ns(), *self._trials_need_ns(session))
        ]

    def _trials_need_ns(self, session: Session) -> list[int]:
        run = self._runs.get(session.started.run)
        return run.needed_ns(session) if run else []

    # ---- events of training processes

    def _events(self, frame: Frame, body: Events) -> list[Output]:
        host, outputs = frame.host, list[Output]()
        known = self._sessions.get(body.session)
        if known is not None and known.host != host:
            return self._objection(host, f"session {body.session}", known.host, "events")
        for event in body.events:
            if isinstance(event, Unknown):
                continue
            if isinstance(event, RunStarted):
                outputs += self._attempt(frame, "events", partial(self._run_started, host, body, event))
            elif session := self._sessions.get(body.session):
                session.heard_ns = self._fleet.now_ns[host]
                if session.ended is None:
                    outputs += self._attempt(frame, "events", partial(self._event, session, event), session)
                elif isinstance(event, TryEnded):  # late, but it says what became of the try
                    outputs += self._attempt(frame, "events", partial(self._late, session, event), session)
            elif body.session not in self._strangers:
                _remember(self._strangers, body.session, None)
                reason = f"session {body.session}: its beginning is not in the log, so it is not interpreted"
                outputs.append(GapRow(host, "events", self._fleet.now_ns[host], len(body.events), reason))
        return outputs

    def _late(self, session: Session, event: TryEnded) -> list[Output]:
        self._jobs.ended(session, event)
        return []

    def _run_started(self, host: str, body: Events, started: RunStarted) -> list[Output]:
        if body.session in self._sessions:
            return []
        if len(self._sessions) >= MAX_SESSIONS:
            _remember(self._strangers, body.session, None)
            reason = f"session {body.session}: not interpreted: {MAX_SESSIONS} others are. End some."
            return [GapRow(host, "events", started.t_ns, 1, reason)]
        living = [s for s in self._sessions.values() if s.ended is None]
        # A publisher whose collector lost its log goes on in a session that begins as the last did.
        before = next((s for s in living if s.same_process(host, started)), None)
        started, barred = (before.started, before.barred) if before else _named_apart(body, started, living)
        if (run := self._runs.get(started.run)) is None:
            settings = self._began_under.get(body.session, self._settings)
            used = self._ended_runs.pop(started.run, NOTHING_USED)
            run = self._runs[started.run] = Run(
                started.run, self._fleet, settings, self._known, self._ledger.allocations, used
            )
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
        if started.world_size:  # who only watches GPUs is no run of theirs
            session.windows.begin("run", 0, started.run, started.t_ns)
            host_uses = self._host_uses[host]
            host_uses.append(Use(started.run, started.t_ns))
            del host_uses[:-MAX_USES]
        self._sessions[body.session] = self._on_host[host][body.session] = session
        run.sessions[body.session] = session
        self._jobs.joined(session, run)
        ended = self._end(before, before.heard_ns, "it goes on in another session") if before else []
        return [session.row(), *ended]

    def _event(self, session: Session, event: Event) -> list[Output]:
        now_ns, windows = self._fleet.now_ns[session.host], session.windows
        run = self._runs[session.started.run]
        match event:
            case StepBoundary(index, ended_ns, began_ns, placed, uncertainty_ns):
                if (ended_ns, began_ns) != (None, None):  # as of a step that is cancelled
                    session.placed = placed
                if ended_ns is not None:
                    windows.end("step", index - 1, ended_ns, now_ns)
                    self._enter(session, ended_ns, "rest" if began_ns is None else "gap", uncertainty_ns)
                if began_ns is not None:
                    self._enter(session, began_ns, "step", uncertainty_ns)
                if session.step is not None:
                    windows.cancel("step", session.step)  # its end was lost, or it has just ended
                session.step = None if began_ns is None else index
                outputs: list[Output] = []
                if began_ns is not None:
                    outputs += self._begin(session, "step", index, "step", began_ns)
                return outputs + run.step_boundary(session, event)
            case EpochBegan(t_ns, index):
                self._jobs.epoch_began(session, index)
                return self._begin(session, "epoch", index, "epoch", t_ns)
            case EpochEnded(t_ns, index):
                windows.end("epoch", index, t_ns, now_ns)
                self._jobs.epoch_ended(session, index)
                return run.epoch_ended(session)
            case WindowBegan(t_ns, window, name):
                refused = self._begin(session, "window", window, name, t_ns)
                if not refused:
                    session.named[window] = name
                    self._enter(session, t_ns)
                return refused
            case WindowEnded(t_ns, window):
                windows.end("window", window, t_ns, now_ns)
                self._leave(session, t_ns, window)
            case WindowCancelled(t_ns, window):
                windows.cancel("window", window)
                self._leave(session, t_ns, window)
                return [*self._questions.settle(session.session, window, missing("the window was cancelled"))]
            case TryWanted():
                self._jobs.wanted(session, run, event)
            case TryBegan(_, _, batch_size):
                session.batch_size = batch_size
                self._jobs.began(session, event)
            case TryEnded():
                self._jobs.ended(session, event)
            case SearchWanted():
                run.want(event)
            case Metric(t_ns, name, value, step, epoch):
                self._jobs.metric(session, name, value)
                at_step = session.step if step is None else step
                return [MetricRow(session.session, run.name, name, t_ns, at_step, value, epoch)]
            case EventsDropped(t_ns, count, reason):
                return [GapRow(session.host, "events", t_ns, count, f"session {session.session}: {reason}")]
            case RunEnded(t_ns, failure):
                return self._end(session, t_ns, failure or "ended")
            case RunStarted():
                pass  # heard already
        return []

    def _begin(self, session: Session, kind: Kind, index: int, name: str, t_ns: int) -> list[Output]:
        if session.windows.begin(kind, index, name, t_ns):
            return []
        reason = (
            f"session {session.session}: {MAX_OPEN} windows are open, so {name} is not measured. End some."
        )
        return [GapRow(session.host, "windows", t_ns, 1, reason)]

    def _enter(
        self, session: Session, t_ns: int, loop: str | None = None, uncertainty_ns: int | None = None
    ) -> None:
        """From here on a session's GPUs do something else. ``loop``: its place there, if that is new."""
        session.loop = loop or session.loop
        if uncertainty_ns is not None and uncertainty_ns > MAX_UNCERTAINTY_NS:
            return
        for gpu in session.gpus:
            self._fleet.gpus[gpu].shape.mark(session.session, t_ns, session.phase, uncertainty_ns or 0)

    def _leave(self, session: Session, t_ns: int, window: int) -> None:
        if session.named.pop(window, None) is not None:
            self._enter(session, t_ns)

    def _end(self, session: Session, t_ns: int, how: str) -> list[Output]:
        """A session is over: with its last event, or with its process."""
        if session.ended is not None:
            return []
        session.ended = (t_ns, how)
        session.windows.end_all(t_ns, self._fleet.now_ns[session.host])
        run = self._runs[session.started.run]
        uses = [self._fleet.gpus[gpu].uses for gpu in session.gpus]
        if not any(rank.ended is None and rank.host == session.host for rank in run.sessions.values()):
            uses.append(self._host_uses[session.host])  # its last rank on the host
        for use in (use for of_one in uses for use in of_one):
            if use.run == run.name and use.ended_ns is None:
                use.ended_ns = t_ns
        for gpu in session.gpus:
            self._fleet.gpus[gpu].shape.mark(session.session, t_ns, None)
        outputs: list[Output] = [session.row(), *run.session_ended(session)]
        self._jobs.session_ended(session, t_ns, how)
        if run.over:
            del self._runs[run.name]
            _remember(self._ended_runs, run.name, Used(run.numbers, run.decisions, run.rounds))
        return outputs

    def _drop(self, session: Session) -> None:
        """Nothing more is to come of a session."""
        del self._sessions[session.session]
        self._on_host[session.host].pop(session.session, None)
        if run := self._runs.get(session.started.run):
            run.sessions.pop(session.session, None)
        for gpu in session.gpus:
            self._fleet.gpus[gpu].sessions.pop(session.session, None)

    # ---- notes of collectors

    def _note(self, host: str, note: Note) -> list[Output]:
        match note:
            case BudgetsSet():
                if host == OWN:
                    self._ledger.set(note)
                return []
            case CollectorStarted(boot_id=boot_id):
                self._ledger.collector_started(host)
                return self._collector_started(host, boot_id)
            case DeviceFound(t_ns=t_ns, gpu=uuid) | DeviceGone(t_ns=t_ns, gpu=uuid) if self._full((uuid,)):
                return [GapRow(host, "devices", t_ns, 1, _FULL)]
            case RunAdmitted(t_ns=t_ns, gpus=gpus) if self._full(gpus):
                return [GapRow(host, "runs", t_ns, 1, _FULL)]
            case DeviceFound(gpu=uuid) | DeviceGone(gpu=uuid) if (owner := self._owner(host, uuid)) != host:
                return self._objection(host, uuid, owner, "devices")
            case DeviceFound(gpu=uuid):
                gpu = self._gpu(host, uuid)
                gpu.host, gpu.found = host, note
                self._ledger.device_found(uuid)
                gpu.timeline.interrupt(None)
                gpu.timeline.sensor, gpu.timeline.most_mw = sensors.sensor(note.name), note.max_limit_mw
                gpu.timeline.gain = self.gains.get(uuid)
                return [gpu_row(host, gpu, note)]
            case DeviceGone(_, uuid, reason):
                gpu = self._gpu(host, uuid)
                gpu.timeline.interrupt(reason)
                return [gpu_row(host, gpu, gpu.found)] if gpu.found else []
            case RunAdmitted(session=name) | SessionEnded(session=name) if (
                known := self._sessions.get(name)
            ) is not None and known.host != host:
                return self._objection(host, f"session {name}", known.host, "runs")
            case RunAdmitted(session=name, gpus=gpus):
                if name not in self._sessions:
                    return []
                owned, outputs = self._owned(host, gpus, "runs")
                ours = tuple(uuid for uuid in gpus if uuid in owned)
                return [*outputs, *self._admitted(host, replace(note, gpus=ours))]
            case SessionEnded(t_ns, name, reason):
                session = self._sessions.get(name)
                return self._end(session, t_ns, reason) if session else []
            case ControlApplied(gpu=uuid) | ControlRefused(gpu=uuid) | ControlLeaseEnded(gpu=uuid) if (
                other := self._fleet.gpus.get(uuid)
            ) is not None and other.host != host:
                return self._objection(host, uuid, other.host, "commands")
            case ControlApplied(control="power_limit") | ControlRefused():
                return self._outcome(host, note)
            case ControlLeaseEnded(control="power_limit", gpu=uuid, cause=cause, reason=reason):
                if self._is_of(host, uuid):
                    self._ledger.lost(note)
                return [output for run in self._runs.values() for output in run.lost(uuid, cause, reason)]
            case Lost(t_ns, what, count, reason):
                return [GapRow(host, what, t_ns, count, reason)]
            case _:
                return []  # clock anchors are the archive's

    def _collector_started(self, host: str, boot_id: str) -> list[Output]:
        """A collector that starts has given limits back; a host that was restarted has forgotten all."""
        self._fleet.parts.pop(host, None)  # it may not look at them any more
        outputs: list[Output] = []
        for run in list(self._runs.values()):
            for gpu in run.holds(host):
                outputs += run.lost(gpu, "restart", "its collector started anew")
        if self._boots.setdefault(host, boot_id) == boot_id:
            return outputs
        self._boots[host] = boot_id
        for session in tuple(self._on_host[host].values()):
            outputs += self._end(session, session.heard_ns, "the host was restarted")
            outputs += self._measure_windows(session, NO_MORE_NS)
            self._drop(session)
        self._host_uses.pop(host, None)
        for name, known in self._fleet.gpus.items():
            if known.host == host:
                self._fleet.gpus[name] = Gpu(host, found=known.found)  # its clock began anew
        return outputs

    def _admitted(self, host: str, admitted: RunAdmitted) -> list[Output]:
        session = self._sessions[admitted.session]
        if session.admitted is None and session.started.world_size:
            for uuid in admitted.gpus:
                uses = self._gpu(host, uuid).uses
                uses.append(
                    Use(session.started.run, session.started.t_ns, session.ended and session.ended[0])
                )
                del uses[:-MAX_USES]
        for uuid in session.gpus:
            self._gpu(host, uuid).sessions.pop(session.session, None)
        session.admitted = admitted
        for uuid in session.gpus:
            self._gpu(host, uuid).sessions[session.session] = session
        if session.ended is None:
            self._enter(session, admitted.t_ns)
        return [session.row()]

    def _outcome(self, host: str, note: ControlApplied | ControlRefused) -> list[Output]:
        """A command has its outcome. Those of others are none of ours."""
        row = self._fleet.commands.pop(note.command, None)
        if self._is_of(host, note.gpu):
            self._ledger.outcome(row, note)
        if row is None:
            return []
        run = self._runs.get(row.run)
        outputs: list[Output]
        match note:
            case ControlApplied(t_ns=t_ns, value=limit_mw):
                outputs = [replace(row, outcome="applied", outcome_ns=t_ns, outcome_limit_w=limit_mw / 1000)]
                if run and row.limit_w is not None:
                    outputs += run.applied(note, host)
            case ControlRefused(t_ns=t_ns, reason=reason):
                outputs = [replace(row, outcome="refused", outcome_ns=t_ns, reason=reason)]
                if run and row.limit_w is not None:
                    outputs += run.refused(note)
        return outputs

    # ---- what can be measured by now

    def _measure(self, frame: Frame, body: Body) -> list[Output]:
        """Return what waited for readings or for a timeout, after a frame of its host."""
        host, now_ns = frame.host, frame.t_ns
        outputs: list[Output] = []
        on_host = self._on_host[host]
        touched = self._sessions.get(body.session) if isinstance(body, Events) else None
        due = self._due(host, now_ns)
        for session in self._to_measure(frame, body, touched, due=due):
            outputs += self._measure_session(frame, session)
        if isinstance(body, Events):
            runs = [] if touched is None else [touched.started.run]
        else:
            runs = list(dict.fromkeys(session.started.run for session in on_host.values()))
        for run in [run for name in runs if (run := self._runs.get(name)) is not None]:
            outputs += self._attempt(frame, "trials", run.measure, run.lead)
        outputs += self._attempt(frame, "tries", lambda: [*self._jobs.look(host)])
        if due:
            outputs += self._questions.time_out(host, now_ns, 2 * self._settings.timeout_ns)
        return outputs

    def _due(self, host: str, now_ns: int) -> bool:
        """Return whether it is time to look at all sessions of a host."""
        pause_ns = max(LOOK_NS, len(self._on_host[host]) * LOOK_MORE_NS)
        if 0 <= now_ns - self._looked_ns.get(host, 0) < pause_ns:
            return False
        self._looked_ns[host] = now_ns
        return True

    def _to_measure(self, frame: Frame, body: Body, touched: Session | None, *, due: bool) -> list[Session]:
        """Return the sessions whose windows are looked at after a frame of their host.

        The more sessions a host has, the less often each is looked at: the work for a frame stays the same.
        """
        on_host = self._on_host[frame.host]
        if len(on_host) <= FEW:
            if isinstance(body, Events):
                return [] if touched is None else [touched]
            return list(on_host.values())
        if not due:
            return []
        every_ns = min(len(on_host) * LOOK_NS, LOOK_SELDOM_NS)
        asked = self._questions.sessions(frame.host)
        return [
            session
            for session in on_host.values()
            if session.session in asked or not 0 <= frame.t_ns - session.measured_ns < every_ns
        ]

    def _measure_session(self, frame: Frame, session: Session) -> list[Output]:
        session.measured_ns = frame.t_ns
        work = partial(self._measure_windows, session, frame.t_ns)
        outputs = self._attempt(frame, "windows", work, session)
        if session.ended is not None and session.windows.empty and session.session in self._sessions:
            self._drop(session)
        return outputs

    def _measure_windows(self, session: Session, now_ns: int) -> list[Output]:
        if not session.windows.waiting:
            return []
        if session.placed != "dispatch":
            now_ns -= PLACED_NS
        meters = None
        if session.admitted is not None:
            meters = {
                gpu: replace(self._fleet.gpus[gpu].meter, hurried=self.hurried)
                for gpu in self._devices(session)
            }
        run = session.started.run

        def shared(gpu: str, begin_ns: int, end_ns: int) -> bool:
            uses = self._host_uses[session.host] if of_host(gpu) else self._fleet.gpus[gpu].uses
            return any(
                use.run != run and use.began_ns < end_ns and (use.ended_ns is None or use.ended_ns > begin_ns)
                for use in uses
            )

        rows = [self._remarked(row) for row in session.windows.measured(meters, now_ns, shared)]
        outputs: list[Output] = list(rows)
        self._jobs.measured(rows)
        for window in dict.fromkeys(row.index for row in rows if row.kind == "window"):
            of_window = [row for row in rows if row.kind == "window" and row.index == window]
            outputs += self._questions.settle(session.session, window, answer_of(of_window))
        return outputs

    def _remarked(self, row: WindowRow) -> WindowRow:
        """Return a row that says whose energy it is, where that is not the GPU's for this run alone."""
        found = None if row.gpu is None else self._fleet.gpus[row.gpu].found
        remarks = [] if row.quality == "ok" else [row.quality]
        if found is not None and found.mig:
            remarks.append("whole GPU, MIG")
        if found is not None and found.scope == "module":
            remarks.append("whole module, with its CPU")
        return replace(row, quality="; ".join(remarks)) if remarks else row


def _named_apart(
    body: Events, started: RunStarted, living: Iterable[Session]
) -> tuple[RunStarted, str | None]:
    """Return the beginning of a session whose run and rank another process is already, under a name of its
    own, and why it may not command; as it is and None if there is no other.
    """
    run, rank = started.run, started.rank
    if all((other.started.run, other.started.rank) != (run, rank) for other in living):
        return started, None
    why = f"run {run} has a rank {rank} already, in another process. Give each training a name of its own."
    return replace(started, run=f"{run[:180]} ({body.session[:8]})"), why


def _remember(kept: dict[K, V], key: K, value: V) -> None:
    """Keep a value; of too many, the oldest goes."""
    kept[key] = value
    if len(kept) > MAX_REMEMBERED:
        del kept[next(iter(kept))]
