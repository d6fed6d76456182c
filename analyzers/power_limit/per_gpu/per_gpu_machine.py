"""Limits of single GPUs below their job's: a GPU that waits for the slowest may draw less. Pure.

    (state, event, plan) -> (state, instructions)

A step ends when the slowest GPU is done, so all ranks' steps take the same time and nobody's tells who waits.
It is tried: some GPUs are lowered, and the job's steps are measured with that and without it. Nothing is ever
set above the job's limit, and one GPU at least keeps it.

The outcome of an instruction comes back as an event:

    Set(attempt)       -> LimitApplied | LimitRefused     (of all GPUs together)
    Measure(number)    -> BlockMeasured | TrialMissing    (later, while the next block is under way)
    Found, GiveUp: nothing comes back; the machine is over

The rules:

 1. Who waits draws less at the same limit, if its sensor tells the truth. So the first group is of all GPUs
    but the one that draws most. That is a hint for the order; what counts are trials.
 2. A group falls by `FIRST` levels, then by twice as many, and so on, until the job would be slower; then the
    levels between are halved. Where it can fall no further, its halves are tried on their own, down to single
    GPUs, and not for less than half of `FIRST`. The one left out at first comes last, and only if another
    could not fall.
 3. A trial is of legs, with everybody at the job's limit and with the group lowered, in the order of ABBA,
    so that what drifts slowly cancels. A leg is of blocks of whole steps, `settle_ns` after its limits were
    confirmed: `BLOCKS` of them, and as many more after every four legs. A pause (the end of an epoch) cuts a
    block into spans that add up.
 4. How likely is it that a step takes longer by more than `TOLERANCE`? Before anything is measured, the rise
    is 0 with probability `FREE`, else exponential with mean `RISE`. A probability of 1 - `DOUBT` means slower
    and ends the trial with the block at hand; one of `DOUBT` after every other leg means free; neither within
    `MAX_LEGS` means that it stays uncertain, and then nothing is lowered. (Stopping when the data look good
    does not bias a posterior: see `search`.)
 5. A limit that is free and saves less than `SAVES` of what these GPUs take caps nothing: it is not kept,
    unless a lower one saves.
 6. All of it ends after `MAX_STEPS` steps, with what is known by then.

The reference is always the job at its own limit, so that tolerances do not add up.
"""

from msgspec.structs import replace

from analyzers.fleet.session import Span
from analyzers.power_limit.curve_fit.visits import BLOCKS
from analyzers.power_limit.per_gpu.group_trials import (
    MAX_STEPS,
    begin_next_trial,
    record_block,
    report_found,
    settle_for_now,
)
from analyzers.power_limit.per_gpu.per_gpu_messages import BlockMeasured, Event, GiveUp, Measure, Plan
from analyzers.power_limit.per_gpu.per_gpu_state import (
    FIRST,
    Answer,
    Applying,
    Asked,
    Group,
    Measuring,
    Over,
    State,
    Warming,
)
from analyzers.power_limit.profiler import (
    BLOCK_NS,
    BLOCK_STEPS,
    MAX_AWAITED,
    LimitApplied,
    LimitRefused,
    StepBegan,
    StepsPaused,
    TrialMissing,
)


def start(plan: Plan, step: StepBegan | None) -> Answer:
    """Begin, with everybody at the job's limit. ``step``: the one under way."""
    gpus = range(len(plan.gpus))
    queue = (Group(members=tuple(gpus[1:]), gap=FIRST),)
    return begin_next_trial(
        State(phase=Over(), levels=(0,) * len(gpus), why=("",) * len(gpus), queue=queue, step=step), plan
    )


def step(state: State, event: Event, plan: Plan) -> Answer:
    """Return the next state and what to do about it. Every (state, event) is answered."""
    match state.phase, event:
        case Over(), _:
            return state, ()
        case _, StepBegan(index) if state.step is not None and index <= state.step.index:
            return state, ()  # a repeat
        case _, StepBegan():
            return _step_began(replace(state, step=event, steps=state.steps + 1), event, plan)
        case Measuring(StepBegan() as opened) as block, StepsPaused(index, t_ns):
            block = _closed(block, opened, index, t_ns)
            return _measure_if_enough(replace(state, step=None, phase=block), block, plan)
        case _, StepsPaused():
            return replace(state, step=None), ()
        case Applying(attempt), LimitApplied(applied, since) if applied == attempt:
            if state.trial is None:
                return report_found(state, since, plan)
            return _measure_if_warm(replace(state, phase=Warming(since)), plan), ()
        case Applying(attempt), LimitRefused(refused, _, reason) if refused == attempt:
            return replace(state, phase=Over()), (GiveUp(reason),)
        case _, BlockMeasured():
            return record_block(state, event, plan)
        case _, TrialMissing(number):
            return replace(state, awaited=tuple(a for a in state.awaited if a.number != number)), ()
        case _:
            return state, ()  # an outcome that came too late


def _step_began(state: State, began: StepBegan, plan: Plan) -> Answer:
    if state.trial is not None and state.steps >= MAX_STEPS:
        return settle_for_now(state, plan)
    match state.phase:
        case Applying(_, None) as applying:
            return replace(state, phase=replace(applying, since_ns=began.t_ns)), ()
        case Applying(_, int(since_ns)) if began.t_ns - since_ns >= plan.outcome_ns:
            return replace(state, phase=Over()), (GiveUp("no outcome came of a command for one GPU"),)
        case Warming():
            return _measure_if_warm(state, plan), ()
        case Measuring(None) as block:
            return replace(state, phase=replace(block, opened=began)), ()
        case Measuring(StepBegan() as opened) as block:
            return _measure_if_enough(state, _closed(block, opened, began.index, began.t_ns), plan)
        case _:
            return state, ()


def _measure_if_warm(state: State, plan: Plan) -> State:
    assert isinstance(state.phase, Warming)
    if state.step is None or state.step.t_ns - state.phase.since.t_ns < plan.settle_ns:
        return state
    return replace(state, phase=Measuring(state.step))


def _closed(block: Measuring, opened: StepBegan, end: int, t_ns: int) -> Measuring:
    """Return the block with the span at hand closed before step ``end``."""
    spans = (*block.spans, Span(opened.index, end)) if end > opened.index else block.spans
    return Measuring(None, spans, block.whole_ns + t_ns - opened.t_ns)


def _measure_if_enough(state: State, block: Measuring, plan: Plan) -> Answer:
    """Have a block measured and go on with the next, if it is long enough. ``block``: without open span."""
    steps = sum(span.end - span.first for span in block.spans)
    least_ns = max(BLOCK_NS, -(-plan.window_ns // BLOCKS))
    if steps < BLOCK_STEPS or block.whole_ns < least_ns or len(state.awaited) >= MAX_AWAITED:
        return state, ()
    assert state.trial is not None
    number, trial = state.numbers + 1, state.trial
    asked = Asked(number, trial.number, trial.leg, trial.lowers, steps)
    state = replace(state, phase=Measuring(state.step), numbers=number, awaited=(*state.awaited, asked))
    return state, (Measure(number, block.spans),)
