from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.fleet.session import Span
from analyzers.power_limit import profiler, selectors
from analyzers.power_limit.profiler import (
    MAX_ASKED,
    MAX_LAPSES,
    MAX_MISSING,
    MAX_ROUNDS,
    MOST_LOCKED,
    Apply,
    Decide,
    Instruction,
    Observe,
    ProfilerPlan,
    Release,
    curve,
    start,
)
from analyzers.power_limit.search.advice import LOOK, most_blocks
from analyzers.power_limit.search.visit_blocks import BLOCKS
from analyzers.power_limit.selectors import Selector, Trial
from analyzers.power_limit.visits import (
    BLOCK_NS,
    BLOCK_STEPS,
    MAX_AWAITED,
    Barred,
    Capped,
    Event,
    Lapsed,
    LimitApplied,
    LimitRefused,
    MeasureTrial,
    Measuring,
    Observing,
    Over,
    Purpose,
    RunOver,
    StepBegan,
    StepsPaused,
    TrialMeasured,
    TrialMissing,
    limits_mw,
)
from zeus_stream.protocol.notes import Cause

MS = 1_000_000
STEP_NS = 50 * MS


def selector(text: str = "energy") -> Selector:
    found = selectors.parse(text)
    assert found is not None
    return found


PLAN = ProfilerPlan(
    limits_mw=limits_mw(250_000, 100_000, 25_000),
    gpus=1,
    selector=selector(),
    wait_steps=1,
    warmup_steps=10,
    profile_steps=40,
    settle_ns=0,
    window_ns=0,
    outcome_ns=5_000 * MS,
)
ADAPTIVE = replace(PLAN, warmup_steps=0, settle_ns=500 * MS, goal=selector().goal)
BLOCK = 10
"""Steps of 50 ms in a block of an adaptive search."""
SHORT = replace(PLAN, limits_mw=(300_000, 200_000, 100_000), warmup_steps=1, profile_steps=4)


class Bench:
    """The machine, with commands and measurements that come true at once. Energy is least at 150 W."""

    def __init__(self, plan: ProfilerPlan) -> None:
        self.plan = plan
        self.state = start(plan)
        self.index = -1
        self.t_ns = 0
        self.limits: list[int] = []
        self.trials: list[MeasureTrial] = []
        self.decided: list[Decide] = []
        self.observed: list[Observe] = []
        self.released = 0
        self.refuse: dict[int, Cause] = {}
        self.silent = False
        """Commands have no outcome."""
        self.blind: set[int] = set()
        """Limits that cannot be measured."""
        self.factor = 1.0
        self.best_mw = 150_000
        self.locked = False
        """The sensor sees the same parts of steps again and again."""

    def tell(self, event: Event) -> None:
        self.state, wanted = profiler.step(self.state, event, self.plan)
        for instruction in wanted:
            self.obey(instruction)

    def obey(self, instruction: Instruction) -> None:
        match instruction:
            case Apply(attempt, limit_mw):
                self.limits.append(limit_mw)
                if limit_mw in self.refuse:
                    self.tell(LimitRefused(attempt, self.refuse[limit_mw], "refused"))
                elif not self.silent:
                    self.tell(LimitApplied(attempt, StepBegan(self.index, self.t_ns)))
            case MeasureTrial(number=number, round=_, limit_mw=limit_mw):
                self.trials.append(instruction)
                if limit_mw in self.blind:
                    self.tell(TrialMissing(number, "no reading"))
                else:
                    energy_mj = self.step_mj(limit_mw) * instruction.steps
                    measured = round(energy_mj), instruction.steps * STEP_NS
                    self.tell(TrialMeasured(number, *measured, self.locked))
            case Release():
                self.released += 1
            case Decide():
                self.decided.append(instruction)
            case Observe():
                self.observed.append(instruction)

    def step_mj(self, limit_mw: int) -> float:
        return (abs(limit_mw - self.best_mw) + 50_000) * self.factor

    def steps(self, count: int) -> None:
        """Begin so many steps, one right after the other."""
        for _ in range(count):
            self.index += 1
            self.t_ns += STEP_NS
            self.tell(StepBegan(self.index, self.t_ns))

    def pause(self) -> None:
        """The step under way ends; the next begins after a second."""
        self.tell(StepsPaused(self.index + 1, self.t_ns + STEP_NS))
        self.t_ns += STEP_NS + 1_000 * MS

    @property
    def reason(self) -> str:
        assert isinstance(self.state.phase, Observing)
        return self.state.phase.reason


def test_with_the_reference_s_defaults_7_limits_are_decided_inside_the_352nd_step_begin() -> None:
    bench = Bench(PLAN)
    bench.steps(351)
    assert not bench.decided
    assert [trial.steps for trial in bench.trials] == [40] * 6
    bench.steps(1)
    assert [decided.limit_mw for decided in bench.decided] == [150_000]
    assert [trial.steps for trial in bench.trials] == [40] * 7
    assert bench.limits == [*PLAN.limits_mw, 150_000]


