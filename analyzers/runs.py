"""One run: its ranks, and the profiling machine between the stream and the commands. Pure.

    step boundaries of its ranks ->  machine  -> commands, one for each GPU
    outcomes of commands         ->           -> measurements of trials over all ranks, as rows
    measured trials              ->           -> decisions, as rows

The machine counts in the steps of the *lead*, the lowest rank there is. Ranks on other hosts have other
clocks: each measures a trial on its own host's clock, between its own boundaries of the same steps.

A machine is about the ranks that were there when it began. When one of them ends or another joins, it is
over: what it changed is given back, and a machine for those there now begins another round. Nothing of that
takes place in the training loop: ranks never wait for each other here.

After a choice, where the plan wants it, a second machine (`stragglers`) looks for GPUs that wait for others
and may have a lower limit. It works while the first one keeps watch, and ends with whatever moves that on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from analyzers import power_limit, profiles, search, stragglers
from analyzers.calibration import calibrated
from analyzers.counters import CounterKind
from analyzers.energy import ALIASED, Meter, Missing, measure
from analyzers.power_limit import (
    Apply,
    Barred,
    Capped,
    Decide,
    Lapsed,
    LimitApplied,
    LimitRefused,
    MeasureTrial,
    Measuring,
    Observe,
    Observing,
    Over,
    Purpose,
    Release,
    RunOver,
    Shifted,
    Span,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
)
from analyzers.profiles import Identity, Profile, Workload
from analyzers.rows import (
    ApplyLimit,
    AtLimit,
    CommandRow,
    DecisionRow,
    GpuLimitRow,
    Instruction,
    ProfileRow,
    RecallRow,
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
    BUDGET,
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
MAX_KNOWN = 2_000
"""Workloads whose profiles are remembered; the oldest go."""
MAX_COMMANDS = 10_000
"""Commands remembered; the oldest without outcome go."""

SEARCH_SETTLE_NS = 500_000_000
"""After a change of limit, before an adaptive search measures; it leaves out itself what settles longer."""
FINER = 4
"""Levels of a single GPU's limit within a stride."""
MAX_LOOKS = 3
"""Times that a round looks for GPUs which wait, if a lapse cuts it short."""

Output = Row | Instruction


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
    per_gpu: bool = False
    """Lower GPUs that wait for others below the limit of their job."""
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
            settings.per_gpu,
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


@dataclass(frozen=True, slots=True)
class Ration:
    """What a power budget leaves a GPU."""

    group: str
    most_mw: int

    @property
    def holder(self) -> str:
        """The name under which limits of the GPU are held, in place of a run's."""
        return f"{BUDGET}{self.group}"[:200]


@dataclass(slots=True)
class Site:
    """What all runs share."""

    plan: Plan
    known: dict[Workload, tuple[Profile, ...]] = field(default_factory=dict)
    """What later runs may start from."""
    recalled: Mapping[tuple[str, int], RecallRow] = field(default_factory=dict)
    """What runs remembered when they were heard the first time, by session of the lead and round."""
    forgotten_wall_ns: Mapping[str, int] = field(default_factory=dict)
    """By job: profiles measured until then are not used."""
    gpus: dict[str, Gpu] = field(default_factory=dict)
    parts: dict[str, dict[str, None]] = field(default_factory=dict)
    """By host: its CPUs and their memory, which are among ``gpus``."""
    now_ns: dict[str, int] = field(default_factory=dict)
    """By host: the latest frame's time."""
    commands: dict[str, CommandRow] = field(default_factory=dict)
    """Those without outcome."""
    rations: dict[str, Ration] = field(default_factory=dict)
    """By GPU under a power budget."""

    def asking(self, command: str, run: str, gpu: str, limit_mw: int | None) -> CommandRow:
        """Return the row of a command that is sent now. None: release."""
        limit_w = None if limit_mw is None else limit_mw / 1000
        row = CommandRow(command, run, gpu, self.now_ns[self.gpus[gpu].host], limit_w, None, None, None, "")
        self.commands[command] = row
        if len(self.commands) > MAX_COMMANDS:
            del self.commands[next(iter(self.commands))]
        return row


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
        self.batch_size = started.batch_size
        """Samples of its batch; None: not known."""
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
            batch_size=self.batch_size,
        )

    def wall_ns(self, t_ns: int) -> int:
        """Return UTC, ns since 1970, at an instant of its host's clock."""
        return self.started.wall_ns + t_ns - self.started.t_ns


