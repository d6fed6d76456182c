"""One run: its ranks, and the profiling machine between the stream and the commands. Pure.

    step boundaries of its ranks ->  machine  -> commands, one for each GPU
    outcomes of commands         ->           -> measurements of trials over all ranks, as rows
    measured trials              ->           -> decisions, as rows

The machine counts in the steps of the *lead*, the lowest rank there is. Ranks on other hosts have other
clocks: each measures a trial on its own host's clock, between its own boundaries of the same steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from analyzers import power_limit, search
from analyzers.calibration import calibrated
from analyzers.counters import CounterKind
from analyzers.energy import ALIASED, Meter, Missing, measure
from analyzers.power_limit import (
    Apply,
    Barred,
    Decide,
    Lapsed,
    LimitApplied,
    LimitRefused,
    MeasureTrial,
    Measuring,
    Observe,
    Purpose,
    Release,
    RunOver,
    Span,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
)
from analyzers.rows import (
    ApplyLimit,
    CommandRow,
    DecisionRow,
    Instruction,
    RestoreLimit,
    Row,
    RunRow,
    TrialRow,
)
from analyzers.search import Confidence
from analyzers.selectors import Selector, Trial, cost_mj
from analyzers.shape import Shape
from analyzers.timeline import Timeline
from analyzers.windows import Owner, Windows
from zeus_stream.config import Settings
from zeus_stream.errors import SettingsError
from zeus_stream.messages import (
    Applied,
    DeviceFound,
    LeaseCause,
    Placed,
    Refused,
    RunAdmitted,
    RunStarted,
    StepBoundary,
)

PERIOD_NS = 100_000_000
"""Of a counter, until it is known."""
STEPS_KEPT = 4_096
"""Boundaries a rank remembers beyond those of two trials: ranks run ahead of each other."""
MAX_KNOWN = 10_000
"""Setups whose trials are remembered; the oldest go."""
MAX_COMMANDS = 10_000
"""Commands remembered; the oldest without outcome go."""

SEARCH_SETTLE_NS = 500_000_000
"""After a change of limit, before an adaptive search measures; it leaves out itself what settles longer."""

Output = Row | Instruction
Setup = tuple[str, str, int]
"""What trials can be compared: job, GPU model, number of GPUs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the interpreter."""

    selector: Selector | None
    """None: only measure."""
    stride_mw: int = 25_000
    wait_steps: int = 1
    warmup_steps: int = 10
    profile_steps: int = 40
    settle_ns: int = 300_000_000
    refreshes: int = 10
    timeout_ns: int = 5_000_000_000
    """Frame time that readings of a window, ranks of a run and outcomes of commands are waited for."""
    exhaustive: bool = False
    """Measure every limit, for ``profile_steps`` after ``warmup_steps``."""
    profiling_share: float = 0.05
    """Of a run's steps, that profiling again may take."""

    @classmethod
    def of(cls, settings: Settings, selector: Selector | None) -> "Plan":
        """Raises SettingsError: there is no such search."""
        if settings.search not in ("adaptive", "exhaustive"):
            raise SettingsError(
                f"search = {settings.search!r}: could not be understood: there is no such search."
                " Choose adaptive or exhaustive."
            )
        return cls(
            selector,
            round(settings.stride_w * 1000),
            settings.wait_steps,
            settings.warmup_steps,
            settings.profile_steps,
            settings.settle_ms * 1_000_000,
            settings.refreshes,
            settings.window_timeout_ms * 1_000_000,
            settings.search == "exhaustive",
            settings.profiling_share,
        )


@dataclass(slots=True)
class Use:
    """A run's use of a GPU."""

    run: str
    began_ns: int
    ended_ns: int | None = None


