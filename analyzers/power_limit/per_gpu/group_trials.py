"""Try groups of GPUs at lower limits, one after the other: rules 2 to 6 of `per_gpu_machine`. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from analyzers.power_limit.curve_fit.visits import BLOCKS
from analyzers.power_limit.per_gpu.per_gpu_messages import BlockMeasured, Effect, Found, Plan, Set
from analyzers.power_limit.per_gpu.per_gpu_state import (
    FIRST,
    Answer,
    Applying,
    Block,
    Group,
    Over,
    State,
    Trial,
)
from analyzers.power_limit.per_gpu.slowdown import arm_of, ratio_of, slower
from analyzers.power_limit.profiler import StepBegan

DOUBT = 0.02
MAX_LEGS = 24
SAVES = 0.005
MAX_STEPS = 3_000


def record_block(state: State, measured: BlockMeasured, plan: Plan) -> Answer:
    asked = next((asked for asked in state.awaited if asked.number == measured.number), None)
    state = replace(state, awaited=tuple(other for other in state.awaited if other is not asked))
    trial = state.trial
    if asked is None or trial is None or asked.trial != trial.number or measured.duration_ns <= 0:
        return state, ()
    block = Block(measured.energy_mj, measured.duration_ns, asked.steps)
    if asked.lowers:
        trial = replace(trial, lowered=(*trial.lowered, block))
    else:
        trial = replace(trial, base=(*trial.base, block))
    risk = slower(trial.base, trial.lowered, state.scatter) if trial.base and trial.lowered else 0.5
    if risk >= 1 - DOUBT:
        return begin_next_trial(_not_free(state, trial, "the job would be slower"), plan)
    trial = replace(trial, blocks=trial.blocks + (asked.leg == trial.leg))
    state = replace(state, trial=trial)
    if asked.leg != trial.leg or trial.blocks < BLOCKS * (1 + trial.leg // 4):
        return state, ()
    if trial.leg % 2 and risk <= DOUBT:
        return begin_next_trial(_free(state, trial), plan)
    if trial.leg + 1 >= MAX_LEGS:
        return begin_next_trial(_not_free(state, trial, "steps vary too much to tell"), plan)
    after = replace(trial, leg=trial.leg + 1, blocks=0)
    if after.lowers == trial.lowers:
        return replace(state, trial=after), ()
    return set_limits(replace(state, trial=after), plan)


def _free(state: State, trial: Trial) -> State:
    group, steps = trial.group, [sum(block.steps for block in arm) for arm in (trial.base, trial.lowered)]

    def of(members: Sequence[int]) -> float:
        base, lowered = (
            [sum(block.energy_mj[gpu] for gpu in members) for block in arm]
            for arm in (trial.base, trial.lowered)
        )
        return ratio_of(base, lowered, steps) if sum(base) else 1.0

    saves = of(group.members) < 1 - SAVES
    if saves:
        base_ns, lowered_ns = ([block.duration_ns for block in arm] for arm in (trial.base, trial.lowered))
        effect = Effect(of(range(len(state.levels))) - 1, ratio_of(base_ns, lowered_ns, steps) - 1)
        state = replace(state, effect=effect)
    group = replace(group, kept=trial.level, gap=2 * group.gap, saves=saves)
    return _back(state, trial, group)


def _not_free(state: State, trial: Trial, why: str) -> State:
    return _back(state, trial, replace(trial.group, failed=trial.level, why=why))


def _back(state: State, trial: Trial, group: Group) -> State:
    """Put a group back at the head of the queue, with what is known of it after a trial."""
    scatter = (*state.scatter, arm_of(trial.base), arm_of(trial.lowered))
    return _at_level(replace(state, trial=None, queue=(group, *state.queue), scatter=scatter), group)


def _at_level(state: State, group: Group) -> State:
    levels = (group.kept if gpu in group.members else level for gpu, level in enumerate(state.levels))
    return replace(state, levels=tuple(levels))


def begin_next_trial(state: State, plan: Plan) -> Answer:
    """Go on to what can still be tried, or set what was found."""
    last = len(plan.limits_mw) - 1
    while state.queue:
        group, *others = state.queue
        level = group.next(last)
        if level is not None:
            number = state.trials + 1
            state = replace(
                state,
                queue=tuple(others),
                trials=number,
                trial=Trial(number=number, group=group, level=level),
            )
            return set_limits(state, plan)
        state = replace(_done(state, group), queue=(*others, *group.halves()))
        if not state.queue and not state.first_too and 0 in state.levels[1:]:
            state = replace(state, first_too=True, queue=(Group(members=(0,), gap=FIRST),))
    return set_limits(state, plan)


def _done(state: State, group: Group) -> State:
    """Settle a group where it stands (rule 5)."""
    why = "the job does not wait for it"
    if not group.saves:
        why = group.why if group.kept == 0 else "a lower limit saves nothing"
        group = replace(group, kept=0)
    state = _at_level(state, group)
    whys = (why if gpu in group.members else known for gpu, known in enumerate(state.why))
    return replace(state, why=tuple(whys))


def settle_for_now(state: State, plan: Plan) -> Answer:
    assert state.trial is not None
    why = f"it was not certain within {MAX_STEPS} steps"
    for group in (state.trial.group, *state.queue):
        state = _done(state, replace(group, why=group.why or why))
    return set_limits(replace(state, trial=None, queue=()), plan)


def set_limits(state: State, plan: Plan) -> Answer:
    """Have the limits set that the leg is with, or those that were found."""
    levels, trial = state.levels, state.trial
    if trial is not None:
        fall = dict.fromkeys(trial.group.members, trial.level)
        levels = tuple(fall.get(gpu, level) if trial.lowers else 0 for gpu, level in enumerate(levels))
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    state = replace(state, phase=Applying(attempt, since_ns), attempts=attempt)
    return state, (Set(attempt, tuple(plan.limits_mw[level] for level in levels)),)


def report_found(state: State, since: StepBegan, plan: Plan) -> Answer:
    limits_mw = tuple(plan.limits_mw[level] for level in state.levels)
    first, *others = state.why
    first = first or ("the others wait for it" if any(state.levels) else "it was not tried")
    effect = state.effect if any(state.levels) else None
    found = Found(limits_mw, (first, *others), effect, state.steps, since)
    return replace(state, phase=Over()), (found,)
