"""The machine of visits: ask for a setting, wait until it is in force, let it settle, measure steps. Pure.

    (visiting, event, pace, length) -> (visiting, outcome)

A *visit* is the time at one setting, from a change of limits to the next. Two policies decide what to visit:

    profiler    one limit for all GPUs of a run, chosen from many
    per_gpu     limits of single GPUs below their job's

A policy owns its state, of which the visit under way is a part. It passes events on to this machine, and acts
on what comes out of them. The machine counts in steps of the run; its only clock is that of the steps.

    Ready       the steps before the first visit are over
    Unanswered  no outcome came of a request; each is waited for twice as long as the one before
    Refused     the device did not take the limit
    Landed      the limit is in force on every GPU
    Measured    a trial is as long as it was to be

The rules:

 1. A setting is warm after `Pace.warmup_steps` whole steps, and `Pace.settle_ns` after it was confirmed. The
    step in which it becomes warm counts if that is within the first `MIXED` of it.
 2. A trial lasts from the begin of its first step to the begin of the one after its last. A pause (the end of
    an epoch or of a loop) cuts it into spans that add up: short epochs count, and a trial may end at a pause.
 3. A lapse (the analyzer or the collector was away) keeps the steps before it. The limit is asked for again
    after `Pace.outcome_ns`, and the trial goes on when the limit is warm again.
 4. A driver may round or clamp a limit. The visit is one of the limit that the driver made of it.
 5. An outcome that came too late, or twice, changes nothing.

`TRANSITIONS` has the other phases that each event may lead to, with either policy.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.session import Span
from analyzers.power_limit.selectors import Halves
from zeus_stream.protocol.notes import Cause

BLOCK_STEPS: Final = 4
BLOCK_NS: Final = 500_000_000
"""At least, of a block: three of them are 12 steps and 1.5 s."""
LONG_BLOCK_NS: Final = 2_000_000_000
"""A block of so much time is whole after any number of steps: a step of 20 s is a block.

Steps of 20 s with 1 % noise, seven limits, 12 worlds (docs/measurements/search.md): 105 steps until a limit
is chosen with blocks of four steps, 40 with this. The choice is off by 0.0 and 0.06 % on average."""
MIXED: Final = 0.05
"""Share of a step that may have been at another setting: a step of 20 s counts from the begin.

See `python -m benchmarks.noise --step-ms 20000`."""
MAX_AWAITED: Final = 8
"""Measurements under way; until one returns, the trial at hand grows longer."""


def limits_mw(found_mw: int, least_mw: int, stride_mw: int, ceiling_mw: int | None = None) -> tuple[int, ...]:
    """Return the limits to visit: from the one found down in strides, the least always among them.

    Under another limiter's, all above ``ceiling_mw`` are one limit: of them the one found stays.
    """
    limits = (*range(found_mw, least_mw, -stride_mw), least_mw) if found_mw >= least_mw else ()
    return tuple(mw for mw in limits if mw == found_mw or mw < (ceiling_mw or found_mw))


# ---- events ------------------------------------------------------------------------------------------


class StepBegan(Struct, frozen=True):
    """Step ``index`` of the run began, and all before it are whole, save for pauses reported in between."""

    index: int
    t_ns: int


class StepsPaused(Struct, frozen=True):
    """Steps below ``index`` are whole, the last ended at ``t_ns``; the next follows after a pause."""

    index: int
    t_ns: int


class LimitApplied(Struct, frozen=True):
    """Confirmed on every GPU. ``step`` is the first that was at it on every rank, but for `MIXED` of it."""

    attempt: int
    step: StepBegan
    taken_mw: int | None = None
    """The limit that the driver made of the one asked for; None: it took that one."""
    waited_ns: int = 0
    """That it had been in force on every GPU, at least, when that step began; below 0: it came later."""


class LimitRefused(Struct, frozen=True):
    """A GPU did not take the limit."""

    attempt: int
    cause: Cause
    reason: str


class Lapsed(Struct, frozen=True):
    """A limit of ours is in force no longer; it may be asked for again."""

    reason: str
    until: StepBegan | None = None
    """The step under way when it lapsed: the limit was in force in all before it. None: that is not known."""


class Barred(Struct, frozen=True):
    """This run may not command, or no longer."""

    reason: str


class Capped(Struct, frozen=True):
    """From now on limits may be so high, and no higher. ``by`` whom. None: as high as the plan has them."""

    most_mw: int | None
    by: str = ""

    def allows(self, limit_mw: int) -> bool:
        return self.most_mw is None or limit_mw <= self.most_mw


class TrialMeasured(Struct, frozen=True):
    """The energy and time of the steps of a trial."""

    number: int
    energy_mj: int
    duration_ns: int
    """The slowest rank's."""
    locked: bool = False
    """Its sensor saw the same parts of steps again and again."""
    delay_ns: int = 0
    """Of the duration: how much longer its steps took than the quickest of them."""
    halves: Halves | None = None
    """Its shorter and its longer steps."""
    of_gpus_mj: tuple[int, ...] = ()
    """The energy of each GPU, where limits of single GPUs are tried."""


