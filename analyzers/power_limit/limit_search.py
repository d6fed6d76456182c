"""The search for one run's power limit or clock: its machines; what they want is carried out. Pure.

events -> the profiling machine -> levels to ask for, trials to measure, decisions
       -> the machine of single GPUs, which works while the first one keeps watch

Of ``both`` controls the clock is searched first. Once it is chosen and confirmed, limits are searched without
a locked clock, from what clocks foretell of them. The better of both choices is kept; the limit has to be
better by `BETTER`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Session
from analyzers.measurement.energy import NoEnergy
from analyzers.power_limit import per_gpu, profiler, profiles
from analyzers.power_limit.commands import Attempt, Commands
from analyzers.power_limit.profiler import Apply, Decide, Observe, ProfilerPlan, ProfilerState, Release
from analyzers.power_limit.profiles import KnownProfiles, Recollection
from analyzers.power_limit.ranks import Ranks, instants_ns
from analyzers.power_limit.run_decisions import At, RunDecisions
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.levels import Level, foretold, limit_levels
from analyzers.power_limit.search.search_progress import progress
from analyzers.power_limit.search.step_costs import ENERGY
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.trials import Taken, taken
from analyzers.power_limit.visits import (
    Applying,
    Barred,
    Event,
    Lapsed,
    MeasureTrial,
    Measuring,
    Observing,
    Over,
    Purpose,
    Shifted,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
    limits_mw,
)
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GpuLimitRow, RecallRow, Row, TrialRow
from zeus_stream.protocol.snapshots import SearchNow

BEHIND_TIMES = 3
"""An outcome is waited for so many times as long as the slowest has taken."""
PERIOD_NS = 100_000_000
"""Of a counter, until it is known."""
BETTER = 0.005
"""Share by which a step at a limit has to cost less than at the clock chosen before, to take its place.

Costs are known to about that. In none of 18 simulated workloads did a limit take the place of a clock."""
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


class _Trial(Struct, frozen=True):
    asked: MeasureTrial
    asked_ns: int
    """Frame time of the lead's host."""


class _ChosenClock(Struct, frozen=True):
    """The clock that was chosen, while limits are searched."""

    state: ProfilerState
    plan: ProfilerPlan
    recollection: Recollection


