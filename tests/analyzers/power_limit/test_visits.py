"""The machine of visits with both policies, in random worlds: its table holds, and its invariants too."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from random import Random

import pytest
from msgspec.structs import replace

from analyzers.power_limit import per_gpu, profiler, selectors, visits
from analyzers.power_limit.per_gpu import ApplyEach, PerGpuPlan
from analyzers.power_limit.profiler import Apply, ProfilerPlan
from analyzers.power_limit.visits import (
    TRANSITIONS,
    Applying,
    Barred,
    Capped,
    Event,
    Lapsed,
    LimitApplied,
    LimitRefused,
    MeasureTrial,
    Measuring,
    Phase,
    RunOver,
    Shifted,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
    Visiting,
    Warming,
    limits_mw,
)
from zeus_stream.protocol.notes import Cause

MS = 1_000_000
STEP_NS = 50 * MS
REFUSALS: Sequence[Cause] = ("range", "stale", "device", "owned")
BUDGETS = (None, 90_000, 150_000, 250_000)

Moves = dict[tuple[type[Phase], type[Event]], set[type[Phase]]]


class RandomWorld:
    """Steps, outcomes that come late, not at all or refused, lapses, budgets and pauses."""

    def __init__(self, seed: int, moves: Moves) -> None:
        self.rng = Random(seed)
        self.moves = moves
        self.step = StepBegan(0, 1_000 * MS)
        self.due: list[tuple[int, Callable[[], Event]]] = []
        self.trouble = self.rng.choice([0.0, 0.003, 0.02, 0.1])
        self.factor = 1.0

    def pass_on(self, event: Event) -> None:
        before = self.phase
        self.tell(event)
        if type(self.phase) is not type(before):
            self.moves[type(before), type(event)].add(type(self.phase))

    def tell(self, event: Event) -> None:
        raise NotImplementedError

    @property
    def phase(self) -> Phase:
        raise NotImplementedError

    def later(self, event: Callable[[], Event]) -> None:
        self.due.append((self.step.index + self.rng.randint(0, 4), event))

    def ask(self, attempt: int, taken_mw: int | None = None) -> None:
        chance = self.rng.random()
        if chance < 3 * self.trouble:
            cause = self.rng.choice(REFUSALS)
            self.later(lambda: LimitRefused(attempt, cause, "refused"))
        elif chance > 5 * self.trouble:  # else nothing comes of it
            waited_ns = self.rng.choice([0, 200, 900]) * MS
            self.later(lambda: LimitApplied(attempt, self.step, taken_mw, waited_ns))

    def measure(self, wanted: MeasureTrial, energies_mj: Sequence[int]) -> None:
        spans_ns = round(wanted.steps * STEP_NS * self.factor * (1.3 - wanted.limit_mw / 1e6))
        if self.rng.random() < 2 * self.trouble:
            self.later(lambda: TrialMissing(wanted.number, "no reading"))
        else:
            locked = self.rng.random() < 0.05
            energy_mj = sum(energies_mj)
            self.later(
                lambda: TrialMeasured(
                    wanted.number, energy_mj, spans_ns, locked, of_gpus_mj=tuple(energies_mj)
                )
            )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            taken_ns = round(STEP_NS * self.factor * self.rng.gauss(1, 0.01))
            self.step = StepBegan(self.step.index + 1, self.step.t_ns + taken_ns)
            now = [event for at, event in self.due if at <= self.step.index]
            self.due = [later for later in self.due if later[0] > self.step.index]
            for event in (*(make() for make in now), self.step, *self.troubles()):
                self.pass_on(event)
            if self.rng.random() < 0.004:
                self.factor *= self.rng.choice([1.3, 0.7, 1.05])

    def troubles(self) -> Iterable[Event]:
        rng, step = self.rng, self.step
        if rng.random() < self.trouble:
            until = StepBegan(step.index - rng.randint(0, 5), step.t_ns - STEP_NS)
            common: list[Event] = [
                Lapsed("gone", until),
                Lapsed("gone"),
                Capped(rng.choice(BUDGETS), "b"),
                step,
            ]
            yield rng.choice([*common * 5, Shifted(step), Barred("barred"), RunOver()])
        if rng.random() < 0.02:
            yield StepsPaused(step.index + 1, step.t_ns + STEP_NS)
            self.step = StepBegan(step.index, step.t_ns + 10 * STEP_NS)


class WholeRun(RandomWorld):
    """One limit of all GPUs."""

    def __init__(self, seed: int, moves: Moves) -> None:
        super().__init__(seed, moves)
        rng = self.rng
        selector = selectors.parse(rng.choice(["energy", "time", "slowdown:1.1"]))
        assert selector is not None
        adaptive = seed % 4 == 0
        self.plan = ProfilerPlan(
            limits_mw=limits_mw(300_000, 100_000, 200_000 // rng.randint(1, 7)),
            gpus=rng.randint(1, 3),
            selector=selector,
            wait_steps=rng.randint(0, 3),
            warmup_steps=0 if adaptive else rng.randint(0, 3),
            profile_steps=rng.randint(2, 12),
            settle_ns=rng.choice([0, 120, 500]) * MS,
            window_ns=rng.choice([0, 300, 1000]) * MS,
            outcome_ns=rng.choice([300, 1000]) * MS,
            goal=selector.goal if adaptive else None,
            profiling_share=rng.choice([0, 0.05, 0.5]),
            profile_only=rng.random() < 0.1,
        )
        self.best_mw = rng.choice(self.plan.limits_mw)
        self.state = profiler.start(self.plan)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    def tell(self, event: Event) -> None:
        self._follow_driver(event)
        self.state, wanted = profiler.step(self.state, event, self.plan)
        profiler.validate(self.state, self.plan)
        for instruction in wanted:
            match instruction:
                case Apply(attempt, limit_mw):
                    self.ask(attempt, limit_mw - 3_000 if self.rng.random() < self.trouble else None)
                case MeasureTrial():
                    step_mj = (abs(instruction.limit_mw - self.best_mw) + 50_000) * self.factor
                    self.measure(instruction, [round(step_mj * instruction.steps)])
                case _:
                    pass

    def _follow_driver(self, event: Event) -> None:
        phase = self.state.phase
        if not isinstance(event, LimitApplied) or event.taken_mw is None:
            return
        if isinstance(phase, Applying) and phase.attempt == event.attempt:
            others = {limit for limit in self.plan.limits_mw if limit != phase.limit_mw}
            self.plan = replace(self.plan, limits_mw=tuple(sorted({*others, event.taken_mw}, reverse=True)))


class SingleGpus(RandomWorld):
    """Limits of single GPUs of one job."""

    def __init__(self, seed: int, moves: Moves) -> None:
        super().__init__(seed, moves)
        gpus = tuple(f"GPU-{number}" for number in range(self.rng.randint(2, 5)))
        self.plan = PerGpuPlan(
            gpus=gpus,
            limits_mw=limits_mw(200_000, 100_000, 5_000),
            settle_ns=500 * MS,
            window_ns=300 * MS,
            outcome_ns=self.rng.choice([300, 5_000]) * MS,
        )
        self.state, wanted = per_gpu.start(self.plan, self.step)
        self.obey(wanted)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    def tell(self, event: Event) -> None:
        self.state, wanted = per_gpu.step(self.state, event, self.plan)
        per_gpu.validate(self.state, self.plan)
        self.obey(wanted)

    def obey(self, wanted: Iterable[per_gpu.Instruction]) -> None:
        for instruction in wanted:
            match instruction:
                case ApplyEach(attempt):
                    self.ask(attempt)
                case MeasureTrial():
                    self.measure(instruction, [1_000 * instruction.steps] * len(self.plan.gpus))
                case _:
                    pass


@pytest.mark.parametrize(
    ("step_ms", "waited_ms", "phase"),
    [
        (100, 494, Warming),
        (100, 500, Measuring),
        (3_000, 349, Warming),
        (3_000, 350, Measuring),
        (3_000, -100, Warming),
        (20_000, -501, Warming),
        (20_000, -500, Measuring),
        (20_000, 19_000, Measuring),
    ],
)
def test_a_step_counts_if_its_limit_settles_within_a_twentieth_of_it(
    step_ms: int, waited_ms: int, phase: type[Phase]
) -> None:
    """``waited_ms``: that the limit was in force when the step began; it settles in 500 ms."""
    waits = visits.Pace(settle_ns=500 * MS, outcome_ns=5_000 * MS)
    visiting, attempt = visits.ask(Visiting(step=StepBegan(3, 60_000 * MS)), 200_000)
    began = StepBegan(4, (60_000 + step_ms) * MS)
    for event in (began, LimitApplied(attempt, began, waited_ns=waited_ms * MS)):
        visiting, _ = visits.step(visiting, event, waits, None)
    assert isinstance(visiting.phase, phase)


@pytest.mark.sweep
def test_the_table_of_the_machine_has_the_moves_of_both_policies_and_no_others() -> None:
    moves: Moves = defaultdict(set)
    for seed in range(60):
        WholeRun(seed, moves).run(300)
        if seed % 4 == 0:
            SingleGpus(seed, moves).run(400)
    SingleGpus(1, moves).run(per_gpu.MAX_STEPS + 100)
    for (phase, event), following in moves.items():
        allowed = TRANSITIONS[phase].get(event, frozenset())
        assert following <= allowed, (phase, event, following)
    steady = StepBegan, StepsPaused, LimitApplied, LimitRefused  # the others come seldom in so few worlds
    listed = {(phase, event) for phase, events in TRANSITIONS.items() for event in events if event in steady}
    assert listed <= set(moves), "the table has moves that never happen"
