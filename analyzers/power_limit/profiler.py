"""The profiling machine: which power limit a run gets, and when. Pure.

    (state, event, plan) -> (state, instructions)

It visits limits, measures whole steps at each, chooses, measures the chosen limit again, and then keeps
watch. It counts in steps of the run; the only clock is that of the steps it hears. Which limits:

    exhaustive    the plan's, from the highest down, each once (``plan.goal`` is None)
    adaptive      what `search` advises after every measurement, which is of a short block of steps; the
                  blocks at a limit follow each other until another is advised. It starts from the curve that
                  an earlier run left, if there is one (``plan.remembered``)

Whoever carries out an instruction tells what came of it as an event:

    Apply(attempt)         -> LimitApplied | LimitRefused        (of all GPUs of the run together)
    MeasureTrial(number)   -> TrialMeasured | TrialMissing       (later, while the next limit is under way)
    Decide, Observe, Release: nothing comes back

The rules:

 1. `wait_steps` whole steps pass before the first limit.
 2. A limit is warm after `warmup_steps` whole steps and `settle_ns`, counted from the first step that
    began after it was confirmed.
 3. A trial is at least `profile_steps` whole steps and at least `window_ns`, from the begin of its first
    step to the begin of the one after its last; a block of an adaptive search `BLOCK_STEPS`, `BLOCK_NS` and
    a `BLOCKS`-th of `window_ns`, as a visit counts from `BLOCKS` blocks on. A pause (the end of an epoch or
    of a loop) cuts it into spans that add up: short epochs decide too, and one that ends at a pause counts.
    While steps beat with a sensor that sees a part of the time, a visit goes on, for `MOST_LOCKED` blocks at
    most, each a step longer than the one before, so that their ends move against the sensor.
 4. A limit the device refuses is skipped. One without outcome is asked for again, `MAX_ASKED` times in
    all. A trial that could not be measured is repeated once; an adaptive search does without a limit after
    `MAX_MISSING` visits in vain.
 5. Without permission, when somebody else owns or changes the limit, or with nothing to choose from, the
    machine gives back what it changed, says why, and only observes from then on. A lease that lapsed
    (analyzer or collector were away), or a stale command, is repeated after `outcome_ns`, `MAX_LAPSES`
    times in all.
 6. After the decision windows go on. The first is as long as a trial and confirms it, those after it hold
    `WATCH_STEPS` steps and `window_ns`. When `drift` is sure that energy or time per step has changed, a new
    round begins. An adaptive one goes on at the limit in force, and starts from the curve of the round
    before: if only its level has changed, three visits tell.
 7. Rounds after the first take at most ``profiling_share`` of the run's steps: another begins when those
    before it have taken no more. Until then the limit stays, and the decision is repeated once, saying so.
 8. Limits above what a power budget allows are not to be had while it does. When it allows less than is in
    force, or more than the choice was made from, the machine goes on from what it knows: measures, chooses.
 9. A search whose budget of steps ends while its bound is above `TOLERATED` chooses the limit that may be off
    by the least, and says so. It goes on in the background: what is measured at that limit counts, and from
    time to time other limits are visited, for `BACKGROUND` blocks, within the share of rule 7.

What happens, by phase ('-': nothing, or only the step under way is noted):

                StepBegan            StepsPaused    LimitApplied  LimitRefused       TrialMeasured/Missing
    Waiting     -> Applying after 1. -              -             -                  -
    Applying    asks again after 4.  -              -> Warming    next, or Observing noted
    Warming     -> Measuring after 2. -             -             -                  noted
    Measuring   -> next after 3.     cut, or next   -             -                  noted, watched (6.)
    Deciding    -                    -              -             -                  the last: -> Applying
    Observing   -                    -              -             -                  -
    Over        -                    -              -             -                  -

In every phase but Over: Barred -> Observing (5.), RunOver -> Over, releasing. Lapsed: Warming and Measuring
-> Applying (5.), and so does Applying. Shifted: Measuring the choice -> Warming, to be confirmed once more.
Capped: Applying, Warming and Measuring -> Applying (8.).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, exp, log
from statistics import fmean

from analyzers.fleet.session import Span
from analyzers.power_limit import drift, search
from analyzers.power_limit.curve_fit.belief import TOLERATED, TRUSTED, Confidence
from analyzers.power_limit.curve_fit.visits import BLOCKS, Visit, by_limit
from analyzers.power_limit.search import Choose, Measure
from analyzers.power_limit.selectors import Goal, Selector, Trial
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.notes import Cause

MAX_ASKED = 3
"""Times a limit without outcome is asked for."""
MAX_LAPSES = 20
"""Leases of a run that may lapse."""
MAX_MISSING = 2
"""Times a limit is measured in vain."""
MAX_AWAITED = 8
"""Measurements under way; until one returns, the trial at hand grows longer."""
MAX_ROUNDS = 20
"""Then a run's workload counts as restless, and the last decision stands."""
WATCH_STEPS = 10
"""Of a window after the decision: five tell a change, fifty steps of the hundred it may take."""
MOST_WIDE = 4
"""Times the hypotheses of the watch, after searches that chose the same limit again."""
BACKGROUND, MAX_BACKGROUND = 12, 40
"""Blocks by which a search that is not sure goes on in the background, and how often it does."""
MOST_WATCHED = 40
"""Windows at the limit chosen that such a search uses."""
MOST_LOCKED = 6
"""Blocks of a visit in which a sensor saw the same parts of steps again and again."""
BLOCK_STEPS = 4
BLOCK_NS = 500_000_000
"""At least, of a block: so that `BLOCKS` of them are 12 steps and 1.5 s."""


