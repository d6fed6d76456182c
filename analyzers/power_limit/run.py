"""One run: the profiling machine between the steps of its ranks and the commands to its GPUs. Pure.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from analyzers.fleet.fleet import Allocation, Clocks, Fleet
from analyzers.fleet.session import Session
from analyzers.measurement.energy import Missing
from analyzers.power_limit import per_gpu, profiler, profiles, run_events, warm_start
from analyzers.power_limit.commands import Attempt, Commands
from analyzers.power_limit.curve_fit.belief import Confidence
from analyzers.power_limit.profiler import (
    Apply,
    Barred,
    Capped,
    Decide,
    Lapsed,
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
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
)
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.run_events import (
    EpochPassed,
    LimitLost,
    LimitSet,
    RankEnded,
    ReadingsCame,
    RunEvent,
    SearchAsked,
    SetAside,
    ShareChanged,
    StepPassed,
)
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search_progress import SearchProgress, progress
from analyzers.power_limit.selectors import Trial, cost_mj
from analyzers.power_limit.trials import Taken, joined, taken, trial_row
from analyzers.power_limit.warm_start import Recollection
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import AtLimit, DecisionRow, GpuLimitRow, ProfileRow, Row, TrialRow
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.events import SearchWanted, StepBoundary
from zeus_stream.protocol.notes import ControlRefused, LeaseCause

PERIOD_NS = 100_000_000
"""Of a counter, until it is known."""
SEARCH_SETTLE_NS = 500_000_000
"""After a change of limit, before an adaptive search measures; it leaves out itself what settles longer."""
FINER = 4
"""Levels of a single GPU's limit within a stride."""
MAX_LOOKS = 3
"""Times that a round looks for GPUs which wait, if a lapse cuts it short."""


class Used(NamedTuple):
    """The numbers of trials, decisions and rounds that runs of one name have used."""

    trials: int
    decisions: int
    rounds: int


NOTHING_USED = Used(0, 0, 0)
_Asked = MeasureTrial | per_gpu.Measure


@dataclass(frozen=True, slots=True)
class _Trial:
    asked: _Asked
    asked_ns: int
    """Frame time of the lead's host."""


