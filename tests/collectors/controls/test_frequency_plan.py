import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collectors.controls.frequency_plan import (
    BURST,
    MAX_CHANGES_PER_S,
    ChangeClock,
    EndPlan,
    FollowedPlan,
    PlanInstruction,
    PositionReached,
    TimePassed,
    activate,
    authorize,
    step_plan,
)
from zeus_stream.protocol.pipelines import SetPlan, encode_instruction

MS = 1_000_000
F0, F1 = encode_instruction("forward", 0), encode_instruction("forward", 1)
B0, B1 = encode_instruction("backward", 0), encode_instruction("backward", 1)
PLAN = SetPlan(
    command="c1",
    owner="a",
    incarnation="i",
    fence=1,
    run="r",
    gpu="GPU-1",
    lease_ms=1500,
    plan="p1",
    first_iteration=3,
    iteration_ms=100,
    codes=(F0, F1, B0, B1),
    clocks_mhz=(900, 900, 1410, 1200),
    raise_after_us=(0, 15_000, 0, 0),
)


def follow(state: FollowedPlan, *reached: tuple[int, int, int]) -> tuple[FollowedPlan, list[PlanInstruction]]:
    """Send positions given as (ms, iteration, code)."""
    told: list[PlanInstruction] = []
    for at_ms, iteration, code in reached:
        state, more = step_plan(state, PositionReached(iteration, code), at_ms * MS)
        told += more
    return state, told


def test_clocks_follow_the_instructions_from_the_first_iteration_on() -> None:
    state, told = follow(authorize(PLAN, 0), (10, 1, B1), (20, 2, F0), (30, 2, B1))
    assert told == []
    state, told = follow(state, (40, 3, F0), (60, 3, F1), (80, 3, B0), (120, 3, B1), (160, 4, F0))
    assert told == [ChangeClock(900), ChangeClock(1410), ChangeClock(1200), ChangeClock(900)]


def test_a_higher_clock_is_asked_for_before_its_instruction_begins() -> None:
    state, _ = follow(authorize(PLAN, 0), (40, 3, F0), (60, 3, F1))
    assert state.raise_at_ns == 75 * MS
    state, told = step_plan(state, TimePassed(), 74 * MS)
    assert told == ()
    state, told = step_plan(state, TimePassed(), 75 * MS)
    assert told == (ChangeClock(1410),)
    assert follow(state, (80, 3, B0))[1] == []


def test_the_next_clock_is_asked_for_while_the_stage_waits_for_its_instruction() -> None:
    state, _ = follow(authorize(PLAN, 0), (40, 3, F0), (60, 3, F1))
    for odd in (PositionReached(3, F0, ends=True), PositionReached(2, F1, ends=True)):
        assert step_plan(state, odd, 62 * MS) == (replace(state, received_ns=62 * MS), ())
    state, told = step_plan(state, PositionReached(3, F1, ends=True), 65 * MS)
    assert (told, state.raise_at_ns) == ((ChangeClock(1410),), None)
    state, _ = follow(state, (80, 3, B0))
    state, told = step_plan(state, PositionReached(3, B0, ends=True), 90 * MS)
    assert told == (ChangeClock(1200),), "a lower one too"
    assert follow(state, (120, 3, B1))[1] == []


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param((60, 3, B0), id="one that jumps"),
        pytest.param((60, 3, F0), id="one that comes twice"),
        pytest.param((60, 4, F1), id="one of another iteration"),
        pytest.param((60, 3, 12345), id="one that is not in the plan"),
    ],
)
def test_what_the_plan_does_not_have_runs_at_the_highest_clock_until_an_iteration_begins_as_planned(
    wrong: tuple[int, int, int],
) -> None:
    state, _ = follow(authorize(PLAN, 0), (40, 3, F0))
    state, told = follow(state, wrong)
    assert told == [ChangeClock(1410)]
    state, told = follow(state, (80, wrong[1], F1), (90, wrong[1], F0))
    assert told == []
    state, told = follow(state, (95, 5, F0), (99, 5, F1), (100, 5, B0))
    assert told == [ChangeClock(900), ChangeClock(1410)]
    assert state.suspended == 1


def test_an_iteration_that_was_cut_short_is_followed_by_a_planned_one() -> None:
    state, told = follow(authorize(PLAN, 0), (40, 3, F0), (50, 3, F1), (60, 3, B0), (70, 4, F0), (75, 4, F1))
    assert told == [ChangeClock(900), ChangeClock(1410), ChangeClock(900)]
    assert (state.iteration, state.position, state.suspended) == (4, 1, 0)


def test_a_plan_that_comes_late_begins_with_the_next_iteration() -> None:
    state, told = follow(authorize(PLAN, 0), (40, 3, F1), (60, 3, B0), (80, 3, B1))
    assert told == []
    assert follow(state, (90, 4, F0), (95, 4, F1))[1] == [ChangeClock(900)]
    assert follow(authorize(PLAN, 0), (40, 5, F0))[1] == [ChangeClock(900)]


def test_a_script_that_never_begins_an_iteration_gets_no_clock() -> None:
    state, told = follow(authorize(PLAN, 0), (40, 3, F1), (60, 3, B0), (80, 4, F1), (90, 4, F0))
    assert told == []
    assert follow(state, (95, 5, F0))[1] == [ChangeClock(900)]


def test_silence_ends_an_active_plan_and_not_one_that_waits() -> None:
    waiting = authorize(PLAN, 0)
    assert step_plan(waiting, TimePassed(), 10_000 * MS)[1] == ()
    active, _ = follow(waiting, (40, 3, F0))
    assert step_plan(active, TimePassed(), 1500 * MS)[1] == ()
    _, told = step_plan(active, TimePassed(), 1541 * MS)
    assert told == (EndPlan("no instruction began for 1.5 s"),)


def test_a_plan_that_was_only_made_known_waits_for_its_first_iteration() -> None:
    known = authorize(replace(PLAN, first_iteration=None), 0)
    known, told = follow(known, (40, 3, F0), (60, 3, F1))
    assert told == []
    active = activate(known, replace(PLAN, first_iteration=5), 70 * MS)
    assert follow(active, (80, 3, B0), (90, 4, F0), (95, 5, F0))[1] == [ChangeClock(900)]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(3, 5), st.sampled_from([F0, F1, B0, B1])), max_size=200
    ),
    st.sampled_from(["honest", "broken"]),
)
def test_whatever_a_script_says_only_clocks_of_the_plan_are_set_and_never_too_fast(
    said: list[tuple[int, int, int]], script: str
) -> None:
    state, now_ns, changes = authorize(PLAN, 0), 0, []
    order = [(3 + turn // 4, PLAN.codes[turn % 4]) for turn in range(len(said))]
    for (wait_ms, iteration, code), right in zip(said, order, strict=True):
        now_ns += wait_ms * MS
        reached = right if script == "honest" else (iteration, code)
        for event in (PositionReached(*reached), TimePassed(), PositionReached(*reached, ends=True)):
            state, told = step_plan(state, event, now_ns)
            changes += [(now_ns, each.clock_mhz) for each in told if isinstance(each, ChangeClock)]
    assert {clock for _, clock in changes} <= set(PLAN.clocks_mhz)
    for index, (begin_ns, _) in enumerate(changes):
        for last, (end_ns, _) in enumerate(changes[index:], 1):
            assert last <= BURST + 1 + (end_ns - begin_ns) / 1e9 * MAX_CHANGES_PER_S
