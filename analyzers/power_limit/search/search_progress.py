"""The progress of the search for a run's power limit, for people: from the state of its machine. Pure."""

from collections.abc import Iterable

from analyzers.power_limit.profiler import ProfilerPlan, ProfilerState
from analyzers.power_limit.search.visit_blocks import BLOCKS
from analyzers.power_limit.visits import BLOCK_STEPS, Applying, Deciding, Measuring, Observing, Warming
from zeus_stream.protocol.fields import MOST_COUNT
from zeus_stream.protocol.snapshots import Phase, SearchNow


def settled(searches: Iterable[SearchNow]) -> bool:
    """Return whether no search waits for the next step: what is read a little later changes nothing."""
    return not any(search.phase in ("waiting", "measuring") for search in searches)


def progress(state: ProfilerState | None, plan: ProfilerPlan | None) -> SearchNow:
    """Return the progress of a search, without what rows tell.

    Without a machine it waits: for ranks, or for their steps.
    """
    if state is None or plan is None:
        return SearchNow(phase="waiting")
    found_mw = plan.limits_mw[0] if plan.limits_mw else None
    if isinstance(state.phase, Observing):
        return SearchNow(phase="observing", found_mw=found_mw, reason=state.phase.reason)
    if state.chosen is not None:
        capped = any(not state.cap.allows(limit_mw) for limit_mw in plan.limits_mw)
        phase: Phase = "recalled" if state.chosen.as_remembered else "chosen"
        return SearchNow(
            phase="within a budget" if capped else phase,
            limit_mw=state.chosen.limit_mw,
            clock_mhz=plan.clock_mhz(state.chosen.limit_mw),
            found_mw=found_mw,
            reason=state.cap.by if capped else "",
        )
    if not isinstance(state.phase, Applying | Warming | Measuring):  # all was measured, or nothing yet
        begun = isinstance(state.phase, Deciding)
        return SearchNow(phase="measuring" if begun else "waiting", found_mw=found_mw)
    limit_mw = state.phase.limit_mw
    others = {trial.limit_mw for trial in state.trials} - {limit_mw}
    wanted = plan.profile_steps if plan.goal is None else BLOCKS * BLOCK_STEPS
    done = min(_steps(state), MOST_COUNT)  # a script may number its steps as it likes
    return SearchNow(
        phase="measuring",
        limit_mw=limit_mw,
        clock_mhz=plan.clock_mhz(limit_mw),
        found_mw=found_mw,
        trial=len(others) + 1,
        trials_planned=len(plan.limits_mw) if plan.goal is None else None,
        steps_done=done,
        steps_wanted=max(wanted, done),
    )


def _steps(state: ProfilerState) -> int:
    """Return the whole steps at the limit that is measured, of this visit."""
    if not isinstance(state.phase, Measuring):
        return 0
    blocks = [
        block for number, visit in state.visits if number == state.visiting.first for block in visit.blocks
    ]
    awaited = [asked.steps for asked in state.awaited if asked.visit == state.visiting.first]
    spans = sum(span.end - span.first for span in state.phase.spans)
    opened, step = state.phase.opened, state.visiting.step
    under_way = step.index - opened.index if opened is not None and step is not None else 0
    return sum(block.steps for block in blocks) + sum(awaited) + spans + max(0, under_way)
