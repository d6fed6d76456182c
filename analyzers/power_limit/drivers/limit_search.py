"""The search for one run's power limit or clock: its machines; what they want is carried out. Pure.

events -> the profiling machine -> levels to ask for, trials to measure, decisions
       -> the machine of single GPUs, which works while the first one keeps watch

Of ``both`` controls the limit is searched first. When it is chosen and confirmed, a second machine takes the
place of the first: it searches the clock, and asks for the limit with every clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from analyzers.dispatch.pending import Pending
from analyzers.fleet.fleet import Fleet
from analyzers.fleet.session import Session
from analyzers.measurement.energy import Missing
from analyzers.power_limit import per_gpu, profiler, profiles, warm_start
from analyzers.power_limit.drivers.commands import Attempt, Commands
from analyzers.power_limit.drivers.ranks import Ranks, instants_ns
from analyzers.power_limit.drivers.run_decisions import At, RunDecisions
from analyzers.power_limit.drivers.search_plan import Start, clocks_at_limit, make_plan
from analyzers.power_limit.drivers.single_limits import SingleLimits
from analyzers.power_limit.levels import Level, limit_levels
from analyzers.power_limit.profiler import Apply, Decide, Observe, Release
from analyzers.power_limit.profiles import KnownProfiles
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search.search_progress import SearchProgress, progress
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
)
from analyzers.results.result import NOTHING, Result, in_order, rows_only
from analyzers.results.rows import RecallRow, Row, TrialRow

BEHIND_TIMES = 3
"""An outcome is waited for so many times as long as the slowest has taken."""
PERIOD_NS = 100_000_000
"""Of a counter, until it is known."""


class Used(NamedTuple):
    """The numbers of trials, decisions and rounds that runs of one name have used."""

    trials: int
    decisions: int
    rounds: int


NOTHING_USED = Used(0, 0, 0)
NEW = Start()


class _Trial(Struct, frozen=True):
    asked: MeasureTrial
    asked_ns: int
    """Frame time of the lead's host."""


