"""The machine of single GPUs, against a job whose every step ends when its slowest GPU is done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.power_limit import per_gpu
from analyzers.power_limit.per_gpu import (
    DOUBT,
    FIRST,
    MAX_STEPS,
    TOLERANCE,
    ApplyEach,
    Block,
    Found,
    GiveUp,
    Instruction,
    PerGpuPlan,
    slower,
    start,
)
from analyzers.power_limit.search.host_delays import delay_ns
from analyzers.power_limit.visits import (
    Event,
    LimitApplied,
    LimitRefused,
    MeasureTrial,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
    limits_mw,
)

MS = 1_000_000
JOB_MW, LEAST_MW = 200_000, 100_000
IDLE_MW = 50_000
DELAYED = 0.3
"""Share of the steps that a busy host delays."""


def plan(gpus: int) -> PerGpuPlan:
    names = tuple(f"GPU-{number}" for number in range(gpus))
    return PerGpuPlan(
        gpus=names,
        limits_mw=limits_mw(JOB_MW, LEAST_MW, 5_000),
        settle_ns=500 * MS,
        window_ns=1_000 * MS,
        outcome_ns=5_000 * MS,
    )


@dataclass
class Job:
    """GPUs that take ``work_s`` for a step at 200 W and longer below, by the cube root; then they idle."""

    work_s: Sequence[float]
    uncapped_mw: Sequence[int]
    noise: float = 0.0
    delay_s: float = 0.0
    """By which other processes delay steps, in the mean: some of them, and more in some spans."""
    fixed_s: float = 0.0
    """A step takes at least so long: it waits for data."""
    seed: int = 0
    silent: bool = False
    refuse: bool = False
    blind: bool = False
    epoch: int = 0
    """Steps between two pauses; 0: none."""
    index: int = 0
    t_ns: int = 0
    limits: tuple[int, ...] = ()
    sets: list[tuple[int, ...]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    gave_up: list[GiveUp] = field(default_factory=list)
    taken: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    """By step: seconds, and joules of each GPU."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.plan = plan(len(self.work_s))
        self.limits = (JOB_MW,) * len(self.work_s)
        self.state, wanted = start(self.plan, StepBegan(0, 0))
        self.obey(wanted)

    def seconds(self, gpu: int, limit_mw: int) -> float:
        drawn = min(limit_mw, self.uncapped_mw[gpu])
        return float(self.work_s[gpu] * (min(JOB_MW, self.uncapped_mw[gpu]) / drawn) ** (1 / 3))

    def step_s(self, limits: Sequence[int]) -> float:
        return max(self.fixed_s, *(self.seconds(gpu, limit) for gpu, limit in enumerate(limits)))

    def step_mj(self, limits: Sequence[int], step_s: float) -> tuple[float, ...]:
        busy = [self.seconds(gpu, limit) for gpu, limit in enumerate(limits)]
        return tuple(
            seconds * min(limit, most) + (step_s - seconds) * IDLE_MW
            for seconds, limit, most in zip(busy, limits, self.uncapped_mw, strict=True)
        )

    def obey(self, wanted: Sequence[Instruction]) -> None:
        for instruction in wanted:
            match instruction:
                case ApplyEach(attempt, limits):
                    self.sets.append(limits)
                    if self.refuse and len(self.sets) > 3:
                        self.tell(LimitRefused(attempt, "owned", "somebody holds it"))
                    elif not self.silent:
                        self.limits = limits
                        self.tell(LimitApplied(attempt, StepBegan(self.index, self.t_ns)))
                case MeasureTrial(number=number, spans=spans):
                    steps = [self.taken[step] for span in spans for step in range(span.first, span.end)]
                    energies = (
                        round(sum(mj for mj in of_gpu)) for of_gpu in zip(*(e for _, e in steps), strict=True)
                    )
                    whole_ns = round(sum(s for s, _ in steps) * 1e9)
                    late_ns = delay_ns(round(s * 1e9) for s, _ in steps)
                    block = TrialMeasured(number, 0, whole_ns, delay_ns=late_ns, of_gpus_mj=tuple(energies))
                    self.tell(TrialMissing(number, "no reading") if self.blind else block)
                case Found():
                    self.found.append(instruction)
                case GiveUp():
                    self.gave_up.append(instruction)

    def tell(self, event: Event) -> None:
        self.state, wanted = per_gpu.step(self.state, event, self.plan)
        self.obey(wanted)

    def steps(self, count: int) -> None:
        for _ in range(count):
            step_s = self.step_s(self.limits) * self.rng.gauss(1, self.noise)
            if self.delay_s and self.rng.random() < DELAYED:
                busy = 2.0 if self.index // 150 % 2 else 0.5
                step_s += self.rng.expovariate(1) * busy * self.delay_s / DELAYED
            self.taken.append((step_s, self.step_mj(self.limits, step_s)))
            self.t_ns += round(step_s * 1e9)
            self.index += 1
            if self.epoch and self.index % self.epoch == 0:
                self.tell(StepsPaused(self.index, self.t_ns))
                self.t_ns += 1_000 * MS
            self.tell(StepBegan(self.index, self.t_ns))

    def whole(self) -> Found:
        """Train until the machine is over."""
        while not self.state.over:
            assert self.index <= MAX_STEPS + 100
            self.steps(1)
        (found,) = self.found
        assert self.limits == found.limits_mw
        return found

    def rise(self, limits: Sequence[int]) -> float:
        return self.step_s(limits) / self.step_s((JOB_MW,) * len(limits)) - 1

    def left(self, limits: Sequence[int]) -> list[int]:
        """Return the GPUs that could fall by `FIRST` more levels and slow nobody."""
        lower = [max(LEAST_MW, limit - FIRST * 5_000) for limit in limits]
        whole = self.step_s((JOB_MW,) * len(limits))
        return [g for g, mw in enumerate(lower) if mw < limits[g] and self.seconds(g, mw) <= whole]


