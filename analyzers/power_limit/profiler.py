"""The policy of profiling: which power limit a run gets, and when. Pure.

    (state, event, plan) -> (state, instructions)

It visits limits (`visits`), chooses, measures the chosen limit again, and then keeps watch. Which limits:

    exhaustive    the plan's, from the highest down, each once (``plan.goal`` is None)
    adaptive      what `search.advice` says after every measurement, which is of a short block of steps; the
                  blocks at a limit follow each other until another is wanted. It starts from the curve that
                  an earlier run left, if there is one (``plan.remembered``)

The outcome of an instruction comes back as an event:

    Apply(attempt)         -> LimitApplied | LimitRefused        (of all GPUs of the run together)
    MeasureTrial(number)   -> TrialMeasured | TrialMissing       (later, while the next limit is under way)
    Decide, Observe, Release: nothing comes back

The rules, beside those of a visit:

 1. `wait_steps` whole steps pass before the first limit.
 2. A trial is at least `profile_steps` whole steps and at least `window_ns`; a block of an adaptive search
    `BLOCK_STEPS`, `BLOCK_NS` and a `BLOCKS`-th of `window_ns`, as a visit counts from `BLOCKS` blocks on.
    Long steps are known from few: a block of `LONG_BLOCK_NS` is whole, be it one step.
    While steps beat with a sensor that sees a part of the time, a visit goes on, for `MOST_LOCKED` blocks at
    most, each a step longer than the one before, so that their ends move against the sensor.
 3. A limit the device refuses is skipped. One without outcome is asked for again, `MAX_ASKED` times in all,
    each time after twice as long. A trial that could not be measured is repeated once; an adaptive search
    does without a limit after `MAX_MISSING` visits without a result.
 4. Without permission, when somebody else owns or changes the limit, or with nothing to choose from, the
    machine gives back what it changed, says why, and only observes from then on. A lease that lapsed, a
    stale command, or one to a GPU that is lost, is repeated, `MAX_LAPSES` times in all.
 5. After the decision trials go on. The first is as long as a trial and confirms it, those after it hold
    `WATCH_STEPS` steps and `window_ns`. When `drift` is sure that energy or time per step has changed, a new
    round begins. An adaptive one goes on at the limit in force, and starts from the curve of the round
    before: if only its level has changed, three visits tell.
 6. Rounds after the first take at most ``profiling_share`` of the run's steps: another begins when those
    before it have taken no more. Until then the limit stays, and the decision is repeated once, saying so.
 7. Limits above what a power budget allows are not to be had while it does. When it allows less than is in
    force, or more than the choice was made from, the machine goes on from what it knows: measures, chooses.
 8. A search whose budget of steps ends while its bound is above `TOLERATED` chooses the limit that may be off
    by the least, and says so. It goes on in the background: what is measured at that limit counts, and from
    time to time other limits are visited, for `BACKGROUND` blocks, within the share of rule 6.
 9. The best limit may move while steps at the chosen one stay as they are. So an adaptive search looks again
    after `AGAIN_STEPS`, and after twice as many each time that it chose the same limit, within the share of
    rule 6: a round that starts from the curve of the one before. A run that ends sooner is left alone.
10. With ``profile_only`` an exhaustive search does not set its choice. It gives back what it changed, says
    what the choice would save, and only observes from then on: the observer mode of Zeus (NSDI'23).
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from analyzers.power_limit import visits
from analyzers.power_limit.search import advice, drift
from analyzers.power_limit.search.advice import Choose, Measure
from analyzers.power_limit.search.belief import TOLERATED, TRUSTED, Confidence
from analyzers.power_limit.search.step_costs import StepCosts, carried_over
from analyzers.power_limit.search.visit_blocks import BLOCKS, Visit, by_limit, settled
from analyzers.power_limit.selectors import Goal, Selector, Trial, more_words
from analyzers.power_limit.visits import (
    BLOCK_NS,
    BLOCK_STEPS,
    LONG_BLOCK_NS,
    MAX_AWAITED,
    Applying,
    Barred,
    Capped,
    Deciding,
    Event,
    Landed,
    Lapsed,
    Length,
    Measured,
    MeasureTrial,
    Measuring,
    Observing,
    Outcome,
    Over,
    Phase,
    Purpose,
    Refused,
    RunOver,
    Shifted,
    StepBegan,
    TrialMeasured,
    TrialMissing,
    Unanswered,
    Visiting,
    VisitsDue,
    Warming,
)
from analyzers.results.limit_rows import CHANGED
from zeus_stream.errors import SettingsError

MAX_ASKED: Final = 3
"""Times a limit without outcome is asked for."""
MAX_LAPSES: Final = 20
"""Leases of a run that may lapse."""
MAX_MISSING: Final = 2
"""Times a limit may be measured without a result."""
MAX_ROUNDS: Final = 20
"""Then a run's workload counts as restless, and the last decision stands."""
WATCH_STEPS: Final = 10
"""Of a trial after the decision: five tell a change, fifty steps of the hundred it may take."""
MOST_WATCHED: Final = 40
"""Trials at the limit chosen that a search which is not sure uses."""
MOST_LOCKED: Final = 6
"""Blocks of a visit in which a sensor saw the same parts of steps again and again."""
BACKGROUND: Final = 12
MAX_BACKGROUND: Final = 40
"""Blocks by which a search that is not sure goes on in the background, and how often it does."""