class LimitSearch:
    """The machines of one run."""

    def __init__(
        self,
        run: str,
        fleet: Fleet,
        pending: Pending,
        settings: RunSettings,
        known: KnownProfiles,
        ranks: Ranks,
        rows: RunDecisions,
        commands: Commands,
        used: Used,
    ) -> None:
        """Begin without a machine."""
        self.settings = settings
        self.numbers, _, self.rounds = used
        self.plan: profiler.ProfilerPlan | None = None
        self.state: profiler.ProfilerState | None = None
        """None: no machine has begun, or it is over."""
        self.steps = 0
        """Steps of the lead that have begun."""
        self._run = run
        self._fleet = fleet
        self._pending = pending
        self._known = known
        self._ranks = ranks
        self._rows = rows
        self._commands = commands
        self._single = SingleLimits()
        self._trials: list[_Trial] = []
        self._held_mw: int | None = None
        """The power limit that clocks are searched at; None: the one there is."""
        self._led_to_mhz: dict[int, float] = {}
        """By limit measured in this round: the clock at which GPUs worked."""

    @property
    def progress(self) -> SearchProgress:
        """Where the search stands, for people."""
        return progress(self.state, self.plan)

    @property
    def commands_limits(self) -> bool:
        """True if it sets the power limits of its GPUs."""
        if self.state is None or isinstance(self.state.phase, Observing | Over):
            return False
        return not self.by_clock or self._held_mw is not None

    @property
    def by_clock(self) -> bool:
        """True if the machine under way searches a clock."""
        return self.plan is not None and bool(self.plan.clocks_mhz)

    @property
    def wanted_mw(self) -> int | None:
        """The limit that it wants although it might have a higher one; None: the higher, the better."""
        if self.by_clock:
            return self._held_mw
        if self.state is None or self.plan is None or self.state.chosen is None:
            return None
        chosen = self.state.chosen
        higher = any(mw > chosen.limit_mw and chosen.cap.allows(mw) for mw in self.plan.limits_mw)
        return chosen.limit_mw if higher else None

    @property
    def profile(self) -> tuple[Trial, ...]:
        """The cost of its steps at each limit: as measured, and where they were not, as remembered.

        Of clocks nothing: they say little about limits.
        """
        if self.plan is None or self.by_clock:
            return ()
        return self.plan.remembered if self.state is None else profiler.curve(self.state, self.plan)

    @property
    def waits(self) -> bool:
        """True while the cost of trials is to be measured."""
        return bool(self._trials)

    def validate(self) -> None:
        """Check what holds between events; an AssertionError names the state."""
        if self.state is not None and self.plan is not None:
            profiler.validate(self.state, self.plan)
        self._single.validate()

    def stop(self) -> None:
        """End the machines, and measure no trial any more."""
        self.state = None
        self._single.stop()
        self._trials.clear()

    def start(self, lead: Session, selector: Selector) -> tuple[Result, bool]:
        """Start a machine for the ranks that are there. Return what it gives, and whether it commands."""
        self._held_mw, self._led_to_mhz, self._commands.behind_ns = None, {}, 0
        settings = self.settings
        clocks = settings.control == "graphics_clock"
        found = (
            self._ranks.clock_levels(at_limit=False)
            if clocks
            else limit_levels(self._ranks.limits_mw(settings))
        )
        recalled = self._begin(lead, selector, found, settings.wait_steps)
        if (barred := self._ranks.barred(found, settings.control)) is not None:
            return rows_only([recalled]) | self.feed(Barred(barred)), False
        assert self.plan is not None
        self._pending.appoint(self._run, self._ranks.gpus())
        rows: list[Row] = [recalled]
        if (why := self._ranks.gathered(settings.timeout_ns)) is not None:
            rows.append(self._rows.gathered(self.plan, self._at(), self.rounds, why))
        return rows_only(rows), True

    def _begin(
        self, lead: Session, selector: Selector, found: Sequence[Level], wait_steps: int, known: Start = NEW
    ) -> RecallRow:
        """Begin a machine that chooses from levels, with what is remembered of them."""
        recollection = warm_start.begin(
            self._fleet,
            self._known,
            self._run,
            self.rounds + 1,
            self._ranks.about,
            lead,
            [level.limit_mw for level in found],
            control="graphics_clock"
            if any(level.clock_mhz is not None for level in found)
            else "power_limit",
        )
        recalled = recollection.recalled
        remembered = profiles.trials(recalled.limits)
        # what this run measured of clocks before its workload changed says less than its limits do now
        foretold = bool(known.remembered) and (not remembered or recalled.profile_run == self._run)
        if foretold:
            remembered = known.remembered
        self._rows.begin(recollection, beside=self._held_mw is not None, foretold=foretold)
        plan = make_plan(self.settings, selector, found, len(self._ranks.gpus()), wait_steps, remembered)
        self.plan = replace(plan, known_as="limits foretold") if foretold else plan
        self.state = profiler.start(self.plan, self.numbers, self.rounds, known.visits)
        self.rounds = self.state.round
        return recalled

    def _go_on_with_clocks(self) -> Result:
        """Search the clock at the limit that was chosen and confirmed, if both controls are searched."""
        state, plan, selector, lead = self.state, self.plan, self.settings.selector, self._ranks.lead
        if self.settings.control != "both" or state is None or plan is None:
            return NOTHING
        if selector is None or lead is None:
            return NOTHING
        beside = clocks_at_limit(state, plan, selector, self._ranks, self._led_to_mhz)
        if beside is None:
            return NOTHING
        self._trials.clear()
        self._held_mw = beside.limit_mw
        begun = self._begin(lead, beside.selector, beside.levels, 0, beside.start)
        return rows_only([begun]) | self.feed(state.cap)

    def _search_again(self, renewed: profiler.ProfilerState) -> Result:
        """Search both controls again, the limit first: a machine of clocks has begun another round."""
        lead, selector = self._ranks.lead, self.settings.selector
        assert lead is not None
        assert selector is not None
        self._held_mw, self.rounds = None, renewed.round - 1
        self._trials.clear()
        unlocked = self._commands.unlock(self._ranks.now)
        found = limit_levels(self._ranks.limits_mw(self.settings))
        recalled = self._begin(lead, selector, found, 0)
        assert self.state is not None
        self.state = replace(
            self.state,
            why=renewed.why,
            began=renewed.began,
            profiled=renewed.profiled,
            visiting=replace(self.state.visiting, steps=renewed.visiting.steps),
        )
        return rows_only([recalled]) | unlocked | self.feed(renewed.cap)

    def feed(self, event: Event) -> Result:
        """Pass an event to the machine and carry out what it wants."""
        if self.state is None or self.plan is None:
            return NOTHING
        before = self.state.round
        self.state, wanted = profiler.step(self.state, event, self.plan)
        self.numbers, self.rounds = self.state.visiting.numbers, self.state.round
        if self.state.round > before and self.by_clock and self._held_mw is not None:
            return self._search_again(self.state)
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
        periods_ns = [self._fleet.gpus[gpu].timeline.period_ns or PERIOD_NS for gpu in gpus]
        self.plan = replace(
            self.plan,
            window_ns=self.settings.refreshes * max(periods_ns, default=0),
            outcome_ns=max(self.settings.timeout_ns, BEHIND_TIMES * self._commands.behind_ns),
        )
        self._single.begin_again()
        levels = dict.fromkeys(gpus, Level(limit_mw, self.plan.clock_mhz(limit_mw)))
        return self._commands.ask(Attempt(attempt), levels, self._ranks.now, self._held_mw)

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
        result, asked_mw = NOTHING, self._pending.holding(self._run).asked_mw
        for instruction in wanted:
            match instruction:
                case per_gpu.ApplyEach(attempt, limits_mw):
                    wished = zip(self._single.gpus, limits_mw, strict=True)
                    others = {gpu: Level(mw) for gpu, mw in wished if mw != asked_mw.get(gpu)}
                    result |= self._commands.ask(Attempt(attempt, single=True), others, self._ranks.now)
                case MeasureTrial():
                    self._trials.append(_Trial(instruction, self._ranks.now_ns))
                case per_gpu.Found(step=since):
                    rows = self._single.found(self._run, self._ranks.now_ns, instruction)
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
        """Measure what trials can be measured by now."""
        result = NOTHING
        for trial in tuple(self._trials):
            if trial in self._trials and (took := self._take(trial)) is not None:
                self._trials.remove(trial)
                result |= self._tell(trial.asked, took)
        return result

    def _take(self, trial: _Trial) -> Taken | Missing | None:
        """Return what the steps of a trial took, or None while that is awaited."""
        if trial.asked.purpose is not Purpose.PER_GPU and self._single.trying:
            return Missing("limits of single GPUs were tried in that time")
        now_ns = self._ranks.now_ns
        timely = now_ns - trial.asked_ns < self.settings.timeout_ns
        return taken(
            trial.asked.spans,
            self._ranks.about,
            lambda gpu: self._fleet.gpus[gpu].meter,
            now_ns,
            timely=timely,
        )

    def _tell(self, asked: MeasureTrial, took: Taken | Missing) -> Result:
        """Pass what steps took to the machine that asked for them."""
        if asked.purpose is not Purpose.PER_GPU:
            if isinstance(took, Missing):
                return self.feed(TrialMissing(asked.number, took.reason))
            if not self.by_clock and (clock_mhz := self._ranks.clock_mhz()) is not None:
                self._led_to_mhz[asked.limit_mw] = clock_mhz
            row = None if asked.purpose is Purpose.WATCH else self._trial_row(asked, took)
            follows = self.feed(
                TrialMeasured(asked.number, took.energy_mj, took.duration_ns, took.locked, took.delay_ns)
            )
            if row is not None:
                follows = rows_only([row]) | follows | rows_only(self._rows.learned(row, self.state))
            if asked.purpose is Purpose.CONFIRM:
                follows |= self._go_on_with_clocks()
            return follows | self._look_for_waiting(asked, took)
        if isinstance(took, Missing):
            return self.feed_single(TrialMissing(asked.number, took.reason))
        of_each = tuple(took.energy_uj[gpu] // 1000 for gpu in self._single.gpus)
        return self.feed_single(
            TrialMeasured(asked.number, took.energy_mj, took.duration_ns, of_gpus_mj=of_each)
        )

    def _trial_row(self, asked: MeasureTrial, took: Taken) -> TrialRow:
        assert self.plan is not None
        assert self._ranks.lead is not None
        return self._rows.trial(asked, took, self.plan, self.state, self._ranks.lead)
