"""Power budgets: how far each is in force, and which limit each GPU gets under them. Pure.

GPUs that have one limit together are a unit: those of a run, whose slowest sets the pace, or one alone. The
stages of a pipeline have that limit in the mean, and each the part of it that makes the run fastest. What
a unit gains from a limit is its speed there, as a share of that at its highest. Every unit starts at its
least limit. Then the GPU that gains most by the watt goes up to the limit at which that is so, as long as all
budgets hold, until nobody gains; units of a lower rank go before others. What is left raises all, the lowest
first. Limits are those that a search may visit, so a unit's n GPUs go up by n strides at a time.

For curves that rise ever more slowly, and steps of one size, no other sharing has a larger sum of speeds: it
is the greedy algorithm for a separable concave resource allocation (Ibaraki, Katoh, "Resource Allocation
Problems", MIT Press 1988, 4.2). Elsewhere it falls short by less than its largest step gains.

Limits are shared, not watts drawn: a limit is what a GPU promises to keep to, whatever it is given to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import log

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.fleet.fleet import Division
from analyzers.power_budget import following
from analyzers.power_limit.search import curves
from analyzers.power_limit.search.noise import Floats
from analyzers.power_limit.selectors import Trial
from zeus_stream.protocol.notes import Budget

LEAD_NS = 2_000_000_000
"""So long before its beginning a budget's ramp is done: until then the last commands are obeyed."""
FLAT = 1e-6
"""A gain in speed over a whole stride that is none."""


# ---- time ------------------------------------------------------------------------------------------------


def in_force(budgets: Iterable[Budget], now_ns: int) -> tuple[Budget, ...]:
    """Return the budgets that bind at a time (UTC, ns), each with its limit and how far its ramp is."""
    ways = [replace(following.at(budget, now_ns), way=_way(budget, now_ns)) for budget in budgets]
    return tuple(budget for budget in ways if budget.way > 0)


def over(budget: Budget, now_ns: int) -> bool:
    """Tell whether a budget has ended, and its limits are given back."""
    return now_ns >= budget.end_ns + budget.ramp_ns


def _way(budget: Budget, now_ns: int) -> float:
    """Return how far the ramp is: 1 from the beginning on, if it was set in time, until the end."""
    since_ns = max(budget.set_ns, budget.begin_ns - budget.ramp_ns - LEAD_NS)
    if now_ns < since_ns or over(budget, now_ns):
        return 0.0
    ramp_ns = max(budget.ramp_ns, 1)
    down, up = (now_ns - since_ns + 1) / ramp_ns, (now_ns - budget.end_ns) / ramp_ns
    return min(down, 1.0) - max(up, 0.0) if down > max(up, 0.0) else 0.0


def most_mw(budget: Budget, found_mw: int) -> int:
    """Return what the limits of a budget's GPUs may add up to. ``found_mw``: what they did without it."""
    before_mw = found_mw if budget.before_mw is None else min(budget.before_mw, found_mw)
    return min(found_mw, round(before_mw + budget.way * (budget.limit_mw - before_mw)))


# ---- who gains what --------------------------------------------------------------------------------------


class Unit(Struct, frozen=True):
    """GPUs that have one limit."""

    name: str
    """Of two that gain the same, the first by name comes first."""
    gpus: tuple[str, ...]
    limits_mw: tuple[int, ...]
    """Those it may have, ascending, at least one."""
    speed: tuple[float, ...]
    """At each, as a share of that at its highest limit; all the same: it gains nothing."""
    division: Division | None = None
    """Of a pipeline: its limits are means, and each GPU has its own."""
    rank: int = 0
    """Those of a lower rank get all that they gain from first."""

    def divided(self, limit_mw: int) -> dict[str, int]:
        """Return the limit of each GPU at one of the unit's, mW."""
        if self.division is None:
            return dict.fromkeys(self.gpus, limit_mw)
        at = self.limits_mw.index(limit_mw)
        return {gpu: limits[at] for gpu, limits in self.division.limits_mw.items()}


