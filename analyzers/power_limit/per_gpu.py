"""The policy of single GPUs: a GPU that waits for the slowest may draw less than its job. Pure.

    (state, event, plan) -> (state, instructions)

A step ends when the slowest GPU is done, so all ranks' steps take the same time and nobody's tells who waits.
It is tried: some GPUs are lowered, and the job's steps are measured with that and without it. Nothing is ever
set above the job's limit, and one GPU at least keeps it.

The outcome of an instruction comes back as an event:

    ApplyEach(attempt)     -> LimitApplied | LimitRefused     (of all GPUs together)
    MeasureTrial(number)   -> TrialMeasured | TrialMissing    (later, while the next block is under way)
    Found, GiveUp: nothing comes back; the search is over

The rules, beside those of a visit:

 1. Who waits draws less at the same limit, if its sensor tells the truth. So the first group is of all GPUs
    but the one that draws most. That is a hint for the order; what counts are trials.
 2. A group falls by `FIRST` levels, then by twice as many, and so on, until the job would be slower; then the
    levels between are halved, and not for less than half of `FIRST`. Where it can fall no further, its halves
    are tried on their own, down to `FEW` GPUs, which are tried one by one. The one left out at first comes
    last, and only if another could not fall.
 3. A trial is of legs, with everybody at the job's limit and with the group lowered, in the order of ABBA,
    so that what drifts slowly cancels. A leg is a visit of `BLOCKS` blocks of whole steps, and of as many
    more after every four legs.
 4. How likely is it that a step takes longer by more than `TOLERANCE`? Before anything is measured, the rise
    is 0 with probability `FREE`, else exponential with mean `RISE`. A probability of 1 - `DOUBT` means slower
    and ends the trial with the block at hand; one of `DOUBT` after every other leg means free; neither within
    `MAX_LEGS` means that it stays uncertain, and then nothing is lowered. (Stopping when the data look good
    does not bias a posterior: see `search.advice`.) What a busy host delays is taken away, where it is clear
    (`search.host_delays`): it delays the quickest step of a block by nothing, and a lower limit delays all.
 5. A limit that is free and saves less than `SAVES` of what these GPUs take caps nothing: it is not kept,
    unless a lower one saves.
 6. All of it ends after `MAX_STEPS` steps, with what is known by then. A limit that is refused, or whose
    outcome does not come, ends it at once.

The reference is always the job at its own limit, so that tolerances do not add up.
"""

from collections.abc import Sequence
from math import erf, exp, log, pi, sqrt
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Span
from analyzers.power_limit import visits
from analyzers.power_limit.search import curves
from analyzers.power_limit.search.host_delays import evenly_delayed
from analyzers.power_limit.search.visit_blocks import BLOCKS, Visit, usual_times
from analyzers.power_limit.selectors import Trial
from analyzers.power_limit.visits import (
    BLOCK_NS,
    BLOCK_STEPS,
    MAX_AWAITED,
    Event,
    Landed,
    Length,
    Measured,
    MeasureTrial,
    Over,
    Phase,
    Purpose,
    Refused,
    StepBegan,
    TrialMeasured,
    TrialMissing,
    Unanswered,
    Visiting,
)

FIRST: Final = 4
"""Levels that a group falls by at first."""
FEW: Final = 3
"""GPUs that are tried one by one: mostly none can fall further, and halves take a trial more."""
DOUBT: Final = 0.02
MAX_LEGS: Final = 24
SAVES: Final = 0.005
MAX_STEPS: Final = 3_000
TOLERANCE: Final = 0.003
"""A job that takes longer by a smaller share is not slower."""
FREE: Final = 0.5
RISE: Final = 0.03
NOISE: Final = 0.01
"""What is believed beforehand: see rule 4; and the standard deviation of a step's time."""