@pytest.mark.parametrize(
    ("found", "least", "stride", "expected"),
    [
        pytest.param(300, 100, 50, (300, 250, 200, 150, 100), id="a range of whole strides"),
        pytest.param(300, 110, 50, (300, 250, 200, 150, 110), id="the least is tried though it is off"),
        pytest.param(280, 100, 100, (280, 180, 100), id="from the limit found, not from the maximum"),
        pytest.param(100, 100, 25, (100,), id="nothing to choose"),
        pytest.param(90, 100, 25, (), id="found below the least"),
    ],
)
def test_limits_run_from_the_one_found_down_to_the_least(
    found: int, least: int, stride: int, expected: tuple[int, ...]
) -> None:
    assert limits_mw(found, least, stride) == expected


@pytest.mark.parametrize("epoch", [1, 2, 5, 40, 50])
@pytest.mark.parametrize("plan", [PLAN, ADAPTIVE], ids=["exhaustive", "adaptive"])
def test_short_epochs_decide_too(plan: ProfilerPlan, epoch: int) -> None:
    bench = Bench(plan)
    for _ in range(1200 // epoch):
        bench.steps(epoch)
        bench.pause()
        if bench.decided:
            break
    assert [decided.limit_mw for decided in bench.decided] == [150_000]
    for trial in bench.trials:
        assert trial.steps >= (40 if plan is PLAN else BLOCK_STEPS)
        assert all(span.first // epoch == (span.end - 1) // epoch for span in trial.spans)


def test_time_counts_only_while_steps_follow_each_other() -> None:
    bench = Bench(replace(SHORT, window_ns=8 * STEP_NS, warmup_steps=0))
    bench.steps(4)
    bench.pause()
    bench.steps(5)
    assert not bench.trials
    bench.steps(1)
    assert bench.trials[0].spans == (Span(1, 4), Span(4, 9))


def test_without_warm_up_a_trial_begins_with_the_first_step_under_the_limit() -> None:
    bench = Bench(replace(SHORT, warmup_steps=0))
    bench.steps(2 + 3 * 4)
    assert [trial.spans for trial in bench.trials] == [(Span(1, 5),), (Span(5, 9),), (Span(9, 13),)]
    assert bench.decided


def test_a_limit_settles_in_time_as_well_as_in_steps() -> None:
    bench = Bench(replace(SHORT, settle_ns=3 * STEP_NS))
    bench.steps(20)
    assert bench.trials[0].spans == (Span(4, 8),)


@pytest.mark.parametrize("cause", ["range", "device"])
def test_a_refused_limit_is_skipped_and_not_retried(cause: Cause) -> None:
    bench = Bench(SHORT)
    bench.refuse = {200_000: cause}
    bench.steps(60)
    assert bench.limits == [300_000, 200_000, 100_000, 100_000]
    assert bench.decided[0].limit_mw == 100_000


@pytest.mark.parametrize("cause", ["lost", "stale"])
def test_limits_that_a_gpu_cannot_take_for_a_while_are_asked_for_again(cause: Cause) -> None:
    bench = Bench(replace(SHORT, outcome_ns=2 * STEP_NS))
    bench.refuse = dict.fromkeys(SHORT.limits_mw, cause)
    bench.steps(30)
    assert not bench.observed
    bench.refuse = {}
    bench.steps(100)
    assert [trial.limit_mw for trial in bench.trials[:3]] == [300_000, 200_000, 100_000]
    assert bench.decided


@pytest.mark.parametrize(
    "cause", ["permission", "observe", "ownership", "owned", "storage", "other_program", "ignored"]
)
def test_who_may_not_command_observes_and_says_why(cause: Cause) -> None:
    bench = Bench(SHORT)
    bench.refuse = {200_000: cause}
    bench.steps(60)
    assert bench.limits == [300_000, 200_000]
    assert bench.released == 1
    assert [observed.reason for observed in bench.observed] == ["refused"]


def test_profile_only_measures_every_limit_gives_back_and_says_what_is_best() -> None:
    bench = Bench(replace(SHORT, profile_only=True))
    bench.best_mw = 200_000
    bench.steps(60)
    assert bench.limits == list(SHORT.limits_mw), "nothing is set after the last trial"
    assert (bench.released, bench.decided) == (1, [])
    (observed,) = bench.observed
    assert [trial.limit_mw for trial in observed.trials] == sorted(SHORT.limits_mw, reverse=True)
    assert (
        observed.reason
        == "least energy of a step, among 3 limits measured; --profile-only keeps the limit found"
    )
    assert bench.reason.startswith("200 W would be chosen: ")


def test_when_every_limit_is_refused_the_last_refusal_is_told() -> None:
    bench = Bench(SHORT)
    bench.refuse = dict.fromkeys(SHORT.limits_mw, "device")
    bench.steps(60)
    assert bench.limits == list(SHORT.limits_mw)
    assert bench.reason == "no limit could be measured, the last because: refused"


def test_a_chosen_limit_that_is_refused_gives_way_to_the_next_best() -> None:
    bench = Bench(SHORT)
    bench.steps(16)
    assert not bench.decided
    bench.refuse = {200_000: "device"}
    bench.steps(40)
    assert [decided.limit_mw for decided in bench.decided] == [200_000, 100_000]
    assert bench.state.chosen is not None
    assert bench.state.chosen.limit_mw == 100_000


def test_a_command_without_outcome_is_repeated_and_then_given_up() -> None:
    bench = Bench(replace(SHORT, outcome_ns=2 * STEP_NS))
    bench.silent = True
    bench.steps(2 + 2 * (2**MAX_ASKED - 1) * 3)  # each time twice as long
    assert bench.limits == [limit for limit in SHORT.limits_mw for _ in range(MAX_ASKED)]
    assert "no outcome" in bench.reason


def test_a_trial_that_cannot_be_measured_is_repeated_once() -> None:
    bench = Bench(SHORT)
    bench.blind = {200_000}
    bench.steps(100)
    assert bench.limits == [300_000, 200_000, 100_000, 200_000, 100_000]
    assert bench.decided[0].limit_mw == 100_000


def test_a_lost_lease_ends_the_commands_and_gives_the_others_back() -> None:
    bench = Bench(SHORT)
    bench.steps(8)
    bench.tell(Barred("somebody set 120 W"))
    bench.steps(60)
    assert (bench.limits, bench.released, bench.reason) == ([300_000, 200_000], 1, "somebody set 120 W")


@pytest.mark.parametrize(
    ("until", "spans"),
    [
        pytest.param(StepBegan(7, 8 * STEP_NS), (Span(5, 7), Span(12, 14)), id="two steps were seen"),
        pytest.param(StepBegan(5, 6 * STEP_NS), (Span(12, 16),), id="none was whole"),
        pytest.param(StepBegan(3, 4 * STEP_NS), (Span(12, 16),), id="it lapsed before the trial"),
        pytest.param(None, (Span(12, 16),), id="when it lapsed is not known"),
    ],
)
def test_steps_before_a_lapse_count_when_the_limit_is_in_force_again(
    until: StepBegan | None, spans: tuple[Span, ...]
) -> None:
    bench = Bench(replace(SHORT, outcome_ns=3 * STEP_NS, profile_steps=4))
    while not (isinstance(bench.state.phase, Measuring) and bench.limits[-1] == 200_000):
        bench.steps(1)
    first = bench.index
    bench.steps(9 - bench.index - 1)
    shift = first - 5
    until = until and StepBegan(until.index + shift, until.t_ns + shift * STEP_NS)
    bench.tell(Lapsed("the analyzer was silent", until))
    bench.tell(Lapsed("the analyzer was silent, on the next GPU too", until))
    while len(bench.trials) < 2:
        bench.steps(1)
    assert bench.trials[1].limit_mw == 200_000
    assert bench.trials[1].steps == 4
    lengths = [span.end - span.first for span in bench.trials[1].spans]
    assert lengths == [span.end - span.first for span in spans]


def test_a_lease_that_lapses_for_ever_is_given_up() -> None:
    bench = Bench(replace(SHORT, outcome_ns=0))
    bench.steps(3)
    for _ in range(2 * MAX_LAPSES):
        bench.tell(Lapsed("the analyzer was silent"))
        bench.steps(1)
    assert bench.limits == [300_000] * (MAX_LAPSES + 1)
    assert "the analyzer was silent" in bench.reason


def test_a_search_that_the_run_ends_says_what_it_knows_so_far() -> None:
    bench = Bench(ADAPTIVE)
    while len({trial.limit_mw for trial in bench.trials}) < 3:
        bench.steps(1)
    bench.tell(RunOver("rank 0 has ended"))
    (said,) = bench.observed
    assert said.reason.startswith("rank 0 has ended before a limit was chosen: 3 of 7 were measured. ")
    assert {trial.limit_mw for trial in said.trials} == {trial.limit_mw for trial in bench.trials}
    assert not bench.decided


@pytest.mark.parametrize("plan", [ADAPTIVE, PLAN])
def test_a_run_that_ends_before_a_limit_was_measured_says_nothing(plan: ProfilerPlan) -> None:
    bench = Bench(plan)
    bench.steps(2)
    bench.tell(RunOver())
    assert not bench.observed


def test_the_end_of_the_run_gives_back_what_was_changed() -> None:
    bench = Bench(SHORT)
    bench.steps(8)
    bench.tell(RunOver())
    bench.steps(60)
    assert (bench.released, bench.state.phase, len(bench.limits)) == (1, Over(), 2)


def test_the_chosen_limit_is_measured_again_and_then_watched() -> None:
    bench = Bench(SHORT)
    bench.steps(100)
    assert [t.purpose for t in bench.trials[:5]] == [*[Purpose.PROFILE] * 3, Purpose.CONFIRM, Purpose.WATCH]
    assert {trial.limit_mw for trial in bench.trials[3:]} == {200_000}
    later = [span for trial in bench.trials[3:] for span in trial.spans]
    assert all(one.end == other.first for one, other in pairwise(later))
    assert bench.state.round == 1


@pytest.mark.parametrize(("factor", "rounds"), [(1.05, 1), (0.95, 1), (1.1, 2), (0.9, 2), (3.0, 2)])
def test_a_changed_workload_is_profiled_again(factor: float, rounds: int) -> None:
    bench = Bench(SHORT)
    bench.steps(40)
    bench.factor = factor
    bench.steps(100)
    assert bench.state.round == rounds
    assert len(bench.decided) == rounds


@pytest.mark.sweep
@pytest.mark.parametrize("plan", [SHORT, ADAPTIVE], ids=["exhaustive", "adaptive"])
def test_a_restless_workload_is_profiled_for_no_more_than_its_share_and_one_round(plan: ProfilerPlan) -> None:
    plan = replace(plan, profiling_share=0.2)
    bench, longest = Bench(plan), 2 * BLOCK * most_blocks(len(plan.limits_mw))
    for turn in range(12):
        bench.factor, bench.best_mw = (1.0, 150_000) if turn % 2 else (2.0, 225_000)
        bench.steps(800)
        assert bench.state.profiled <= plan.profiling_share * bench.state.visiting.steps + longest
    assert bench.state.round >= 3


@pytest.mark.sweep
def test_a_restless_workload_is_not_profiled_for_ever() -> None:
    bench = Bench(replace(SHORT, profiling_share=1.0))
    for turn in range(2 * MAX_ROUNDS):
        bench.factor = 1.0 + turn % 2
        bench.steps(100)
    assert bench.state.round == MAX_ROUNDS


def test_when_the_share_is_used_up_the_limit_is_kept_and_that_is_said_once() -> None:
    bench = Bench(SHORT)
    bench.steps(60)
    for factor in (2.0, 1.0):
        bench.factor = factor
        bench.steps(60)
    assert [decided.round for decided in bench.decided] == [1, 2, 2]
    kept, took = bench.decided[-1], bench.state.profiled
    assert kept.limit_mw == 200_000
    assert "a step now takes 50 % less energy and as much time, but profiling_share allows" in kept.reason
    assert f"no other search before step {20 * took:,}" in kept.reason
    bench.steps(20 * took - bench.index - 20)
    assert bench.state.round == 2
    bench.steps(100)
    assert [decided.round for decided in bench.decided] == [1, 2, 2, 3]
    assert "a step now takes 50 % less energy" in bench.decided[-1].reason


def test_without_a_share_nothing_is_profiled_again() -> None:
    bench = Bench(replace(SHORT, profiling_share=0.0))
    bench.steps(60)
    bench.factor = 2.0
    bench.steps(500)
    assert [decided.round for decided in bench.decided] == [1, 1]
    assert bench.decided[-1].reason.endswith("but profiling_share allows no other search")


def test_the_first_round_waits_for_measurements_that_come_late() -> None:
    state, asked = start(SHORT), list[MeasureTrial]()
    wanted: tuple[Instruction, ...]
    for index in range(40):
        state, wanted = profiler.step(state, StepBegan(index, index * STEP_NS), SHORT)
        for instruction in wanted:
            match instruction:
                case Apply(attempt):
                    applied = LimitApplied(attempt, StepBegan(index, index * STEP_NS))
                    state, _ = profiler.step(state, applied, SHORT)
                case MeasureTrial():
                    asked.append(instruction)
                case other:
                    pytest.fail(f"{other} before anything was measured")
    assert [trial.limit_mw for trial in asked] == list(SHORT.limits_mw)
    for trial in asked:
        state, wanted = profiler.step(state, TrialMeasured(trial.number, trial.limit_mw, 1), SHORT)
    match wanted:
        case (Decide(limit_mw), Apply(_, applied_mw)):
            assert limit_mw == applied_mw == 100_000
        case _:
            pytest.fail(f"{wanted}")


# ---- an adaptive search --------------------------------------------------------------------------------


def visits(bench: Bench) -> list[list[MeasureTrial]]:
    """Return what was measured while searching, by visit."""
    found: dict[int, list[MeasureTrial]] = {}
    for trial in bench.trials:
        if trial.purpose is Purpose.PROFILE:
            found.setdefault(trial.visit, []).append(trial)
    return list(found.values())


def test_blocks_follow_each_other_at_a_limit_until_another_is_advised() -> None:
    bench = Bench(ADAPTIVE)
    bench.steps(700)
    assert [decided.limit_mw for decided in bench.decided] == [150_000]
    assert len({trial.limit_mw for trial in bench.trials}) < len(PLAN.limits_mw)
    first, *others = visits(bench)
    assert len(first) >= LOOK
    for blocks in (first, *others):
        assert len(blocks) >= BLOCKS
        assert {trial.visit for trial in blocks} == {blocks[0].number}
        assert {trial.steps for trial in blocks} == {BLOCK}
        spans = [span for trial in blocks for span in trial.spans]
        assert all(one.end == other.first for one, other in pairwise(spans))
    decided = bench.decided[0]
    assert decided.confidence is not None
    assert sum(trial.steps for trial in decided.trials) == BLOCK * sum(map(len, others)), (
        "a start is left out"
    )


def test_a_limit_counts_after_12_steps_one_and_a_half_seconds_and_the_refreshes_asked_for() -> None:
    for plan, steps in (
        (replace(ADAPTIVE, window_ns=3_000 * MS), 60),
        (replace(ADAPTIVE, window_ns=300 * MS), 30),
    ):
        bench = Bench(plan)
        bench.steps(1_000)
        assert min(trial.steps for trial in bench.decided[0].trials) == steps
    assert (BLOCK_STEPS * BLOCKS, BLOCK_NS * BLOCKS) == (12, 1_500 * MS)


def test_steps_go_on_at_a_limit_while_its_blocks_are_awaited() -> None:
    state, asked = start(ADAPTIVE), list[MeasureTrial]()
    for index in range(100):
        state, wanted = profiler.step(state, StepBegan(index, index * STEP_NS), ADAPTIVE)
        for instruction in wanted:
            match instruction:
                case Apply(attempt, limit_mw):
                    assert limit_mw == ADAPTIVE.limits_mw[0]
                    applied = LimitApplied(attempt, StepBegan(index, index * STEP_NS))
                    state, _ = profiler.step(state, applied, ADAPTIVE)
                case MeasureTrial():
                    asked.append(instruction)
                case other:
                    pytest.fail(f"{other} before anything was measured")
    assert len(asked) == MAX_AWAITED
    for trial in asked[: LOOK - 1]:
        state, wanted = profiler.step(state, TrialMeasured(trial.number, 2_000, 500 * MS), ADAPTIVE)
        assert not wanted
    late = replace(asked[-1], number=99)
    state = replace(state, awaited=(*state.awaited, late))
    state, wanted = profiler.step(state, TrialMeasured(asked[-1].number, 2_000, 500 * MS), ADAPTIVE)
    assert [type(instruction) for instruction in wanted] == [Apply]
    state, wanted = profiler.step(state, TrialMeasured(late.number, 2_000, 500 * MS), ADAPTIVE)
    assert not wanted
    assert state.trials[0].steps == (LOOK + 1) * BLOCK


@pytest.mark.parametrize("cause", ["range", "device"])
def test_a_search_goes_on_without_a_limit_that_is_refused(cause: Cause) -> None:
    bench = Bench(ADAPTIVE)
    bench.refuse = {150_000: cause, 175_000: cause}
    bench.steps(600)
    assert bench.decided[0].limit_mw == 125_000
    assert bench.limits.count(150_000) <= 1


def test_a_search_gives_up_a_limit_that_cannot_be_measured() -> None:
    bench = Bench(ADAPTIVE)
    bench.blind = {150_000}
    bench.steps(900)
    assert bench.decided[0].limit_mw in {125_000, 175_000}
    blind = [trial for trial in bench.trials if trial.limit_mw == 150_000]
    assert 0 < len(blind) <= MAX_MISSING * BLOCKS


def test_a_search_that_can_measure_nothing_says_why() -> None:
    bench = Bench(ADAPTIVE)
    bench.blind = set(ADAPTIVE.limits_mw)
    bench.steps(1_000)
    assert bench.reason == "no limit could be measured, the last because: no reading"


# ---- with a memory -------------------------------------------------------------------------------------


def remembered(best_mw: int, limits: tuple[int, ...] = ADAPTIVE.limits_mw, factor: float = 1) -> ProfilerPlan:
    """Return the plan of a run that remembers a curve with that optimum."""
    world = Bench(ADAPTIVE)
    world.best_mw, world.factor = best_mw, factor
    trials = tuple(Trial(x, round(world.step_mj(x) * 30), 30 * STEP_NS, 30) for x in limits)
    return replace(ADAPTIVE, remembered=trials)


def test_what_is_remembered_rightly_is_confirmed_at_two_limits_the_best_first() -> None:
    bench = Bench(remembered(150_000))
    bench.steps(100)
    assert bench.limits == [150_000, 250_000, 150_000]
    assert len(visits(bench)) == 2
    decided = bench.decided[0]
    assert decided.limit_mw == 150_000
    assert decided.reason == "least energy of a step, among 7 limits, 2 of them measured, as measured before"
    assert {trial.limit_mw for trial in decided.trials} == set(PLAN.limits_mw)
    assert [trial.step_mj for trial in decided.trials] == pytest.approx(
        [bench.step_mj(trial.limit_mw) for trial in decided.trials], rel=1e-3
    )


@pytest.mark.parametrize("factor", [0.8, 1.3])
def test_where_only_the_level_differs_one_limit_more_is_measured(factor: float) -> None:
    bench = Bench(remembered(150_000, factor=factor))
    bench.steps(150)
    assert [decided.limit_mw for decided in bench.decided] == [150_000]
    assert len(visits(bench)) == 3
    assert "as measured before" in bench.decided[0].reason
    levels = {trial.limit_mw: trial.step_mj for trial in bench.decided[0].trials}
    assert levels == pytest.approx({limit: bench.step_mj(limit) for limit in ADAPTIVE.limits_mw}, rel=0.01)


@pytest.mark.parametrize("best_mw", [250_000, 225_000, 100_000])
def test_what_is_remembered_wrongly_is_searched_anew_with_what_was_measured(best_mw: int) -> None:
    bench = Bench(remembered(best_mw))
    bench.steps(800)
    assert bench.limits[0] == best_mw
    assert [decided.limit_mw for decided in bench.decided] == [150_000]
    assert "not as measured before" in bench.decided[0].reason
    assert best_mw in [trial.limit_mw for trial in bench.decided[0].trials]


@pytest.mark.parametrize("factor", [1, 0.8])
def test_what_is_known_is_as_measured_and_elsewhere_as_remembered_at_the_level_of_now(factor: float) -> None:
    bench = Bench(remembered(150_000, factor=factor))
    assert curve(bench.state, bench.plan) == bench.plan.remembered

    def whole() -> bool:
        known = {trial.limit_mw: trial.step_mj for trial in curve(bench.state, bench.plan)}
        truth = {limit: bench.step_mj(limit) for limit in ADAPTIVE.limits_mw}
        return known == pytest.approx(truth, rel=0.01)

    while not bench.decided:
        bench.steps(1)
        if measured := bench.state.trials:
            assert whole()
            known = {trial.limit_mw: trial for trial in curve(bench.state, bench.plan)}
            assert bench.state.chosen or all(known[trial.limit_mw] == trial for trial in measured)
    bench.tell(Capped(125_000, "budget rack"))
    assert bench.state.chosen is None
    assert whole(), "what a budget takes back is not forgotten"


def test_a_run_that_may_have_no_limit_knows_nothing_of_any() -> None:
    none = replace(remembered(150_000), limits_mw=())
    bench = Bench(none)
    bench.tell(Barred("its GPUs have no power limit"))
    assert curve(bench.state, none) == ()


def test_a_bound_on_the_time_starts_from_the_highest_limit() -> None:
    slow = selector("slowdown:1.1")
    bench = Bench(replace(remembered(150_000), selector=slow, goal=slow.goal))
    bench.steps(200)
    assert bench.limits[:2] == [250_000, 100_000]
    assert len(visits(bench)) == 2
    assert bench.decided[0].limit_mw == 100_000


def test_remembered_limits_that_this_run_cannot_have_are_neither_set_nor_told() -> None:
    more = remembered(150_000, (400_000, 300_000, 210_000, 150_000, 80_000)).remembered
    zero = Trial(150_000, 0, 0, 0)
    bench = Bench(replace(ADAPTIVE, remembered=(*more, zero)))
    bench.steps(200)
    assert set(bench.limits) <= set(ADAPTIVE.limits_mw)
    assert bench.decided[0].limit_mw == 150_000
    told = {trial.limit_mw for trial in bench.decided[0].trials}
    assert {210_000, 80_000} <= told <= {210_000, 80_000, *ADAPTIVE.limits_mw}


def test_a_workload_that_only_got_heavier_is_checked_and_not_searched() -> None:
    bench = Bench(ADAPTIVE)
    bench.steps(800)
    searched = len(visits(bench))
    bench.factor = 1.15
    bench.steps(500)
    assert [(decided.round, decided.limit_mw) for decided in bench.decided] == [(1, 150_000), (2, 150_000)]
    assert len(visits(bench)) - searched <= 3
    assert bench.decided[1].reason.endswith(
        "as measured before; searched again as the workload changed:"
        " a step now takes 15 % more energy and as much time"
    )


def test_a_workload_with_another_optimum_is_searched() -> None:
    bench = Bench(ADAPTIVE)
    bench.steps(800)
    bench.best_mw = 225_000
    bench.steps(1_000)
    assert [decided.limit_mw for decided in bench.decided] == [150_000, 225_000]


# ---- a sensor that steps beat with ---------------------------------------------------------------------


def test_a_visit_goes_on_while_its_sensor_sees_the_same_parts_of_steps() -> None:
    bench = Bench(ADAPTIVE)
    bench.locked = True
    bench.steps(60)
    bench.locked = False
    bench.steps(400)
    first, *others = visits(bench)
    assert [block.steps for block in first][:5] == [BLOCK, BLOCK + 1, BLOCK + 2, BLOCK + 3, BLOCK + 4]
    assert {block.steps for visit in others for block in visit} == {BLOCK}


def test_a_sensor_that_stays_locked_does_not_hold_the_search_up_for_ever() -> None:
    bench = Bench(ADAPTIVE)
    bench.locked = True
    bench.steps(2_000)
    assert bench.decided[0].limit_mw == 150_000
    for visit in visits(bench):
        assert MOST_LOCKED < len(visit) <= MOST_LOCKED + LOOK


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.sweep) for n in range(3, 5))]
)
def test_a_search_ends_whatever_becomes_of_its_commands_and_measurements(seed: int) -> None:
    draw, plan = Random(seed).random, ADAPTIVE
    state, asked, applies, index = start(plan), list[Instruction](), 0, 0
    while state.chosen is None and not isinstance(state.phase, Observing) and index < 6_000:
        index += 1
        state, wanted = profiler.step(state, StepBegan(index, index * STEP_NS), plan)
        asked += wanted
        for instruction in [each for each in asked if draw() < 0.5]:  # the others come later
            asked.remove(instruction)
            event: Event | None = None
            match instruction:
                case Apply(attempt) if draw() < 0.9:
                    event = LimitApplied(attempt, StepBegan(index, index * STEP_NS))
                case Apply(attempt):
                    event = LimitRefused(attempt, "device", "refused")
                case MeasureTrial(number=number, limit_mw=limit_mw) if draw() < 0.8:
                    energy_mj = round(limit_mw * (0.5 + draw()))
                    event = TrialMeasured(number, energy_mj, round((0.5 + draw()) * 500 * MS))
                case MeasureTrial(number=number):
                    event = TrialMissing(number, "no reading")
                case _:
                    pass
            applies += isinstance(instruction, Apply)
            if event is not None:
                state, more = profiler.step(state, event, plan)
                asked += more
    assert state.chosen is not None or isinstance(state.phase, Observing)
    measured = sum(len(visit.blocks) for _, visit in state.visits)
    # Half of the measurements come late here, and blocks go on at a limit while they are awaited.
    assert measured <= 2 * most_blocks(len(ADAPTIVE.limits_mw))
    assert applies <= measured + len(ADAPTIVE.limits_mw) * (1 + MAX_MISSING * BLOCKS)


