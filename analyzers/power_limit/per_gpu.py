"""Limits of single GPUs below their job's: whoever waits for the slowest may draw less. Pure.

    (state, event, plan) -> (state, instructions)

A step ends when the slowest GPU is done, so all ranks' steps take the same time and nobody's tells who waits.
It is tried: some GPUs are lowered, and the job's steps are measured with that and without it. Nothing is ever
set above the job's limit, and one GPU at least keeps it.

Whoever carries out an instruction tells what came of it as an event:

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
    `MAX_LEGS` means that it cannot be told, and then nothing is lowered. (Stopping when the data look good
    does not bias a posterior: see `search`.)
 5. A limit that is free and saves less than `SAVES` of what these GPUs take caps nothing: it is not kept,
    unless a lower one saves.
 6. All of it ends after `MAX_STEPS` steps, with what is known by then.

The reference is always the job at its own limit, so that tolerances do not add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erf, exp, log, pi, sqrt

from analyzers.fleet.session import Span
from analyzers.power_limit.curve_fit import curves
from analyzers.power_limit.curve_fit.visits import BLOCKS
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

FIRST = 4
"""Levels that a group falls by at first."""
TOLERANCE = 0.003
"""A job that takes longer by a smaller share is not slower."""
FREE = 0.5
RISE = 0.03
"""What is believed beforehand: see rule 4."""
DOUBT = 0.02
MAX_LEGS = 24
SAVES = 0.005
MAX_STEPS = 3_000


# ---- what it is told -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is fixed for a job. GPUs are told apart by their place in ``gpus``."""

    gpus: tuple[str, ...]
    """UUIDs, two or more; the one that draws most at the job's limit is the first."""
    limits_mw: tuple[int, ...]
    """Levels that a GPU may have, descending; the first is the job's limit."""
    settle_ns: int
    window_ns: int
    """A leg holds at least so much."""
    outcome_ns: int
    """Wait this long for the outcome of a command."""


@dataclass(frozen=True, slots=True)
class BlockMeasured:
    number: int
    energy_mj: tuple[int, ...]
    """Of each GPU."""
    duration_ns: int
    """The slowest rank's."""


Event = StepBegan | StepsPaused | LimitApplied | LimitRefused | BlockMeasured | TrialMissing


# ---- what it wants -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Set:
    """Set each GPU's limit; most have it already."""

    attempt: int
    limits_mw: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Tell the energy of each GPU, and the slowest rank's time, over these spans."""

    number: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What lowered limits do to the job, as shares of a step's energy and time at its own limit."""

    energy: float
    time: float


@dataclass(frozen=True, slots=True)
class Found:
    """Each GPU's limit for the time to come, and why it is that; they are in force from ``step`` on."""

    limits_mw: tuple[int, ...]
    why: tuple[str, ...]
    effect: Effect | None
    """None: nothing was lowered."""
    steps: int
    """That it took."""
    step: StepBegan


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Limits could not be set, for this reason; which of them are in force is not known."""

    reason: str


Instruction = Set | Measure | Found | GiveUp


# ---- where it stands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
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
    grain: int = 1
    """Levels that are worth a trial."""

    def next(self, last: int) -> int | None:
        """Return the level to try, of 0 to ``last``; None: it can fall no further."""
        if self.failed is None:
            return None if self.kept == last else min(self.kept + self.gap, last)
        return None if self.failed - self.kept <= self.grain else (self.kept + self.failed) // 2

    def halves(self) -> tuple["Group", ...]:
        """Return the groups to go on with: none where all of it did not fail, or it is a single GPU."""
        if self.failed is None or len(self.members) == 1:
            return ()
        middle = len(self.members) // 2
        halves = self.members[:middle], self.members[middle:]
        few = FIRST // 2
        return tuple(
            Group(members=half, gap=few, kept=self.kept, failed=None, saves=self.saves, grain=few)
            for half in halves
        )


Arm = tuple[tuple[float, int], ...]
"""Blocks at one setting: the logarithm of a step's time, and how many steps."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole steps, measured."""

    energy_mj: tuple[int, ...]
    duration_ns: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A group at a level, compared with the job at its limit."""

    number: int
    group: Group
    level: int
    leg: int = 0
    blocks: int = 0
    """Measured in this leg."""
    base: tuple[Block, ...] = ()
    lowered: tuple[Block, ...] = ()

    @property
    def lowers(self) -> bool:
        """Whether the leg under way is with the group lowered."""
        return self.leg % 4 in (1, 2)


@dataclass(frozen=True, slots=True)
class Asked:
    """A block that is being measured: of which leg of which trial."""

    number: int
    trial: int
    leg: int
    lowers: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Applying:
    attempt: int
    since_ns: int | None
    """Begin of the step at which it was asked for; None in a pause, until the next."""


@dataclass(frozen=True, slots=True)
class Warming:
    since: StepBegan


@dataclass(frozen=True, slots=True)
class Measuring:
    opened: StepBegan | None
    """First step of the span at hand; None in a pause."""
    spans: tuple[Span, ...] = ()
    whole_ns: int = 0
    """Time of the spans that are closed."""


@dataclass(frozen=True, slots=True)
class Over:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The machine. It begins with `start`."""

    phase: Applying | Warming | Measuring | Over
    levels: tuple[int, ...]
    """Of each GPU, as known by now."""
    why: tuple[str, ...]
    queue: tuple[Group, ...]
    """To be tried."""
    step: StepBegan | None
    """The step under way; None in a pause."""
    trial: Trial | None = None
    """None: what was found is being set."""
    first_too: bool = False
    """Whether the GPU that was left out at first is tried as well."""
    steps: int = 0
    attempts: int = 0
    trials: int = 0
    numbers: int = 0
    awaited: tuple[Asked, ...] = ()
    effect: Effect | None = None
    scatter: tuple[Arm, ...] = ()
    """Of earlier trials: steps vary in one as much as in another."""

    @property
    def over(self) -> bool:
        return isinstance(self.phase, Over)


