"""The state of the profiling machine, and the curve that it knows. Pure. The rules: `profiler_machine`."""

from math import ceil, exp, log
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Span
from analyzers.power_limit import drift
from analyzers.power_limit.curve_fit.step_costs import StepCosts
from analyzers.power_limit.curve_fit.visits import Visit, by_limit
from analyzers.power_limit.profiler.profiler_messages import (
    Capped,
    Instruction,
    MeasureTrial,
    Plan,
    StepBegan,
)
from analyzers.power_limit.selectors import Trial


class Waiting(Struct, frozen=True):
    since: int | None = None
    """Index of the first step seen."""


class Applying(Struct, frozen=True):
    limit_mw: int
    attempt: int
    asked: int
    """Times this limit was asked for; 0 after a lapse."""
    since_ns: int | None
    """Begin of the step at which it was asked for last; None in a pause, until the next step."""


class Warming(Struct, frozen=True):
    limit_mw: int
    since: StepBegan


class Measuring(Struct, frozen=True):
    limit_mw: int
    opened: StepBegan | None
    """First step of the span at hand; None in a pause."""
    spans: tuple[Span, ...] = ()
    whole_ns: int = 0
    """Time of the spans that are closed."""


class Deciding(Struct, frozen=True):
    """Every limit was visited; measurements are awaited."""


class Observing(Struct, frozen=True):
    reason: str


class Over(Struct, frozen=True):
    pass


Phase = Waiting | Applying | Warming | Measuring | Deciding | Observing | Over


class Chosen(Struct, frozen=True, kw_only=True):
    """The decision, and what was seen of it since."""

    limit_mw: int
    confirmed: bool = False
    watch: drift.Watch = drift.Watch()
    as_remembered: bool = False
    """Chosen by a curve that an earlier run or round left."""
    unsure: bool = False
    """A limit may be left that is much better; the search goes on in the background (rule 9)."""
    waits: bool = False
    """It has changed, and a new round has to wait; a decision says so."""
    shifted: bool = False
    """Single GPUs are below it."""
    cap: Capped = Capped(None)
    """What a power budget allowed when it was chosen."""
    costs: StepCosts | None = None
    """What the belief that chose it says of steps; None: every limit was measured."""


class State(Struct, frozen=True, kw_only=True):
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
    kept: Measuring | None = None
    """The trial that a lapse cut off: it goes on when its limit is in force again (rule 5)."""
    missed_mw: tuple[int, ...] = ()
    """Limits measured without a result, once for each time."""
    trouble: str = "no limit was tried"
    """Why the last limit was skipped."""
    chosen: Chosen | None = None
    cap: Capped = Capped(None)
    """What a power budget allows (rule 8)."""
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
    def trials(self) -> tuple[Trial, ...]:
        """Return the measurements of this round, one for each limit."""
        return by_limit(block for _, visit in self.visits for block in visit.blocks)


Answer = tuple[State, tuple[Instruction, ...]]


def close_span(measuring: Measuring, opened: StepBegan, end: int, t_ns: int) -> Measuring:
    """Return the trial with the span at hand closed before step ``end``."""
    spans = (*measuring.spans, Span(opened.index, end)) if end > opened.index else measuring.spans
    return Measuring(measuring.limit_mw, None, spans, measuring.whole_ns + t_ns - opened.t_ns)


def limits_to_visit(plan: Plan) -> tuple[int, ...]:
    return plan.limits_mw if plan.goal is None else ()


def curve(state: State, plan: Plan) -> tuple[Trial, ...]:
    """Return what is known of the run's curve, one trial for each limit.

    Once an adaptive search has chosen, that is what its belief says. Before, it is what this round measured,
    and what was remembered at the level that the workload has now.
    """
    trials, chosen = state.trials, state.chosen
    if chosen is not None:
        return trials if chosen.costs is None else chosen.costs.trials
    whole = [trial for trial in trials if min(trial.energy_mj, trial.duration_ns) > 0]
    both = [(known, trial) for known in state.memory for trial in whole if known.limit_mw == trial.limit_mw]
    if trials and not both:
        return trials
    energy = exp(fmean([log(trial.step_mj / known.step_mj) for known, trial in both] or [0.0]))
    time = exp(fmean([log(trial.step_ns / known.step_ns) for known, trial in both] or [0.0]))
    measured = {trial.limit_mw for _, trial in both}
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