def test_a_selector_that_fails_is_told_and_nothing_is_set() -> None:
    bench = Bench(replace(SHORT, selector=selector(f"{__name__}:broken")))
    bench.steps(60)
    assert "Correct the function" in bench.reason
    assert bench.released == 1


def broken(trials: tuple[Trial, ...], gpus: int) -> int:
    raise ZeroDivisionError(f"{len(trials)} trials, {gpus} GPUs")


numbers, attempts = st.integers(0, 12), st.integers(0, 12)
causes = st.sampled_from(
    (
        *("permission", "observe", "range", "owned", "stale", "device", "storage"),
        *("other_program", "ignored", "lost"),
    )
)
indices, times = st.integers(0, 60), st.integers(0, 10_000 * MS)
events = st.one_of(
    st.builds(StepBegan, indices, times),
    st.builds(StepsPaused, indices, times),
    st.builds(LimitApplied, attempts, st.builds(StepBegan, indices, times)),
    st.builds(LimitRefused, attempts, causes, st.just("refused")),
    st.builds(TrialMeasured, numbers, st.integers(0, 10**6), st.integers(0, 10**9), st.booleans()),
    st.builds(TrialMissing, numbers, st.just("no reading")),
    st.just(Barred("somebody else")),
    st.just(Lapsed("the analyzer was silent")),
    st.just(RunOver()),
)
plans = st.builds(
    replace,
    st.just(SHORT),
    wait_steps=st.integers(0, 2),
    warmup_steps=st.integers(0, 2),
    profile_steps=st.integers(1, 3),
    outcome_ns=st.sampled_from((0, MS, 5_000 * MS)),
    selector=st.sampled_from([selector(text) for text in ("energy", "time", "cost:0.5", "slowdown:1.2")]),
    remembered=st.lists(
        st.builds(
            Trial,
            st.sampled_from((*SHORT.limits_mw, 400_000, 250_000, 50_000)),
            st.integers(0, 10**6),
            st.integers(0, 10**9),
            st.integers(0, 50),
        ),
        max_size=4,
        unique_by=lambda trial: trial.limit_mw,
    ).map(tuple),
    profiling_share=st.sampled_from((0.0, 0.05, 1.0)),
    goal=st.sampled_from([None, *(selector(text).goal for text in ("energy", "time", "slowdown:1.2"))]),
)