@dataclass(slots=True)
class Gpu:
    """What is known of one GPU."""

    host: str
    timeline: Timeline = field(default_factory=Timeline)
    shaped: Shape | None = None
    """None while no run has used it: of a large site's GPUs that saves most of the memory."""
    found: DeviceFound | None = None
    uses: list[Use] = field(default_factory=list)
    sessions: dict[str, "Session"] = field(default_factory=dict)
    """Those that use it and are not measured to their end."""
    commander: str | None = None
    """The run that may set its limit."""
    told: tuple[bool, str | None, int | None] = (False, None, None)
    """Whether its period was, and the kind and window of its counter."""

    @property
    def shape(self) -> Shape:
        """Of a GPU that a run uses: from now on there is one."""
        if self.shaped is None:
            self.shaped = Shape()
            simulated = self.found is None or self.found.driver == "simulated"  # a counter as it is specified
            self.shaped.suspect(blind=self.timeline.sensor.blind and not simulated)
        return self.shaped

    @property
    def window_ns(self) -> int | None:
        """Of a counter that sees a part of the time, once that is known."""
        return self.shaped.window_ns if self.shaped else None

    @property
    def meter(self) -> Meter:
        return Meter(self.timeline, self.shape)

    @property
    def counter_kind(self) -> CounterKind | None:
        """What its energy comes from, once that is known."""
        if self.timeline.estimator == "power":
            return "power" if self.timeline.period_ns else None
        return self.shaped.kind if self.shaped else None


@dataclass(slots=True)
class Site:
    """What all runs share."""

    plan: Plan
    known: dict[Setup, tuple[TrialRow, ...]]
    """Trials of the last profiling of each setup."""
    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""
    now_ns: dict[str, int] = field(default_factory=dict)
    """By host: the latest frame's time."""
    commands: dict[str, CommandRow] = field(default_factory=dict)
    """Those without outcome."""


class Session:
    """One rank of a run."""

    def __init__(
        self,
        session: str,
        host: str,
        uid: int | None,
        started: RunStarted,
        plan: Plan,
        barred: str | None = None,
    ) -> None:
        """``barred``: why it may not command, whatever its collector says."""
        self.session = session
        self.host = host
        self.started = started
        self.admitted: RunAdmitted | None = None
        self.ended: tuple[int, str] | None = None
        """When and how."""
        self.step: int | None = None
        """The one under way."""
        self.heard_ns = started.t_ns
        """Frame time of its latest events."""
        owner = Owner(session, started.run, started.job, started.rank, host)
        self.windows = Windows(owner, plan.timeout_ns)
        self.placed: Placed = "dispatch"
        """How its latest step boundary was."""
        self.loop = "rest"
        """Whether it is in a step, in the gap between two, or at rest."""
        self.named: dict[int, str] = {}
        """Its open windows, the innermost last."""
        self.barred = barred
        self._uid = uid
        self._began: dict[int, int] = {}
        self._whole: dict[int, int] = {}
        self._keep = STEPS_KEPT + 2 * (plan.warmup_steps + plan.profile_steps)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.admitted.gpus if self.admitted else ()

    @property
    def phase(self) -> str:
        """What the power of its GPUs depends on: its job, innermost window and place in the loop."""
        inner = next(reversed(self.named.values()), "")
        return f"{self.started.job}/{inner}/{self.loop}"

    def same_process(self, host: str, started: RunStarted) -> bool:
        """Whether a session that begins so is of this one's publisher."""
        mine = self.started
        return (self.host, mine.boot_id, mine.pid, mine.t_ns) == (
            host,
            started.boot_id,
            started.pid,
            started.t_ns,
        )

    def note(self, boundary: StepBoundary) -> None:
        """Remember a boundary."""
        index, ended_ns, began_ns = boundary.index, boundary.ended_ns, boundary.began_ns
        if began_ns is not None:
            self._began[index] = began_ns
        if ended_ns is not None:
            # Steps in a row are measured from begin to begin; the last before a pause to its end.
            self._whole[index] = ended_ns if began_ns is None else began_ns
        for kept in (self._began, self._whole):
            while len(kept) > self._keep:
                del kept[next(iter(kept))]

    def began_ns(self, index: int) -> int | None:
        """Return when a step began, if that is remembered."""
        return self._began.get(index)

    def first_since(self, t_ns: int) -> int | None:
        """Return the first step that began at ``t_ns`` or later, if one has."""
        first = None
        for index, began_ns in reversed(self._began.items()):
            if began_ns < t_ns:
                break
            first = index
        return first

    def edges(self, span: Span) -> tuple[int, int] | None:
        """Return when a span of steps began and was whole, if it is and that is remembered."""
        begin_ns, end_ns = self._began.get(span.first), self._whole.get(span.end)
        return None if begin_ns is None or end_ns is None else (begin_ns, end_ns)

    def row(self) -> RunRow:
        started, admitted = self.started, self.admitted
        return RunRow(
            session=self.session,
            run=started.run,
            job=started.job,
            rank=started.rank,
            world_size=started.world_size,
            host=self.host,
            pid=started.pid,
            uid=self._uid,
            gpus=self.gpus,
            boundary=started.boundary,
            began_ns=started.t_ns,
            ended_ns=self.ended[0] if self.ended else None,
            began_wall_ns=started.wall_ns,
            wall_error_ns=started.wall_error_ns,
            ended_how=self.ended[1] if self.ended else None,
            may_command=admitted.may_command and self.barred is None if admitted else False,
            command_reason=self.barred
            or (admitted.reason if admitted else "the collector has not admitted the run yet"),
        )