def job(*work_s: float, uncapped_mw: int = 300_000, **more: float) -> Job:
    return Job(work_s, (uncapped_mw,) * len(work_s), **more)  # type: ignore[arg-type]  # noise and such are floats


def test_three_that_wait_for_a_fourth_are_lowered_as_far_as_it_is_free() -> None:
    made = job(0.22, 0.2, 0.2, 0.2)
    found = made.whole()
    assert found.limits_mw == (200_000, 150_000, 150_000, 150_000)  # 10 % slower at 150.3 W
    assert made.rise(found.limits_mw) < 0.001
    assert found.why == ("the others wait for it", *("the job does not wait for it",) * 3)
    assert found.effect is not None
    energy = [sum(made.step_mj(limits, made.step_s(limits))) for limits in (found.limits_mw, (JOB_MW,) * 4)]
    assert found.effect.energy == pytest.approx(energy[0] / energy[1] - 1, abs=0.002)
    assert found.effect.time == pytest.approx(made.rise(found.limits_mw))
    assert found.steps < 250


def test_delays_of_a_busy_host_hide_no_straggler() -> None:
    for seed in range(4):
        made = Job([0.22, 0.2, 0.2, 0.2], [220_000] * 4, noise=0.001, delay_s=0.02, seed=seed)
        found = made.whole()
        assert all(limit < JOB_MW for limit in found.limits_mw[1:])
        assert made.rise(found.limits_mw) <= TOLERANCE
        assert found.steps < 1_000


def test_each_falls_as_far_as_it_may_where_all_differ() -> None:
    made = job(0.25, 0.24, 0.22, 0.2)
    found = made.whole()
    assert made.rise(found.limits_mw) <= TOLERANCE
    assert made.left(found.limits_mw) == []
    assert list(found.limits_mw) == sorted(set(found.limits_mw), reverse=True)


def test_a_hint_that_misleads_costs_steps_and_no_time() -> None:
    made = job(0.2, 0.2, 0.23, 0.2)
    found = made.whole()
    assert made.rise(found.limits_mw) <= TOLERANCE
    assert made.left(found.limits_mw) == []
    assert found.limits_mw[2] == JOB_MW
    assert found.why[2] == "the job would be slower"


def test_of_equal_gpus_none_is_lowered() -> None:
    made = job(*(0.2,) * 8)
    found = made.whole()
    assert found.limits_mw == (JOB_MW,) * 8
    assert found.effect is None
    assert set(found.why) == {"the job would be slower"}
    lost = sum(seconds for seconds, _ in made.taken) / (0.2 * len(made.taken)) - 1
    assert lost < 0.03  # of the steps it took, which is once