AGAIN_STEPS: Final = 5_000
MOST_AGAIN: Final = 10
"""Steps after a choice until it is looked at again, and rounds in which it is."""


class ProfilerPlan(visits.Pace, frozen=True, kw_only=True):
    """Constants of a run. Only ``window_ns`` and ``steps_left`` may differ from call to call."""

    limits_mw: tuple[int, ...]
    """To be visited, descending; see `visits.limits_mw`."""
    clocks_mhz: Mapping[int, int] = field(default_factory=dict)
    """By limit the clock whose nominal power it is (`levels`); the others are power limits."""
    gpus: int
    selector: Selector
    profile_steps: int
    window_ns: int
    goal: Goal | None = None
    """What an adaptive search minimizes; None: every limit is measured."""
    remembered: tuple[Trial, ...] = ()
    """What earlier runs of the same identity measured, one for each limit; some this run may not have."""
    steps_left: int | None = None
    """Of the run, as its script says. None: not known."""
    profiling_share: float = 0.05
    """Of a run's steps, that rounds after the first may take."""
    profile_only: bool = False
    """Give back the limit after the last trial, and say what the best would save (rule 10)."""

    def clock_mhz(self, limit_mw: int | None) -> int | None:
        """Return the clock whose nominal power this is; None: it is a power limit, or none of these."""
        return self.clocks_mhz.get(limit_mw or 0)

    def is_clock(self, limit_mw: int) -> bool:
        """Tell whether a limit is the nominal power of a clock, also of one that an earlier run had."""
        return limit_mw in self.clocks_mhz or 0 < len(self.limits_mw) == len(self.clocks_mhz)

    @property
    def levels(self) -> str:
        clocks = {self.is_clock(limit_mw) for limit_mw in self.limits_mw}
        return "clocks and limits" if len(clocks) > 1 else "clocks" if clocks == {True} else "limits"

    def spell(self, limit_mw: int) -> str:
        clock_mhz = self.clock_mhz(limit_mw)
        return f"{limit_mw / 1000:g} W" if clock_mhz is None else f"{clock_mhz} MHz"


# ---- instructions ------------------------------------------------------------------------------------


class Apply(Struct, frozen=True):
    """Set the limit on every GPU of the run."""

    attempt: int
    limit_mw: int


class Release(Struct, frozen=True):
    """Give back every limit that was changed."""


class Decide(Struct, frozen=True):
    """A limit was chosen, for this reason."""

    limit_mw: int
    round: int
    trials: tuple[Trial, ...]
    """What it was chosen from: measured or, if that was as remembered, remembered, at the level of now."""
    reason: str
    confidence: Confidence | None = None
    """Of an adaptive search."""
    costs: StepCosts | None = None
    """What its belief says of steps at these limits."""
    changed_step: int | None = None
    """Of the changed workload that it was chosen for, the first step."""


class Observe(Struct, frozen=True):
    """No more commands, for this reason."""

    round: int
    trials: tuple[Trial, ...]
    reason: str
    chosen: Choose | None = None
    """The choice of an adaptive search by then, and how sure it is. None: the selector is to choose."""


Instruction: TypeAlias = Apply | Release | MeasureTrial | Decide | Observe


# ---- state -------------------------------------------------------------------------------------------