class PerGpuPlan(visits.Pace, frozen=True, kw_only=True):
    """Constants of a job. A GPU is known by its place in ``gpus``."""

    gpus: tuple[str, ...]
    """UUIDs, two or more; the one that draws most at the job's limit is the first."""
    limits_mw: tuple[int, ...]
    """Levels that a GPU may have, descending; the first is the job's limit."""
    window_ns: int
    """A leg holds at least so much."""
    round: int = 1
    """Of the search for the job's limit."""


# ---- instructions ------------------------------------------------------------------------------------


class ApplyEach(Struct, frozen=True):
    """Set each GPU's limit; most have it already."""

    attempt: int
    limits_mw: tuple[int, ...]


class Effect(Struct, frozen=True):
    """The effect of lowered limits on the job, as shares of a step's energy and time at its own limit."""

    energy: float
    time: float


class Found(Struct, frozen=True):
    """Each GPU's limit for the time to come, and why it is that; they are in force from ``step`` on."""

    limits_mw: tuple[int, ...]
    why: tuple[str, ...]
    effect: Effect | None
    """None: nothing was lowered."""
    steps: int
    """That it took."""
    step: StepBegan


class GiveUp(Struct, frozen=True):
    """Limits could not be set, for this reason; which of them are in force is not known."""

    reason: str


Instruction: TypeAlias = ApplyEach | MeasureTrial | Found | GiveUp


# ---- state -------------------------------------------------------------------------------------------