@lru_cache(10_000)
def speeds(limits_mw: tuple[int, ...], gpus: int, trials: tuple[Trial, ...]) -> tuple[float, ...]:
    """Return the speed at each limit (ascending), as a share of that at the highest, by a run's trials.

    Between limits measured, the logarithm of time departs linearly from the usual curve (`search`), outside
    them as at the last. Without trials: the usual curve of a GPU that draws its highest limit.
    """
    known = sorted((trial for trial in trials if trial.duration_ns > 0), key=lambda trial: trial.limit_mw)
    limit = np.array(limits_mw, dtype=float)
    top = max(limits_mw[-1], *(trial.limit_mw for trial in known), 1)
    power_mw = known[-1].energy_mj / known[-1].duration_ns * 1e9 / gpus if known else float(top)

    def usual(at: Sequence[float]) -> Floats:
        """Return the logarithm of time at some limits, above that at the highest."""
        share = np.minimum(power_mw / np.array([top, *at], dtype=float), curves.MOST)
        s = curves.SOFT * np.log1p(share ** (1 / curves.SOFT))
        return np.asarray(curves.SLOPE * (s[1:] - s[0]) ** 2)

    slow = usual(limit.tolist())
    if known:
        at = [float(trial.limit_mw) for trial in known]
        apart = np.array([log(trial.step_ns) for trial in known]) - usual(at)
        slow = slow + np.interp(np.log(limit), np.log(at), apart)
    fast = np.maximum.accumulate(np.exp(-(slow - slow[-1])))
    return tuple((fast / fast[-1]).tolist())


# ---- sharing out -----------------------------------------------------------------------------------------


class Bound(Struct, frozen=True):
    """The sum that the limits of these GPUs may reach."""

    gpus: frozenset[str]
    most_mw: int
    spreads: bool = True
    """Watts that nobody gains from raise all limits. Not so where the power drawn is to follow a signal."""


def share_out(units: Sequence[Unit], bounds: Sequence[Bound]) -> dict[str, int]:
    """Return the limit of each unit, mW. Units whose least limits are too much for a bound keep those."""
    at = {unit.name: 0 for unit in units}
    named = {unit.name: unit for unit in units}
    weights = {unit.name: [len(bound.gpus & set(unit.gpus)) for bound in bounds] for unit in units}
    left = [bound.most_mw - least(units, bound) for bound in bounds]

    def fits(unit: Unit, to: int) -> bool:
        more_mw = unit.limits_mw[to] - unit.limits_mw[at[unit.name]]
        return all(
            weight * more_mw <= rest for weight, rest in zip(weights[unit.name], left, strict=True) if weight
        )

    def go_up(unit: Unit, to: int) -> None:
        more_mw = unit.limits_mw[to] - unit.limits_mw[at[unit.name]]
        left[:] = [rest - weight * more_mw for weight, rest in zip(weights[unit.name], left, strict=True)]
        at[unit.name] = to

    gaining = [
        (unit.rank, -gain, unit.name, to) for unit in units for gain, to in [_steepest(unit, 0)] if gain > 0
    ]
    heapify(gaining)
    while gaining:
        rank, _, name, to = heappop(gaining)
        unit, here = named[name], at[name]
        within = next((i for i in range(to, here, -1) if fits(unit, i)), here)
        go_up(unit, within)
        gain, further = _steepest(unit, within)
        if within == to and gain > 0:
            heappush(gaining, (rank, -gain, name, further))
    held = {gpu for bound in bounds if not bound.spreads for gpu in bound.gpus}
    rising = [(unit.limits_mw[at[unit.name]], unit.name) for unit in units if held.isdisjoint(unit.gpus)]
    heapify(rising)
    while rising:
        _, name = heappop(rising)
        unit, to = named[name], at[name] + 1
        if to < len(unit.limits_mw) and fits(unit, to):
            go_up(unit, to)
            heappush(rising, (unit.limits_mw[to], name))
    return {unit.name: unit.limits_mw[at[unit.name]] for unit in units}


def _steepest(unit: Unit, at: int) -> tuple[float, int]:
    """Return the most that a unit gains by the watt from a limit on, and up to which limit that is so."""
    here_mw, here = unit.limits_mw[at], unit.speed[at]
    steps = [
        ((unit.speed[to] - here) / (unit.limits_mw[to] - here_mw), to)
        for to in range(at + 1, len(unit.limits_mw))
        if unit.speed[to] - here > FLAT
    ]
    return max(steps, key=lambda step: (step[0], -step[1]), default=(0.0, at))


def gains_more(unit: Unit, shared_mw: Mapping[str, int]) -> bool:
    """Tell whether a unit would gain from more than what was shared out. ``shared_mw``: by GPU."""
    gaining = [
        mw for mw, speed in zip(unit.limits_mw, unit.speed, strict=True) if unit.speed[-1] - speed > FLAT
    ]
    if unit.division is None:
        return shared_mw[unit.gpus[0]] in gaining
    return any(unit.divided(mw) == {gpu: shared_mw[gpu] for gpu in unit.gpus} for mw in gaining)


def least(units: Iterable[Unit], bound: Bound) -> int:
    """Return what the least limits of the units add up to within a bound, mW."""
    return sum(len(bound.gpus & set(unit.gpus)) * unit.limits_mw[0] for unit in units)
