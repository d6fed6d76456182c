"""Begin a new round when the workload has changed: rules 6, 7 and 9 of the profiler. Pure."""

from math import ceil

from msgspec.structs import replace

from analyzers.power_limit.profiler.limit_visits import MAX_BACKGROUND, follow_search, visit_next_limit
from analyzers.power_limit.profiler.profiler_messages import Decide, Plan
from analyzers.power_limit.profiler.profiler_state import (
    Answer,
    Chosen,
    Measuring,
    State,
    Waiting,
    curve,
    limits_to_visit,
)

MAX_ROUNDS = 20
"""Then a run's workload counts as restless, and the last decision stands."""


def watch_workload(state: State, chosen: Chosen, plan: Plan) -> Answer:
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
        decided = Decide(chosen.limit_mw, state.round, curve(state, plan), reason, costs=chosen.costs)
        return state, (decided,)
    renewed = replace(_next_round(state, plan), why=why)
    match state.phase:
        case Measuring(limit_mw) if plan.goal is not None and state.step is not None and not chosen.shifted:
            # It is in force: what is measured next is the first block of a visit of it.
            return follow_search(replace(renewed, phase=Measuring(limit_mw, state.step)), plan, limit_mw)
        case _:
            return visit_next_limit(renewed, plan)


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
        why=f"search {state.background + 1} in the background",
    )
    return follow_search(state, plan)


def _next_round(state: State, plan: Plan) -> State:
    return State(
        phase=Waiting(),
        todo_mw=limits_to_visit(plan),
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