class Run:
    """One run on any number of hosts."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        settings: RunSettings,
        known: KnownProfiles,
        allocations: Mapping[str, Allocation],
        used: Used = NOTHING_USED,
    ) -> None:
        """Begin a run.

        Args:
            name: unique among the runs that are open.
            fleet: its GPUs are in.
            settings: those under which it begins; it keeps them.
            known: profiles of earlier runs.
            allocations: by GPU, its share of a power budget.
            used: by earlier runs of this name.
        """
        self.name = name
        self.settings = settings
        self.sessions: dict[str, Session] = {}
        self.numbers, self.decisions, self.rounds = used
        self._fleet = fleet
        self._known_profiles = known
        self._allocations = allocations
        self._lead: Session | None = None
        self._ranks: tuple[Session, ...] = ()
        """Those the machine is about; none while there is no machine."""
        self._changed: tuple[str, int] | None = None
        """What became of the last ones, and when (frame time of the lead's host)."""
        self._plan: profiler.Plan | None = None
        self._state: profiler.State | None = None
        self._commands = Commands(name, fleet, allocations, self.sessions)
        self._even: per_gpu.State | None = None
        """The machine of single GPUs; None while the limits of all are the same."""
        self._even_plan: per_gpu.Plan | None = None
        self._evened = False
        """Whether it has found out, since all had one limit, which GPUs may have a lower one."""
        self._looks = 0, 0
        """A round, and how often it tried to."""
        self._trials: list[_Trial] = []
        self._visited: dict[int, TrialRow] = {}
        """The rows of the last visits of limits, to which more blocks of steps may be added."""
        self._recollection: Recollection | None = None
        """None: no machine has begun."""
        self._now: Clocks = {}
        """Frame times at the event under way, by host."""
        self._steps = 0
        """Steps of the lead that have begun."""

    # ---- what happens to it

    def handle(self, event: RunEvent, now: Clocks) -> Result:
        """Take in an event. Return rows, and the limits to be set or given back."""
        self._now = now
        match event:
            case StepPassed(session, boundary):
                return self._step_passed(session, boundary)
            case EpochPassed(session):
                return self._epoch_passed(session)
            case SearchAsked(wish):
                return self._asked(wish)
            case RankEnded(session):
                return self._rank_ended(session)
            case LimitSet(host, applied):
                self._commands.applied(applied, host)
                return self._land()
            case run_events.LimitRefused(refused):
                return self._refused(refused)
            case LimitLost(gpu, cause, reason):
                return self._lost(gpu, cause, reason)
            case ShareChanged():
                return self._reallocated()
            case ReadingsCame():
                return self._measure()
            case SetAside():
                return self._abandon()

    def _step_passed(self, session: Session, boundary: StepBoundary) -> Result:
        session.note(boundary)
        result = NOTHING
        if self._state is not None and session not in self._ranks and session.admitted:
            result |= self._break_up(f"rank {session.started.rank} has joined")
        if self._lead is None:
            self._lead = self._choose_lead()
        if session is self._lead:
            if boundary.began_ns is not None:
                if self._state is None:
                    result |= self._start_if_complete(session, boundary.began_ns)
                self._steps = boundary.index + 1
                result |= self._feed_both(StepBegan(boundary.index, boundary.began_ns))
            elif boundary.ended_ns is not None:
                result |= self._feed_both(StepsPaused(boundary.index, boundary.ended_ns))
            elif (began_ns := session.began_ns(boundary.index - 1)) is not None:  # it was cancelled
                result |= self._feed_both(StepsPaused(boundary.index - 1, began_ns))
        return result | self._land()

    def _epoch_passed(self, session: Session) -> Result:
        if session is not self._lead or session.step is None:
            return NOTHING
        began_ns = session.began_ns(session.step)
        return NOTHING if began_ns is None else self._feed_both(StepsPaused(session.step, began_ns))

    def _refused(self, note: ControlRefused) -> Result:
        if (attempt := self._commands.refused(note)) is None:
            return NOTHING
        refused = LimitRefused(attempt.number, note.cause, note.reason)
        return self._feed_single(refused) if attempt.single else self._feed(refused)

    def _lost(self, gpu: str, cause: LeaseCause, reason: str) -> Result:
        if gpu not in self._commands.held:
            return NOTHING
        del self._commands.held[gpu]
        what = f"{gpu}: the lease on its power limit ended: {reason}"
        match cause:
            case "released" | "run" | "plan":  # a plan has no power limit
                return NOTHING
            case "stranger" | "device":
                return self._feed(Barred(what))
            case "lapsed" | "shutdown" | "restart":
                return self._feed(Lapsed(what))

    def holds(self, host: str) -> list[str]:
        """Return the GPUs of a host whose limit is ours."""
        return [gpu for gpu in self._commands.held if self._fleet.gpus[gpu].host == host]

    def _rank_ended(self, session: Session) -> Result:
        assert session.ended is not None
        if session in self._ranks:
            how = "" if session.ended[1] == "ended" else f" ({session.ended[1]})"
            return self._break_up(f"rank {session.started.rank} has ended{how}")
        if session is self._lead:
            self._lead = self._choose_lead() or session
        return NOTHING

    def _break_up(self, why: str) -> Result:
        """End the machine, since the ranks are others than it is about; limits are given back."""
        result = self._feed(RunOver())
        for gpu in self._fleet.gpus.values():
            if gpu.commander == self.name:
                gpu.commander = None
        self._lead, self._state, self._ranks = self._choose_lead() or self._lead, None, ()
        self._changed = why, self._now_ns()
        self._trials.clear()
        return result

    def _abandon(self) -> Result:
        """Give back every limit, and leave the machine."""
        self._state, self._even, self._ranks, self._lead = None, None, (), None
        self._trials.clear()
        for gpu in self._fleet.gpus.values():
            if gpu.commander == self.name:
                gpu.commander = None
        return self._commands.give_back(self._now)

    @property
    def lead(self) -> Session | None:
        """The lowest rank there is, once a step has begun."""
        return self._lead

    @property
    def over(self) -> bool:
        return all(session.ended is not None for session in self.sessions.values())

    def needed_ns(self, session: Session) -> list[int]:
        """Return the instants of a rank that trials may still ask for."""
        spans = [span for trial in self._trials for span in trial.asked.spans]
        opened = list[int]()
        for machine in (self._state, self._even):
            if machine is not None and isinstance(machine.phase, Measuring | per_gpu.Measuring):
                spans += machine.phase.spans
                opened += [machine.phase.opened.index] if machine.phase.opened else []
        edges = [edge for span in spans if (found := session.edges(span)) for edge in found]
        return edges + [began for index in opened if (began := session.began_ns(index)) is not None]

    def _measure(self) -> Result:
        """Measure what trials can be measured by now."""
        result = NOTHING
        for trial in tuple(self._trials):
            if trial in self._trials and (took := self._take(trial)) is not None:
                self._trials.remove(trial)
                result |= self._tell(trial.asked, took)
        return result

    @property
    def progress(self) -> SearchProgress:
        """Where the search stands, for people."""
        return progress(self._state, self._plan)

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
        """What its steps take at each limit: as measured, and where they were not, as remembered."""
        if self._plan is None:
            return ()
        return self._plan.remembered if self._state is None else profiler.curve(self._state, self._plan)

    def _reallocated(self) -> Result:
        """Take in what power budgets allow its GPUs by now."""
        shares = [share for gpu in self._gpus() if (share := self._allocations.get(gpu))]
        least = min(shares, key=lambda share: share.most_mw, default=None)
        cap = Capped(None) if least is None else Capped(least.most_mw, f"budget {least.group}")
        return NOTHING if self._state is None or self._state.cap == cap else self._feed(cap)

    # ---- the machine

    def _asked(self, wish: SearchWanted) -> Result:
        """Search as the script wishes, unless the search has begun."""
        if self._state is None:
            self.settings = self.settings.wished(wish)
        return NOTHING

    def _choose_lead(self) -> Session | None:
        living = [session for session in self.sessions.values() if session.ended is None]
        return min(living, key=lambda session: session.started.rank, default=None)

    def _start_if_complete(self, lead: Session, t_ns: int) -> Result:
        """Start the machine once all ranks are there, or have been waited for."""
        if (selector := self.settings.selector) is None:
            return NOTHING
        living = [session for session in self.sessions.values() if session.ended is None]
        ranks = tuple(session for session in living if session.admitted)
        complete = len(living) == len(ranks) >= lead.started.world_size
        since_ns = max(lead.started.t_ns, self._changed[1] if self._changed else 0)
        waited = t_ns - since_ns >= self.settings.timeout_ns
        if not (complete or (waited and lead.admitted)):
            return NOTHING
        self._ranks = ranks
        gpus, plan = self._gpus(), self.settings
        limits_mw, goal = self._limits_mw(gpus), None if plan.exhaustive else selector.goal
        self._recollection = warm_start.begin(
            self._fleet, self._known_profiles, self.name, self.rounds + 1, ranks, lead, limits_mw
        )
        recalled = self._recollection.recalled
        self._plan = profiler.Plan(
            limits_mw=limits_mw,
            gpus=len(gpus),
            selector=selector,
            wait_steps=plan.wait_steps,
            warmup_steps=plan.warmup_steps if goal is None else 0,
            profile_steps=plan.profile_steps,
            settle_ns=plan.settle_ns if goal is None else SEARCH_SETTLE_NS,
            window_ns=0,
            outcome_ns=plan.timeout_ns,
            goal=goal,
            remembered=profiles.trials(recalled.limits),
            profiling_share=plan.profiling_share,
        )
        self._state = profiler.start(self._plan, self.numbers, self.rounds)
        self.rounds = self._state.round
        if (barred := self._barred(gpus, limits_mw)) is not None:
            return rows_only([recalled]) | self._feed(Barred(barred))
        for gpu in gpus:
            self._fleet.gpus[gpu].commander = self.name
        return rows_only([recalled, *self._gathered(lead.started.world_size)]) | self._reallocated()

    def _gathered(self, world_size: int) -> list[Row]:
        """Return the row that says with whom a round begins, where that is not all of them from the start."""
        if self._changed is None and len(self._ranks) >= world_size:
            return []
        late = f"not all came within {self.settings.timeout_ns / 1e9:g} s"
        why = self._changed[0] if self._changed else late
        reason = f"{why}: limits are looked for with {len(self._ranks)} of {world_size} ranks"
        return [self._decision(self.rounds, (), None, reason, applied=False)]

    def _limits_mw(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """Return the limits that every GPU may have, none above what was found."""
        found_mw, least_mw = [], []
        for gpu in gpus:
            device = self._fleet.gpus[gpu].found
            if device is None or device.min_limit_mw is None or device.found_limit_mw is None:
                return ()
            found_mw.append(device.found_limit_mw)
            least_mw.append(device.min_limit_mw)
        if not gpus:
            return ()
        if (only_mw := self.settings.only_mw) is not None:
            return (min(max(only_mw, *least_mw), *found_mw),)
        return profiler.limits_mw(min(found_mw), max(least_mw), self.settings.stride_mw)

    def _barred(self, gpus: Sequence[str], limits_mw: Sequence[int]) -> str | None:
        """Return why this run may not command, if it may not."""
        for session in self._ranks:
            if session.barred is not None:
                return session.barred
            if session.admitted and not session.admitted.may_command:
                return session.admitted.reason
        for gpu in gpus:
            if (other := self._fleet.gpus[gpu].commander) not in (None, self.name):
                return f"{gpu}: run {other} sets its power limit already. Wait until it has ended."
        if not gpus:
            return "the run uses no GPU"
        return None if limits_mw else "its GPUs have no power limit in common that could be set"

    def _feed(self, event: profiler.Event) -> Result:
        """Pass an event to the machine and carry out what it wants."""
        if self._state is None or self._plan is None:
            return NOTHING
        self._state, wanted = profiler.step(self._state, event, self._plan)
        self.numbers, self.rounds = self._state.numbers, self._state.round
        if not isinstance(self._state.phase, Measuring):
            self._even = None  # whatever it tries: the limits of all are about to change
        return in_order([self._carry_out(instruction) for instruction in wanted])

    def _feed_both(self, event: StepBegan | StepsPaused) -> Result:
        return self._feed(event) | self._feed_single(event)

    def _carry_out(self, instruction: profiler.Instruction) -> Result:
        match instruction:
            case Apply(attempt, limit_mw):
                return self._apply(attempt, limit_mw)
            case Release():
                return self._commands.give_back(self._now)
            case MeasureTrial():
                self._trials.append(_Trial(instruction, self._now_ns()))
                return NOTHING
            case Decide():
                return rows_only(self._decided(instruction))
            case Observe(number, trials, reason):
                return rows_only([self._observation(number, trials, reason)])

    def _apply(self, attempt: int, limit_mw: int) -> Result:
        """Ask for a limit on every GPU; what is measured at it holds enough refreshes of the slowest."""
        assert self._plan is not None
        gpus = self._gpus()
        periods_ns = [self._fleet.gpus[gpu].timeline.period_ns or PERIOD_NS for gpu in gpus]
        self._plan = replace(self._plan, window_ns=self.settings.refreshes * max(periods_ns, default=0))
        self._evened = False
        return self._commands.ask(Attempt(attempt), dict.fromkeys(gpus, limit_mw), self._now)

    def _land(self) -> Result:
        """Pass on to a machine that its limits are in force, once they are."""
        if (landed := self._commands.landed(self._ranks, self._lead)) is None:
            return NOTHING
        attempt, event = landed
        return self._feed_single(event) if attempt.single else self._feed(event)

    def _gpus(self) -> list[str]:
        """Return the GPUs of all ranks that the machine is about, each once."""
        return list(dict.fromkeys(gpu for session in self._ranks for gpu in session.gpus))

    def _now_ns(self) -> int:
        return self._now[self._lead.host] if self._lead else 0

    # ---- limits of single GPUs

    @property
    def _trying(self) -> bool:
        """Whether limits of single GPUs are being tried."""
        return self._even is not None and not self._even.over

    def _look_for_waiting(self, asked: MeasureTrial, took: Taken) -> Result:
        """After a window at the chosen limit: try which GPUs may have a lower one, if that is wanted."""
        if not self.settings.per_gpu or self._trying or self._evened or self._plan is None:
            return NOTHING
        if asked.purpose is Purpose.PROFILE or self._state is None:
            return NOTHING
        phase, looks = self._state.phase, self._looks[1] if self._looks[0] == self.rounds else 0
        if not isinstance(phase, Measuring) or looks >= MAX_LOOKS:
            return NOTHING
        least_mw, finer_mw = self._plan.limits_mw[-1], max(1000, self.settings.stride_mw // FINER)
        levels_mw = profiler.limits_mw(phase.limit_mw, least_mw, finer_mw // 1000 * 1000)
        gpus = tuple(sorted(took.energy_uj, key=lambda gpu: -took.energy_uj[gpu]))
        if len(gpus) < 2 or len(levels_mw) < 2:
            return NOTHING
        self._looks = self.rounds, looks + 1
        self._trials = [trial for trial in self._trials if isinstance(trial.asked, MeasureTrial)]
        self._even_plan = per_gpu.Plan(
            gpus, levels_mw, SEARCH_SETTLE_NS, self._plan.window_ns, self._plan.outcome_ns
        )
        self._even, wanted = per_gpu.start(self._even_plan, self._state.step)
        return self._carry_out_single(wanted)

    def _feed_single(self, event: per_gpu.Event) -> Result:
        """Pass an event to the machine of single GPUs, if there is one, and carry out what it wants."""
        if self._even is None or self._even_plan is None:
            return NOTHING
        self._even, wanted = per_gpu.step(self._even, event, self._even_plan)
        return self._carry_out_single(wanted)

    def _carry_out_single(self, wanted: Sequence[per_gpu.Instruction]) -> Result:
        result = NOTHING
        assert self._even_plan is not None
        gpus = self._even_plan.gpus
        for instruction in wanted:
            match instruction:
                case per_gpu.Set(attempt, limits_mw):
                    wished = dict(zip(gpus, limits_mw, strict=True))
                    others = {gpu: mw for gpu, mw in wished.items() if mw != self._commands.asked_mw.get(gpu)}
                    result |= self._commands.ask(Attempt(attempt, single=True), others, self._now)
                case per_gpu.Measure():
                    self._trials.append(_Trial(instruction, self._now_ns()))
                case per_gpu.Found(step=since):
                    self._evened = True
                    result |= rows_only(self._gpu_limits(gpus, instruction))
                    result |= self._feed(Shifted(since))
                case per_gpu.GiveUp(reason):
                    self._looks = self.rounds, MAX_LOOKS
                    result |= self._feed(Lapsed(reason))
        return result

    def _gpu_limits(self, gpus: Sequence[str], found: per_gpu.Found) -> list[GpuLimitRow]:
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

    def _take(self, trial: _Trial) -> Taken | Missing | None:
        """Return what the steps of a trial took, or None while that is awaited."""
        if isinstance(trial.asked, MeasureTrial) and self._trying:
            return Missing("limits of single GPUs were tried meanwhile")
        now_ns = self._now_ns()
        timely = now_ns - trial.asked_ns < self.settings.timeout_ns
        return taken(
            trial.asked.spans, self._ranks, lambda gpu: self._fleet.gpus[gpu].meter, now_ns, timely=timely
        )

    def _tell(self, asked: _Asked, took: Taken | Missing) -> Result:
        """Pass what steps took to the machine that asked for them."""
        if isinstance(asked, MeasureTrial):
            if isinstance(took, Missing):
                return self._feed(TrialMissing(asked.number, took.reason))
            row = None if asked.purpose is Purpose.WATCH else self._row(asked, took)
            follows = self._feed(TrialMeasured(asked.number, took.energy_mj, took.duration_ns, took.locked))
            if row is not None:
                follows = rows_only([row]) | follows | rows_only(self._learned(row))
            return follows | self._look_for_waiting(asked, took)
        if isinstance(took, Missing):
            return self._feed_single(TrialMissing(asked.number, took.reason))
        assert self._even_plan is not None
        of_each = tuple(took.energy_uj[gpu] // 1000 for gpu in self._even_plan.gpus)
        return self._feed_single(per_gpu.BlockMeasured(asked.number, of_each, took.duration_ns))

    def _row(self, asked: MeasureTrial, took: Taken) -> TrialRow:
        """Return the row of a trial, with the blocks of its visit before."""
        assert self._plan is not None
        assert self._lead is not None
        trial = Trial(asked.limit_mw, took.energy_mj, took.duration_ns, asked.steps)
        eta = self._plan.selector.eta
        tried = self._state.trials if self._state else ()
        top_mw = max((asked.limit_mw, *(other.limit_mw for other in tried)))
        cost = None if eta is None else cost_mj(trial, eta, top_mw, self._plan.gpus) / 1000
        row = trial_row(self.name, asked, took, cost, self._lead)
        if self._recollection:
            self._recollection.measured(row.ended_ns)
        if asked.visit in self._visited:
            row = joined(self._visited[asked.visit], row)
        self._visited[asked.visit] = row
        if len(self._visited) > profiler.MAX_AWAITED + 1:
            del self._visited[next(iter(self._visited))]
        return row

    def _learned(self, row: TrialRow) -> list[ProfileRow]:
        """Return what a trial teaches for later runs; nothing once the round has decided."""
        state = self._state
        if self._recollection is None or state is None:
            return []
        if row.confirms or state.chosen is not None or row.round != state.round:
            return []
        kept = self._recollection.keep(state.round, state.trials, state.trials)
        return [each for each in kept if each.power_limit_w == row.power_limit_w]

    def _decided(self, decided: Decide) -> list[Row]:
        """Return the rows of a decision, and what it leaves to later runs."""
        assert self._state is not None
        assert self._plan is not None
        assert self._recollection is not None
        number, known, recollection = decided.round, decided.trials, self._recollection
        kept = recollection.keep(number, self._state.trials, known, decided.limit_mw)
        reason = decided.reason + ("" if self._plan.goal is None else recollection.from_whom(number))
        source = recollection.source(max(trial.limit_mw for trial in known), number)
        decision = self._decision(
            number, known, decided.limit_mw, reason, decided.confidence, applied=True, source=source
        )
        return [decision, *kept]

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
        limits = self._recollection.recalled.limits if self._recollection else ()
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