class Chosen(Struct, frozen=True, kw_only=True):
    """The decision, and what was seen of it since."""

    limit_mw: int
    confirmed: bool = False
    watch: drift.Watch = drift.Watch()
    as_remembered: bool = False
    """Chosen by a curve that an earlier run or round left."""
    unsure: bool = False
    """A limit may be left that is much better; the search goes on in the background (rule 8)."""
    changed_step: int | None = None
    """From which step on the workload is another, as the watch saw it. None: it is not."""
    waits: bool = False
    """It has changed, and a new round has to wait; a decision says so."""
    shifted: bool = False
    """Single GPUs are below it."""
    cap: Capped = Capped(None)
    """What a power budget allowed when it was chosen."""
    costs: StepCosts | None = None
    """What the belief that chose it says of steps; None: every limit was measured."""
    confidence: Confidence | None = None
    """Of an adaptive search."""
    again: int = 0
    """Times that it was chosen again without a change."""


class ProfilerState(Struct, frozen=True, kw_only=True):
    """The policy's state. A new run starts at `start`."""

    visiting: Visiting
    todo_mw: tuple[int, ...]
    """Limits still to be visited in this round."""
    round: int = 1
    visits: tuple[tuple[int, Visit], ...] = ()
    """What was measured in this round, by the visit's number."""
    without_mw: frozenset[int] = frozenset()
    """Limits that cannot be had."""
    awaited: tuple[MeasureTrial, ...] = ()
    missed_mw: tuple[int, ...] = ()
    """Limits measured without a result, once for each time."""
    trouble: str = "no limit was tried"
    """Why the last limit was skipped."""
    so_far: Choose | None = None
    """The choice of the search by what was measured of this round. None: nothing, or it measures all."""
    chosen: Chosen | None = None
    cap: Capped = Capped(None)
    """What a power budget allows (rule 7)."""
    memory: tuple[Trial, ...] = ()
    """What was known of the curve when the round began."""
    why: str = ""
    """Why it searches again: what had changed, or that it goes on in the background."""
    before: Chosen | None = None
    """The choice of the round before."""
    background: int = 0
    """Times that this round went on in the background."""
    began: int = 0
    """Steps of the run when the round began."""
    profiled: int = 0
    """Steps that finished rounds after the first took."""

    @property
    def phase(self) -> Phase:
        return self.visiting.phase

    @property
    def trials(self) -> tuple[Trial, ...]:
        return by_limit(block for _, visit in self.visits for block in visit.blocks)


Answer: TypeAlias = tuple[ProfilerState, tuple[Instruction, ...]]


def start(
    plan: ProfilerPlan, numbers: int = 0, rounds: int = 0, visits: tuple[tuple[int, Visit], ...] = ()
) -> ProfilerState:
    """Return the state of a run that has just begun, after so many trials and rounds before."""
    usable = (known for known in plan.remembered if min(known.energy_mj, known.duration_ns, known.steps) > 0)
    return ProfilerState(
        visiting=Visiting(numbers=numbers),
        todo_mw=_limits_to_visit(plan),
        round=rounds + 1,
        memory=tuple(usable),
        visits=visits,
    )


def _limits_to_visit(plan: ProfilerPlan) -> tuple[int, ...]:
    return plan.limits_mw if plan.goal is None else ()


def _at(state: ProfilerState, phase: Phase) -> ProfilerState:
    return replace(state, visiting=replace(state.visiting, phase=phase))


def validate(state: ProfilerState, plan: ProfilerPlan) -> None:
    """Check what holds between events; an AssertionError names the state."""
    visits.validate(state.visiting)
    numbers = [asked.number for asked in state.awaited]
    assert len(numbers) <= MAX_AWAITED, state
    assert numbers == sorted(set(numbers)), state
    used = [*numbers, *(number for number, _ in state.visits)]
    assert max(used, default=0) <= state.visiting.numbers, state
    assert set(state.todo_mw) <= set(plan.limits_mw), state
    match state.phase:
        case Observing() | Over():
            return
        case Deciding():
            assert plan.goal is None, state
            assert state.chosen is None, state
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw):
            measured_mw = {trial.limit_mw for trial in state.trials}
            assert limit_mw in measured_mw.union(plan.limits_mw), state
            assert state.chosen is None or state.chosen.limit_mw == limit_mw, state
        case _:
            assert state.chosen is None, state
    for _, visit in state.visits:
        assert visit.blocks, state


