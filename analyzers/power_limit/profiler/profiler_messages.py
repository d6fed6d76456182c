"""Events that the profiling machine receives, and the instructions that it returns. Pure."""

from enum import StrEnum

from msgspec import Struct

from analyzers.fleet.session import Span
from analyzers.power_limit.curve_fit.belief import Confidence
from analyzers.power_limit.curve_fit.step_costs import StepCosts
from analyzers.power_limit.search import RISK
from analyzers.power_limit.selectors import Goal, Selector, Trial
from zeus_stream.protocol.notes import Cause


class Plan(Struct, frozen=True, kw_only=True):
    """Constants of a run. Only ``window_ns`` may differ from call to call."""

    limits_mw: tuple[int, ...]
    """To be visited, descending; see `limits_mw`."""
    clocks_mhz: tuple[int, ...] = ()
    """Of which these are the nominal powers (`levels`), in the same order; empty: they are power limits."""
    gpus: int
    selector: Selector
    wait_steps: int
    warmup_steps: int
    profile_steps: int
    settle_ns: int
    window_ns: int
    outcome_ns: int
    """Wait this long for the outcome of a command."""
    goal: Goal | None = None
    """What an adaptive search minimizes; None: every limit is measured."""
    tolerated_risk: float = RISK
    """That an adaptive search leaves a level which is much better."""
    remembered: tuple[Trial, ...] = ()
    """What earlier runs of the same identity measured, one for each limit; some this run may not have."""
    known_as: str = "remembered"
    """That, in the reason of a decision."""
    profiling_share: float = 0.05
    """Of a run's steps, that rounds after the first may take."""
    profile_only: bool = False
    """Give back the limit after the last trial, and say what the best would save (rule 10)."""

    def clock_mhz(self, limit_mw: int | None) -> int | None:
        """Return the clock whose nominal power this is; None: it is a power limit, or none of these."""
        return dict(zip(self.limits_mw, self.clocks_mhz, strict=False)).get(limit_mw or 0)

    def spell(self, limit_mw: int) -> str:
        """Return a level in words."""
        clock_mhz = self.clock_mhz(limit_mw)
        return f"{limit_mw / 1000:g} W" if clock_mhz is None else f"{clock_mhz} MHz"


class StepBegan(Struct, frozen=True):
    """Step ``index`` of the run began, and all before it are whole, save for pauses reported in between."""

    index: int
    t_ns: int


class StepsPaused(Struct, frozen=True):
    """Steps below ``index`` are whole, the last ended at ``t_ns``; the next follows after a pause."""

    index: int
    t_ns: int


class LimitApplied(Struct, frozen=True):
    """Confirmed on every GPU. ``step`` is the first that began since on every rank."""

    attempt: int
    step: StepBegan
    taken_mw: int | None = None
    """The limit that the driver made of the one asked for; None: it took that one."""


class LimitRefused(Struct, frozen=True):
    attempt: int
    cause: Cause
    reason: str


class Barred(Struct, frozen=True):
    """This run may not command, or no longer."""

    reason: str


class Lapsed(Struct, frozen=True):
    """A limit of ours is in force no longer; it may be asked for again."""

    reason: str
    until: StepBegan | None = None
    """The step under way when it lapsed: the limit was in force in all before it. None: that is not known."""


class Capped(Struct, frozen=True):
    """From now on limits may be so high, and no higher. ``by`` whom. None: as high as the plan has them."""

    most_mw: int | None
    by: str = ""

    def allows(self, limit_mw: int) -> bool:
        return self.most_mw is None or limit_mw <= self.most_mw


class TrialMeasured(Struct, frozen=True):
    number: int
    energy_mj: int
    duration_ns: int
    locked: bool = False
    """Its sensor saw the same parts of steps again and again."""
    delay_ns: int = 0
    """Of the duration: how much longer its steps took than the quickest of them."""


class TrialMissing(Struct, frozen=True):
    number: int
    reason: str


class Shifted(Struct, frozen=True):
    """Limits of single GPUs were changed below the one chosen; ``step`` is the first under them all.

    What was measured at the choice says nothing any more of the steps that follow.
    """

    step: StepBegan


class RunOver(Struct, frozen=True):
    """All ranks have ended, or one of them: the others are another run to this machine."""


Event = (
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


class Apply(Struct, frozen=True):
    """Set the limit on every GPU of the run."""

    attempt: int
    limit_mw: int


class Release(Struct, frozen=True):
    """Give back every limit that was changed."""


class Purpose(StrEnum):
    """Why something is measured."""

    PROFILE = "profile"
    CONFIRM = "confirm"
    WATCH = "watch"


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
        return sum(span.end - span.first for span in self.spans)


class Decide(Struct, frozen=True):
    """A limit was chosen, for this reason."""

    limit_mw: int
    round: int
    trials: tuple[Trial, ...]
    """What it was chosen from: measured or, if that was as remembered, remembered, at the level of now."""
    reason: str
    confidence: Confidence | None = None
    """Of an adaptive search."""
    costs: StepCosts | None = None
    """What its belief says of steps at these limits."""


class Observe(Struct, frozen=True):
    """No more commands, for this reason."""

    round: int
    trials: tuple[Trial, ...]
    reason: str


Instruction = Apply | Release | MeasureTrial | Decide | Observe