@given(plans, st.lists(events, max_size=80))
def test_every_event_is_answered_in_every_state(plan: ProfilerPlan, told: list[Event]) -> None:
    state = start(plan)
    for event in told:
        quiet = isinstance(state.phase, Observing | Over)
        state, wanted = profiler.step(state, event, plan)
        for instruction in wanted:
            match instruction:
                case Apply(_, limit_mw):
                    assert not quiet
                    assert limit_mw in plan.limits_mw
                case MeasureTrial(spans=spans):
                    least = plan.profile_steps if plan.goal is None else min(plan.profile_steps, BLOCK_STEPS)
                    assert sum(span.end - span.first for span in spans) >= least
                case _:
                    pass
        assert len(state.awaited) <= MAX_AWAITED + 1
        if isinstance(event, RunOver):
            assert state.phase == Over()


# ---- under a power budget --------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, ADAPTIVE], ids=["exhaustive", "adaptive"])
def test_a_limit_above_what_a_budget_allows_is_never_asked_for(plan: ProfilerPlan) -> None:
    bench = Bench(plan)
    bench.tell(Capped(125_000, "budget rack1"))
    bench.steps(800)
    assert set(bench.limits) == {125_000, 100_000}
    (decided,) = bench.decided
    assert decided.limit_mw == 125_000
    assert decided.reason.endswith("; budget rack1 allows no more than 125 W")


