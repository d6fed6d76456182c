"""Clocks at a power limit, as limits that were measured foretell them. Pure.

A limit is a cap on power: where it binds, it leads to a clock. So a step at a limit takes about what it takes
at the clock that the limit led to, and the search of the second control knows a curve before it begins:

    a clock above the one that the chosen limit leads to    the chosen limit, which binds first
    a clock below it                                        the curve through limits that led to lower ones

The curve is a parabola in the logarithm of the clock, of time and of energy each. Nothing is known of clocks
that no limit has led to. What is measured at a clock shows whether the curve holds (`curves`): a steady clock
may draw less than one that fluctuates below a limit.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from analyzers.power_limit.levels import Level
from analyzers.power_limit.search.visit_blocks import Visit
from analyzers.power_limit.selectors import Trial

APART = 1.01
"""Times the next lower clock, from which on two clocks differ."""
BEYOND = 1.02
"""So far below the lowest clock seen the curve still holds."""
PARABOLA_FROM = 4
"""Limits from which on the curve is a parabola; of fewer a straight line between neighbours."""


def foretold(
    levels: Sequence[Level], limit_mw: int, measured: Sequence[Trial], led_to_mhz: Mapping[int, float]
) -> tuple[Trial, ...]:
    """Return what steps take at clocks beside a limit, as far as limits show it.

    Args:
        levels: the clocks.
        limit_mw: the limit in force beside them.
        measured: at limits.
        led_to_mhz: by limit, mW: the clock at which GPUs worked.
    """
    known = {trial.limit_mw: trial for trial in measured if min(trial.energy_mj, trial.duration_ns) > 0}
    chosen, near_mhz = known.get(limit_mw), led_to_mhz.get(limit_mw)
    if chosen is None or near_mhz is None:
        return ()
    points = _points([trial for trial in known.values() if trial.limit_mw <= limit_mw], led_to_mhz)
    found = []
    for level in levels:
        if level.clock_mhz is None:
            continue
        if level.clock_mhz >= near_mhz:
            step_ns, step_mj = chosen.step_ns, chosen.step_mj
        elif len(points) > 1 and level.clock_mhz * BEYOND >= points[0][0]:
            step_ns, step_mj = (_value(points, level.clock_mhz, column) for column in (1, 2))
        else:
            continue
        steps = chosen.steps
        found.append(Trial(level.limit_mw, round(step_mj * steps), round(step_ns * steps), steps))
    return tuple(found)


def at_level(
    visits: Sequence[tuple[int, Visit]], limit_mw: int, level: Level
) -> tuple[tuple[int, Visit], ...]:
    """Return the last visit of a limit, of those with their numbers, as one of a level."""
    own = [(number, visit) for number, visit in visits if visit.limit_mw == limit_mw and not visit.watched]
    return tuple(
        (
            number,
            replace(visit, blocks=tuple(replace(each, limit_mw=level.limit_mw) for each in visit.blocks)),
        )
        for number, visit in own[-1:]
    )


def _points(trials: Sequence[Trial], led_to_mhz: Mapping[int, float]) -> list[tuple[float, float, float]]:
    """Return clock, ns and mJ of a step at each limit, by ascending clock."""
    points = list[tuple[float, float, float]]()
    for trial in sorted(trials, key=lambda each: each.limit_mw, reverse=True):
        clock_mhz = led_to_mhz.get(trial.limit_mw)
        if clock_mhz is not None and (not points or clock_mhz * APART <= points[-1][0]):
            points.append((clock_mhz, trial.step_ns, trial.step_mj))
    return points[::-1]


def _value(points: Sequence[tuple[float, float, float]], clock_mhz: float, column: int) -> float:
    x = np.log([point[0] for point in points])
    y = np.log([point[column] for point in points])
    at = np.log(clock_mhz)
    if len(points) < PARABOLA_FROM:
        return float(np.exp(np.interp(at, x, y)))
    middle = x.mean()
    return float(np.exp(np.polyval(np.polyfit(x - middle, y, 2), at - middle)))