# ---- what it is told -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is fixed for a run. Only ``window_ns`` may differ from call to call."""

    limits_mw: tuple[int, ...]
    """To be visited, descending; see `limits_mw`."""
    gpus: int
    selector: Selector
    wait_steps: int
    warmup_steps: int
    profile_steps: int
    settle_ns: int
    window_ns: int
    outcome_ns: int
    """Wait this long for the outcome of a command."""
    goal: Goal | None = None
    """What an adaptive search minimizes; None: every limit is measured."""
    remembered: tuple[Trial, ...] = ()
    """What earlier runs of the same identity measured, one for each limit; some this run may not have."""
    profiling_share: float = 0.05
    """Of a run's steps, that rounds after the first may take."""


@dataclass(frozen=True, slots=True)
class StepBegan:
    """Step ``index`` of the run began, and all before it are whole, save for pauses told in between."""

    index: int
    t_ns: int


@dataclass(frozen=True, slots=True)
class StepsPaused:
    """Steps below ``index`` are whole, the last ended at ``t_ns``; the next follows after a pause."""

    index: int
    t_ns: int


@dataclass(frozen=True, slots=True)
class LimitApplied:
    """Confirmed on every GPU. ``step`` is the first that began since on every rank."""

    attempt: int
    step: StepBegan


@dataclass(frozen=True, slots=True)
class LimitRefused:
    attempt: int
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Barred:
    """This run may not command, or no longer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A limit of ours is in force no longer; it may be asked for again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Capped:
    """From now on limits may be so high, and no higher. ``by`` whom. None: as high as the plan has them."""

    most_mw: int | None
    by: str = ""

    def allows(self, limit_mw: int) -> bool:
        return self.most_mw is None or limit_mw <= self.most_mw


@dataclass(frozen=True, slots=True)
class TrialMeasured:
    number: int
    energy_mj: int
    duration_ns: int
    locked: bool = False
    """Its sensor saw the same parts of steps again and again."""


@dataclass(frozen=True, slots=True)
class TrialMissing:
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shifted:
    """Limits of single GPUs were changed below the one chosen; ``step`` is the first under them all.

    What was measured at the choice says nothing any more of the steps that follow.
    """

    step: StepBegan


@dataclass(frozen=True, slots=True)
class RunOver:
    """All ranks have ended, or one of them: the others are another run to this machine."""


Event = (
    StepBegan
    | StepsPaused
    | LimitApplied
    | LimitRefused
    | Lapsed
    | Barred
    | Capped
    | TrialMeasured
    | TrialMissing
    | Shifted
    | RunOver
)


# ---- what it wants -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply:
    """Set the limit on every GPU of the run."""

    attempt: int
    limit_mw: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give back every limit that was changed."""