@pytest.mark.parametrize("plan", [PLAN, ADAPTIVE], ids=["exhaustive", "adaptive"])
@pytest.mark.parametrize("before", [5, 60, 150, 800])
def test_whenever_a_budget_comes_and_goes_the_choice_is_made_from_what_there_is(
    plan: ProfilerPlan, before: int
) -> None:
    bench = Bench(plan)
    bench.steps(before)
    asked = len(bench.limits)
    bench.tell(Capped(125_000, "budget rack1"))
    bench.steps(800)
    assert max(bench.limits[asked:], default=0) <= 125_000
    assert "among 2 limits" in bench.decided[-1].reason
    assert "among 2 limits, all measured" in bench.decided[-1].reason or plan is PLAN
    assert bench.decided[-1].limit_mw == bench.limits[-1] == 125_000
    bench.tell(Capped(None))
    bench.steps(800)
    assert bench.decided[-1].limit_mw == bench.limits[-1] == 150_000
    assert not bench.observed


def test_a_budget_that_leaves_the_choice_as_it_is_changes_nothing() -> None:
    bench = Bench(ADAPTIVE)
    bench.steps(800)
    asked, numbers = len(bench.limits), bench.state.visiting.numbers
    bench.tell(Capped(150_000, "budget rack1"))
    bench.tell(Capped(None))
    assert (len(bench.limits), bench.state.visiting.numbers, len(bench.decided)) == (asked, numbers, 1)