def step(state: ProfilerState, event: Event, plan: ProfilerPlan) -> Answer:
    """Return the next state and what to do about it. Every (state, event) is answered."""
    match state.phase, event:
        case Over(), _:
            return state, ()
        case _, RunOver(why):
            return _at(state, Over()), (Release(), *_known_so_far(state, why, plan))
        case Observing(), _:
            return state, ()
        case _, Barred(reason):
            return _observe_only(state, reason)
        case _, Capped():
            return _handle_cap(state, event, plan)
        case Applying(asked=0), Lapsed():
            return state, ()
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw), Lapsed(reason, until):
            return _wait_after_lapse(state, limit_mw, reason, until)
        case Measuring(limit_mw), Shifted(since) if state.chosen is not None:
            chosen = replace(state.chosen, confirmed=False, watch=drift.Watch(), shifted=True)
            visiting = visits.warm_up(replace(state.visiting, phase=Warming(limit_mw, since)), plan)
            return replace(state, visiting=visiting, chosen=chosen, awaited=()), ()
        case _, TrialMeasured():
            return _record_trial(state, event, plan)
        case _, TrialMissing(number, reason):
            asked, state = _take(state, number)
            if asked is None or asked.purpose is not Purpose.PROFILE:
                return state, ()
            return _missed(state, asked, reason, plan)
        case _, Lapsed() | Shifted():
            return state, ()
        case _:
            visiting, outcome = visits.step(state.visiting, event, plan, _length(state, plan))
            return _follow(replace(state, visiting=visiting), outcome, plan)


def _follow(state: ProfilerState, outcome: Outcome | None, plan: ProfilerPlan) -> Answer:
    match outcome:
        case VisitsDue():
            return _visit_next_limit(state, plan)
        case Unanswered(limit_mw, asked) if asked < MAX_ASKED:
            return _apply_limit(state, limit_mw, asked + 1)
        case Unanswered(limit_mw):
            return _skip_limit(state, limit_mw, f"no outcome came of {MAX_ASKED} commands", plan)
        case Refused(limit_mw, "stale" | "lost", reason):
            return _wait_after_lapse(state, limit_mw, reason)
        case Refused(limit_mw, "range" | "device", reason):
            return _skip_limit(state, limit_mw, reason, plan)
        case Refused(reason=reason):
            return _observe_only(state, reason)
        case Landed(limit_mw, taken_mw) if taken_mw != limit_mw:
            return _follow_driver(state, limit_mw, taken_mw), ()
        case Measured(trial, ended_ns):
            return _measure(state, trial, ended_ns, plan)
        case _:
            return state, ()


def _follow_driver(state: ProfilerState, asked_mw: int, taken_mw: int) -> ProfilerState:
    """Return the state in which a driver made another limit of the one asked for; it is in the plan."""
    chosen = state.chosen
    if chosen is not None and chosen.limit_mw == asked_mw:
        chosen = replace(chosen, limit_mw=taken_mw)
    todo_mw = tuple(limit_mw for limit_mw in state.todo_mw if limit_mw != taken_mw)
    return replace(state, chosen=chosen, todo_mw=todo_mw)


# ---- which limit is next: rules 3, 4, 7 and 10 ------------------------------------------------------


def _visit_next_limit(state: ProfilerState, plan: ProfilerPlan) -> Answer:
    """Go on to the next limit of the round, or to the decision."""
    if plan.goal is not None:
        return _follow_search(state, plan)
    if (first := next(filter(state.cap.allows, state.todo_mw), None)) is not None:
        return _apply_limit(replace(state, todo_mw=tuple(mw for mw in state.todo_mw if mw != first)), first)
    return _decide_if_last(_at(state, Deciding()), plan)


def _apply_limit(state: ProfilerState, limit_mw: int, asked: int = 1) -> Answer:
    visiting, attempt = visits.ask(state.visiting, limit_mw, asked)
    return replace(state, visiting=visiting), (Apply(attempt, limit_mw),)


def _wait_after_lapse(
    state: ProfilerState, limit_mw: int, reason: str, until: StepBegan | None = None
) -> Answer:
    """Keep the steps before the lapse, and wait until the limit is asked for again."""
    if state.visiting.lapses >= MAX_LAPSES:
        return _observe_only(state, f"{reason}, for the {MAX_LAPSES + 1}th time")
    return replace(state, visiting=visits.wait_after_lapse(state.visiting, limit_mw, until)), ()


def _skip_limit(state: ProfilerState, limit_mw: int, reason: str, plan: ProfilerPlan) -> Answer:
    """Do without a limit; if it was the chosen one, choose from the others."""
    state = replace(state, trouble=reason, without_mw=state.without_mw | {limit_mw})
    if state.chosen is not None:
        others = tuple(known for known in state.visits if known[1].limit_mw != limit_mw)
        state = replace(state, chosen=None, visits=others)
    return _visit_next_limit(state, plan)