class LimitSearch:
    """The machines of one run."""

    def __init__(
        self,
        ranks: Ranks,
        commands: Commands,
        settings: RunSettings,
        known: KnownProfiles,
        used: Used,
    ) -> None:
        """Begin without a machine. ``used``: by earlier runs of this name."""
        self.settings = settings
        self.numbers, _, self.rounds = used
        self.plan: ProfilerPlan | None = None
        self.state: ProfilerState | None = None
        """None: no machine has begun, or it is over."""
        self.steps = 0
        """Steps of the lead that have begun."""
        self.planned: int | None = None
        """Steps of the whole run, as its script says. None: not known."""
        self._ranks = ranks
        self._commands = commands
        self._known = known
        self._rows = RunDecisions(ranks.run, used.decisions)
        self._single = SingleLimits()
        self._trials: list[_Trial] = []
        self._clock: _ChosenClock | None = None
        """None: limits are not compared with it."""
        self._compared = False
        """Whether limits were compared with the clock in force."""

    @property
    def used(self) -> Used:
        """The numbers that it and earlier runs of its name have used."""
        return Used(self.numbers, self._rows.decisions, self.rounds)

    @property
    def progress(self) -> SearchNow:
        return progress(self.state, self.plan)

    @property
    def commands_limits(self) -> bool:
        if self.state is None or isinstance(self.state.phase, Observing | Over):
            return False
        return not self.by_clock

    @property
    def by_clock(self) -> bool:
        return self.plan is not None and bool(self.plan.clocks_mhz)

    @property
    def wanted_mw(self) -> int | None:
        """The limit that it wants although it might have a higher one; None: the higher, the better."""
        if self.by_clock or self.state is None or self.plan is None or self.state.chosen is None:
            return None
        chosen = self.state.chosen
        higher = any(mw > chosen.limit_mw and chosen.cap.allows(mw) for mw in self.plan.limits_mw)
        return chosen.limit_mw if higher else None

    @property
    def profile(self) -> tuple[Trial, ...]:
        """The cost of its steps at each limit: as measured, else as remembered. Of clocks nothing."""
        if self.plan is None or self.by_clock:
            return ()
        return self.plan.remembered if self.state is None else profiler.curve(self.state, self.plan)

    @property
    def waits(self) -> bool:
        return bool(self._trials)

    def validate(self) -> None:
        """Check what holds between events; an AssertionError names the state."""
        if self.state is not None and self.plan is not None:
            profiler.validate(self.state, self.plan)
        self._single.validate()

    def stop(self) -> None:
        self.state = None
        self._single.stop()
        self._trials.clear()

    def start(self, lead: Session, selector: Selector) -> tuple[Result, bool]:
        """Start a machine for the ranks that are there. Return what it gives, and whether it commands."""
        self._clock, self._commands.behind_ns = None, 0
        settings = self.settings
        found = self._first_levels()
        recalled = self._begin(lead, selector, found, settings.wait_steps)
        if (barred := self._ranks.barred(found, settings)) is not None:
            return rows_only([recalled]) | self.feed(Barred(barred)), False
        assert self.plan is not None
        self._ranks.pending.appoint(self._ranks.run, self._ranks.gpus())
        rows: list[Row] = [recalled]
        if (why := self._ranks.gathered(settings.timeout_ns)) is not None:
            rows.append(self._rows.gathered(self.plan, self._at(), self.rounds, why))
        return rows_only(rows), True

    def _first_levels(self) -> tuple[Level, ...]:
        if self.settings.control == "power_limit":
            return limit_levels(self._ranks.limits_mw(self.settings))
        return self._ranks.clock_levels()

    def _begin(
        self,
        lead: Session,
        selector: Selector,
        found: Sequence[Level],
        wait_steps: int,
        clocks: Iterable[Trial] = (),
    ) -> RecallRow:
        """Begin a machine that chooses from levels, with what is remembered of them.

        ``clocks``: what was measured at clocks, which foretells limits where no run is remembered.
        """
        limits = [level.limit_mw for level in found]
        recollection = profiles.begin(
            self._ranks.devices(),
            self._known,
            self._ranks.run,
            self.rounds + 1,
            self._ranks.about,
            lead,
            limits,
            control="graphics_clock"
            if any(level.clock_mhz is not None for level in found)
            else "power_limit",
        )
        remembered = profiles.trials(recollection.recalled.limits)
        expected = () if self.settings.exhaustive else foretold(limits, clocks, len(self._ranks.gpus()))
        # what this run measured before its workload changed says less than its clocks do now
        is_foretold = bool(expected) and (
            not remembered or recollection.recalled.profile_run == self._ranks.run
        )
        self._rows.begin(recollection, foretold=is_foretold)
        plan = make_plan(
            self.settings,
            selector,
            found,
            len(self._ranks.gpus()),
            wait_steps,
            expected if is_foretold else remembered,
        )
        if is_foretold:
            plan = replace(plan, foretold=True)
        self.plan = plan
        self.state = profiler.start(plan, self.numbers, self.rounds)
        self.rounds = self.state.round
        return recollection.recalled

    def _go_on_with_limits(self) -> Result:
        """Search limits too, once a clock was chosen and confirmed, if both controls are searched."""
        state, plan, lead, recollection = self.state, self.plan, self._ranks.lead, self._rows.recollection
        if self.settings.control != "both" or self._compared or state is None or plan is None:
            return NOTHING
        if state.chosen is None or state.chosen.unsure or not isinstance(state.phase, Measuring):
            return NOTHING
        found = limit_levels(self._ranks.limits_mw(self.settings))
        if lead is None or recollection is None or not found:
            return NOTHING
        self._clock, self._compared = _ChosenClock(state, plan, recollection), True
        self._trials.clear()
        unlocked = self._commands.release("graphics_clock", self._ranks.now)
        begun = self._begin(lead, plan.selector, found, 0, profiler.curve(state, plan))
        return rows_only([begun]) | unlocked | self.feed(state.cap)

    def _compare(self, clock: _ChosenClock, decided: Decide) -> tuple[float, Decide, Decide]:
        """Compare the best limit with the chosen clock.

        Returns:
            By which share a step at the limit costs more, infinite if it is not known, and a decision for
            each, whose bound is over the best of both controls. With a bound on the time it is of its own.
        """
        plan, chosen = clock.plan, clock.state.chosen
        assert chosen is not None
        before = profiler.curve(clock.state, plan)
        locked = Decide(
            chosen.limit_mw, clock.state.round, before, plan.selector.text, chosen.confidence, chosen.costs
        )
        of_limit, of_clock = (
            next((trial for trial in each.trials if trial.limit_mw == each.limit_mw), None)
            for each in (decided, locked)
        )
        if of_limit is None or of_clock is None:
            return float("inf"), decided, locked
        goal = plan.selector.goal or ENERGY
        more = goal.more(of_limit, of_clock, plan.limits_mw[0], plan.gpus)
        limit, found = decided.confidence, chosen.confidence
        if limit is not None and found is not None and goal.factor is None:
            less = 1 / (1 + more) - 1
            decided = replace(decided, confidence=limit.beside(found, less))
            locked = replace(locked, confidence=found.beside(limit, more))
        return more, decided, locked

    def _go_back_to_clock(self, clock: _ChosenClock, kept: Decide, reason: str) -> Result:
        """Lock the clock again that was chosen before: no limit is better."""
        assert self.state is not None
        cap = self.state.cap
        self.plan = clock.plan
        self._trials.clear()
        self._rows.begin(clock.recollection)
        given_back = self._commands.release("power_limit", self._ranks.now)
        self.state, wanted = profiler.take_up(clock.state, self.state.visiting)
        kept = replace(kept, reason=f"{kept.reason}: {reason}")
        return given_back | in_order([self._carry_out(each) for each in (kept, *wanted)]) | self.feed(cap)

    def _search_again(self, renewed: ProfilerState) -> Result:
        """Search both controls again, the clock first: a machine of limits has begun another round."""
        lead, selector = self._ranks.lead, self.settings.selector
        assert lead is not None
        assert selector is not None
        self.rounds = renewed.round - 1
        self._trials.clear()
        given_back = self._commands.release("power_limit", self._ranks.now)
        recalled = self._begin(lead, selector, self._first_levels(), 0)
        assert self.state is not None
        self.state = replace(
            self.state,
            why=renewed.why,
            began=renewed.began,
            profiled=renewed.profiled,
            visiting=replace(self.state.visiting, steps=renewed.visiting.steps),
        )
        return rows_only([recalled]) | given_back | self.feed(renewed.cap)

    def feed(self, event: Event) -> Result:
        """Pass an event to the machine and carry out what it wants."""
        if self.state is None or self.plan is None:
            return NOTHING
        before = self.state.round
        if self.planned is not None and self.state.chosen is None:
            self.plan = replace(self.plan, steps_left=max(0, self.planned - self.steps))
        self.state, wanted = profiler.step(self.state, event, self.plan)
        self.numbers = self.state.visiting.numbers
        if self.state.round > before:
            self.rounds += 1
            self.state, self._compared = replace(self.state, round=self.rounds), False
            if self.settings.control == "both" and not self.by_clock:
                return self._search_again(self.state)
        decided = next((each for each in wanted if isinstance(each, Decide)), None)
        if decided is not None and (clock := self._clock) is not None:
            self._clock = None
            more, of_both, kept = self._compare(clock, decided)
            if more > -BETTER:
                reason = (
                    f"a step at the best limit, {self.plan.spell(decided.limit_mw)}, costs {more:+.1%}"
                    " compared with this clock"
                )
                return self._go_back_to_clock(clock, kept, reason)
            wanted = tuple(of_both if each is decided else each for each in wanted)
        if not isinstance(self.state.phase, Measuring):
            self._single.stop()  # whatever it tries: the limits of all are about to change
        return in_order([self._carry_out(instruction) for instruction in wanted])

    def feed_both(self, event: StepBegan | StepsPaused) -> Result:
        """Pass an event to the machine, and to the one of single GPUs."""
        if self.state is None and self._single.state is None:
            return NOTHING
        return self.feed(event) | self.feed_single(event)

    def _carry_out(self, instruction: profiler.Instruction) -> Result:
        assert self.plan is not None
        match instruction:
            case Apply(attempt, limit_mw):
                return self._apply(attempt, limit_mw)
            case Release():
                return self._commands.give_back(self._ranks.now)
            case MeasureTrial():
                self._trials.append(_Trial(instruction, self._ranks.now_ns))
                return NOTHING
            case Decide():
                assert self.state is not None
                rows = self._rows.decided(instruction, self.plan, self.state, self._at())
                self._commands.behind_ns = 0
                return rows_only(rows)
            case Observe(number, trials, reason):
                return rows_only([self._rows.observation(self.plan, self._at(), number, trials, reason)])

    def _apply(self, attempt: int, limit_mw: int) -> Result:
        """Ask for a limit on every GPU; what is measured at it holds enough refreshes of the slowest."""
        assert self.plan is not None
        gpus = self._ranks.gpus()
        periods_ns = [self._ranks.fleet.gpus[gpu].timeline.period_ns or PERIOD_NS for gpu in gpus]
        self.plan = replace(
            self.plan,
            window_ns=self.settings.refreshes * max(periods_ns, default=0),
            outcome_ns=max(self.settings.timeout_ns, BEHIND_TIMES * self._commands.behind_ns),
        )
        self._single.begin_again()
        levels = dict.fromkeys(gpus, Level(limit_mw, self.plan.clock_mhz(limit_mw)))
        return self._commands.ask(Attempt(attempt), levels, self._ranks.now, self.settings.profiles)

    def land(self) -> Result:
        """Pass on to a machine that its limits are in force, once they are; wait longer if they come late."""
        patience_ns = BEHIND_TIMES * self._commands.behind_ns
        if self.plan is not None and patience_ns > self.plan.outcome_ns:
            self.plan = replace(self.plan, outcome_ns=patience_ns)
        if (landed := self._commands.landed(self._ranks.about, self._ranks.lead)) is None:
            return NOTHING
        attempt, event = landed
        if event.taken_mw is not None and not attempt.single:
            self._follow_driver(event.attempt, event.taken_mw)
        return self.feed_single(event) if attempt.single else self.feed(event)

    def _follow_driver(self, number: int, taken_mw: int) -> None:
        """Put a limit that a driver made of the one asked for in its place."""
        phase = None if self.state is None else self.state.phase
        if self.plan is None or not isinstance(phase, Applying) or phase.attempt != number:
            return
        others = {limit_mw for limit_mw in self.plan.limits_mw if limit_mw != phase.limit_mw}
        self.plan = replace(self.plan, limits_mw=tuple(sorted(others | {taken_mw}, reverse=True)))

    def _at(self) -> At:
        return At(self._ranks.now_ns, self.steps, self._commands.behind_ns)

    # ---- limits of single GPUs

    def _look_for_waiting(self, asked: MeasureTrial, took: Taken) -> Result:
        """After a window at the chosen limit: try which GPUs may have a lower one, if that is wanted."""
        if self.state is None or self.plan is None:
            return NOTHING
        wanted = self._single.look(asked, took, self.state, self.plan, self.settings)
        if wanted:
            self._trials = [trial for trial in self._trials if trial.asked.purpose is not Purpose.PER_GPU]
        return self._carry_out_single(wanted)

    def feed_single(self, event: Event) -> Result:
        """Pass an event to the machine of single GPUs, if there is one, and carry out what it wants."""
        return self._carry_out_single(self._single.step(event))

    def _carry_out_single(self, wanted: Sequence[per_gpu.Instruction]) -> Result:
        result, asked_mw = NOTHING, self._ranks.pending.holding(self._ranks.run).asked_mw
        for instruction in wanted:
            match instruction:
                case per_gpu.ApplyEach(attempt, limits_mw):
                    wished = zip(self._single.gpus, limits_mw, strict=True)
                    others = {gpu: Level(mw) for gpu, mw in wished if mw != asked_mw.get(gpu)}
                    result |= self._commands.ask(Attempt(attempt, single=True), others, self._ranks.now)
                case MeasureTrial():
                    self._trials.append(_Trial(instruction, self._ranks.now_ns))
                case per_gpu.Found(step=since):
                    rows = self._single.found(self._ranks.run, self._ranks.now_ns, instruction)
                    result |= rows_only(rows) | self.feed(Shifted(since))
                case per_gpu.GiveUp(reason):
                    self._single.give_up(self.rounds)
                    result |= self.feed(Lapsed(reason))
        return result

    # ---- trials and decisions

    def needed_ns(self, session: Session) -> list[int]:
        """Return the instants of a rank that trials may still ask for."""
        spans = [span for trial in self._trials for span in trial.asked.spans]
        opened = list[int]()
        for machine in (self.state, self._single.state):
            if machine is not None and isinstance(machine.phase, Measuring):
                spans += machine.phase.spans
                opened += [machine.phase.opened.index] if machine.phase.opened else []
        return instants_ns(session, spans, opened)

    def measure(self) -> Result:
        result = NOTHING
        for trial in tuple(self._trials):
            if trial in self._trials and (took := self._take(trial)) is not None:
                self._trials.remove(trial)
                result |= self._tell(trial.asked, took)
        return result

    def _take(self, trial: _Trial) -> Taken | NoEnergy | None:
        """Return what the steps of a trial took, or None while that is awaited."""
        if trial.asked.purpose is not Purpose.PER_GPU and self._single.trying:
            return NoEnergy("limits of single GPUs were tried in that time")
        now_ns = self._ranks.now_ns
        timely = now_ns - trial.asked_ns < self.settings.timeout_ns
        return taken(
            trial.asked.spans,
            self._ranks.about,
            lambda gpu: self._ranks.fleet.gpus[gpu].meter,
            now_ns,
            timely=timely,
        )

    def _tell(self, asked: MeasureTrial, took: Taken | NoEnergy) -> Result:
        feed = self.feed_single if asked.purpose is Purpose.PER_GPU else self.feed
        if isinstance(took, NoEnergy):
            return feed(TrialMissing(asked.number, took.reason))
        figures = took.energy_mj, took.duration_ns, took.locked, took.delay_ns, took.halves
        if asked.purpose is not Purpose.PER_GPU:
            row = None if asked.purpose is Purpose.WATCH else self._trial_row(asked, took)
            follows = self.feed(TrialMeasured(asked.number, *figures))
            if row is not None:
                row = self._rows.with_best(row, self.state)
                follows = rows_only([row]) | follows | rows_only(self._rows.learned(row, self.state))
            if asked.purpose is Purpose.CONFIRM:
                follows |= self._go_on_with_limits()
            return follows | self._look_for_waiting(asked, took)
        of_each = tuple(took.energy_uj[gpu] // 1000 for gpu in self._single.gpus)
        return self.feed_single(TrialMeasured(asked.number, *figures, of_gpus_mj=of_each))

    def _trial_row(self, asked: MeasureTrial, took: Taken) -> TrialRow:
        assert self.plan is not None
        assert self._ranks.lead is not None
        row = self._rows.trial(asked, took, self.plan, self._ranks.lead)
        return replace(row, power_profile=self._ranks.power_profiles())


def make_plan(
    settings: RunSettings,
    selector: Selector,
    levels: Sequence[Level],
    gpus: int,
    wait_steps: int,
    remembered: tuple[Trial, ...],
) -> ProfilerPlan:
    """Return the constants of a machine that chooses from levels."""
    goal = None if settings.exhaustive else selector.goal
    return ProfilerPlan(
        limits_mw=tuple(level.limit_mw for level in levels),
        clocks_mhz=tuple(level.clock_mhz for level in levels if level.clock_mhz is not None),
        gpus=gpus,
        selector=selector,
        wait_steps=wait_steps,
        warmup_steps=settings.warmup_steps if goal is None else 0,
        profile_steps=settings.profile_steps,
        settle_ns=settings.settle_ns if goal is None else SEARCH_SETTLE_NS,
        window_ns=0,
        outcome_ns=settings.timeout_ns,
        goal=goal,
        remembered=remembered,
        profiling_share=settings.profiling_share,
        profile_only=settings.profile_only,
    )


class SingleLimits:
    """The machine of single GPUs of one run, and its results."""

    def __init__(self) -> None:
        self.state: per_gpu.PerGpuState | None = None
        """None while the limits of all are the same."""
        self._plan: per_gpu.PerGpuPlan | None = None
        self._evened = False
        """Whether it has found out, since all had one limit, which GPUs may have a lower one."""
        self._looks = 0, 0
        """A round, and how often it tried to."""
        self._round = 0

    @property
    def trying(self) -> bool:
        """True while limits of single GPUs are tried."""
        return self.state is not None and not self.state.over

    @property
    def gpus(self) -> tuple[str, ...]:
        return () if self._plan is None else self._plan.gpus

    def validate(self) -> None:
        if self.state is not None and self._plan is not None:
            per_gpu.validate(self.state, self._plan)

    def begin_again(self) -> None:
        self._evened = False

    def stop(self) -> None:
        self.state = None

    def give_up(self, number: int) -> None:
        """Look no more in this round."""
        self._looks = number, MAX_LOOKS

    def look(
        self,
        asked: MeasureTrial,
        took: Taken,
        state: ProfilerState,
        plan: ProfilerPlan,
        settings: RunSettings,
    ) -> Sequence[per_gpu.Instruction]:
        """Begin to try which GPUs may have a lower limit, after a window at the chosen one, if wanted."""
        if settings.control != "power_limit":
            return ()  # single GPUs are lowered by their limit
        if not settings.per_gpu or self.trying or self._evened or asked.purpose is Purpose.PROFILE:
            return ()
        phase, looks = state.phase, self._looks[1] if self._looks[0] == state.round else 0
        if not isinstance(phase, Measuring) or looks >= MAX_LOOKS:
            return ()
        least_mw, finer_mw = plan.limits_mw[-1], max(1000, settings.stride_mw // FINER)
        levels_mw = limits_mw(phase.limit_mw, least_mw, finer_mw // 1000 * 1000)
        gpus = tuple(sorted(took.energy_uj, key=lambda gpu: -took.energy_uj[gpu]))
        if len(gpus) < 2 or len(levels_mw) < 2:
            return ()
        self._looks, self._round = (state.round, looks + 1), state.round
        self._plan = per_gpu.PerGpuPlan(
            gpus=gpus,
            limits_mw=levels_mw,
            settle_ns=SEARCH_SETTLE_NS,
            window_ns=plan.window_ns,
            outcome_ns=plan.outcome_ns,
            round=state.round,
        )
        self.state, wanted = per_gpu.start(self._plan, state.visiting.step)
        return wanted

    def step(self, event: Event) -> Sequence[per_gpu.Instruction]:
        if self.state is None or self._plan is None:
            return ()
        self.state, wanted = per_gpu.step(self.state, event, self._plan)
        return wanted

    def found(self, run: str, t_ns: int, found: per_gpu.Found) -> list[GpuLimitRow]:
        """Take in which limits were found. Return a row of each GPU."""
        assert self._plan is not None
        self._evened = True
        job_w, effect = self._plan.limits_mw[0] / 1000, found.effect
        return [
            GpuLimitRow(
                run=run,
                round=self._round,
                gpu=gpu,
                t_ns=t_ns,
                power_limit_w=limit_mw / 1000,
                job_limit_w=job_w,
                steps=found.steps,
                energy_percent=100 * effect.energy if effect else None,
                time_percent=100 * effect.time if effect else None,
                reason=why,
            )
            for gpu, limit_mw, why in zip(self._plan.gpus, found.limits_mw, found.why, strict=True)
        ]