class Group(Struct, frozen=True, kw_only=True):
    """GPUs that fall together."""

    members: tuple[int, ...]
    gap: int
    """Levels to fall by next, while it never failed."""
    kept: int = 0
    """The lowest level that is free."""
    failed: int | None = None
    """The highest that is not."""
    saves: bool = False
    """Whether ``kept`` does."""
    why: str = ""
    """It failed."""

    def next(self, last: int) -> int | None:
        """Return the level to try, of 0 to ``last``; None: it can fall no further."""
        if self.failed is None:
            return None if self.kept == last else min(self.kept + self.gap, last)
        return None if self.failed - self.kept <= FIRST // 2 else (self.kept + self.failed) // 2

    def parts(self) -> tuple["Group", ...]:
        """Return the groups to go on with: none where all of it did not fail, or it is a single GPU."""
        count = len(self.members)
        if self.failed is None or count == 1:
            return ()
        each = 1 if count <= FEW else -(-count // 2)
        parts = (self.members[at : at + each] for at in range(0, count, each))
        return tuple(Group(members=part, gap=FIRST // 2, kept=self.kept, saves=self.saves) for part in parts)


class Block(Struct, frozen=True):
    """Whole steps, measured."""

    energy_mj: tuple[int, ...]
    duration_ns: int
    steps: int
    delay_ns: int = 0
    """Of the duration, as of a `Trial`."""


Arm: TypeAlias = tuple[Block, ...]
"""Blocks at one setting."""


class GroupTrial(Struct, frozen=True, kw_only=True):
    """A group at a level, compared with the job at its limit."""

    number: int
    group: Group
    level: int
    leg: int = 0
    blocks: int = 0
    """Measured in this leg."""
    base: Arm = ()
    lowered: Arm = ()

    @property
    def lowers(self) -> bool:
        """Tell whether the group is lowered in the leg under way."""
        return self.leg % 4 in (1, 2)


class OpenBlock(Struct, frozen=True):
    """A block that is being measured: of which leg of which trial."""

    number: int
    trial: int
    leg: int
    lowers: bool
    steps: int


class PerGpuState(Struct, frozen=True, kw_only=True):
    """The policy's state. It begins with `start`."""

    visiting: Visiting
    levels: tuple[int, ...]
    """Of each GPU, as known by now."""
    why: tuple[str, ...]
    queue: tuple[Group, ...]
    """To be tried."""
    trial: GroupTrial | None = None
    """None: what was found is being set."""
    first_too: bool = False
    """Whether the GPU that was left out at first is tried as well."""
    steps: int = 0
    """Since it began."""
    trials: int = 0
    awaited: tuple[OpenBlock, ...] = ()
    effect: Effect | None = None
    before: tuple[Arm, ...] = ()
    """Arms of earlier trials: steps vary in one as much as in another."""

    @property
    def phase(self) -> Phase:
        return self.visiting.phase

    @property
    def over(self) -> bool:
        return isinstance(self.phase, Over)


Answer: TypeAlias = tuple[PerGpuState, tuple[Instruction, ...]]


def validate(state: PerGpuState, plan: PerGpuPlan) -> None:
    """Check what holds between events; an AssertionError names the state."""
    visits.validate(state.visiting)
    assert len(state.levels) == len(state.why) == len(plan.gpus), state
    assert all(0 <= level < len(plan.limits_mw) for level in state.levels), state
    assert 0 in state.levels, state
    assert len(state.awaited) <= MAX_AWAITED, state
    assert state.trial is not None or not state.queue or state.over, state
    if state.trial is not None:
        assert state.trial.group.kept < state.trial.level < len(plan.limits_mw), state


def start(plan: PerGpuPlan, step: StepBegan | None) -> Answer:
    """Begin, with everybody at the job's limit. ``step``: the one under way."""
    gpus = range(len(plan.gpus))
    queue = (Group(members=tuple(gpus[1:]), gap=FIRST),)
    state = PerGpuState(
        visiting=Visiting(step=step), levels=(0,) * len(gpus), why=("",) * len(gpus), queue=queue
    )
    return _begin_next_trial(state, plan)


def step(state: PerGpuState, event: Event, plan: PerGpuPlan) -> Answer:
    """Return the next state and what to do about it. Every (state, event) is answered."""
    visiting = state.visiting
    match event:
        case _ if state.over:
            return state, ()
        case StepBegan(index) if visiting.step is None or index > visiting.step.index:
            state = replace(state, steps=state.steps + 1)
            if state.trial is not None and state.steps >= MAX_STEPS:
                return _settle_for_now(replace(state, visiting=replace(visiting, step=event)), plan)
        case TrialMeasured():
            return _record_block(state, event, plan)
        case TrialMissing(number):
            return replace(state, awaited=tuple(a for a in state.awaited if a.number != number)), ()
        case _:
            pass
    length = Length(BLOCK_STEPS, max(BLOCK_NS, -(-plan.window_ns // BLOCKS)))
    may_end = len(state.awaited) < MAX_AWAITED
    visiting, outcome = visits.step(visiting, event, plan, length if may_end else None)
    state = replace(state, visiting=visiting)
    match outcome:
        case Landed(since=since) if state.trial is None:
            return _report_found(state, since, plan)
        case Measured(trial, ended_ns):
            return _measure(state, trial.spans, ended_ns, plan)
        case Refused(reason=reason):
            return _at_end(state), (GiveUp(reason),)
        case Unanswered():
            return _at_end(state), (GiveUp("no outcome came of a command for one GPU"),)
        case _:
            return state, ()


def _at_end(state: PerGpuState) -> PerGpuState:
    return replace(state, visiting=replace(state.visiting, phase=Over()))


def _measure(state: PerGpuState, spans: tuple[Span, ...], ended_ns: int, plan: PerGpuPlan) -> Answer:
    """Have a block measured, and go on with the next."""
    assert state.trial is not None
    number, trial = state.visiting.numbers + 1, state.trial
    wanted = MeasureTrial(
        number=number,
        round=plan.round,
        limit_mw=plan.limits_mw[0],
        spans=spans,
        purpose=Purpose.PER_GPU,
        visit=trial.number,
        ended_ns=ended_ns,
    )
    asked = OpenBlock(number, trial.number, trial.leg, trial.lowers, wanted.steps)
    visiting = replace(state.visiting, numbers=number)
    return replace(state, visiting=visiting, awaited=(*state.awaited, asked)), (wanted,)


# ---- trials of groups: rules 2 to 6 ------------------------------------------------------------------


def _record_block(state: PerGpuState, measured: TrialMeasured, plan: PerGpuPlan) -> Answer:
    asked = next((asked for asked in state.awaited if asked.number == measured.number), None)
    state = replace(state, awaited=tuple(other for other in state.awaited if other is not asked))
    trial = state.trial
    if asked is None or trial is None or asked.trial != trial.number or measured.duration_ns <= 0:
        return state, ()
    block = Block(measured.of_gpus_mj, measured.duration_ns, asked.steps, measured.delay_ns)
    if asked.lowers:
        trial = replace(trial, lowered=(*trial.lowered, block))
    else:
        trial = replace(trial, base=(*trial.base, block))
    risk = 0.5
    if trial.base and trial.lowered:
        risk = slower(*_comparable((trial.base, trial.lowered, *state.before)))
    if risk >= 1 - DOUBT:
        return _begin_next_trial(_not_free(state, trial, "the job would be slower"), plan)
    trial = replace(trial, blocks=trial.blocks + (asked.leg == trial.leg))
    state = replace(state, trial=trial)
    if asked.leg != trial.leg or trial.blocks < BLOCKS * (1 + trial.leg // 4):
        return state, ()
    if trial.leg % 2 and risk <= DOUBT:
        return _begin_next_trial(_free(state, trial), plan)
    if trial.leg + 1 >= MAX_LEGS:
        return _begin_next_trial(_not_free(state, trial, "steps vary too much to tell"), plan)
    after = replace(trial, leg=trial.leg + 1, blocks=0)
    if after.lowers == trial.lowers:
        return replace(state, trial=after), ()
    return _set_limits(replace(state, trial=after), plan)


def _free(state: PerGpuState, trial: GroupTrial) -> PerGpuState:
    group, arms = trial.group, (trial.base, trial.lowered)
    steps = [sum(block.steps for block in arm) for arm in arms]

    def of(members: Sequence[int]) -> float:
        base, lowered = ([sum(block.energy_mj[gpu] for gpu in members) for block in arm] for arm in arms)
        return _ratio_of(base, lowered, steps) if sum(base) else 1.0

    saves = of(group.members) < 1 - SAVES
    if saves:
        base, lowered = _comparable((*arms, *state.before))[:2]
        effect = Effect(of(range(len(state.levels))) - 1, _rise(base, lowered))
        state = replace(state, effect=effect)
    group = replace(group, kept=trial.level, gap=2 * group.gap, saves=saves)
    return _back(state, trial, group)


def _not_free(state: PerGpuState, trial: GroupTrial, why: str) -> PerGpuState:
    return _back(state, trial, replace(trial.group, failed=trial.level, why=why))


def _back(state: PerGpuState, trial: GroupTrial, group: Group) -> PerGpuState:
    """Put a group back at the head of the queue, with what is known of it after a trial."""
    before = (*state.before, *filter(None, (trial.base, trial.lowered)))
    return _at_level(replace(state, trial=None, queue=(group, *state.queue), before=before), group)


def _at_level(state: PerGpuState, group: Group) -> PerGpuState:
    levels = (group.kept if gpu in group.members else level for gpu, level in enumerate(state.levels))
    return replace(state, levels=tuple(levels))


def _begin_next_trial(state: PerGpuState, plan: PerGpuPlan) -> Answer:
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
                trial=GroupTrial(number=number, group=group, level=level),
            )
            return _set_limits(state, plan)
        state = replace(_done(state, group), queue=(*others, *group.parts()))
        if not state.queue and not state.first_too and 0 in state.levels[1:]:
            state = replace(state, first_too=True, queue=(Group(members=(0,), gap=FIRST),))
    return _set_limits(state, plan)


def _done(state: PerGpuState, group: Group) -> PerGpuState:
    """Settle a group where it stands (rule 5)."""
    why = "the job does not wait for it"
    if not group.saves:
        why = group.why if group.kept == 0 else "a lower limit saves nothing"
        group = replace(group, kept=0)
    state = _at_level(state, group)
    whys = (why if gpu in group.members else known for gpu, known in enumerate(state.why))
    return replace(state, why=tuple(whys))


def _settle_for_now(state: PerGpuState, plan: PerGpuPlan) -> Answer:
    assert state.trial is not None
    why = f"it was not certain within {MAX_STEPS} steps"
    for group in (state.trial.group, *state.queue):
        state = _done(state, replace(group, why=group.why or why))
    return _set_limits(replace(state, trial=None, queue=()), plan)


def _set_limits(state: PerGpuState, plan: PerGpuPlan) -> Answer:
    """Have the limits set that the leg is with, or those that were found."""
    levels, trial = state.levels, state.trial
    if trial is not None:
        fall = dict.fromkeys(trial.group.members, trial.level)
        levels = tuple(fall.get(gpu, level) if trial.lowers else 0 for gpu, level in enumerate(levels))
    visiting, attempt = visits.ask(state.visiting, plan.limits_mw[0])
    each_mw = tuple(plan.limits_mw[level] for level in levels)
    return replace(state, visiting=visiting), (ApplyEach(attempt, each_mw),)


def _report_found(state: PerGpuState, since: StepBegan, plan: PerGpuPlan) -> Answer:
    limits_mw = tuple(plan.limits_mw[level] for level in state.levels)
    first, *others = state.why
    first = first or ("the others wait for it" if any(state.levels) else "it was not tried")
    effect = state.effect if any(state.levels) else None
    found = Found(limits_mw, (first, *others), effect, state.steps, since)
    return _at_end(state), (found,)


# ---- the probability of a slowdown: rule 4 -------------------------------------------------------------


def slower(base: Sequence[Block], lowered: Sequence[Block], *others: Sequence[Block]) -> float:
    """Return how likely it is that steps take longer by more than `TOLERANCE` (rule 4)."""
    steps = [sum(block.steps for block in arm) for arm in (base, lowered)]
    rise = log(1 + _rise(base, lowered))
    variance = curves.step_variance([_scatter(arm) for arm in (base, lowered, *others)], NOISE)
    error = sqrt(variance * (1 / steps[0] + 1 / steps[1]))
    free = FREE * exp(-((rise / error) ** 2) / 2) / (error * sqrt(2 * pi))
    mean = rise - error**2 / RISE
    scale = (1 - FREE) / RISE * exp((error**2 / (2 * RISE) - rise) / RISE)
    above = scale * _normal((mean - TOLERANCE) / error)
    total = free + scale * _normal(mean / error)
    return above / total if total else float(rise > TOLERANCE)


def _comparable(arms: Sequence[Arm]) -> list[Arm]:
    """Return arms without odd blocks, as if a busy host had delayed each of their steps by the same time."""
    visits = [
        Visit(
            tuple(Trial(at, sum(of.energy_mj), of.duration_ns, of.steps, of.delay_ns) for of in arm), t_ns=at
        )
        for at, arm in enumerate(arms)
    ]
    even = evenly_delayed(visits)
    return [
        tuple(
            replace(of, duration_ns=trial.duration_ns)
            for of, trial, keep in zip(arm, visit.blocks, usual, strict=True)
            if keep
        )
        for arm, visit, usual in zip(arms, even, usual_times(even), strict=True)
    ]


def _scatter(arm: Sequence[Block]) -> list[tuple[float, int]]:
    return [(log(block.duration_ns / block.steps), block.steps) for block in arm]


def _rise(base: Sequence[Block], lowered: Sequence[Block]) -> float:
    """Return by which share a step takes longer."""
    before, after = (
        sum(of.duration_ns for of in arm) / sum(of.steps for of in arm) for arm in (base, lowered)
    )
    return after / before - 1


def _normal(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def _ratio_of(base: Sequence[int], lowered: Sequence[int], steps: Sequence[int]) -> float:
    """Return the second amount a step, over the first. ``steps``: of each."""
    return sum(lowered) / steps[1] / (sum(base) / steps[0])