Answer = tuple[State, tuple[Instruction, ...]]


def start(plan: Plan, step: StepBegan | None) -> Answer:
    """Begin, with everybody at the job's limit. ``step``: the one under way."""
    gpus = range(len(plan.gpus))
    queue = (Group(members=tuple(gpus[1:]), gap=FIRST),)
    return _next_trial(
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
                return _found(state, since, plan)
            return _measure_if_warm(replace(state, phase=Warming(since)), plan), ()
        case Applying(attempt), LimitRefused(refused, _, reason) if refused == attempt:
            return replace(state, phase=Over()), (GiveUp(reason),)
        case _, BlockMeasured():
            return _measured(state, event, plan)
        case _, TrialMissing(number):
            return replace(state, awaited=tuple(a for a in state.awaited if a.number != number)), ()
        case _:
            return state, ()  # an outcome that came too late


# ---- steps ---------------------------------------------------------------------------------------------


def _step_began(state: State, began: StepBegan, plan: Plan) -> Answer:
    if state.trial is not None and state.steps >= MAX_STEPS:
        return _settle_for_now(state, plan)
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


# ---- trials --------------------------------------------------------------------------------------------


def _measured(state: State, measured: BlockMeasured, plan: Plan) -> Answer:
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
        return _next_trial(_not_free(state, trial, "the job would be slower"), plan)
    trial = replace(trial, blocks=trial.blocks + (asked.leg == trial.leg))
    state = replace(state, trial=trial)
    if asked.leg != trial.leg or trial.blocks < BLOCKS * (1 + trial.leg // 4):
        return state, ()
    if trial.leg % 2 and risk <= DOUBT:
        return _next_trial(_free(state, trial), plan)
    if trial.leg + 1 >= MAX_LEGS:
        return _next_trial(_not_free(state, trial, "steps vary too much to tell"), plan)
    after = replace(trial, leg=trial.leg + 1, blocks=0)
    if after.lowers == trial.lowers:
        return replace(state, trial=after), ()
    return _set(replace(state, trial=after), plan)


def slower(base: Sequence[Block], lowered: Sequence[Block], scatter: Sequence[Arm] = ()) -> float:
    """Return how likely it is that steps take longer by more than `TOLERANCE` (rule 4).

    Args:
        base, lowered: one block or more of each.
        scatter: what else tells how much steps vary.
    """
    steps = [sum(block.steps for block in arm) for arm in (base, lowered)]
    rise = log(_ratio([block.duration_ns for block in base], [block.duration_ns for block in lowered], steps))
    error = sqrt(curves.step_variance([_arm(base), _arm(lowered), *scatter]) * (1 / steps[0] + 1 / steps[1]))
    free = FREE * exp(-((rise / error) ** 2) / 2) / (error * sqrt(2 * pi))
    mean = rise - error**2 / RISE
    scale = (1 - FREE) / RISE * exp((error**2 / (2 * RISE) - rise) / RISE)
    above = scale * _normal((mean - TOLERANCE) / error)
    total = free + scale * _normal(mean / error)
    return above / total if total else float(rise > TOLERANCE)


def _arm(blocks: Sequence[Block]) -> Arm:
    return tuple((log(block.duration_ns / block.steps), block.steps) for block in blocks)


def _normal(z: float) -> float:
    return (1 + erf(z / sqrt(2))) / 2


def _ratio(base: Sequence[int], lowered: Sequence[int], steps: Sequence[int]) -> float:
    """Return the second amount a step, over the first. ``steps``: of each."""
    return sum(lowered) / steps[1] / (sum(base) / steps[0])


def _free(state: State, trial: Trial) -> State:
    group, steps = trial.group, [sum(block.steps for block in arm) for arm in (trial.base, trial.lowered)]

    def of(members: Sequence[int]) -> float:
        base, lowered = (
            [sum(block.energy_mj[gpu] for gpu in members) for block in arm]
            for arm in (trial.base, trial.lowered)
        )
        return _ratio(base, lowered, steps) if sum(base) else 1.0

    saves = of(group.members) < 1 - SAVES
    if saves:
        base_ns, lowered_ns = ([block.duration_ns for block in arm] for arm in (trial.base, trial.lowered))
        effect = Effect(of(range(len(state.levels))) - 1, _ratio(base_ns, lowered_ns, steps) - 1)
        state = replace(state, effect=effect)
    group = replace(group, kept=trial.level, gap=2 * group.gap, saves=saves)
    return _back(state, trial, group)


def _not_free(state: State, trial: Trial, why: str) -> State:
    return _back(state, trial, replace(trial.group, failed=trial.level, why=why))


def _back(state: State, trial: Trial, group: Group) -> State:
    """Put a group back at the head of the queue, with what is known of it after a trial."""
    scatter = (*state.scatter, _arm(trial.base), _arm(trial.lowered))
    return _at_level(replace(state, trial=None, queue=(group, *state.queue), scatter=scatter), group)


def _at_level(state: State, group: Group) -> State:
    levels = (group.kept if gpu in group.members else level for gpu, level in enumerate(state.levels))
    return replace(state, levels=tuple(levels))


# ---- from trial to trial -------------------------------------------------------------------------------


def _next_trial(state: State, plan: Plan) -> Answer:
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
            return _set(state, plan)
        state = replace(_done(state, group), queue=(*others, *group.halves()))
        if not state.queue and not state.first_too and 0 in state.levels[1:]:
            state = replace(state, first_too=True, queue=(Group(members=(0,), gap=FIRST),))
    return _set(state, plan)


def _done(state: State, group: Group) -> State:
    """Settle a group where it stands (rule 5)."""
    why = "the job does not wait for it"
    if not group.saves:
        why = group.why if group.kept == 0 else "a lower limit saves nothing"
        group = replace(group, kept=0)
    state = _at_level(state, group)
    whys = (why if gpu in group.members else known for gpu, known in enumerate(state.why))
    return replace(state, why=tuple(whys))


def _settle_for_now(state: State, plan: Plan) -> Answer:
    assert state.trial is not None
    why = f"it could not be told within {MAX_STEPS} steps"
    for group in (state.trial.group, *state.queue):
        state = _done(state, replace(group, why=group.why or why))
    return _set(replace(state, trial=None, queue=()), plan)


def _set(state: State, plan: Plan) -> Answer:
    """Have the limits set that the leg is with, or those that were found."""
    levels, trial = state.levels, state.trial
    if trial is not None:
        fall = dict.fromkeys(trial.group.members, trial.level)
        levels = tuple(fall.get(gpu, level) if trial.lowers else 0 for gpu, level in enumerate(levels))
    attempt = state.attempts + 1
    since_ns = None if state.step is None else state.step.t_ns
    state = replace(state, phase=Applying(attempt, since_ns), attempts=attempt)
    return state, (Set(attempt, tuple(plan.limits_mw[level] for level in levels)),)


def _found(state: State, since: StepBegan, plan: Plan) -> Answer:
    limits_mw = tuple(plan.limits_mw[level] for level in state.levels)
    first, *others = state.why
    first = first or ("the others wait for it" if any(state.levels) else "it was not tried")
    effect = state.effect if any(state.levels) else None
    found = Found(limits_mw, (first, *others), effect, state.steps, since)
    return replace(state, phase=Over()), (found,)