@dataclass(slots=True)
class _Attempt:
    """A limit that was asked of every GPU of the run."""

    number: int
    waiting: set[str]
    """Commands without outcome."""
    applied_ns: dict[str, int] = field(default_factory=dict)
    """By host: when its last GPU was confirmed."""


@dataclass(frozen=True, slots=True)
class _Trial:
    asked: MeasureTrial
    asked_ns: int
    """Frame time of the lead's host."""


class Run:
    """One run on any number of hosts."""

    def __init__(self, name: str, site: Site, numbers: int = 0, decisions: int = 0) -> None:
        """``numbers``, ``decisions``: those an earlier run of this name used up."""
        self.name = name
        self.sessions: dict[str, Session] = {}
        self.numbers = numbers
        self.decisions = decisions
        self._site = site
        self._lead: Session | None = None
        self._plan: power_limit.Plan | None = None
        self._state: power_limit.State | None = None
        self._attempt: _Attempt | None = None
        self._held: dict[str, None] = {}
        """GPUs whose limit is ours."""
        self._trials: list[_Trial] = []
        self._visited: dict[int, TrialRow] = {}
        """The rows of the last visits of limits, to which more blocks of steps may be added."""
        self._commands = 0
        self._steps = 0
        """Steps of the lead that have begun."""

    # ---- what happens to it

    def step_boundary(self, session: Session, boundary: StepBoundary) -> list[Output]:
        """A rank went on to its next step, or pauses."""
        session.note(boundary)
        outputs: list[Output] = []
        if self._lead is None:
            self._lead = self._choose_lead()
        if session is self._lead:
            if boundary.began_ns is not None:
                if self._state is None:
                    outputs += self._start_if_complete(session, boundary.began_ns)
                self._steps = boundary.index + 1
                outputs += self._feed(StepBegan(boundary.index, boundary.began_ns))
            elif boundary.ended_ns is not None:
                outputs += self._feed(StepsPaused(boundary.index, boundary.ended_ns))
            elif (began_ns := session.began_ns(boundary.index - 1)) is not None:  # it was cancelled
                outputs += self._feed(StepsPaused(boundary.index - 1, began_ns))
        return outputs + self._land()

    def epoch_ended(self, session: Session) -> list[Output]:
        """An epoch ended within a step, of a loop that goes on: the step belongs to no trial."""
        if session is not self._lead or session.step is None:
            return []
        began_ns = session.began_ns(session.step)
        return [] if began_ns is None else self._feed(StepsPaused(session.step, began_ns))

    def applied(self, note: Applied, host: str) -> list[Output]:
        """A GPU's limit was set as asked."""
        self._held[note.gpu] = None
        attempt = self._attempt
        if attempt is None or note.command not in attempt.waiting:
            return []
        attempt.waiting.discard(note.command)
        attempt.applied_ns[host] = max(note.t_ns, attempt.applied_ns.get(host, 0))
        return self._land()

    def refused(self, note: Refused) -> list[Output]:
        """A GPU's limit was not set."""
        attempt = self._attempt
        if attempt is None or note.command not in attempt.waiting:
            return []
        self._attempt = None
        return self._feed(LimitRefused(attempt.number, note.cause, note.reason))

    def lost(self, gpu: str, cause: LeaseCause, reason: str) -> list[Output]:
        """A GPU's limit is not ours any longer."""
        if gpu not in self._held:
            return []
        del self._held[gpu]
        what = f"{gpu}: the lease on its power limit ended: {reason}"
        match cause:
            case "released" | "run":
                return []
            case "stranger" | "device":
                return self._feed(Barred(what))
            case "lapsed" | "shutdown" | "restart":
                return self._feed(Lapsed(what))

    def holds(self, host: str) -> list[str]:
        """Return the GPUs of a host whose limit is ours."""
        return [gpu for gpu in self._held if self._site.gpus[gpu].host == host]

    def session_ended(self, session: Session) -> list[Output]:
        """A rank has ended; if it was the lead or the last, so has its machine, and limits are given back."""
        if session is not self._lead and not self.over:
            return []
        outputs = self._feed(RunOver())
        for gpu in self._site.gpus.values():
            if gpu.commander == self.name:
                gpu.commander = None
        # Should others go on, their steps are perhaps on another clock: a machine of theirs begins anew.
        self._lead, self._state = self._choose_lead() or self._lead, None
        self._trials.clear()
        return outputs

    @property
    def over(self) -> bool:
        return all(session.ended is not None for session in self.sessions.values())

    def needed_ns(self, session: Session) -> list[int]:
        """Return the instants of a rank that trials may still ask for."""
        spans = [span for trial in self._trials for span in trial.asked.spans]
        opened: list[int] = []
        if self._state is not None and isinstance(self._state.phase, Measuring):
            spans += self._state.phase.spans
            opened += [self._state.phase.opened.index] if self._state.phase.opened else []
        edges = [edge for span in spans if (found := session.edges(span)) for edge in found]
        return edges + [began for index in opened if (began := session.began_ns(index)) is not None]

    def measure(self) -> list[Output]:
        """Measure what trials can be measured by now."""
        outputs: list[Output] = []
        for trial in tuple(self._trials):
            if (answer := self._measure(trial)) is not None:
                self._trials.remove(trial)
                row, event = answer
                outputs += [row] if row else []
                outputs += self._feed(event)
        return outputs

    # ---- the machine

    def _choose_lead(self) -> Session | None:
        living = [session for session in self.sessions.values() if session.ended is None]
        return min(living, key=lambda session: session.started.rank, default=None)

    def _start_if_complete(self, lead: Session, t_ns: int) -> list[Output]:
        """Start the machine once all ranks are there, or have been waited for."""
        selector = self._site.plan.selector
        ranks = [session for session in self.sessions.values() if session.ended is None]
        admitted = all(session.admitted for session in ranks) and len(ranks) >= lead.started.world_size
        waited = t_ns - lead.started.t_ns >= self._site.plan.timeout_ns
        if selector is None or not (admitted or (waited and lead.admitted)):
            return []
        gpus, plan = self._gpus(), self._site.plan
        limits_mw, goal = self._limits_mw(gpus), None if plan.exhaustive else selector.goal
        self._plan = power_limit.Plan(
            limits_mw,
            len(gpus),
            selector,
            plan.wait_steps,
            plan.warmup_steps if goal is None else 0,
            plan.profile_steps,
            plan.settle_ns if goal is None else SEARCH_SETTLE_NS,
            0,
            plan.timeout_ns,
            goal,
            profiling_share=plan.profiling_share,
        )
        self._state = power_limit.start(self._plan, self.numbers)
        if (barred := self._barred(gpus, limits_mw)) is not None:
            return self._feed(Barred(barred))
        for gpu in gpus:
            self._site.gpus[gpu].commander = self.name
        return []

    def _limits_mw(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """Return the limits that every GPU may have, none above what was found."""
        found_mw, least_mw = [], []
        for gpu in gpus:
            device = self._site.gpus[gpu].found
            if device is None or device.min_limit_mw is None or device.found_limit_mw is None:
                return ()
            found_mw.append(device.found_limit_mw)
            least_mw.append(device.min_limit_mw)
        if not gpus:
            return ()
        return power_limit.limits_mw(min(found_mw), max(least_mw), self._site.plan.stride_mw)

    def _barred(self, gpus: Sequence[str], limits_mw: Sequence[int]) -> str | None:
        """Return why this run may not command, if it may not."""
        for session in self.sessions.values():
            if session.barred is not None:
                return session.barred
            if session.admitted and not session.admitted.may_command:
                return session.admitted.reason
        for gpu in gpus:
            if (other := self._site.gpus[gpu].commander) not in (None, self.name):
                return f"{gpu}: run {other} sets its power limit already. Wait until it has ended."
        if not gpus:
            return "the run uses no GPU"
        return None if limits_mw else "its GPUs have no power limit in common that could be set"

    def _feed(self, event: power_limit.Event) -> list[Output]:
        """Tell the machine what happened and carry out what it wants."""
        if self._state is None or self._plan is None:
            return []
        self._state, wanted = power_limit.step(self._state, event, self._plan)
        self.numbers = self._state.numbers
        return [output for instruction in wanted for output in self._carry_out(instruction)]

    def _carry_out(self, instruction: power_limit.Instruction) -> list[Output]:
        match instruction:
            case Apply(attempt, limit_mw):
                return self._apply(attempt, limit_mw)
            case Release():
                held, self._held, self._attempt = self._held, {}, None
                given_back: list[Output] = []
                for gpu in held:
                    command, host = self._command(gpu), self._site.gpus[gpu].host
                    given_back += [self._asking(command, gpu, None)]
                    given_back += [RestoreLimit(command, self.name, host, gpu)]
                return given_back
            case MeasureTrial():
                self._trials.append(_Trial(instruction, self._now_ns()))
                return []
            case Decide(limit_mw, number, trials, reason, confidence):
                return [self._decision(number, trials, limit_mw, reason, confidence, applied=True)]
            case Observe(number, trials, reason):
                return [self._observation(number, trials, reason)]

    def _apply(self, attempt: int, limit_mw: int) -> list[Output]:
        """Ask for a limit on every GPU; what is measured at it holds enough refreshes of the slowest."""
        assert self._plan is not None
        gpus = self._gpus()
        periods_ns = [self._site.gpus[gpu].timeline.period_ns or PERIOD_NS for gpu in gpus]
        self._plan = replace(self._plan, window_ns=self._site.plan.refreshes * max(periods_ns, default=0))
        commands = [self._command(gpu) for gpu in gpus]
        self._attempt = _Attempt(attempt, set(commands))
        outputs: list[Output] = []
        for gpu, command in zip(gpus, commands, strict=True):
            host = self._site.gpus[gpu].host
            outputs += [self._asking(command, gpu, limit_mw)]
            outputs += [ApplyLimit(command, self.name, host, gpu, limit_mw)]
        return outputs

    def _command(self, gpu: str) -> str:
        """Return the next command's id: the same when the stream is heard again, and no other run's."""
        self._commands += 1
        session = next(iter(self.sessions))
        return f"{self.name[:100]}/{session[:8]}-{self._commands}/{gpu[-12:]}"

    def _asking(self, command: str, gpu: str, limit_mw: int | None) -> CommandRow:
        now_ns = self._site.now_ns[self._site.gpus[gpu].host]
        limit_w = None if limit_mw is None else limit_mw / 1000
        row = CommandRow(command, self.name, gpu, now_ns, limit_w, None, None, None, "")
        self._site.commands[command] = row
        if len(self._site.commands) > MAX_COMMANDS:
            del self._site.commands[next(iter(self._site.commands))]
        return row

    def _land(self) -> list[Output]:
        """Tell the machine that its limit is in force, once every rank has begun a step under it."""
        attempt = self._attempt
        if attempt is None or attempt.waiting or self._lead is None:
            return []
        ranks = [session for session in self.sessions.values() if session.ended is None and session.gpus]
        firsts = [session.first_since(attempt.applied_ns.get(session.host, 0)) for session in ranks]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return []
        index = max(known, default=0)
        began_ns = self._lead.began_ns(index)
        if began_ns is None:
            return []
        self._attempt = None
        return self._feed(LimitApplied(attempt.number, StepBegan(index, began_ns)))

    def _gpus(self) -> list[str]:
        """Return the GPUs of all living ranks, each once."""
        living = [session for session in self.sessions.values() if session.ended is None]
        return list(dict.fromkeys(gpu for session in living for gpu in session.gpus))

    def _now_ns(self) -> int:
        return self._site.now_ns[self._lead.host] if self._lead else 0

    # ---- trials and decisions

    def _measure(self, trial: _Trial) -> tuple[TrialRow | None, TrialMeasured | TrialMissing] | None:
        """Return the row and the event of a trial, or None while its readings are awaited."""
        asked, lead = trial.asked, self._lead
        assert lead is not None
        timely = self._now_ns() - trial.asked_ns < self._site.plan.timeout_ns
        energy_uj = duration_ns = 0
        temperatures: list[float] = []
        counted: set[str] = set()
        locked = False
        for session in self.sessions.values():
            edges = [session.edges(span) for span in asked.spans]
            whole = [edge for edge in edges if edge is not None]
            if len(whole) < len(edges):
                reason = f"the steps of rank {session.started.rank} are not known"
                return None if timely else (None, TrialMissing(asked.number, reason))
            duration_ns = max(duration_ns, sum(end - begin for begin, end in whole))
            for gpu in session.gpus:
                if gpu in counted:
                    continue
                counted.add(gpu)
                meter, now_ns = self._site.gpus[gpu].meter, self._now_ns()
                # A boxcar's figures need the events to say what it did not see.
                shaped, timeline = meter.shape.window_ns is not None, meter.timeline
                end_ns = whole[-1][1]
                if timely and not (meter.settled(end_ns, now_ns) if shaped else timeline.settled(end_ns)):
                    return None
                begins, ends = [begin for begin, _ in whole], [end for _, end in whole]
                found = meter.measure(begins, ends, now_ns) if shaped else measure(timeline, begins, ends)
                for energy in calibrated(timeline, found, begins, ends):
                    if isinstance(energy, Missing):
                        return None, TrialMissing(asked.number, f"{gpu}: {energy.reason}")
                    energy_uj += energy.energy_uj
                    locked |= energy.phase_coverage is not None and energy.phase_coverage < ALIASED
                temperatures += _known(timeline.temperature_c(begin, end) for begin, end in whole)
        measured = TrialMeasured(asked.number, round(energy_uj / 1000), duration_ns, locked)
        if asked.purpose is Purpose.WATCH:
            return None, measured
        row = self._trial_row(asked, measured, lead, temperatures)
        if asked.purpose is Purpose.PROFILE:
            self._remember(row)
        return row, measured

    def _trial_row(
        self, asked: MeasureTrial, measured: TrialMeasured, lead: Session, temperatures: Sequence[float]
    ) -> TrialRow:
        assert self._plan is not None
        trial = Trial(asked.limit_mw, measured.energy_mj, measured.duration_ns, asked.steps)
        eta = self._plan.selector.eta
        tried = self._state.trials if self._state else ()
        top_mw = max((asked.limit_mw, *(other.limit_mw for other in tried)))
        cost = None if eta is None else cost_mj(trial, eta, top_mw, self._plan.gpus) / 1000
        first, last = lead.edges(asked.spans[0]), lead.edges(asked.spans[-1])
        assert first is not None
        assert last is not None
        row = TrialRow(
            run=self.name,
            number=asked.visit,
            round=asked.round,
            power_limit_w=asked.limit_mw / 1000,
            steps=asked.steps,
            duration_s=trial.duration_ns / 1e9,
            energy_j=trial.energy_mj / 1000,
            average_power_w=trial.energy_mj * 1e6 / trial.duration_ns,
            cost=cost,
            temperature_c=sum(temperatures) / len(temperatures) if temperatures else None,
            began_ns=first[0],
            ended_ns=last[1],
            confirms=asked.purpose is Purpose.CONFIRM,
        )
        if asked.visit in self._visited:
            row = _joined(self._visited[asked.visit], row)
        self._visited[asked.visit] = row
        if len(self._visited) > power_limit.MAX_AWAITED + 1:
            del self._visited[next(iter(self._visited))]
        return row

    def _setup(self) -> Setup | None:
        """Return what this run's trials can be compared with; None for GPUs of several models."""
        found = [self._site.gpus[gpu].found for gpu in self._gpus()]
        models = {device.name for device in found if device is not None}
        if self._lead is None or len(models) != 1:
            return None
        return self._lead.started.job, models.pop(), len(found)

    def _remember(self, row: TrialRow) -> None:
        """Keep a trial for runs of this setup that may not profile."""
        if (setup := self._setup()) is None:
            return
        same = [
            known
            for known in self._site.known.get(setup, ())
            if (known.run, known.round) == (row.run, row.round) and known.number != row.number
        ]
        self._site.known[setup] = (*same, row)
        if len(self._site.known) > MAX_KNOWN:
            del self._site.known[next(iter(self._site.known))]

    def _observation(self, number: int, trials: Sequence[Trial], reason: str) -> DecisionRow:
        """Return the row of a run that may not command: what would be saved, if that is known."""
        assert self._plan is not None
        source: tuple[str, int] | None = (self.name, number)
        if not trials:
            known = self._known()
            trials = added_up(known)
            source = (known[0].run, known[0].round) if known else None
        if not trials:
            reason = (
                f"{reason.rstrip('.')}. What would be saved is not known: no run of this job on such GPUs was"
                " profiled. Let one run of it set power limits."
            )
            return self._decision(number, (), None, reason, applied=False)
        try:
            limit_mw = self._plan.selector.choose(trials, self._plan.gpus)
        except SettingsError as wrong:
            return self._decision(number, (), None, f"{reason}. {wrong}", applied=False)
        return self._decision(number, trials, limit_mw, reason, applied=False, source=source)

    def _known(self) -> tuple[TrialRow, ...]:
        """Return the trials of an earlier run of this setup, at limits that this one could have."""
        setup, limits_mw = self._setup(), self._plan.limits_mw if self._plan else ()
        known = self._site.known.get(setup, ()) if setup else ()
        return tuple(row for row in known if not limits_mw or row.power_limit_w * 1000 <= limits_mw[0] + 500)

    def _decision(
        self,
        number: int,
        trials: Sequence[Trial],
        limit_mw: int | None,
        reason: str,
        confidence: Confidence | None = None,
        *,
        applied: bool,
        source: tuple[str, int] | None = None,
    ) -> DecisionRow:
        """``source``: run and round of the trials; its own if not given."""
        assert self._plan is not None
        assert self._lead is not None
        trials_run, trials_round = source or (self.name, number)
        self.decisions += 1
        chosen = next((trial for trial in trials if trial.limit_mw == limit_mw), None)
        default = max(trials, key=lambda trial: trial.limit_mw, default=None)
        return DecisionRow(
            run=self.name,
            number=self.decisions,
            round=number,
            t_ns=self._now_ns(),
            selector=self._plan.selector.text,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            steps=self._steps,
            default_limit_w=self._plan.limits_mw[0] / 1000 if self._plan.limits_mw else None,
            energy_per_step_j=chosen.step_mj / 1000 if chosen else None,
            step_s=chosen.step_ns / 1e9 if chosen else None,
            default_energy_per_step_j=default.step_mj / 1000 if default else None,
            default_step_s=default.step_ns / 1e9 if default else None,
            applied=applied,
            reason=reason,
            trials_run=trials_run if trials else None,
            trials_round=trials_round if trials else None,
            excess_percent=100 * confidence.expected if confidence else None,
            excess_p95_percent=100 * confidence.p95 if confidence else None,
        )


def added_up(rows: Iterable[TrialRow]) -> tuple[Trial, ...]:
    """Return what was measured at each limit; measurements of one limit are added up."""
    return search.by_limit(
        Trial(
            round(row.power_limit_w * 1000),
            round(row.energy_j * 1000),
            round(row.duration_s * 1e9),
            row.steps,
        )
        for row in rows
    )


def _joined(row: TrialRow, more: TrialRow) -> TrialRow:
    """Return the row of a visit with one more block of its steps."""
    known = [(of.temperature_c, of.duration_s) for of in (row, more)]
    warm = [(temperature_c, s) for temperature_c, s in known if temperature_c is not None]
    duration_s, energy_j = row.duration_s + more.duration_s, row.energy_j + more.energy_j
    return replace(
        row,
        steps=row.steps + more.steps,
        duration_s=duration_s,
        energy_j=energy_j,
        average_power_w=energy_j / duration_s,
        cost=None if row.cost is None or more.cost is None else row.cost + more.cost,
        temperature_c=sum(c * s for c, s in warm) / sum(s for _, s in warm) if warm else None,
        began_ns=min(row.began_ns, more.began_ns),
        ended_ns=max(row.ended_ns, more.ended_ns),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