def test_a_limit_that_caps_nothing_stays() -> None:
    made = job(0.22, 0.2, 0.2, uncapped_mw=90_000)
    found = made.whole()
    assert found.limits_mw == (JOB_MW,) * 3
    assert "a lower limit saves nothing" in found.why


def test_one_keeps_the_limit_of_the_job_though_all_wait_for_data() -> None:
    made = job(0.2, 0.2, 0.2, fixed_s=0.3)
    found = made.whole()
    assert found.limits_mw == (JOB_MW, LEAST_MW, LEAST_MW)


def test_short_epochs_do_not_hinder_it() -> None:
    made = job(0.22, 0.2, 0.2, epoch=3)
    assert made.whole().limits_mw == (200_000, 150_000, 150_000)


@pytest.mark.sweep
@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.floats(0.15, 0.25), min_size=2, max_size=6),
    st.sampled_from([0.0, 0.005, 0.02]),
    st.integers(0, 9),
)
def test_nothing_is_set_above_the_job_s_limit_and_it_ends(
    work_s: list[float], noise: float, seed: int
) -> None:
    made = job(*work_s, noise=noise, seed=seed)
    found = made.whole()
    assert all(LEAST_MW <= limit <= JOB_MW for limits in made.sets for limit in limits)
    assert JOB_MW in found.limits_mw
    assert made.rise(found.limits_mw) <= 0.015
    assert (found.effect is None) == (set(found.limits_mw) == {JOB_MW})


@pytest.mark.parametrize(("rise", "most"), [(0.006, 0.1), (0.012, 0.02)])
def test_steps_that_take_longer_are_seldom_taken_for_as_quick(rise: float, most: float) -> None:
    rng, taken, tries = Random(1), 0, 150
    for _ in range(tries):
        arms: list[list[Block]] = [[], []]
        for _ in range(20):
            for arm, factor in zip(arms, (1, 1 + rise), strict=True):
                arm += [
                    Block((), round(sum(rng.gauss(factor, 0.01) for _ in range(4)) * 1e9), 4)
                    for _ in range(6)
                ]
            if (risk := slower(arms[0], arms[1])) <= DOUBT or risk >= 1 - DOUBT:
                taken += risk <= DOUBT
                break
    assert taken / tries <= most


def test_steps_that_take_as_long_are_known_to_after_a_while() -> None:
    arm = [Block((), 4_000_000_000 + number % 3 * 10_000_000, 4) for number in range(30)]
    assert slower(arm, arm) <= DOUBT
    assert slower(arm[:3], arm[:3]) > DOUBT
    assert (
        slower(arm, [replace(block, duration_ns=block.duration_ns * 102 // 100) for block in arm])
        >= 1 - DOUBT
    )


def test_steps_that_vary_much_leave_it_untold() -> None:
    found = job(0.22, 0.2, noise=0.2).whole()
    assert found.limits_mw == (JOB_MW, JOB_MW)


def test_a_refused_limit_ends_it() -> None:
    made = job(0.22, 0.2, 0.2, refuse=True)
    made.steps(200)
    assert made.gave_up == [GiveUp("somebody holds it")]
    assert made.state.over


def test_a_command_without_outcome_ends_it() -> None:
    made = job(0.22, 0.2, silent=True)
    made.steps(40)
    assert [given.reason for given in made.gave_up] == ["no outcome came of a command for one GPU"]


def test_where_nothing_can_be_measured_nothing_is_lowered() -> None:
    made = job(0.22, 0.2, 0.2, blind=True)
    found = made.whole()
    assert found.limits_mw == (JOB_MW,) * 3
    assert "within" in found.why[1]


def test_what_is_told_twice_or_too_late_changes_nothing() -> None:
    made = job(0.22, 0.2)
    made.steps(50)
    before = made.state
    made.tell(StepBegan(made.index, made.t_ns))
    made.tell(LimitApplied(99, StepBegan(made.index, made.t_ns)))
    made.tell(LimitRefused(99, "owned", ""))
    made.tell(TrialMeasured(1, 2, 1, of_gpus_mj=(1, 1)))
    assert made.state == before
    assert before.trial is not None
    assert before.trial.level == FIRST