def test_a_choice_made_of_few_limits_stands_when_fewer_are_left_that_it_is_among() -> None:
    bench = Bench(ADAPTIVE)
    bench.tell(Capped(200_000, "budget rack1"))
    bench.steps(800)
    bench.tell(Capped(175_000, "budget rack1"))
    bench.tell(Capped(200_000, "budget rack1"))
    assert [decided.limit_mw for decided in bench.decided] == [150_000]


def test_steps_between_a_choice_and_a_budget_are_not_taken_for_profiling() -> None:
    bench = Bench(ADAPTIVE)
    bench.steps(800)
    bench.factor = 2.0
    bench.steps(400)
    assert bench.state.round == 2
    took = bench.state.profiled
    bench.steps(2_000)
    bench.tell(Capped(125_000, "budget rack1"))
    bench.steps(400)
    assert bench.decided[-1].limit_mw == 125_000
    assert bench.state.profiled - took < 400


def test_a_measurement_that_a_budget_cut_off_is_made_again_when_it_may_be() -> None:
    bench = Bench(PLAN)
    bench.steps(20)
    assert bench.limits == [250_000]
    bench.tell(Capped(225_000, "budget rack1"))
    bench.steps(30)
    bench.tell(Capped(None))
    bench.steps(800)
    measured = [trial.limit_mw for trial in bench.trials if trial.purpose is Purpose.PROFILE]
    assert sorted(measured) == sorted(PLAN.limits_mw)