def _observe_only(state: ProfilerState, reason: str) -> Answer:
    return _at(state, Observing(reason)), (Release(), Observe(state.round, state.trials, reason))


def _handle_cap(state: ProfilerState, cap: Capped, plan: ProfilerPlan) -> Answer:
    """Go on with the limits that there are now, from what is known of them (rule 7)."""
    # Steps since a choice were watched; those of a search for another are counted from now on.
    state = replace(state, cap=cap, began=state.began if state.chosen is None else state.visiting.steps)
    profiled = tuple(asked for asked in state.awaited if asked.purpose is Purpose.PROFILE)
    match state.phase:
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw) if not cap.allows(limit_mw):
            if plan.goal is None and state.chosen is None:
                state = replace(state, todo_mw=(limit_mw, *state.todo_mw))
        case Applying() | Warming() | Measuring() if state.chosen is not None and any(
            cap.allows(limit_mw) and not state.chosen.cap.allows(limit_mw) for limit_mw in plan.limits_mw
        ):
            pass
        case _:
            return state, ()
    return _visit_next_limit(replace(_at(state, Deciding()), chosen=None, awaited=profiled), plan)


def _to_be_had(state: ProfilerState, limit_mw: int) -> bool:
    return limit_mw not in state.without_mw and state.cap.allows(limit_mw)


def _advice(
    state: ProfilerState, limits_mw: Sequence[int], plan: ProfilerPlan, steps_left: int | None
) -> Measure | Choose:
    """Return what the search advises. ``steps_left``: of the run; with none it chooses."""
    assert plan.goal is not None
    measured = [visit for _, visit in state.visits]
    more = 0
    if state.background:
        more = BACKGROUND * state.background + sum(len(of.blocks) for of in measured if of.watched)
    return advice.advise(
        limits_mw,
        plan.gpus,
        plan.goal,
        measured,
        state.memory,
        more,
        clocks={*filter(plan.is_clock, (*limits_mw, *(known.limit_mw for known in state.memory)))},
        steps_left=steps_left,
    )


def _known_so_far(state: ProfilerState, why: str, plan: ProfilerPlan) -> tuple[Observe, ...]:
    """Return what a first search that ends undecided says: why, and what is known by then."""
    limits_mw = [limit for limit in plan.limits_mw if _to_be_had(state, limit)]
    seen = sum(trial.limit_mw in limits_mw for trial in state.trials)
    if plan.goal is None or state.chosen is not None or state.why or not seen:
        return ()
    match _advice(state, limits_mw, plan, 0):
        case Choose(limit_mw, confidence, costs=StepCosts(trials)) as chosen:
            were = "was" if seen == 1 else "were"
            reason = (
                f"{why} before a limit was chosen: {seen} of {len(limits_mw)} {were} measured."
                f" {plan.spell(limit_mw)} may cost {max(0.1, 100 * confidence.p95):.1f} % more than the best"
            )
            return (Observe(state.round, trials, reason, chosen),)
        case _:
            return ()


def _follow_search(state: ProfilerState, plan: ProfilerPlan, now_mw: int | None = None) -> Answer:
    """Do what the search advises. ``now_mw``: the limit that is being measured."""
    limits_mw = [limit for limit in plan.limits_mw if _to_be_had(state, limit)]
    if not limits_mw:
        return _observe_only(state, f"no limit could be measured, the last because: {state.trouble}")
    match _advice(state, limits_mw, plan, plan.steps_left):
        case Measure(limit_mw, so_far):
            state = replace(state, so_far=so_far or state.so_far)
            return (state, ()) if limit_mw == now_mw else _apply_limit(state, limit_mw)
        case Choose(limit_mw, confidence, remembered, sure, costs) as so_far:
            state = replace(state, so_far=so_far)
            seen = sum(trial.limit_mw in limits_mw for trial in state.trials)
            measured = "all" if seen == len(limits_mw) else f"{seen} of them"
            reason = f"{plan.selector.wanted}, among {len(limits_mw)} {plan.levels}, {measured} measured"
            as_remembered = remembered is not None and remembered >= TRUSTED
            if remembered is not None:
                reason += ", as measured before" if as_remembered else ", not as measured before"
            unsure = not sure and confidence.p95 > TOLERATED
            if unsure:
                reason += (
                    f"; not sure: it may cost {100 * confidence.p95:.1f} % more than the best;"
                    " searched further in the background until the run ends"
                )
            chosen = Chosen(
                limit_mw=limit_mw,
                as_remembered=as_remembered,
                unsure=unsure,
                costs=costs,
                confidence=confidence,
            )
            return _choose(state, chosen, reason, plan)


