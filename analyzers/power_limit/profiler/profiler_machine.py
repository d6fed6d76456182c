"""The profiling machine: which power limit a run gets, and when. Pure.

    (state, event, plan) -> (state, instructions)

It visits limits, measures whole steps at each, chooses, measures the chosen limit again, and then keeps
watch. It counts in steps of the run; the only clock is that of the steps it hears. Which limits:

    exhaustive    the plan's, from the highest down, each once (``plan.goal`` is None)
    adaptive      what `search` advises after every measurement, which is of a short block of steps; the
                  blocks at a limit follow each other until another is advised. It starts from the curve that
                  an earlier run left, if there is one (``plan.remembered``)

The outcome of an instruction comes back as an event:

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
    all, each time after twice as long. A trial that could not be measured is repeated once; an adaptive
    search does without a limit after `MAX_MISSING` visits without a result.
 5. Without permission, when somebody else owns or changes the limit, or with nothing to choose from, the
    machine gives back what it changed, says why, and only observes from then on. A lease that lapsed
    (analyzer or collector were away), a stale command, or one to a GPU that is lost, is repeated
    after `outcome_ns`, `MAX_LAPSES` times in all. The steps of a trial before the lapse are kept, and the
    trial goes on when its limit is warm again.
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
10. With ``profile_only`` an exhaustive search does not set its choice. It gives back what it changed, says
    what the choice would save, and only observes from then on: the observer mode of Zeus (NSDI'23).
11. A driver may round or clamp a limit: what it made of the one asked for takes its place among the limits.

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

from msgspec.structs import replace

from analyzers.power_limit import drift
from analyzers.power_limit.curve_fit.visits import Visit
from analyzers.power_limit.profiler.limit_visits import (
    apply_limit,
    handle_cap,
    handle_refusal,
    observe_only,
    skip_limit,
    visit_next_limit,
    wait_after_lapse,
)
from analyzers.power_limit.profiler.profiler_messages import (
    Barred,
    Capped,
    Event,
    Lapsed,
    LimitApplied,
    LimitRefused,
    Plan,
    Release,
    RunOver,
    Shifted,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
)
from analyzers.power_limit.profiler.profiler_state import (
    Answer,
    Applying,
    Measuring,
    Observing,
    Over,
    State,
    Waiting,
    Warming,
    close_span,
    limits_to_visit,
)
from analyzers.power_limit.profiler.trial_windows import (
    end_trial,
    is_long_enough,
    record_missing,
    record_trial,
)

MAX_ASKED = 3
"""Times a limit without outcome is asked for."""


def limits_mw(found_mw: int, least_mw: int, stride_mw: int) -> tuple[int, ...]:
    """Return the limits to visit: from the one found down in strides, the least always among them."""
    return (*range(found_mw, least_mw, -stride_mw), least_mw) if found_mw >= least_mw else ()


def start(plan: Plan, numbers: int = 0, rounds: int = 0, visits: tuple[tuple[int, Visit], ...] = ()) -> State:
    """Return the state of a run that has just begun.

    Args:
        plan: its constants.
        numbers: of trials that already were.
        rounds: that already were.
        visits: measured before, of levels of the plan.
    """
    usable = (known for known in plan.remembered if min(known.energy_mj, known.duration_ns, known.steps) > 0)
    return State(
        phase=Waiting(),
        todo_mw=limits_to_visit(plan),
        round=rounds + 1,
        numbers=numbers,
        memory=tuple(usable),
        visits=visits,
    )


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
            return observe_only(state, reason)
        case _, Capped():
            return handle_cap(state, event, plan)
        case Applying(asked=0), Lapsed():
            return state, ()
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw), Lapsed(reason, until):
            return wait_after_lapse(state, limit_mw, reason, until)
        case _, StepBegan(index) if state.step is not None and index <= state.step.index:
            return state, ()  # a repeat
        case _, StepBegan():
            return _step_began(replace(state, step=event, steps=event.index + 1), event, plan)
        case phase, StepsPaused(index, t_ns):
            state = replace(state, step=None)
            if isinstance(phase, Measuring) and phase.opened is not None:
                trial = close_span(phase, phase.opened, index, t_ns)
                if is_long_enough(state, trial, plan):
                    return end_trial(state, trial, t_ns, plan)
                return replace(state, phase=trial), ()
            return state, ()
        case Applying(limit_mw, attempt), LimitApplied(applied, since, taken_mw) if applied == attempt:
            if taken_mw is not None:  # which is in the plan in place of the other
                state = _follow_driver(state, limit_mw, taken_mw)
                limit_mw = taken_mw
            return _measure_if_warm(replace(state, phase=Warming(limit_mw, since)), plan), ()
        case Applying(limit_mw, attempt), LimitRefused(refused, cause, reason) if refused == attempt:
            if cause in ("stale", "lost"):
                return wait_after_lapse(state, limit_mw, reason)
            return handle_refusal(state, limit_mw, cause, reason, plan)
        case Measuring(limit_mw), Shifted(since) if state.chosen is not None:
            chosen = replace(state.chosen, confirmed=False, watch=drift.Watch(), shifted=True)
            state = replace(state, chosen=chosen, awaited=(), phase=Warming(limit_mw, since))
            return _measure_if_warm(state, plan), ()
        case _, TrialMeasured():
            return record_trial(state, event, plan)
        case _, TrialMissing(number, reason):
            return record_missing(state, number, reason, plan)
        case _:
            return state, ()  # an outcome that came too late


def _step_began(state: State, began: StepBegan, plan: Plan) -> Answer:
    match state.phase:
        case Waiting(since):
            since = began.index if since is None else since
            if began.index - since < plan.wait_steps:
                return replace(state, phase=Waiting(since)), ()
            return visit_next_limit(state, plan)
        case Applying(limit_mw, _, asked, since_ns) as applying:
            if since_ns is None:
                return replace(state, phase=replace(applying, since_ns=began.t_ns)), ()
            if began.t_ns - since_ns < plan.outcome_ns * 2 ** max(asked - 1, 0):
                return state, ()
            if asked < MAX_ASKED:
                return apply_limit(state, limit_mw, asked + 1)
            return skip_limit(state, limit_mw, f"no outcome came of {MAX_ASKED} commands", plan)
        case Warming():
            return _measure_if_warm(state, plan), ()
        case Measuring(_, None) as measuring:
            return replace(state, phase=replace(measuring, opened=began)), ()
        case Measuring(_, StepBegan() as opened) as measuring:
            trial = close_span(measuring, opened, began.index, began.t_ns)
            return (
                end_trial(state, trial, began.t_ns, plan)
                if is_long_enough(state, trial, plan)
                else (state, ())
            )
        case _:
            return state, ()


def _follow_driver(state: State, asked_mw: int, taken_mw: int) -> State:
    """Return the state in which a driver has made another limit of the one that was asked for."""
    chosen, kept = state.chosen, state.kept
    if chosen is not None and chosen.limit_mw == asked_mw:
        chosen = replace(chosen, limit_mw=taken_mw)
    if kept is not None and kept.limit_mw == asked_mw:
        kept = None
    todo_mw = tuple(limit_mw for limit_mw in state.todo_mw if limit_mw != taken_mw)
    return replace(state, chosen=chosen, kept=kept, todo_mw=todo_mw)


def _measure_if_warm(state: State, plan: Plan) -> State:
    """Begin a trial with the step under way, if it is late enough (rule 2)."""
    assert isinstance(state.phase, Warming)
    limit_mw, since, now = state.phase.limit_mw, state.phase.since, state.step
    if now is None or now.index - since.index < plan.warmup_steps or now.t_ns - since.t_ns < plan.settle_ns:
        return state
    kept = Measuring(limit_mw, None) if state.kept is None else state.kept
    return replace(state, phase=replace(kept, opened=now), kept=None)
