"""The constants of one search, and what the search of a clock beside a limit begins with. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from analyzers.power_limit import profiler
from analyzers.power_limit.drivers.clock_surrogate import at_level, foretold
from analyzers.power_limit.drivers.ranks import Ranks
from analyzers.power_limit.drivers.single_limits import SEARCH_SETTLE_NS
from analyzers.power_limit.levels import Level
from analyzers.power_limit.run_settings import RunSettings
from analyzers.power_limit.search import advice
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Selector, Trial, with_slack_left
from analyzers.power_limit.visits import Measuring


class Start(Struct, frozen=True):
    """The knowledge of levels before a search of them begins."""

    remembered: tuple[Trial, ...] = ()
    """Where no earlier run is remembered."""
    visits: tuple[tuple[int, Visit], ...] = ()
    """Measured before, with their numbers."""


class ClocksAtLimit(Struct, frozen=True):
    """A search of the clock at the limit that was chosen."""

    limit_mw: int
    levels: tuple[Level, ...]
    selector: Selector
    """With the part of a bound on the time that the limit has left."""
    start: Start


def make_plan(
    settings: RunSettings,
    selector: Selector,
    levels: Sequence[Level],
    gpus: int,
    wait_steps: int,
    remembered: tuple[Trial, ...],
) -> profiler.ProfilerPlan:
    """Return the constants of a machine that chooses from levels."""
    goal = None if settings.exhaustive else selector.goal
    clocks_mhz = tuple(level.clock_mhz for level in levels if level.clock_mhz is not None)
    clocks_follow = settings.control == "both" and not clocks_mhz
    return profiler.ProfilerPlan(
        limits_mw=tuple(level.limit_mw for level in levels),
        clocks_mhz=clocks_mhz,
        gpus=gpus,
        selector=selector,
        wait_steps=wait_steps,
        warmup_steps=settings.warmup_steps if goal is None else 0,
        profile_steps=settings.profile_steps,
        settle_ns=settings.settle_ns if goal is None else SEARCH_SETTLE_NS,
        window_ns=0,
        outcome_ns=settings.timeout_ns,
        goal=goal,
        tolerated_risk=advice.RISK_BEFORE_CLOCKS if clocks_follow else advice.RISK,
        remembered=remembered,
        profiling_share=settings.profiling_share,
        profile_only=settings.profile_only,
    )


def clocks_at_limit(
    state: profiler.ProfilerState,
    plan: profiler.ProfilerPlan,
    selector: Selector,
    ranks: Ranks,
    led_to_mhz: Mapping[int, float],
) -> ClocksAtLimit | None:
    """Return the search of the clock once a limit is chosen, confirmed and in force; else None."""
    chosen = state.chosen
    if plan.clocks_mhz or chosen is None or chosen.unsure or not isinstance(state.phase, Measuring):
        return None
    if not (levels := ranks.clock_levels(at_limit=True)):
        return None
    measured = profiler.curve(state, plan)
    step_ns = {trial.limit_mw: trial.step_ns for trial in measured}
    if chosen.limit_mw in step_ns:
        selector = with_slack_left(selector, step_ns[chosen.limit_mw] / step_ns[max(step_ns)])
    expected = () if plan.goal is None else foretold(levels, chosen.limit_mw, measured, led_to_mhz)
    # the highest clock leaves it to the limit: that was measured while the limit was searched
    visits = at_level(state.visits, chosen.limit_mw, levels[0]) if expected else ()
    return ClocksAtLimit(chosen.limit_mw, levels, selector, Start(expected, visits))