def _decide_if_last(state: ProfilerState, plan: ProfilerPlan) -> Answer:
    """Decide once every limit was visited and every trial has come back."""
    if not isinstance(state.phase, Deciding) or state.awaited:
        return state, ()
    if any(map(state.cap.allows, state.todo_mw)):
        return _visit_next_limit(state, plan)
    trials = tuple(trial for trial in state.trials if _to_be_had(state, trial.limit_mw))
    if not trials:
        return _observe_only(state, f"no limit could be measured, the last because: {state.trouble}")
    try:
        clocks = {trial.limit_mw for trial in trials if plan.is_clock(trial.limit_mw)}
        limit_mw = plan.selector.choose_of_each(trials, clocks, plan.gpus)
    except SettingsError as wrong:
        return _observe_only(state, str(wrong))
    reason = f"{plan.selector.wanted}, among {len(trials)} {plan.levels} measured"
    if plan.profile_only:
        reason = f"{reason}; --profile-only keeps the limit found{_by(state)}"
        seen = Observing(f"{plan.spell(limit_mw)} would be chosen: {reason}")
        return _at(state, seen), (Release(), Observe(state.round, trials, reason))
    return _choose(state, Chosen(limit_mw=limit_mw), reason, plan)


def _choose(state: ProfilerState, chosen: Chosen, reason: str, plan: ProfilerPlan) -> Answer:
    visiting = state.visiting
    took = visiting.steps - state.began if state.why else 0
    measured = next((trial for trial in state.trials if trial.limit_mw == chosen.limit_mw), None)
    started = settled([visit for _, visit in state.visits])
    longest = max(started, key=lambda visit: len(visit.blocks), default=None)
    again, before = 0, state.before
    same = None if before is None or before.limit_mw != chosen.limit_mw else before
    if same is not None:
        again = 0 if same.watch.alarm else same.again + 1
    blocks = () if longest is None else longest.blocks
    watch = drift.begun(measured, blocks, None if same is None else same.watch)
    chosen = replace(chosen, watch=watch, cap=state.cap, again=again)
    reason += (f"; {state.why}" if state.why else "") + _by(state)
    state = replace(
        state,
        visiting=replace(visiting, kept=None),
        chosen=chosen,
        began=visiting.steps,
        profiled=state.profiled + took,
    )
    decided = Decide(
        chosen.limit_mw, state.round, curve(state, plan), reason, chosen.confidence, chosen.costs,
        before.changed_step if before is not None and state.why.startswith(CHANGED) else None,
    )  # fmt: skip
    state, then = _apply_limit(state, chosen.limit_mw)
    return state, (decided, *then)


def _by(state: ProfilerState) -> str:
    """Return what a decision's reason says of a power budget."""
    if state.cap.most_mw is None:
        return ""
    return f"; {state.cap.by} allows no more than {state.cap.most_mw / 1000:g} W"


# ---- trials: rules 2, 3 and 5 ------------------------------------------------------------------------


def _purpose(state: ProfilerState) -> Purpose:
    if state.chosen is None:
        return Purpose.PROFILE
    under_way = any(asked.purpose is Purpose.CONFIRM for asked in state.awaited)
    return Purpose.WATCH if state.chosen.confirmed or under_way else Purpose.CONFIRM


