"""The plan of clocks of one device, followed by the positions of its training process. Pure.

The analyzer authorizes a plan; the script only says where it is. A position moves the plan forward by one
instruction, and only that: one that is not the next suspends it, at its highest clock, until an iteration
begins as the plan does. So a script can make the collector set no clock but those of its plan, in their
order, and no faster than MAX_CHANGES_PER_S after a BURST.

    waiting     a position before the first iteration           -> waiting
                the first instruction of it or a later one      -> following   its clock
                another of it: late, or another order           -> waiting     until that iteration ends
    following   the next instruction                            -> following   its clock, if it is another
                the end of the one under way                    -> following   the next one's clock
                the first instruction of a later iteration      -> following   its clock: one was cut short
                any other                                       -> waiting     the highest clock
                silence for too long                            -> ended       EndPlan

A lower clock is asked for when the instruction before has ended, a higher one ahead of that
(`raise_after_us`): no instruction runs too slow, and a change while the stage waits costs nothing. When
changes come too fast, lower clocks are left out, never higher ones.
"""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from zeus_stream.protocol.pipelines import SetPlan

MAX_CHANGES_PER_S = 20.0
BURST = 20.0
"""Changes that may follow each other at once, after a quiet time."""
SILENT_ITERATIONS = 5
SILENT_NS = 1_000_000_000
"""A script that says nothing for SILENT_ITERATIONS promised iterations and this long ends its plan."""


class PositionReached(Struct, frozen=True):
    """An instruction begins or ends."""

    iteration: int
    code: int
    ends: bool = False


class TimePassed(Struct, frozen=True):
    pass


class ChangeClock(Struct, frozen=True):
    """Lock the graphics clock, MHz."""

    clock_mhz: int


class EndPlan(Struct, frozen=True):
    """Unlock the clock: the plan does not fit what runs."""

    reason: str


PlanEvent: TypeAlias = PositionReached | TimePassed
PlanInstruction: TypeAlias = ChangeClock | EndPlan


class FollowedPlan(Struct, frozen=True, kw_only=True):
    """State of a plan on one device."""

    plan: SetPlan
    in_force_mhz: int
    position: int = -1
    """In the plan, of the instruction under way; -1: the plan is not active yet."""
    iteration: int = 0
    late_iteration: int | None = None
    """Under way when the plan came or was suspended: it follows a later one."""
    received_ns: int
    """When the last position came, or the plan."""
    raise_at_ns: int | None = None
    """When to ask for the next instruction's clock."""
    changes: float = BURST
    """That may be made at once, at `counted_ns`."""
    counted_ns: int
    ended: bool = False
    skipped: int = 0
    """Lower clocks left out because changes came too fast."""
    suspended: int = 0
    """Iterations that ran other instructions than the plan."""


PlanAnswer: TypeAlias = tuple[FollowedPlan, tuple[PlanInstruction, ...]]


def authorize(plan: SetPlan, now_ns: int) -> FollowedPlan:
    """Return the state of a plan whose highest clock was just locked."""
    return FollowedPlan(plan=plan, in_force_mhz=max(plan.clocks_mhz), received_ns=now_ns, counted_ns=now_ns)


def activate(state: FollowedPlan, plan: SetPlan, now_ns: int) -> FollowedPlan:
    """Return the state after the same plan came again with its first iteration, or another plan came."""
    if plan.plan == state.plan.plan and not state.ended:
        return replace(state, plan=plan, in_force_mhz=max(plan.clocks_mhz), received_ns=now_ns)
    return replace(authorize(plan, now_ns), changes=state.changes, counted_ns=state.counted_ns)


def step_plan(state: FollowedPlan, event: PlanEvent, now_ns: int) -> PlanAnswer:
    """Return the next state and what to do about it."""
    if state.ended:
        return state, ()
    match event:
        case PositionReached():
            return _move(replace(state, received_ns=now_ns), event, now_ns)
        case TimePassed():
            return _wait(state, now_ns)


def _move(state: FollowedPlan, reached: PositionReached, now_ns: int) -> PlanAnswer:
    plan, first = state.plan, state.plan.first_iteration
    if reached.ends:
        under_way = state.position >= 0 and reached.iteration == state.iteration
        if not under_way or reached.code != plan.codes[state.position]:
            return state, ()
        following = plan.clocks_mhz[(state.position + 1) % len(plan.codes)]
        return _change(replace(state, raise_at_ns=None), following, now_ns)
    if state.position < 0:
        if first is None or reached.iteration < first:
            return state, ()
        if reached.code != plan.codes[0] or reached.iteration == state.late_iteration:
            return replace(state, late_iteration=reached.iteration), ()
        position = 0
    elif reached.iteration > state.iteration and reached.code == plan.codes[0]:
        position = 0
    else:
        position = state.position + 1
        fits = position < len(plan.codes) and reached.code == plan.codes[position]
        if not fits or reached.iteration != state.iteration:
            return _suspend(state, reached.iteration, now_ns)
    after_us = plan.raise_after_us[position]
    state = replace(
        state,
        position=position,
        iteration=reached.iteration,
        raise_at_ns=now_ns + after_us * 1000 if after_us else None,
    )
    return _change(state, plan.clocks_mhz[position], now_ns)


def _suspend(state: FollowedPlan, iteration: int, now_ns: int) -> PlanAnswer:
    """Set the highest clock until a later iteration begins as the plan does."""
    state = replace(
        state, position=-1, late_iteration=iteration, raise_at_ns=None, suspended=state.suspended + 1
    )
    return _change(state, max(state.plan.clocks_mhz), now_ns)


def _wait(state: FollowedPlan, now_ns: int) -> PlanAnswer:
    plan = state.plan
    silent_ns = SILENT_NS + SILENT_ITERATIONS * plan.iteration_ms * 1_000_000
    if state.position >= 0 and now_ns - state.received_ns > silent_ns:
        return _end(state, f"no instruction began for {silent_ns / 1e9:g} s")
    if state.raise_at_ns is None or now_ns < state.raise_at_ns:
        return state, ()
    following = plan.clocks_mhz[(state.position + 1) % len(plan.codes)]
    state = replace(state, raise_at_ns=None)
    return _change(state, max(following, state.in_force_mhz), now_ns)


def _change(state: FollowedPlan, clock_mhz: int, now_ns: int) -> PlanAnswer:
    """Change the clock, unless a lower one would come too fast after others."""
    if clock_mhz == state.in_force_mhz:
        return state, ()
    changes = min(BURST, state.changes + (now_ns - state.counted_ns) / 1e9 * MAX_CHANGES_PER_S)
    state = replace(state, changes=changes, counted_ns=now_ns)
    if clock_mhz < state.in_force_mhz and changes < 2:  # one is kept to get back up
        return replace(state, skipped=state.skipped + 1), ()
    if changes < 1:
        return _end(state, "clocks had to change faster than the collector allows")
    return replace(state, in_force_mhz=clock_mhz, changes=changes - 1), (ChangeClock(clock_mhz),)


def _end(state: FollowedPlan, reason: str) -> PlanAnswer:
    return replace(state, ended=True, raise_at_ns=None), (EndPlan(reason),)
