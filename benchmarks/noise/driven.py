"""The profiling machine, driven through the steps of a published curve.

A step of `published.Training` after the other; commands take effect with the next step, and measurements come
back `LATE_NS` after their last step, as in the analyzer. In a long step a limit that was asked for then is in
force `APPLIED_NS` later.
"""

from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from analyzers.power_limit import profiler
from analyzers.power_limit.profiler import Apply, Decide, ProfilerPlan
from analyzers.power_limit.search.host_delays import delay_ns
from analyzers.power_limit.search.step_kinds import halves
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.visits import (
    MIXED,
    Event,
    LimitApplied,
    MeasureTrial,
    Measuring,
    StepBegan,
    TrialMeasured,
)
from benchmarks.noise.published import Curve

LATE_NS, APPLIED_NS = 200_000_000, 100_000_000
PLAN = ProfilerPlan(
    limits_mw=(),
    gpus=1,
    selector=Selector("", lambda *_: 0),
    wait_steps=1,
    warmup_steps=0,
    profile_steps=40,
    settle_ns=500_000_000,
    window_ns=1_000_000_000,
    outcome_ns=5_000_000_000,
)
"""As the analyzer has it, with a counter of 100 ms."""


class Steps(Protocol):
    """Steps of a curve under some noise."""

    curve: Curve
    steps: int
    t_ns: float

    def go_on(self, at: int, count: int) -> Trial:
        """Return ``count`` steps at the limit of an index."""


@dataclass
class Driven:
    """A run and its machine."""

    training: Steps
    selector: Selector
    decided: list[tuple[int, Decide]] = field(default_factory=list)
    """By steps of the run until then."""
    rounds: list[int] = field(default_factory=lambda: [0])
    """Steps of the run when each round began."""
    at: int = 0
    """Index of the limit in force."""
    _steps: list[Trial] = field(default_factory=list)
    _late: list[tuple[float, MeasureTrial]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._plan = replace(
            PLAN, limits_mw=self.training.curve.limits_mw, selector=self.selector, goal=self.selector.goal
        )
        self._state = profiler.start(self._plan)
        self._attempt: int | None = None
        self._asked_ns = 0.0

    @property
    def t_ns(self) -> int:
        return round(self.training.t_ns)

    def steps(self, count: int) -> None:
        """Train for so many steps."""
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        began = StepBegan(len(self._steps), self.t_ns)
        while self._late and self._late[0][0] <= self.t_ns:
            self._asked_ns, asked = self._late.pop(0)
            self._measured(asked)
        self._tell(began)
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            self._tell(LimitApplied(attempt, began, waited_ns=round(began.t_ns - self._asked_ns)))
        took_ns = self._steps[-1].duration_ns if self._steps else 0
        if self._late and APPLIED_NS + self._late[0][0] - began.t_ns <= MIXED * took_ns:
            self._steps.append(self._long_step(began))
        else:
            self._steps.append(self.training.go_on(self.at, 1))

    def _long_step(self, began: StepBegan) -> Trial:
        """Return a step soon after whose begin a measurement comes back, and perhaps another limit."""
        before = self.at
        due_ns, asked = self._late.pop(0)
        self._measured(asked)
        step = self.training.go_on(self.at, 1)
        if self._attempt is None:
            return step
        attempt, self._attempt = self._attempt, None
        came_ns = due_ns + APPLIED_NS - began.t_ns
        self._tell(LimitApplied(attempt, began, waited_ns=-round(came_ns)))
        curve = self.training.curve
        done = came_ns / step.duration_ns * curve.step_ns[self.at] / curve.step_ns[before]
        energy = done * curve.step_mj[before] / curve.step_mj[self.at] + 1 - done
        mixed_ns = round(came_ns + (1 - done) * step.duration_ns)
        self.training.t_ns += mixed_ns - step.duration_ns
        return replace(step, duration_ns=mixed_ns, energy_mj=round(energy * step.energy_mj))

    def _measured(self, asked: MeasureTrial) -> None:
        steps = [step for span in asked.spans for step in self._steps[span.first : span.end]]
        energy_mj, duration_ns = sum(s.energy_mj for s in steps), sum(s.duration_ns for s in steps)
        steps_ns = [step.duration_ns for step in steps]
        late_ns, halved = delay_ns(steps_ns), halves(steps_ns)
        self._tell(TrialMeasured(asked.number, energy_mj, duration_ns, delay_ns=late_ns, halves=halved))

    def _tell(self, event: Event) -> None:
        before = self._state.round
        self._state, wanted = profiler.step(self._state, event, self._plan)
        if self._state.round > before:
            self.rounds.append(len(self._steps))
        for instruction in wanted:
            match instruction:
                case Apply(attempt, limit_mw):
                    self._attempt, self.at = attempt, self.training.curve.limits_mw.index(limit_mw)
                case MeasureTrial():
                    self._late.append((self.t_ns + LATE_NS, instruction))
                case Decide():
                    self.decided.append((len(self._steps), instruction))
                case _:
                    raise AssertionError(instruction)

    @property
    def watched(self) -> bool:
        """True if the limit in force was chosen, and its usual figures are known."""
        state = self._state
        chosen = state.chosen
        return isinstance(state.phase, Measuring) and chosen is not None and chosen.watch.usual is not None
