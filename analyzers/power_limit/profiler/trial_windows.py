"""Cut steps into trials and record what they measured: rules 3, 4 and 6 of the profiler. Pure."""

from msgspec.structs import replace

from analyzers.power_limit import drift
from analyzers.power_limit.curve_fit.visits import BLOCKS, Visit
from analyzers.power_limit.profiler.limit_visits import use_measurement, visit_next_limit
from analyzers.power_limit.profiler.profiler_messages import (
    MeasureTrial,
    Plan,
    Purpose,
    TrialMeasured,
)
from analyzers.power_limit.profiler.profiler_state import Answer, Measuring, State
from analyzers.power_limit.profiler.workload_watch import watch_workload
from analyzers.power_limit.selectors import Trial

MAX_MISSING = 2
"""Times a limit may be measured without a result."""
MAX_AWAITED = 8
"""Measurements under way; until one returns, the trial at hand grows longer."""
WATCH_STEPS = 10
"""Of a window after the decision: five tell a change, fifty steps of the hundred it may take."""
MOST_WATCHED = 40
"""Windows at the limit chosen that such a search uses."""
MOST_LOCKED = 6
"""Blocks of a visit in which a sensor saw the same parts of steps again and again."""
BLOCK_STEPS = 4
BLOCK_NS = 500_000_000
"""At least, of a block: so that `BLOCKS` of them are 12 steps and 1.5 s."""


def is_long_enough(state: State, trial: Measuring, plan: Plan) -> bool:
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


def end_trial(state: State, trial: Measuring, t_ns: int, plan: Plan) -> Answer:
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
    state, then = visit_next_limit(state, plan)
    return state, (asked, *then)


def _purpose(state: State) -> Purpose:
    if state.chosen is None:
        return Purpose.PROFILE
    under_way = any(asked.purpose is Purpose.CONFIRM for asked in state.awaited)
    return Purpose.WATCH if state.chosen.confirmed or under_way else Purpose.CONFIRM


def record_trial(state: State, measured: TrialMeasured, plan: Plan) -> Answer:
    asked, state = _take(state, measured.number)
    if asked is None:
        return state, ()
    trial = Trial(asked.limit_mw, measured.energy_mj, measured.duration_ns, asked.steps, measured.delay_ns)
    if asked.purpose is Purpose.PROFILE:
        if plan.goal is not None and min(trial.energy_mj, trial.duration_ns) <= 0:
            return _missed(state, asked, "no energy was counted in it", plan)
        state = replace(state, visits=_with(state.visits, asked, trial))
        if measured.locked and state.visit == asked.visit and state.locked < MOST_LOCKED:
            state = replace(state, locked=state.locked + 1)
            if plan.goal is not None and isinstance(state.phase, Measuring):
                return state, ()
        return use_measurement(state, asked, plan)
    if state.chosen is None or state.chosen.limit_mw != asked.limit_mw:
        return state, ()  # of a choice that was refused
    chosen = replace(state.chosen, confirmed=True, watch=drift.seen(state.chosen.watch, trial))
    state = replace(state, chosen=chosen)
    if chosen.unsure and not chosen.shifted and min(trial.energy_mj, trial.duration_ns) > 0:
        state = replace(state, visits=_with_watched(state.visits, asked, trial))
    return watch_workload(state, chosen, plan)


def record_missing(state: State, number: int, reason: str, plan: Plan) -> Answer:
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
    return use_measurement(state, asked, plan)


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
