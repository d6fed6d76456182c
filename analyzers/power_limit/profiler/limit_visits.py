"""Visit one limit after another, choose the best and set it: rules 4, 5 and 8 to 10 of the profiler. Pure."""

from msgspec.structs import replace

from analyzers.power_limit import drift, search
from analyzers.power_limit.curve_fit.belief import TOLERATED, TRUSTED, Confidence
from analyzers.power_limit.profiler.profiler_messages import (
    Apply,
    Capped,
    Decide,
    MeasureTrial,
    Observe,
    Plan,
    Purpose,
    Release,
    StepBegan,
)
from analyzers.power_limit.profiler.profiler_state import (
    Answer,
    Applying,
    Chosen,
    Deciding,
    Measuring,
    Observing,
    State,
    Warming,
    close_span,
    curve,
)
from analyzers.power_limit.search import Choose, Measure
from zeus_stream.errors import SettingsError
from zeus_stream.protocol.notes import Cause

MAX_LAPSES = 20
"""Leases of a run that may lapse."""
MOST_WIDE = 4
"""Times the hypotheses of the watch, after searches that chose the same limit again."""
BACKGROUND, MAX_BACKGROUND = 12, 40
"""Blocks by which a search that is not sure goes on in the background, and how often it does."""


def use_measurement(state: State, asked: MeasureTrial, plan: Plan) -> Answer:
    """Use a measurement: decide, or go on to the limit that the search wants."""
    match state.phase:
        case Deciding():
            return _decide_if_last(state, plan)
        case Measuring(limit_mw) if plan.goal is not None and state.visit == asked.visit:
            return follow_search(state, plan, limit_mw)
        case _:
            return state, ()


def follow_search(state: State, plan: Plan, now_mw: int | None = None) -> Answer:
    """Do what the search advises. ``now_mw``: the limit that is being measured."""
    assert plan.goal is not None
    limits_mw = [limit for limit in plan.limits_mw if _to_be_had(state, limit)]
    if not limits_mw:
        return observe_only(state, f"no limit could be measured, the last because: {state.trouble}")
    visits = [visit for _, visit in state.visits]
    more = 0
    if state.background:
        more = BACKGROUND * state.background + sum(len(of.blocks) for of in visits if of.watched)
    clocks = bool(plan.clocks_mhz)
    advice = search.advise(
        limits_mw,
        plan.gpus,
        plan.goal,
        visits,
        state.memory,
        more,
        clocks=clocks,
        tolerated_risk=plan.tolerated_risk,
    )
    match advice:
        case Measure(limit_mw) if limit_mw == now_mw:
            return state, ()
        case Measure(limit_mw):
            return apply_limit(state, limit_mw)
        case Choose(limit_mw, confidence, remembered, sure, costs):
            seen = sum(trial.limit_mw in limits_mw for trial in state.trials)
            levels = "clocks" if clocks else "limits"
            reason = f"{plan.selector.text} of {len(limits_mw)} {levels}, {seen} of them measured"
            as_remembered = remembered is not None and remembered >= TRUSTED
            if remembered is not None:
                reason += f", as {plan.known_as}" if as_remembered else f", not as {plan.known_as}"
            unsure = not sure and confidence.p95 > TOLERATED
            if unsure:
                reason += (
                    f"; not sure yet: it may cost {100 * confidence.p95:.1f} % more than the best;"
                    " the search goes on in the background"
                )
            chosen = Chosen(limit_mw=limit_mw, as_remembered=as_remembered, unsure=unsure, costs=costs)
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
    state = replace(state, chosen=chosen, began=state.steps, profiled=state.profiled + took, kept=None)
    decided = Decide(chosen.limit_mw, state.round, curve(state, plan), reason, confidence, chosen.costs)
    state, then = apply_limit(state, chosen.limit_mw)
    return state, (decided, *then)


def visit_next_limit(state: State, plan: Plan) -> Answer:
    """Go on to the next limit of the round, or to the decision."""
    if plan.goal is not None:
        return follow_search(state, plan)
    if (first := next(filter(state.cap.allows, state.todo_mw), None)) is not None:
        return apply_limit(replace(state, todo_mw=tuple(mw for mw in state.todo_mw if mw != first)), first)
    return _decide_if_last(replace(state, phase=Deciding()), plan)