def _length(state: ProfilerState, plan: ProfilerPlan) -> Length | None:
    """Return how long the trial under way is to be; None: it goes on while others are awaited."""
    if len(state.awaited) >= MAX_AWAITED:
        return None
    if state.chosen is None and plan.goal is not None:
        least_ns = max(BLOCK_NS, -(-plan.window_ns // BLOCKS))
        return Length(BLOCK_STEPS, least_ns, state.visiting.locked, LONG_BLOCK_NS)
    watches = _purpose(state) is Purpose.WATCH
    return Length(min(plan.profile_steps, WATCH_STEPS) if watches else plan.profile_steps, plan.window_ns)


def _measure(state: ProfilerState, trial: Measuring, ended_ns: int, plan: ProfilerPlan) -> Answer:
    """Have a trial measured, and go on: to the next limit, or with the next one at this limit."""
    number, purpose = state.visiting.numbers + 1, _purpose(state)
    first = number if purpose is not Purpose.PROFILE else state.visiting.first or number
    asked = MeasureTrial(
        number=number,
        round=state.round,
        limit_mw=trial.limit_mw,
        spans=trial.spans,
        purpose=purpose,
        visit=first,
        ended_ns=ended_ns,
    )
    visiting = replace(state.visiting, numbers=number, first=first)
    state = replace(state, visiting=visiting, awaited=(*state.awaited, asked))
    if purpose is not Purpose.PROFILE or plan.goal is not None:
        return state, (asked,)
    state, then = _visit_next_limit(state, plan)
    return state, (asked, *then)


def _record_trial(state: ProfilerState, measured: TrialMeasured, plan: ProfilerPlan) -> Answer:
    asked, state = _take(state, measured.number)
    if asked is None:
        return state, ()
    trial = Trial(
        asked.limit_mw,
        measured.energy_mj,
        measured.duration_ns,
        asked.steps,
        measured.delay_ns,
        measured.halves,
    )
    is_whole = min(trial.energy_mj, trial.duration_ns) > 0
    if asked.purpose is Purpose.PROFILE:
        if plan.goal is not None and not is_whole:
            return _missed(state, asked, "no energy was counted in it", plan)
        state = replace(state, visits=_with(state.visits, asked, trial))
        visiting = state.visiting
        if measured.locked and visiting.first == asked.visit and visiting.locked < MOST_LOCKED:
            state = replace(state, visiting=replace(visiting, locked=visiting.locked + 1))
            if plan.goal is not None and isinstance(state.phase, Measuring):
                return state, ()
        return _use_measurement(state, asked, plan)
    if state.chosen is None or state.chosen.limit_mw != asked.limit_mw:
        return state, ()  # of a choice that was refused
    chosen = replace(state.chosen, confirmed=True, watch=drift.seen(state.chosen.watch, trial))
    if chosen.watch.alarm and not state.chosen.watch.alarm:
        chosen = replace(chosen, changed_step=asked.spans[-1].end - drift.changed_steps(chosen.watch))
    state = replace(state, chosen=chosen)
    if chosen.unsure and not chosen.shifted and is_whole:
        state = replace(state, visits=_with_watched(state.visits, asked, trial))
    return _watch_workload(state, chosen, plan)


def _missed(state: ProfilerState, asked: MeasureTrial, reason: str, plan: ProfilerPlan) -> Answer:
    state = replace(state, missed_mw=(*state.missed_mw, asked.limit_mw), trouble=reason)
    missed = state.missed_mw.count(asked.limit_mw)
    if plan.goal is not None and missed >= MAX_MISSING * BLOCKS:
        state = replace(state, without_mw=state.without_mw | {asked.limit_mw})
    if plan.goal is None and missed < MAX_MISSING:
        state = replace(state, todo_mw=(*state.todo_mw, asked.limit_mw))
    return _use_measurement(state, asked, plan)


def _use_measurement(state: ProfilerState, asked: MeasureTrial, plan: ProfilerPlan) -> Answer:
    """Use a measurement: decide, or go on to the limit that the search wants."""
    match state.phase:
        case Deciding():
            return _decide_if_last(state, plan)
        case Measuring(limit_mw) if plan.goal is not None and state.visiting.first == asked.visit:
            return _follow_search(state, plan, limit_mw)
        case _:
            return state, ()


def _with(
    visits: tuple[tuple[int, Visit], ...], asked: MeasureTrial, trial: Trial
) -> tuple[tuple[int, Visit], ...]:
    """Return the visits of a round with one more measurement, in order."""
    known = dict(visits)
    before = known[asked.visit].blocks if asked.visit in known else ()
    known[asked.visit] = Visit((*before, trial), asked.ended_ns)
    return tuple(sorted(known.items(), key=lambda item: item[0]))


def _with_watched(
    visits: tuple[tuple[int, Visit], ...], asked: MeasureTrial, trial: Trial
) -> tuple[tuple[int, Visit], ...]:
    """Return the visits of a round with one more trial at the limit chosen, which goes on from the last."""
    number, last = visits[-1]
    if not last.watched or last.limit_mw != asked.limit_mw:
        return (*visits, (asked.number, Visit((trial,), asked.ended_ns, watched=True)))
    blocks = (*last.blocks, trial)[-MOST_WATCHED:]
    return (*visits[:-1], (number, Visit(blocks, asked.ended_ns, watched=True)))


def _take(state: ProfilerState, number: int) -> tuple[MeasureTrial | None, ProfilerState]:
    """Return what was awaited under a number, if it is, and the state without it."""
    asked = next((asked for asked in state.awaited if asked.number == number), None)
    return asked, replace(state, awaited=tuple(other for other in state.awaited if other is not asked))


# ---- the watch: rules 5, 6, 8 and 9 ------------------------------------------------------------------


def _watch_workload(state: ProfilerState, chosen: Chosen, plan: ProfilerPlan) -> Answer:
    """Begin a new round if the workload has changed and there may be one (rules 5 and 6)."""
    if not chosen.watch.alarm:
        state = replace(state, chosen=replace(chosen, waits=False))
        return (_go_on_in_background if chosen.unsure else _look_again)(state, chosen, plan)
    if state.round >= MAX_ROUNDS:
        return state, ()
    energy, time = map(more_words, chosen.watch.change)
    why = f"a step now takes {energy} energy and {time} time"
    if state.profiled >= plan.profiling_share * state.visiting.steps:
        if chosen.waits:
            return state, ()
        least = ceil(state.profiled / plan.profiling_share) if plan.profiling_share else None
        until = "" if least is None else f" before step {least:,}"
        reason = f"kept for now: {why}, but profiling_share allows no other search{until}"
        state = replace(state, chosen=replace(chosen, waits=True))
        decided = Decide(chosen.limit_mw, state.round, curve(state, plan), reason, costs=chosen.costs)
        return state, (decided,)
    return _search_again(state, chosen, f"{CHANGED}: {why}", plan)


def _search_again(state: ProfilerState, chosen: Chosen, why: str, plan: ProfilerPlan) -> Answer:
    renewed = replace(_next_round(state, plan), why=why)
    step = state.visiting.step
    match state.phase:
        case Measuring(limit_mw) if plan.goal is not None and step is not None and not chosen.shifted:
            # It is in force: what is measured next is the first block of a visit of it.
            return _follow_search(_at(renewed, Measuring(limit_mw, step)), plan, limit_mw)
        case _:
            return _visit_next_limit(renewed, plan)


def _look_again(state: ProfilerState, chosen: Chosen, plan: ProfilerPlan) -> Answer:
    """Search again if the best limit may have moved by now (rule 9)."""
    since = state.visiting.steps - state.began
    ends = plan.steps_left is not None and plan.steps_left - since < AGAIN_STEPS
    wanted = plan.goal is not None and state.round <= MOST_AGAIN and not ends and not chosen.shifted
    may = state.profiled < plan.profiling_share * state.visiting.steps and isinstance(state.phase, Measuring)
    if not wanted or not may or since < AGAIN_STEPS * 2**chosen.again:
        return state, ()
    return _search_again(
        state, chosen, f"searched again after {since:,} steps, in case another has become the best", plan
    )


def _go_on_in_background(state: ProfilerState, chosen: Chosen, plan: ProfilerPlan) -> Answer:
    """Search on, if the share of profiling allows it by now (rule 8)."""
    visiting = state.visiting
    may = state.background < MAX_BACKGROUND and state.profiled <= plan.profiling_share * visiting.steps
    if not (may and chosen.watch.usual is not None and isinstance(state.phase, Measuring)):
        return state, ()
    if visiting.step is None or chosen.shifted or not plan.profiling_share:
        return state, ()
    state = replace(
        state,
        visiting=replace(visiting, phase=Measuring(chosen.limit_mw, visiting.step), first=None),
        chosen=None,
        awaited=(),
        background=state.background + 1,
        began=visiting.steps,
        why=f"the search went on in the background, part {state.background + 1}",
    )
    return _follow_search(state, plan)


def _next_round(state: ProfilerState, plan: ProfilerPlan) -> ProfilerState:
    return ProfilerState(
        visiting=replace(state.visiting, phase=visits.Waiting(), first=None, locked=0, kept=None),
        todo_mw=_limits_to_visit(plan),
        round=state.round + 1,
        memory=curve(state, plan),
        before=state.chosen,
        began=state.visiting.steps,
        profiled=state.profiled,
        cap=state.cap,
    )


def curve(state: ProfilerState, plan: ProfilerPlan) -> tuple[Trial, ...]:
    """Return what is known of the run's curve, one trial for each limit.

    Once an adaptive search has chosen, that is what its belief says. Before, it is what this round measured,
    and what was remembered at the level that the workload has now.
    """
    trials, chosen = state.trials, state.chosen
    if chosen is not None:
        return trials if chosen.costs is None else chosen.costs.trials
    return carried_over(state.memory, trials, max(plan.limits_mw, default=0))
