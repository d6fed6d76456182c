"""The search for one run's power limit or clock: its machines; what they want is carried out. Pure.

events -> the profiling machine -> levels to ask for, trials to measure, decisions
       -> the machine of single GPUs, which works while the first one keeps watch

A search of ``both`` controls is one: it chooses from clocks and limits (`levels`). Where a clock is asked
for, limits are given back, and the other way round.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Session
from analyzers.measurement.energy import NoEnergy
from analyzers.power_limit import per_gpu, profiler, profiles
from analyzers.power_limit.commands import Attempt, Commands
from analyzers.power_limit.profiler import Apply, Decide, Observe, ProfilerPlan, ProfilerState, Release
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.ranks import Ranks, instants_ns
from analyzers.power_limit.run_decisions import At, RunDecisions
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.levels import Level, both_levels, limit_levels
from analyzers.power_limit.search.search_progress import progress
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
    Warming,
    limits_mw,
)
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import GpuLimitRow, RecallRow, Row, TrialRow
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.snapshots import SearchNow

BEHIND_TIMES = 3
"""An outcome is waited for so many times as long as the slowest has taken."""
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


class _Trial(Struct, frozen=True):
    asked: MeasureTrial
    asked_ns: int
    """Frame time of the lead's host."""


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
        """True if a clock is asked for, or only clocks are searched."""
        phase = None if self.state is None else self.state.phase
        if self.plan is None:
            return False
        asked_mw = phase.limit_mw if isinstance(phase, Applying | Warming | Measuring) else 0
        return self.plan.is_clock(asked_mw)

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
        if self.plan is None:
            return ()
        known = self.plan.remembered if self.state is None else profiler.curve(self.state, self.plan)
        return tuple(trial for trial in known if not self.plan.is_clock(trial.limit_mw))

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
        self._commands.behind_ns = 0
        settings = self.settings
        found = self._levels()
        recalled = self._begin(lead, selector, found)
        if (barred := self._ranks.barred(found, settings)) is not None:
            return rows_only([recalled]) | self.feed(Barred(barred)), False
        assert self.plan is not None
        self._ranks.pending.appoint(self._ranks.run, self._ranks.gpus())
        rows: list[Row] = [recalled]
        if (why := self._ranks.gathered(settings.timeout_ns)) is not None:
            rows.append(self._rows.gathered(self.plan, self._at(), self.rounds, why))
        return rows_only(rows), True

    def _levels(self) -> tuple[Level, ...]:
        if self.settings.control == "graphics_clock":
            return self._ranks.clock_levels()
        limits = limit_levels(self._ranks.limits_mw(self.settings))
        return both_levels(limits, self._ranks.clock_levels()) if self.settings.control == "both" else limits

    def _begin(self, lead: Session, selector: Selector, found: Sequence[Level]) -> RecallRow:
        """Begin a machine that chooses from levels, with what is remembered of them."""
        limits = [level.limit_mw for level in found]
        recollection = profiles.begin(
            self._ranks.devices(),
            self._known,
            self._ranks.run,
            self.rounds + 1,
            self._ranks.about,
            lead,
            limits,
            control=self.settings.control,
        )
        remembered = profiles.trials(recollection.recalled.limits)
        if self.settings.control == "both":  # of others it is not known what they stand for
            remembered = tuple(trial for trial in remembered if trial.limit_mw in limits)
        self._rows.recollection = recollection
        plan = make_plan(self.settings, selector, found, len(self._ranks.gpus()), remembered)
        self.plan = plan
        self.state = profiler.start(plan, self.numbers, self.rounds)
        self.rounds = self.state.round
        return recollection.recalled

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
            self.state = replace(self.state, round=self.rounds)
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
            case Observe():
                return rows_only([self._rows.observation(self.plan, self._at(), instruction)])

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
        level = Level(limit_mw, self.plan.clock_mhz(limit_mw))
        other: Control = "graphics_clock" if level.clock_mhz is None else "power_limit"
        given_back = self._commands.release(other, self._ranks.now)
        wanted = Attempt(attempt), dict.fromkeys(gpus, level), self._ranks.now, self.settings.profiles
        return given_back | self._commands.ask(*wanted)

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
    remembered: tuple[Trial, ...],
) -> ProfilerPlan:
    """Return the constants of a machine that chooses from levels."""
    goal = None if settings.exhaustive else selector.goal
    return ProfilerPlan(
        limits_mw=tuple(level.limit_mw for level in levels),
        clocks_mhz={level.limit_mw: level.clock_mhz for level in levels if level.clock_mhz is not None},
        gpus=gpus,
        selector=selector,
        wait_steps=settings.wait_steps,
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