@dataclass(slots=True)
class _Attempt:
    """Limits that were asked of GPUs of the run: one of all, or (``single``) of some their own."""

    number: int
    waiting: set[str]
    """Commands without outcome."""
    single: bool = False
    applied_ns: dict[str, int] = field(default_factory=dict)
    """By host: when its last GPU was confirmed."""


@dataclass(frozen=True, slots=True)
class _Trial:
    asked: MeasureTrial | stragglers.Measure
    asked_ns: int
    """Frame time of the lead's host."""


_Measured = TrialMeasured | TrialMissing | stragglers.BlockMeasured


class Run:
    """One run on any number of hosts."""

    def __init__(self, name: str, site: Site, numbers: int = 0, decisions: int = 0, rounds: int = 0) -> None:
        """``numbers``, ``decisions``, ``rounds``: those an earlier run of this name used up."""
        self.name = name
        self.sessions: dict[str, Session] = {}
        self.numbers = numbers
        self.decisions = decisions
        self.rounds = rounds
        self._site = site
        self._lead: Session | None = None
        self._ranks: tuple[Session, ...] = ()
        """Those the machine is about; none while there is no machine."""
        self._changed: tuple[str, int] | None = None
        """What became of the last ones, and when (frame time of the lead's host)."""
        self._plan: power_limit.Plan | None = None
        self._state: power_limit.State | None = None
        self._attempt: _Attempt | None = None
        self._held: dict[str, None] = {}
        """GPUs whose limit is ours."""
        self._asked_mw: dict[str, int] = {}
        """The limit that was asked for last, by GPU."""
        self._even: stragglers.State | None = None
        """The machine of single GPUs; None while the limits of all are the same."""
        self._even_plan: stragglers.Plan | None = None
        self._evened = False
        """Whether it has found out, since all had one limit, which GPUs may have a lower one."""
        self._looks = 0, 0
        """A round, and how often it tried to."""
        self._drawn_uj: dict[str, int] = {}
        """What GPUs took in the last window at one limit."""
        self._trials: list[_Trial] = []
        self._visited: dict[int, TrialRow] = {}
        """The rows of the last visits of limits, to which more blocks of steps may be added."""
        self._identity: Identity | None = None
        self._recalled: RecallRow | None = None
        """What was remembered when the machine began."""
        self._sources: dict[int, tuple[str, int]] = {}
        """By limit, mW: the run and the round that what is known of it comes from."""
        self._measured_wall_ns = 0
        """When the last trial was whole: UTC, ns since 1970."""
        self._commands = 0
        self._first = ""
        """Session that names its commands."""
        self._steps = 0
        """Steps of the lead that have begun."""

    # ---- what happens to it

    def step_boundary(self, session: Session, boundary: StepBoundary) -> list[Output]:
        """A rank went on to its next step, or pauses."""
        session.note(boundary)
        outputs: list[Output] = []
        if self._state is not None and session not in self._ranks and session.admitted:
            outputs += self._break_up(f"rank {session.started.rank} has joined")
        if self._lead is None:
            self._lead = self._choose_lead()
        if session is self._lead:
            if boundary.began_ns is not None:
                if self._state is None:
                    outputs += self._start_if_complete(session, boundary.began_ns)
                self._steps = boundary.index + 1
                outputs += self._feed_both(StepBegan(boundary.index, boundary.began_ns))
            elif boundary.ended_ns is not None:
                outputs += self._feed_both(StepsPaused(boundary.index, boundary.ended_ns))
            elif (began_ns := session.began_ns(boundary.index - 1)) is not None:  # it was cancelled
                outputs += self._feed_both(StepsPaused(boundary.index - 1, began_ns))
        return outputs + self._land()

    def epoch_ended(self, session: Session) -> list[Output]:
        """An epoch ended within a step, of a loop that goes on: the step belongs to no trial."""
        if session is not self._lead or session.step is None:
            return []
        began_ns = session.began_ns(session.step)
        return [] if began_ns is None else self._feed_both(StepsPaused(session.step, began_ns))

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
        refused = LimitRefused(attempt.number, note.cause, note.reason)
        return self._feed_single(refused) if attempt.single else self._feed(refused)

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
        """A rank has ended; so has the machine that was about it."""
        assert session.ended is not None
        if session in self._ranks:
            how = "" if session.ended[1] == "ended" else f" ({session.ended[1]})"
            return self._break_up(f"rank {session.started.rank} has ended{how}")
        if session is self._lead:
            self._lead = self._choose_lead() or session
        return []

    def _break_up(self, why: str) -> list[Output]:
        """The ranks are others than the machine is about: it is over, and limits are given back."""
        outputs = self._feed(RunOver())
        for gpu in self._site.gpus.values():
            if gpu.commander == self.name:
                gpu.commander = None
        self._lead, self._state, self._ranks = self._choose_lead() or self._lead, None, ()
        self._changed = why, self._now_ns()
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
        if self._even is not None and isinstance(self._even.phase, stragglers.Measuring):
            spans += self._even.phase.spans
            opened += [self._even.phase.opened.index] if self._even.phase.opened else []
        edges = [edge for span in spans if (found := session.edges(span)) for edge in found]
        return edges + [began for index in opened if (began := session.began_ns(index)) is not None]

    def measure(self) -> list[Output]:
        """Measure what trials can be measured by now."""
        outputs: list[Output] = []
        for trial in tuple(self._trials):
            if trial in self._trials and (answer := self._measure(trial)) is not None:
                self._trials.remove(trial)
                row, event = answer
                outputs += [row] if row else []
                if row and self._lead:
                    self._measured_wall_ns = self._lead.wall_ns(row.ended_ns)
                if isinstance(trial.asked, MeasureTrial) and not isinstance(event, stragglers.BlockMeasured):
                    outputs += self._feed(event)
                    outputs += self._learned(row) if row else []
                    outputs += self._look_for_waiting(trial.asked, event)
                elif not isinstance(event, TrialMeasured):
                    outputs += self._feed_single(event)
        return outputs

    # ---- under a power budget

    @property
    def commands_limits(self) -> bool:
        """Whether it sets the limits of its GPUs."""
        return self._state is not None and not isinstance(self._state.phase, Observing | Over)

    @property
    def wanted_mw(self) -> int | None:
        """The limit that it wants although it might have a higher one; None: the higher, the better."""
        if self._state is None or self._plan is None or self._state.chosen is None:
            return None
        chosen = self._state.chosen
        higher = any(mw > chosen.limit_mw and chosen.cap.allows(mw) for mw in self._plan.limits_mw)
        return chosen.limit_mw if higher else None

    @property
    def profile(self) -> tuple[Trial, ...]:
        """What its steps take at each limit, as far as that is known."""
        if self._state is not None and self._state.chosen is not None:
            return self._state.trials
        return self._plan.remembered if self._plan else ()

    def rationed(self) -> list[Output]:
        """What power budgets leave its GPUs has changed, or is told for the first time."""
        rations = [ration for gpu in self._gpus() if (ration := self._site.rations.get(gpu))]
        least = min(rations, key=lambda ration: ration.most_mw, default=None)
        cap = Capped(None) if least is None else Capped(least.most_mw, f"budget {least.group}")
        return [] if self._state is None or self._state.cap == cap else self._feed(cap)

    # ---- the machine

    def _choose_lead(self) -> Session | None:
        living = [session for session in self.sessions.values() if session.ended is None]
        return min(living, key=lambda session: session.started.rank, default=None)

    def _start_if_complete(self, lead: Session, t_ns: int) -> list[Output]:
        """Start the machine once all ranks are there, or have been waited for."""
        selector = self._site.plan.selector
        living = [session for session in self.sessions.values() if session.ended is None]
        ranks = tuple(session for session in living if session.admitted)
        complete = len(living) == len(ranks) >= lead.started.world_size
        since_ns = max(lead.started.t_ns, self._changed[1] if self._changed else 0)
        waited = t_ns - since_ns >= self._site.plan.timeout_ns
        if selector is None or not (complete or (waited and lead.admitted)):
            return []
        self._ranks = ranks
        gpus, plan = self._gpus(), self._site.plan
        limits_mw, goal = self._limits_mw(gpus), None if plan.exhaustive else selector.goal
        self._identity = self._identify(lead, gpus, limits_mw)
        recalled = self._recalled = self._recall(lead, self.rounds + 1)
        self._sources = {round(at.power_limit_w * 1000): (at.run, at.round) for at in recalled.limits}
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
            remembered=profiles.trials(recalled.limits),
            profiling_share=plan.profiling_share,
        )
        self._state = power_limit.start(self._plan, self.numbers, self.rounds)
        self.rounds = self._state.round
        if (barred := self._barred(gpus, limits_mw)) is not None:
            return [recalled, *self._feed(Barred(barred))]
        for gpu in gpus:
            self._site.gpus[gpu].commander = self.name
        return [recalled, *self._gathered(lead.started.world_size), *self.rationed()]

    def _gathered(self, world_size: int) -> list[Output]:
        """Return the row that says with whom a round begins, where that is not all of them from the start."""
        if self._changed is None and len(self._ranks) >= world_size:
            return []
        late = f"not all came within {self._site.plan.timeout_ns / 1e9:g} s"
        why = self._changed[0] if self._changed else late
        reason = f"{why}: limits are looked for with {len(self._ranks)} of {world_size} ranks"
        return [self._decision(self.rounds, (), None, reason, applied=False)]

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
        for session in self._ranks:
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
        self.numbers, self.rounds = self._state.numbers, self._state.round
        if not isinstance(self._state.phase, Measuring):
            self._even = None  # whatever it tries: the limits of all are about to change
        return [output for instruction in wanted for output in self._carry_out(instruction)]

    def _feed_both(self, event: StepBegan | StepsPaused) -> list[Output]:
        return self._feed(event) + self._feed_single(event)

    def _carry_out(self, instruction: power_limit.Instruction) -> list[Output]:
        match instruction:
            case Apply(attempt, limit_mw):
                return self._apply(attempt, limit_mw)
            case Release():
                held, self._held, self._attempt, self._asked_mw = self._held, {}, None, {}
                given_back: list[Output] = []
                for gpu in held:
                    if gpu in self._site.rations:
                        continue  # what becomes of it is the budget's to say
                    command, host = self._command(gpu), self._site.gpus[gpu].host
                    given_back += [self._site.asking(command, self.name, gpu, None)]
                    given_back += [RestoreLimit(command, self.name, host, gpu)]
                return given_back
            case MeasureTrial():
                self._trials.append(_Trial(instruction, self._now_ns()))
                return []
            case Decide(limit_mw, number, trials, reason, confidence):
                kept = self._kept(trials, limit_mw)
                reason += self._remembered_from(number)
                top_mw = max(trial.limit_mw for trial in trials)
                source = self._sources.get(top_mw, (self.name, number))
                decision = self._decision(
                    number, trials, limit_mw, reason, confidence, applied=True, source=source
                )
                return [decision, *kept]
            case Observe(number, trials, reason):
                return [self._observation(number, trials, reason)]

    def _apply(self, attempt: int, limit_mw: int) -> list[Output]:
        """Ask for a limit on every GPU; what is measured at it holds enough refreshes of the slowest."""
        assert self._plan is not None
        gpus = self._gpus()
        periods_ns = [self._site.gpus[gpu].timeline.period_ns or PERIOD_NS for gpu in gpus]
        self._plan = replace(self._plan, window_ns=self._site.plan.refreshes * max(periods_ns, default=0))
        self._evened = False
        return self._ask(_Attempt(attempt, set()), dict.fromkeys(gpus, limit_mw))

    def _ask(self, attempt: _Attempt, limits_mw: Mapping[str, int]) -> list[Output]:
        """Ask for limits of GPUs."""
        self._attempt = attempt
        self._asked_mw |= limits_mw
        outputs: list[Output] = []
        for gpu, limit_mw in limits_mw.items():
            command, host = self._command(gpu), self._site.gpus[gpu].host
            attempt.waiting.add(command)
            outputs += [self._site.asking(command, self.name, gpu, limit_mw)]
            outputs += [ApplyLimit(command, self._holder(gpu), host, gpu, limit_mw)]
        return outputs

    def _holder(self, gpu: str) -> str:
        """Return the name under which its limit is held."""
        ration = self._site.rations.get(gpu)
        return self.name if ration is None else ration.holder

    def _command(self, gpu: str) -> str:
        """Return the next command's id: the same when the stream is heard again, and no other run's."""
        self._commands += 1
        self._first = self._first or next(iter(self.sessions))
        return f"{self.name[:100]}/{self._first[:8]}-{self._commands}/{gpu[-12:]}"

    def _land(self) -> list[Output]:
        """Tell a machine that its limits are in force, once the ranks concerned have begun a step since."""
        attempt = self._attempt
        if attempt is None or attempt.waiting or self._lead is None:
            return []
        applied_ns = attempt.applied_ns
        ranks = [session for session in self._ranks if session.gpus and session.host in applied_ns]
        firsts = [session.first_since(applied_ns[session.host]) for session in ranks]
        known = [first for first in firsts if first is not None]
        if len(known) < len(firsts):
            return []
        index = max(known, default=self._lead.step)
        began_ns = None if index is None else self._lead.began_ns(index)
        if index is None or began_ns is None:
            return []
        self._attempt = None
        landed = LimitApplied(attempt.number, StepBegan(index, began_ns))
        return self._feed_single(landed) if attempt.single else self._feed(landed)

    def _gpus(self) -> list[str]:
        """Return the GPUs of all ranks that the machine is about, each once."""
        return list(dict.fromkeys(gpu for session in self._ranks for gpu in session.gpus))

    def _now_ns(self) -> int:
        return self._site.now_ns[self._lead.host] if self._lead else 0

    # ---- limits of single GPUs

    @property
    def _trying(self) -> bool:
        """Whether limits of single GPUs are being tried."""
        return self._even is not None and not self._even.over

    def _look_for_waiting(self, asked: MeasureTrial, measured: _Measured) -> list[Output]:
        """After a window at the chosen limit: try which GPUs may have a lower one, if that is wanted."""
        if not self._site.plan.per_gpu or self._trying or self._evened or self._plan is None:
            return []
        if asked.purpose is Purpose.PROFILE or not isinstance(measured, TrialMeasured) or self._state is None:
            return []
        phase, looks = self._state.phase, self._looks[1] if self._looks[0] == self.rounds else 0
        if not isinstance(phase, Measuring) or looks >= MAX_LOOKS:
            return []
        least_mw, finer_mw = self._plan.limits_mw[-1], max(1000, self._site.plan.stride_mw // FINER)
        levels_mw = power_limit.limits_mw(phase.limit_mw, least_mw, finer_mw // 1000 * 1000)
        gpus = tuple(sorted(self._drawn_uj, key=lambda gpu: -self._drawn_uj[gpu]))
        if len(gpus) < 2 or len(levels_mw) < 2:
            return []
        self._looks = self.rounds, looks + 1
        self._trials = [trial for trial in self._trials if isinstance(trial.asked, MeasureTrial)]
        self._even_plan = stragglers.Plan(
            gpus, levels_mw, SEARCH_SETTLE_NS, self._plan.window_ns, self._plan.outcome_ns
        )
        self._even, wanted = stragglers.start(self._even_plan, self._state.step)
        return self._carry_out_single(wanted)

    def _feed_single(self, event: stragglers.Event) -> list[Output]:
        """Tell the machine of single GPUs what happened, if there is one, and carry out what it wants."""
        if self._even is None or self._even_plan is None:
            return []
        self._even, wanted = stragglers.step(self._even, event, self._even_plan)
        return self._carry_out_single(wanted)

    def _carry_out_single(self, wanted: Sequence[stragglers.Instruction]) -> list[Output]:
        outputs: list[Output] = []
        assert self._even_plan is not None
        gpus = self._even_plan.gpus
        for instruction in wanted:
            match instruction:
                case stragglers.Set(attempt, limits_mw):
                    wished = dict(zip(gpus, limits_mw, strict=True))
                    others = {gpu: mw for gpu, mw in wished.items() if mw != self._asked_mw.get(gpu)}
                    outputs += self._ask(_Attempt(attempt, set(), single=True), others)
                case stragglers.Measure():
                    self._trials.append(_Trial(instruction, self._now_ns()))
                case stragglers.Found(step=since):
                    self._evened = True
                    outputs += self._gpu_limits(gpus, instruction)
                    outputs += self._feed(Shifted(since))
                case stragglers.GiveUp(reason):
                    self._looks = self.rounds, MAX_LOOKS
                    outputs += self._feed(Lapsed(reason))
        return outputs

    def _gpu_limits(self, gpus: Sequence[str], found: stragglers.Found) -> list[GpuLimitRow]:
        assert self._even_plan is not None
        job_w, effect = self._even_plan.limits_mw[0] / 1000, found.effect
        return [
            GpuLimitRow(
                run=self.name,
                round=self.rounds,
                gpu=gpu,
                t_ns=self._now_ns(),
                power_limit_w=limit_mw / 1000,
                job_limit_w=job_w,
                steps=found.steps,
                energy_percent=100 * effect.energy if effect else None,
                time_percent=100 * effect.time if effect else None,
                reason=why,
            )
            for gpu, limit_mw, why in zip(gpus, found.limits_mw, found.why, strict=True)
        ]

    # ---- trials and decisions

    def _measure(self, trial: _Trial) -> tuple[TrialRow | None, _Measured] | None:
        """Return the row and the event of a trial, or None while its readings are awaited."""
        asked, lead = trial.asked, self._lead
        assert lead is not None
        timely = self._now_ns() - trial.asked_ns < self._site.plan.timeout_ns
        energy_uj = duration_ns = 0
        temperatures: list[float] = []
        by_gpu_uj: dict[str, int] = {}
        locked = False
        if isinstance(asked, MeasureTrial) and self._trying:
            return None, TrialMissing(asked.number, "limits of single GPUs were tried meanwhile")
        for session in self._ranks:
            edges = [session.edges(span) for span in asked.spans]
            whole = [edge for edge in edges if edge is not None]
            if len(whole) < len(edges):
                reason = f"the steps of rank {session.started.rank} are not known"
                return None if timely else (None, TrialMissing(asked.number, reason))
            duration_ns = max(duration_ns, sum(end - begin for begin, end in whole))
            for gpu in session.gpus:
                if gpu in by_gpu_uj:
                    continue
                by_gpu_uj[gpu] = 0
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
                    by_gpu_uj[gpu] += energy.energy_uj
                    locked |= energy.phase_coverage is not None and energy.phase_coverage < ALIASED
                temperatures += _known(timeline.temperature_c(begin, end) for begin, end in whole)
        if isinstance(asked, stragglers.Measure):
            assert self._even_plan is not None
            of_each = tuple(by_gpu_uj[gpu] // 1000 for gpu in self._even_plan.gpus)
            return None, stragglers.BlockMeasured(asked.number, of_each, duration_ns)
        self._drawn_uj = by_gpu_uj
        measured = TrialMeasured(asked.number, round(energy_uj / 1000), duration_ns, locked)
        if asked.purpose is Purpose.WATCH:
            return None, measured
        return self._trial_row(asked, measured, lead, temperatures), measured

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

    # ---- what is remembered

    def _identify(self, lead: Session, gpus: Sequence[str], limits_mw: Sequence[int]) -> Identity | None:
        """Return what this run's trials can be compared by; None for GPUs of several models."""
        found = [device for gpu in gpus if (device := self._site.gpus[gpu].found) is not None]
        models = {device.name for device in found}
        if len(models) != 1:
            return None
        return Identity(
            job=lead.started.job,
            gpu_model=models.pop(),
            driver=", ".join(sorted({device.driver for device in found})),
            gpus=len(found),
            world_size=len(self._ranks),
            batch_size=lead.batch_size,
            least_limit_w=limits_mw[-1] / 1000 if limits_mw else None,
            highest_limit_w=limits_mw[0] / 1000 if limits_mw else None,
        )

    def _recall(self, lead: Session, first_round: int) -> RecallRow:
        """Return what is known of this run's workload as its machine begins.

        When it is heard again, that is what it was the first time, whatever is known by now.
        """
        if (before := self._site.recalled.get((lead.session, first_round))) is not None:
            return before
        nothing = RecallRow(lead.session, self.name, first_round)
        if (who := self._identity) is None:
            return nothing
        known = self._site.known.get(who.workload, ())
        found = profiles.recall(known, who, self._site.forgotten_wall_ns.get(who.job, 0))
        if found is None:
            return nothing
        return replace(
            nothing,
            profile_run=found.run,
            profile_round=found.round,
            measured_wall_ns=found.measured_wall_ns,
            limits=found.limits,
        )

    def _learned(self, row: TrialRow) -> list[ProfileRow]:
        """Return what a trial teaches for later runs; nothing once the round has decided."""
        state = self._state
        if state is None or row.confirms or state.chosen is not None or row.round != state.round:
            return []
        return [kept for kept in self._kept(state.trials) if kept.power_limit_w == row.power_limit_w]

    def _kept(self, trials: Sequence[Trial], chosen_mw: int | None = None) -> list[ProfileRow]:
        """Keep for later runs what the round knows of each limit, and which it chose."""
        state, who, lead = self._state, self._identity, self._lead
        if state is None or who is None or lead is None or not trials:
            return []
        self._sources |= {trial.limit_mw: (self.name, state.round) for trial in state.trials}
        profile = Profile(
            who,
            lead.session,
            self.name,
            state.round,
            self._measured_wall_ns,
            None if chosen_mw is None else chosen_mw / 1000,
            tuple(
                AtLimit(
                    trial.limit_mw / 1000,
                    trial.steps,
                    trial.duration_ns / 1e9,
                    trial.energy_mj / 1000,
                    *self._sources.get(trial.limit_mw, (self.name, state.round)),
                )
                for trial in sorted(trials, key=lambda trial: -trial.limit_mw)
            ),
        )
        known = self._site.known
        known[who.workload] = profiles.learned(known.pop(who.workload, ()), profile)
        if len(known) > MAX_KNOWN:
            del known[next(iter(known))]
        return profile.rows

    def _remembered_from(self, number: int) -> str:
        """Return whose profile the search of a round began with, for the reason of its decision."""
        recalled, searched = self._recalled, self._plan is not None and self._plan.goal is not None
        if recalled is None or recalled.measured_wall_ns is None or number != recalled.round or not searched:
            return ""
        on = datetime.fromtimestamp(recalled.measured_wall_ns / 1e9, UTC).date()
        return f"; remembered from run {recalled.profile_run} of {on}"

    def _observation(self, number: int, trials: Sequence[Trial], reason: str) -> DecisionRow:
        """Return the row of a run that may not command: what would be saved, if that is known."""
        assert self._plan is not None
        source: tuple[str, int] | None = (self.name, number)
        if not trials:
            known = self._known()
            trials = profiles.trials(known)
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

    def _known(self) -> list[AtLimit]:
        """Return what was remembered of limits that this run could have."""
        limits_mw = self._plan.limits_mw if self._plan else ()
        limits = self._recalled.limits if self._recalled else ()
        return [at for at in limits if not limits_mw or at.power_limit_w * 1000 <= limits_mw[0] + 500]

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