class Purpose(StrEnum):
    """Why something is measured."""

    PROFILE = "profile"
    CONFIRM = "confirm"
    WATCH = "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTrial:
    """Tell the energy of all GPUs of the run, and the slowest rank's time, over these spans."""

    number: int
    round: int
    limit_mw: int
    spans: tuple[Span, ...]
    purpose: Purpose
    visit: int
    """The number of the first measurement since the limit was set, if this goes on from there."""
    ended_ns: int
    """When its last step was whole."""

    @property
    def steps(self) -> int:
        return sum(span.end - span.first for span in self.spans)


@dataclass(frozen=True, slots=True)
class Decide:
    """A limit was chosen, for this reason."""

    limit_mw: int
    round: int
    trials: tuple[Trial, ...]
    """What it was chosen from: measured or, if that was as remembered, remembered, at the level of now."""
    reason: str
    confidence: Confidence | None = None
    """Of an adaptive search."""


@dataclass(frozen=True, slots=True)
class Observe:
    """No more commands, for this reason."""

    round: int
    trials: tuple[Trial, ...]
    reason: str


Instruction = Apply | Release | MeasureTrial | Decide | Observe


# ---- where it stands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    since: int | None = None
    """Index of the first step heard."""


@dataclass(frozen=True, slots=True)
class Applying:
    limit_mw: int
    attempt: int
    asked: int
    """Times this limit was asked for; 0 after a lapse."""
    since_ns: int | None
    """Begin of the step at which it was asked for last; None in a pause, until the next step."""


@dataclass(frozen=True, slots=True)
class Warming:
    limit_mw: int
    since: StepBegan


@dataclass(frozen=True, slots=True)
class Measuring:
    limit_mw: int
    opened: StepBegan | None
    """First step of the span at hand; None in a pause."""
    spans: tuple[Span, ...] = ()
    whole_ns: int = 0
    """Time of the spans that are closed."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """Every limit was visited; measurements are awaited."""


@dataclass(frozen=True, slots=True)
class Observing:
    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    pass


Phase = Waiting | Applying | Warming | Measuring | Deciding | Observing | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The decision, and what was seen of it since."""

    limit_mw: int
    confirmed: bool = False
    watch: drift.Watch = drift.Watch()
    as_remembered: bool = False
    """Chosen by a curve that an earlier run or round left."""
    unsure: bool = False
    """A limit may be left that is much better; the search goes on in the background (rule 9)."""
    waits: bool = False
    """It has changed, and a new round has to wait; that was said."""
    shifted: bool = False
    """Single GPUs are below it."""
    cap: Capped = Capped(None)
    """What a power budget allowed when it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The machine. A new run starts at `start`."""

    phase: Phase
    todo_mw: tuple[int, ...]
    """Limits still to be visited in this round."""
    round: int = 1
    step: StepBegan | None = None
    """The step under way; None in a pause."""
    steps: int = 0
    """Of the run, that have begun."""
    attempts: int = 0
    numbers: int = 0
    """Trials asked for."""
    visit: int | None = None
    """Of the measurements since the last limit was asked for."""
    locked: int = 0
    """Blocks since then in which a sensor saw the same parts of steps again and again."""
    visits: tuple[tuple[int, Visit], ...] = ()
    """What was measured in this round, by the visit's number."""
    without_mw: frozenset[int] = frozenset()
    """Limits that cannot be had."""
    awaited: tuple[MeasureTrial, ...] = ()
    lapses: int = 0
    missed_mw: tuple[int, ...] = ()
    """Limits measured in vain, once for each time."""
    trouble: str = "no limit was tried"
    """Why the last limit was skipped."""
    chosen: Chosen | None = None
    cap: Capped = Capped(None)
    """What a power budget allows (rule 8)."""
    memory: tuple[Trial, ...] = ()
    """What was known of the curve when the round began."""
    why: str = ""
    """Why it searches again: what had changed, or that it was not sure."""
    before: Chosen | None = None
    """The choice of the round before."""
    background: int = 0
    """Times that this round went on in the background."""
    began: int = 0
    """Steps of the run when the round began."""
    profiled: int = 0
    """Steps that finished rounds after the first took."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What was measured in this round, one for each limit."""
        return by_limit(block for _, visit in self.visits for block in visit.blocks)


Answer = tuple[State, tuple[Instruction, ...]]