class TrialMissing(Struct, frozen=True):
    """A trial could not be measured."""

    number: int
    reason: str


class Shifted(Struct, frozen=True):
    """Limits of single GPUs were changed below the choice from ``step`` on: what was measured is void."""

    step: StepBegan


class RunOver(Struct, frozen=True):
    """All ranks have ended, or one of them: the others are another run to this machine."""

    why: str = "the run has ended"


Event: TypeAlias = (
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


class Purpose(StrEnum):
    """Why something is measured."""

    PROFILE = "profile"
    CONFIRM = "confirm"
    WATCH = "watch"
    PER_GPU = "per_gpu"


class MeasureTrial(Struct, frozen=True, kw_only=True):
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
        return count_steps(self.spans)


def count_steps(spans: tuple[Span, ...]) -> int:
    return sum(span.end - span.first for span in spans)


# ---- phases ------------------------------------------------------------------------------------------


class Waiting(Struct, frozen=True):
    """No limit was asked for yet."""

    since: int | None = None
    """Index of the first step seen."""


class Applying(Struct, frozen=True):
    """A limit was asked for, or is to be asked for again."""

    limit_mw: int
    """Of all GPUs; where limits of single GPUs are tried, the job's."""
    attempt: int
    asked: int
    """Times this limit was asked for; 0 after a lapse."""
    since_ns: int | None
    """Begin of the step at which it was asked for last; None in a pause, until the next step."""


class Warming(Struct, frozen=True):
    """The limit is in force; steps at it are not measured yet."""

    limit_mw: int
    since: StepBegan
    """The first step that is all at it, and when the limit was in force."""


class Measuring(Struct, frozen=True):
    """Steps are measured."""

    limit_mw: int
    opened: StepBegan | None
    """First step of the span at hand; None in a pause."""
    spans: tuple[Span, ...] = ()
    whole_ns: int = 0
    """Time of the spans that are closed."""


class Deciding(Struct, frozen=True):
    """Every limit was visited; measurements are awaited."""


class Observing(Struct, frozen=True):
    """Nothing is commanded any more."""

    reason: str


class Over(Struct, frozen=True):
    """The run, or the search for limits of its single GPUs, has ended."""


Phase: TypeAlias = Waiting | Applying | Warming | Measuring | Deciding | Observing | Over

_ENDS: Final[Mapping[type[Event], frozenset[type[Phase]]]] = {
    Barred: frozenset({Observing}),
    RunOver: frozenset({Over}),
}
_MEASURED: Final[frozenset[type[Phase]]] = frozenset({Applying, Observing})
TRANSITIONS: Final[Mapping[type[Phase], Mapping[type[Event], frozenset[type[Phase]]]]] = {
    Waiting: {StepBegan: frozenset({Applying, Observing}), **_ENDS},
    Applying: {
        StepBegan: frozenset({Deciding, Observing, Over}),
        LimitApplied: frozenset({Warming, Measuring, Over}),
        LimitRefused: frozenset({Deciding, Observing, Over}),
        Lapsed: frozenset({Observing}),
        Capped: frozenset({Deciding, Observing}),
        TrialMeasured: frozenset({Observing}),
        **_ENDS,
    },
    Warming: {
        StepBegan: frozenset({Measuring, Applying}),
        Lapsed: frozenset({Applying, Observing}),
        Capped: frozenset({Applying, Deciding, Observing}),
        TrialMeasured: _MEASURED,
        **_ENDS,
    },
    Measuring: {
        StepBegan: frozenset({Applying, Deciding}),
        StepsPaused: frozenset({Applying, Deciding}),
        Lapsed: frozenset({Applying, Observing}),
        Capped: frozenset({Applying, Deciding, Observing}),
        TrialMeasured: _MEASURED,
        TrialMissing: _MEASURED,
        Shifted: frozenset({Warming}),
        **_ENDS,
    },
    Deciding: {TrialMeasured: _MEASURED, TrialMissing: _MEASURED, **_ENDS},
    Observing: {RunOver: frozenset({Over})},
    Over: {},
}
"""By phase and event: the other phases that may follow, with either policy. Any may also change none."""


# ---- the visit under way -----------------------------------------------------------------------------


class Visiting(Struct, frozen=True, kw_only=True):
    """The visit under way, and what numbers were used."""

    phase: Phase = Waiting()
    step: StepBegan | None = None
    """The step under way; None in a pause."""
    step_ns: int = 0
    """From the begin of the step before to that of the one under way; 0: not known."""
    steps: int = 0
    """Of the run, that have begun."""
    attempts: int = 0
    """Requests for a limit."""
    numbers: int = 0
    """Trials asked for."""
    first: int | None = None
    """The number of the first trial of this visit; None: there is none yet."""
    locked: int = 0
    """Trials of this visit in which a sensor saw the same parts of steps again and again."""
    lapses: int = 0
    """Of limits, so far."""
    kept: Measuring | None = None
    """The trial that a lapse cut off: it goes on when its limit is in force again."""


class Pace(Struct, frozen=True, kw_only=True):
    """The waiting times of visits, of which the plan of each policy is made."""

    wait_steps: int = 0
    """Steps before the first limit is asked for."""
    warmup_steps: int = 0
    settle_ns: int
    outcome_ns: int
    """Time that the outcome of a command is waited for."""


class Length(Struct, frozen=True):
    """The least length of a trial."""

    steps: int
    ns: int
    more: int = 0
    """Steps on top of those that would do."""
    enough_ns: int | None = None
    """So much time is enough, in however few steps; None: none is."""

    def reached(self, trial: Measuring) -> bool:
        """Tell whether a trial without an open span is long enough."""
        steps = count_steps(trial.spans)
        counted = max(0, steps - self.more)
        counted_ns = trial.whole_ns * counted // max(1, steps)
        if counted and self.enough_ns is not None and counted_ns >= max(self.ns, self.enough_ns):
            return True
        return counted >= self.steps and counted_ns >= self.ns


class VisitsDue(Struct, frozen=True):
    """The steps before the first visit are over."""


class Unanswered(Struct, frozen=True):
    """No outcome came of a request for a limit."""

    limit_mw: int
    asked: int


class Refused(Struct, frozen=True):
    """The device did not take a limit."""

    limit_mw: int
    cause: Cause
    reason: str


class Landed(Struct, frozen=True):
    """A limit is in force; ``taken_mw`` is what the driver made of it."""

    limit_mw: int
    taken_mw: int
    since: StepBegan


class Measured(Struct, frozen=True):
    """A trial has ended; the next may begin at once."""

    trial: Measuring
    ended_ns: int


Outcome: TypeAlias = VisitsDue | Unanswered | Refused | Landed | Measured


def step(
    visiting: Visiting, event: Event, pace: Pace, length: Length | None
) -> tuple[Visiting, Outcome | None]:
    """Return the visit after an event, and its outcome. ``length``: of a trial; None: none may end."""
    match visiting.phase, event:
        case _, StepBegan(index) if visiting.step is not None and index <= visiting.step.index:
            return visiting, None  # a repeat
        case _, StepBegan():
            if visiting.step is not None:
                took_ns = (event.t_ns - visiting.step.t_ns) // (event.index - visiting.step.index)
                visiting = replace(visiting, step_ns=max(0, took_ns))  # times may be anything
            return _step_began(replace(visiting, step=event, steps=event.index + 1), event, pace, length)
        case Measuring(opened=StepBegan() as opened) as trial, StepsPaused(index, t_ns):
            trial = _close_span(trial, opened, index, t_ns)
            return _end_trial(replace(visiting, step=None, phase=trial), trial, t_ns, length)
        case _, StepsPaused():
            return replace(visiting, step=None), None
        case Applying(limit_mw, attempt), LimitApplied(applied, since, taken_mw, waited_ns) if (
            applied == attempt
        ):
            if taken_mw is not None:
                visiting = replace(visiting, kept=None)
            landed = Landed(limit_mw, limit_mw if taken_mw is None else taken_mw, since)
            since = replace(since, t_ns=since.t_ns - waited_ns)
            return warm_up(replace(visiting, phase=Warming(landed.taken_mw, since)), pace), landed
        case Applying(limit_mw, attempt), LimitRefused(refused, cause, reason) if refused == attempt:
            return visiting, Refused(limit_mw, cause, reason)
        case _:
            return visiting, None  # an outcome that came too late


def _step_began(
    visiting: Visiting, began: StepBegan, pace: Pace, length: Length | None
) -> tuple[Visiting, Outcome | None]:
    match visiting.phase:
        case Waiting(since):
            since = began.index if since is None else since
            visiting = replace(visiting, phase=Waiting(since))
            return visiting, VisitsDue() if began.index - since >= pace.wait_steps else None
        case Applying(since_ns=None) as applying:
            return replace(visiting, phase=replace(applying, since_ns=began.t_ns)), None
        case Applying(limit_mw, _, asked, int(since_ns)):
            late = began.t_ns - since_ns >= pace.outcome_ns * 2 ** max(asked - 1, 0)
            return visiting, Unanswered(limit_mw, asked) if late else None
        case Warming():
            return warm_up(visiting, pace), None
        case Measuring(opened=None) as trial:
            return replace(visiting, phase=replace(trial, opened=began)), None
        case Measuring(opened=StepBegan() as opened) as trial:
            whole = _close_span(trial, opened, began.index, began.t_ns)
            return _end_trial(visiting, whole, began.t_ns, length)
        case _:
            return visiting, None


def _end_trial(
    visiting: Visiting, trial: Measuring, t_ns: int, length: Length | None
) -> tuple[Visiting, Outcome | None]:
    if length is None or not length.reached(trial):
        return visiting, None
    return replace(visiting, phase=Measuring(trial.limit_mw, visiting.step)), Measured(trial, t_ns)


def _close_span(trial: Measuring, opened: StepBegan, end: int, t_ns: int) -> Measuring:
    """Return the trial with the span at hand closed before step ``end``."""
    spans = (*trial.spans, Span(opened.index, end)) if end > opened.index else trial.spans
    return Measuring(trial.limit_mw, None, spans, trial.whole_ns + t_ns - opened.t_ns)


def warm_up(visiting: Visiting, pace: Pace) -> Visiting:
    """Begin a trial with the step under way, if it is late enough (rule 1)."""
    assert isinstance(visiting.phase, Warming)
    (limit_mw, since), now = (visiting.phase.limit_mw, visiting.phase.since), visiting.step
    if now is None or now.index - since.index < pace.warmup_steps:
        return visiting
    if since.t_ns + pace.settle_ns - now.t_ns > MIXED * visiting.step_ns:
        return visiting
    trial = visiting.kept or Measuring(limit_mw, None)
    return replace(visiting, phase=replace(trial, opened=now), kept=None)


def ask(visiting: Visiting, limit_mw: int, asked: int = 1) -> tuple[Visiting, int]:
    """Return the visit in which a limit is asked for, and the number of the attempt.

    A trial at the limit that a lapse cut off is kept. ``asked``: times that it was, with this one; 0: it will
    be, once an outcome would have come.
    """
    attempt = visiting.attempts + 1
    since_ns = None if visiting.step is None else visiting.step.t_ns
    visiting = replace(visiting, attempts=attempt, phase=Applying(limit_mw, attempt, asked, since_ns))
    if visiting.kept is None or visiting.kept.limit_mw != limit_mw:
        visiting = replace(visiting, first=None, locked=0, kept=None)
    return visiting, attempt


def wait_after_lapse(visiting: Visiting, limit_mw: int, until: StepBegan | None) -> Visiting:
    """Return the visit that keeps the steps before a lapse, and waits to ask for its limit again (rule 3)."""
    if isinstance(visiting.phase, Measuring):
        visiting = replace(visiting, kept=_before(visiting.phase, until))
    visiting, _ = ask(visiting, limit_mw, 0)
    return replace(visiting, lapses=visiting.lapses + 1)


def _before(trial: Measuring, until: StepBegan | None) -> Measuring | None:
    """Return the part of a trial before a step; None: there is none, or it is not known."""
    if until is None or any(span.end > until.index for span in trial.spans):
        return None
    if trial.opened is not None and until.index > trial.opened.index:
        trial = _close_span(trial, trial.opened, until.index, until.t_ns)
    return replace(trial, opened=None) if trial.spans else None


def validate(visiting: Visiting) -> None:
    """Check what holds between events; an AssertionError names the visit."""
    phase, kept = visiting.phase, visiting.kept
    assert visiting.step_ns >= 0, visiting
    assert 0 <= visiting.locked <= visiting.numbers, visiting
    assert visiting.first is None or 0 < visiting.first <= visiting.numbers, visiting
    assert kept is None or (kept.opened is None and kept.spans), visiting
    match phase:
        case Applying():
            assert phase.attempt == visiting.attempts, visiting
            assert kept is None or kept.limit_mw == phase.limit_mw, visiting
        case Warming():
            assert kept is None or kept.limit_mw == phase.limit_mw, visiting
        case Measuring():
            assert kept is None, visiting
            assert (phase.opened is None) == (visiting.step is None), visiting
            ends = [edge for span in phase.spans for edge in (span.first, span.end)]
            assert ends == sorted(ends), visiting
            assert phase.opened is None or not ends or phase.opened.index >= ends[-1], visiting
        case _:
            pass