def apply_limit(state: State, limit_mw: int, asked: int = 1) -> Answer:
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    state = _resume_or_begin(state, limit_mw, Applying(limit_mw, attempt, asked, since_ns))
    return replace(state, attempts=attempt), (Apply(attempt, limit_mw),)


def _resume_or_begin(state: State, limit_mw: int, applying: Applying) -> State:
    """Return the state in which a limit is asked for; a trial at it that a lapse cut off is kept."""
    if state.kept is not None and state.kept.limit_mw == limit_mw:
        return replace(state, phase=applying)
    return replace(state, phase=applying, visit=None, locked=0, kept=None)


def wait_after_lapse(state: State, limit_mw: int, reason: str, until: StepBegan | None = None) -> Answer:
    """Keep the steps before the lapse, and wait until the limit is asked for again."""
    if state.lapses >= MAX_LAPSES:
        return observe_only(state, f"{reason}, for the {MAX_LAPSES + 1}th time")
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    if isinstance(state.phase, Measuring):
        state = replace(state, kept=_before(state.phase, until))
    state = _resume_or_begin(state, limit_mw, Applying(limit_mw, attempt, 0, since_ns))
    return replace(state, attempts=attempt, lapses=state.lapses + 1), ()


def _before(measuring: Measuring, until: StepBegan | None) -> Measuring | None:
    """Return the part of a trial before a step; None: there is none, or it is not known."""
    if until is None or any(span.end > until.index for span in measuring.spans):
        return None
    opened = measuring.opened
    if opened is not None and until.index > opened.index:
        measuring = close_span(measuring, opened, until.index, until.t_ns)
    return replace(measuring, opened=None) if measuring.spans else None


def handle_refusal(state: State, limit_mw: int, cause: Cause, reason: str, plan: Plan) -> Answer:
    match cause:
        case "range" | "stale" | "device":
            return skip_limit(state, limit_mw, reason, plan)
        case _:
            return observe_only(state, reason)


def skip_limit(state: State, limit_mw: int, reason: str, plan: Plan) -> Answer:
    """Do without a limit; if it was the chosen one, choose from the others."""
    state = replace(state, trouble=reason, without_mw=state.without_mw | {limit_mw})
    if state.chosen is not None:
        others = tuple(known for known in state.visits if known[1].limit_mw != limit_mw)
        state = replace(state, chosen=None, visits=others)
    return visit_next_limit(state, plan)


def handle_cap(state: State, cap: Capped, plan: Plan) -> Answer:
    """Go on with the limits that there are now, from what is known of them (rule 8)."""
    # Steps since a choice were watched; those of a search for another are counted from now on.
    state = replace(state, cap=cap, began=state.began if state.chosen is None else state.steps)
    profiled = tuple(asked for asked in state.awaited if asked.purpose is Purpose.PROFILE)
    match state.phase:
        case Applying(limit_mw) | Warming(limit_mw) | Measuring(limit_mw) if not cap.allows(limit_mw):
            if plan.goal is None and state.chosen is None:
                state = replace(state, todo_mw=(limit_mw, *state.todo_mw))
            return visit_next_limit(replace(state, phase=Deciding(), chosen=None, awaited=profiled), plan)
        case Applying() | Warming() | Measuring() if state.chosen is not None and any(
            cap.allows(limit_mw) and not state.chosen.cap.allows(limit_mw) for limit_mw in plan.limits_mw
        ):
            return visit_next_limit(replace(state, phase=Deciding(), chosen=None, awaited=profiled), plan)
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
        return visit_next_limit(state, plan)
    trials = tuple(trial for trial in state.trials if _to_be_had(state, trial.limit_mw))
    if not trials:
        return observe_only(state, f"no limit could be measured, the last because: {state.trouble}")
    try:
        limit_mw = plan.selector.choose(trials, plan.gpus)
    except SettingsError as wrong:
        return observe_only(state, str(wrong))
    reason = f"{plan.selector.text} of {len(trials)} {'clocks' if plan.clocks_mhz else 'limits'} measured"
    if plan.profile_only:
        reason = f"{reason}; --profile-only keeps the limit found{_by(state)}"
        seen = Observing(f"{plan.spell(limit_mw)} would be chosen: {reason}")
        return replace(state, phase=seen), (Release(), Observe(state.round, trials, reason))
    return _choose(state, Chosen(limit_mw=limit_mw), reason, plan)


def observe_only(state: State, reason: str) -> Answer:
    return replace(state, phase=Observing(reason)), (Release(), Observe(state.round, state.trials, reason))