def limits_mw(found_mw: int, least_mw: int, stride_mw: int) -> tuple[int, ...]:
    """Return the limits to visit: from the one found down in strides, the least always among them."""
    return (*range(found_mw, least_mw, -stride_mw), least_mw) if found_mw >= least_mw else ()


def start(plan: Plan, numbers: int = 0, rounds: int = 0) -> State:
    """Return the state of a run that has just begun. ``numbers``, ``rounds``: those that already were."""
    usable = (known for known in plan.remembered if min(known.energy_mj, known.duration_ns, known.steps) > 0)
    return State(
        phase=Waiting(), todo_mw=_todo(plan), round=rounds + 1, numbers=numbers, memory=tuple(usable)
    )


def _todo(plan: Plan) -> tuple[int, ...]:
    return plan.limits_mw if plan.goal is None else ()


def step(state: State, event: Event, plan: Plan) -> Answer:
    """Return the next state and what to do about it. Every (state, event) is answered."""
    match state.phase, event:
        case Over(), _:
            return state, ()
        case _, RunOver():
            return replace(state, phase=Over()), (Release(),)
        case Observing(), _:
            return state, ()
        case _, Barred(reason):
            return _observe(state, reason)
        case _, Capped():
            return _capped(state, event, plan)
        case Applying(asked=0), Lapsed():
            return state, ()
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw), Lapsed(reason):
            return _lapsed(state, limit_mw, reason)
        case _, StepBegan(index) if state.step is not None and index <= state.step.index:
            return state, ()  # a repeat
        case _, StepBegan():
            return _step_began(replace(state, step=event, steps=event.index + 1), event, plan)
        case phase, StepsPaused(index, t_ns):
            state = replace(state, step=None)
            if isinstance(phase, Measuring) and phase.opened is not None:
                trial = _closed(phase, phase.opened, index, t_ns)
                if _enough(state, trial, plan):
                    return _end_trial(state, trial, t_ns, plan)
                return replace(state, phase=trial), ()
            return state, ()
        case Applying(limit_mw, attempt), LimitApplied(applied, since) if applied == attempt:
            return _measure_if_warm(replace(state, phase=Warming(limit_mw, since)), plan), ()
        case Applying(limit_mw, attempt), LimitRefused(refused, "stale", reason) if refused == attempt:
            return _lapsed(state, limit_mw, reason)
        case Applying(limit_mw, attempt), LimitRefused(refused, cause, reason) if refused == attempt:
            return _refused(state, limit_mw, cause, reason, plan)
        case Measuring(limit_mw), Shifted(since) if state.chosen is not None:
            chosen = replace(state.chosen, confirmed=False, watch=drift.Watch(), shifted=True)
            state = replace(state, chosen=chosen, awaited=(), phase=Warming(limit_mw, since))
            return _measure_if_warm(state, plan), ()
        case _, TrialMeasured():
            return _measured(state, event, plan)
        case _, TrialMissing(number, reason):
            return _missing(state, number, reason, plan)
        case _:
            return state, ()  # an outcome that came too late


# ---- steps ---------------------------------------------------------------------------------------------


def _step_began(state: State, began: StepBegan, plan: Plan) -> Answer:
    match state.phase:
        case Waiting(since):
            since = began.index if since is None else since
            if began.index - since < plan.wait_steps:
                return replace(state, phase=Waiting(since)), ()
            return _next_limit(state, plan)
        case Applying(limit_mw, _, asked, since_ns) as applying:
            if since_ns is None:
                return replace(state, phase=replace(applying, since_ns=began.t_ns)), ()
            if began.t_ns - since_ns < plan.outcome_ns:
                return state, ()
            if asked < MAX_ASKED:
                return _apply(state, limit_mw, asked + 1)
            return _skip(state, limit_mw, f"no outcome came of {MAX_ASKED} commands", plan)
        case Warming():
            return _measure_if_warm(state, plan), ()
        case Measuring(_, None) as measuring:
            return replace(state, phase=replace(measuring, opened=began)), ()
        case Measuring(_, StepBegan() as opened) as measuring:
            trial = _closed(measuring, opened, began.index, began.t_ns)
            return _end_trial(state, trial, began.t_ns, plan) if _enough(state, trial, plan) else (state, ())
        case _:
            return state, ()


def _measure_if_warm(state: State, plan: Plan) -> State:
    """Begin a trial with the step under way, if it is late enough (rule 2)."""
    assert isinstance(state.phase, Warming)
    limit_mw, since, now = state.phase.limit_mw, state.phase.since, state.step
    if now is None or now.index - since.index < plan.warmup_steps or now.t_ns - since.t_ns < plan.settle_ns:
        return state
    return replace(state, phase=Measuring(limit_mw, now))


# ---- trials --------------------------------------------------------------------------------------------


def _closed(measuring: Measuring, opened: StepBegan, end: int, t_ns: int) -> Measuring:
    """Return the trial with the span at hand closed before step ``end``."""
    spans = (*measuring.spans, Span(opened.index, end)) if end > opened.index else measuring.spans
    return Measuring(measuring.limit_mw, None, spans, measuring.whole_ns + t_ns - opened.t_ns)


def _enough(state: State, trial: Measuring, plan: Plan) -> bool:
    steps = sum(span.end - span.first for span in trial.spans)
    whole_ns, least_steps, least_ns = trial.whole_ns, plan.profile_steps, plan.window_ns
    if _purpose(state) is Purpose.WATCH:
        least_steps = min(least_steps, WATCH_STEPS)
    elif plan.goal is not None and state.chosen is None:
        least_steps, least_ns = BLOCK_STEPS, max(BLOCK_NS, -(-plan.window_ns // BLOCKS))
        # More steps on top of those that would do.
        whole_ns = whole_ns * max(0, steps - state.locked) // max(1, steps)
        steps -= state.locked
    return steps >= least_steps and whole_ns >= least_ns and len(state.awaited) < MAX_AWAITED


def _end_trial(state: State, trial: Measuring, t_ns: int, plan: Plan) -> Answer:
    """Have a trial measured, and go on: to the next limit, or with the next window or block at this one."""
    number, purpose = state.numbers + 1, _purpose(state)
    visit = number if purpose is not Purpose.PROFILE else state.visit or number
    asked = MeasureTrial(
        number=number,
        round=state.round,
        limit_mw=trial.limit_mw,
        spans=trial.spans,
        purpose=purpose,
        visit=visit,
        ended_ns=t_ns,
    )
    state = replace(state, numbers=number, visit=visit, awaited=(*state.awaited, asked))
    if purpose is not Purpose.PROFILE or plan.goal is not None:
        return replace(state, phase=Measuring(trial.limit_mw, state.step)), (asked,)
    state, then = _next_limit(state, plan)
    return state, (asked, *then)


def _purpose(state: State) -> Purpose:
    if state.chosen is None:
        return Purpose.PROFILE
    under_way = any(asked.purpose is Purpose.CONFIRM for asked in state.awaited)
    return Purpose.WATCH if state.chosen.confirmed or under_way else Purpose.CONFIRM


def _measured(state: State, measured: TrialMeasured, plan: Plan) -> Answer:
    asked, state = _take(state, measured.number)
    if asked is None:
        return state, ()
    trial = Trial(asked.limit_mw, measured.energy_mj, measured.duration_ns, asked.steps)
    if asked.purpose is Purpose.PROFILE:
        if plan.goal is not None and min(trial.energy_mj, trial.duration_ns) <= 0:
            return _missed(state, asked, "no energy was counted in it", plan)
        state = replace(state, visits=_with(state.visits, asked, trial))
        if measured.locked and state.visit == asked.visit and state.locked < MOST_LOCKED:
            state = replace(state, locked=state.locked + 1)
            if plan.goal is not None and isinstance(state.phase, Measuring):
                return state, ()
        return _go_on(state, asked, plan)
    if state.chosen is None or state.chosen.limit_mw != asked.limit_mw:
        return state, ()  # of a choice that was refused
    chosen = replace(state.chosen, confirmed=True, watch=drift.seen(state.chosen.watch, trial))
    state = replace(state, chosen=chosen)
    if chosen.unsure and not chosen.shifted and min(trial.energy_mj, trial.duration_ns) > 0:
        state = replace(state, visits=_with_watched(state.visits, asked, trial))
    return _watched(state, chosen, plan)


def _missing(state: State, number: int, reason: str, plan: Plan) -> Answer:
    asked, state = _take(state, number)
    if asked is None or asked.purpose is not Purpose.PROFILE:
        return state, ()
    return _missed(state, asked, reason, plan)


def _missed(state: State, asked: MeasureTrial, reason: str, plan: Plan) -> Answer:
    state = replace(state, missed_mw=(*state.missed_mw, asked.limit_mw), trouble=reason)
    missed = state.missed_mw.count(asked.limit_mw)
    if plan.goal is not None and missed >= MAX_MISSING * BLOCKS:
        state = replace(state, without_mw=state.without_mw | {asked.limit_mw})
    if plan.goal is None and missed < MAX_MISSING:
        state = replace(state, todo_mw=(*state.todo_mw, asked.limit_mw))
    return _go_on(state, asked, plan)


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
    """Return the visits of a round with one more window at the limit chosen, which goes on from the last."""
    number, last = visits[-1]
    if not last.watched or last.limit_mw != asked.limit_mw:
        return (*visits, (asked.number, Visit((trial,), asked.ended_ns, watched=True)))
    blocks = (*last.blocks, trial)[-MOST_WATCHED:]
    return (*visits[:-1], (number, Visit(blocks, asked.ended_ns, watched=True)))


def _take(state: State, number: int) -> tuple[MeasureTrial | None, State]:
    """Return what was awaited under a number, if it is, and the state without it."""
    asked = next((asked for asked in state.awaited if asked.number == number), None)
    return asked, replace(state, awaited=tuple(other for other in state.awaited if other is not asked))


# ---- the watch ---------------------------------------------------------------------------------------


def _watched(state: State, chosen: Chosen, plan: Plan) -> Answer:
    """Begin a new round if the workload has changed and there may be one (rules 6 and 7)."""
    if not chosen.watch.alarm:
        state = replace(state, chosen=replace(chosen, waits=False))
        return _go_on_in_background(state, chosen, plan) if chosen.unsure else (state, ())
    if state.round >= MAX_ROUNDS:
        return state, ()
    why = "since then {:+.0%} energy and {:+.0%} time per step".format(*chosen.watch.change)
    if state.profiled >= plan.profiling_share * state.steps:
        if chosen.waits:
            return state, ()
        least = ceil(state.profiled / plan.profiling_share) if plan.profiling_share else None
        until = "ever" if least is None else f"until step {least}"
        reason = f"kept for now; {why}, but profiling_share allows no other search {until}"
        state = replace(state, chosen=replace(chosen, waits=True))
        return state, (Decide(chosen.limit_mw, state.round, curve(state, plan), reason),)
    anew = replace(_next_round(state, plan), why=why)
    match state.phase:
        case Measuring(limit_mw) if plan.goal is not None and state.step is not None and not chosen.shifted:
            # It is in force: what is measured next is the first block of a visit of it.
            return _search(replace(anew, phase=Measuring(limit_mw, state.step)), plan, limit_mw)
        case _:
            return _next_limit(anew, plan)


def _go_on_in_background(state: State, chosen: Chosen, plan: Plan) -> Answer:
    """Search on, if the share of profiling allows it by now (rule 9)."""
    may = state.background < MAX_BACKGROUND and state.profiled <= plan.profiling_share * state.steps
    if not (may and chosen.watch.usual is not None and isinstance(state.phase, Measuring)):
        return state, ()
    if state.step is None or chosen.shifted or not plan.profiling_share:
        return state, ()
    state = replace(
        state,
        phase=Measuring(chosen.limit_mw, state.step),
        chosen=None,
        awaited=(),
        visit=None,
        background=state.background + 1,
        began=state.steps,
        why="it was not sure",
    )
    return _search(state, plan)


def _next_round(state: State, plan: Plan) -> State:
    return State(
        phase=Waiting(),
        todo_mw=_todo(plan),
        round=state.round + 1,
        step=state.step,
        steps=state.steps,
        attempts=state.attempts,
        numbers=state.numbers,
        lapses=state.lapses,
        memory=curve(state, plan),
        before=state.chosen,
        began=state.steps,
        profiled=state.profiled,
        cap=state.cap,
    )


def curve(state: State, plan: Plan) -> tuple[Trial, ...]:
    """Return what is known of the run's curve, one trial for each limit: what this round measured and, unless
    it chose against it, what was remembered, at the level that the workload has now.

    Where both know a limit, they are added up once the round has chosen as remembered. Until then what was
    measured counts there.
    """
    trials, chosen = state.trials, state.chosen
    whole = [trial for trial in trials if min(trial.energy_mj, trial.duration_ns) > 0]
    both = [(known, trial) for known in state.memory for trial in whole if known.limit_mw == trial.limit_mw]
    if (chosen is not None and not chosen.as_remembered) or (trials and not both):
        return trials
    energy = exp(fmean([log(trial.step_mj / known.step_mj) for known, trial in both] or [0.0]))
    time = exp(fmean([log(trial.step_ns / known.step_ns) for known, trial in both] or [0.0]))
    measured = {trial.limit_mw for _, trial in both if chosen is None}
    highest_mw = max(plan.limits_mw, default=0)
    now = [
        replace(
            known,
            energy_mj=ceil(known.energy_mj * energy),
            duration_ns=ceil(known.duration_ns * time),
        )
        for known in state.memory
        if known.limit_mw <= highest_mw and known.limit_mw not in measured
    ]
    return by_limit([*trials, *now])


# ---- limits --------------------------------------------------------------------------------------------


def _go_on(state: State, asked: MeasureTrial, plan: Plan) -> Answer:
    """Use what a measurement has told: decide, or go where the search wants to."""
    match state.phase:
        case Deciding():
            return _decide_if_last(state, plan)
        case Measuring(limit_mw) if plan.goal is not None and state.visit == asked.visit:
            return _search(state, plan, limit_mw)
        case _:
            return state, ()


def _search(state: State, plan: Plan, now_mw: int | None = None) -> Answer:
    """Do what the search advises. ``now_mw``: the limit that is being measured."""
    assert plan.goal is not None
    limits_mw = [limit for limit in plan.limits_mw if _to_be_had(state, limit)]
    if not limits_mw:
        return _observe(state, f"no limit could be measured, the last because: {state.trouble}")
    visits = [visit for _, visit in state.visits]
    more = 0
    if state.background:
        more = BACKGROUND * state.background + sum(len(of.blocks) for of in visits if of.watched)
    match search.advise(limits_mw, plan.gpus, plan.goal, visits, state.memory, more):
        case Measure(limit_mw) if limit_mw == now_mw:
            return state, ()
        case Measure(limit_mw):
            return _apply(state, limit_mw)
        case Choose(limit_mw, confidence, remembered, sure):
            seen = sum(trial.limit_mw in limits_mw for trial in state.trials)
            reason = f"{plan.selector.text} of {len(limits_mw)} limits, {seen} of them measured"
            as_remembered = remembered is not None and remembered >= TRUSTED
            if remembered is not None:
                reason += ", as remembered" if as_remembered else ", not as remembered"
            unsure = not sure and confidence.p95 > TOLERATED
            if unsure:
                reason += "; not sure yet, so it goes on in the background"
            chosen = Chosen(limit_mw=limit_mw, as_remembered=as_remembered, unsure=unsure)
            return _choose(state, chosen, reason, plan, confidence)


def _choose(
    state: State, chosen: Chosen, reason: str, plan: Plan, confidence: Confidence | None = None
) -> Answer:
    """Tell the decision, and set the limit."""
    took = state.steps - state.began if state.why else 0
    measured = next((trial for trial in state.trials if trial.limit_mw == chosen.limit_mw), None)
    longest = max((visit for _, visit in state.visits), key=lambda visit: len(visit.blocks), default=None)
    wide = 1
    if state.before is not None and state.before.limit_mw == chosen.limit_mw:
        wide = min(MOST_WIDE, state.before.watch.wide + 1)
    watch = drift.begun(measured, () if longest is None else longest.blocks, wide)
    chosen = replace(chosen, watch=watch, cap=state.cap)
    reason += (f"; {state.why}" if state.why else "") + _by(state)
    state = replace(state, chosen=chosen, began=state.steps, profiled=state.profiled + took)
    decided = Decide(chosen.limit_mw, state.round, curve(state, plan), reason, confidence)
    state, then = _apply(state, chosen.limit_mw)
    return state, (decided, *then)


def _next_limit(state: State, plan: Plan) -> Answer:
    """Go on to the next limit of the round, or to the decision."""
    if plan.goal is not None:
        return _search(state, plan)
    if (first := next(filter(state.cap.allows, state.todo_mw), None)) is not None:
        return _apply(replace(state, todo_mw=tuple(mw for mw in state.todo_mw if mw != first)), first)
    return _decide_if_last(replace(state, phase=Deciding()), plan)


def _apply(state: State, limit_mw: int, asked: int = 1) -> Answer:
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    applying = Applying(limit_mw, attempt, asked, since_ns)
    return replace(state, phase=applying, attempts=attempt, visit=None, locked=0), (Apply(attempt, limit_mw),)


def _lapsed(state: State, limit_mw: int, reason: str) -> Answer:
    """Drop the trial at hand, and wait before the limit is asked for again: who held it may be away."""
    if state.lapses >= MAX_LAPSES:
        return _observe(state, f"{reason}, for the {MAX_LAPSES + 1}th time")
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    applying = Applying(limit_mw, attempt, 0, since_ns)
    return replace(state, phase=applying, attempts=attempt, visit=None, locked=0, lapses=state.lapses + 1), ()


def _refused(state: State, limit_mw: int, cause: Cause, reason: str, plan: Plan) -> Answer:
    match cause:
        case "range" | "stale" | "device":
            return _skip(state, limit_mw, reason, plan)
        case "permission" | "observe" | "ownership" | "owned" | "storage" | "stranger":
            return _observe(state, reason)


def _skip(state: State, limit_mw: int, reason: str, plan: Plan) -> Answer:
    """Do without a limit; if it was the chosen one, choose from the others."""
    state = replace(state, trouble=reason, without_mw=state.without_mw | {limit_mw})
    if state.chosen is not None:
        others = tuple(known for known in state.visits if known[1].limit_mw != limit_mw)
        state = replace(state, chosen=None, visits=others)
    return _next_limit(state, plan)


def _capped(state: State, cap: Capped, plan: Plan) -> Answer:
    """Go on with the limits that there are now, from what is known of them (rule 8)."""
    # Steps since a choice were watched; those of a search for another are counted from now on.
    state = replace(state, cap=cap, began=state.began if state.chosen is None else state.steps)
    profiled = tuple(asked for asked in state.awaited if asked.purpose is Purpose.PROFILE)
    match state.phase:
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw) if not cap.allows(limit_mw):
            if plan.goal is None and state.chosen is None:
                state = replace(state, todo_mw=(limit_mw, *state.todo_mw))
            return _next_limit(replace(state, phase=Deciding(), chosen=None, awaited=profiled), plan)
        case Applying() | Warming() | Measuring() if state.chosen is not None and any(
            cap.allows(limit_mw) and not state.chosen.cap.allows(limit_mw) for limit_mw in plan.limits_mw
        ):
            return _next_limit(replace(state, phase=Deciding(), chosen=None, awaited=profiled), plan)
        case _:
            return state, ()


def _to_be_had(state: State, limit_mw: int) -> bool:
    return limit_mw not in state.without_mw and state.cap.allows(limit_mw)


def _by(state: State) -> str:
    """Return what a decision's reason says of a power budget."""
    if state.cap.most_mw is None:
        return ""
    return f"; {state.cap.by} allows no more than {state.cap.most_mw / 1000:g} W"


def _decide_if_last(state: State, plan: Plan) -> Answer:
    """Decide once every limit was visited and every trial has come back."""
    if not isinstance(state.phase, Deciding) or state.awaited:
        return state, ()
    if any(map(state.cap.allows, state.todo_mw)):
        return _next_limit(state, plan)
    trials = tuple(trial for trial in state.trials if _to_be_had(state, trial.limit_mw))
    if not trials:
        return _observe(state, f"no limit could be measured, the last because: {state.trouble}")
    try:
        limit_mw = plan.selector.choose(trials, plan.gpus)
    except SettingsError as wrong:
        return _observe(state, str(wrong))
    reason = f"{plan.selector.text} of {len(trials)} limits measured"
    return _choose(state, Chosen(limit_mw=limit_mw), reason, plan)


def _observe(state: State, reason: str) -> Answer:
    return replace(state, phase=Observing(reason)), (Release(), Observe(state.round, state.trials, reason))
