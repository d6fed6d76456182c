"""The levels that a search chooses from: power limits, or clocks by their nominal power. Pure.

A search works on power. A clock stands for its *nominal power*, about what a busy GPU draws at it:

    nominal power = highest limit x (clock / highest clock) ** `EXPONENT`

So clocks are in the order of their power, the highest clock has the power of the highest limit, and what is
minimized (``MAXPOWER``), what a power budget allows and what is remembered mean the same for both controls.
The exponent only says how far apart clocks are before anything was measured.

A limit is a cap on power: where it binds, it leads to a clock. So a step at a limit takes about what it takes
at the clock at which the job draws that much, give or take an offset that nobody knows: a clock that
fluctuates below a limit may draw more than a steady one. A search of limits that begins with what clocks
foretell takes it as a remembered curve, whose level is measured again.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from analyzers.power_limit.selectors import Trial

EXPONENT = 0.8
"""Of simulated workloads, from the highest clock to half of it: 0.5 to 1.2."""
MOST = 21
"""Clocks of a search; a driver lists hundreds. As many as limits of 25 W between 100 and 600 W."""
LOWEST = 0.4
"""Of the highest clock: few workloads take the least energy at a lower one."""


class Level(Struct, frozen=True):
    """One setting of all GPUs of a run."""

    limit_mw: int
    """The power limit, or the nominal power of the clock."""
    clock_mhz: int | None = None
    """At which the graphics clock is locked; None: it is a power limit."""


def limit_levels(limits_mw: Iterable[int]) -> tuple[Level, ...]:
    """Return power limits as levels."""
    return tuple(Level(limit_mw) for limit_mw in limits_mw)


def clock_levels(clocks_mhz: Iterable[int], top_mw: int) -> tuple[Level, ...]:
    """Return the clocks that a search may visit, descending, at even ratios.

    Args:
        clocks_mhz: that every GPU can lock, in any order.
        top_mw: the highest power limit that every GPU may have.
    """
    known = sorted(set(clocks_mhz), reverse=True)
    if not known:
        return ()
    top = known[0]
    picked = _thinned([mhz for mhz in known if mhz >= LOWEST * top], MOST)
    levels = {nominal_mw(mhz, top, top_mw): mhz for mhz in reversed(picked)}
    return tuple(Level(limit_mw, mhz) for limit_mw, mhz in sorted(levels.items(), reverse=True))


def nominal_mw(clock_mhz: int, top_mhz: int, top_mw: int) -> int:
    """Return the nominal power of a clock."""
    share: float = (clock_mhz / top_mhz) ** EXPONENT
    return round(top_mw * share)


def _thinned(clocks_mhz: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` clocks: the highest, the lowest, and those nearest to even ratios."""
    if len(clocks_mhz) <= most:
        return list(clocks_mhz)
    top, low = clocks_mhz[0], clocks_mhz[-1]
    wanted = (top * (low / top) ** (at / (most - 1)) for at in range(most))
    return sorted({min(clocks_mhz, key=lambda mhz: abs(mhz - at)) for at in wanted}, reverse=True)


def foretold(limits_mw: Sequence[int], clocks: Iterable[Trial], gpus: int) -> tuple[Trial, ...]:
    """Return what steps take at limits, as clocks show it; nothing of limits below the power of all clocks.

    Args:
        limits_mw: of each GPU.
        clocks: what was measured at clocks.
        gpus: of the job.
    """
    known = [trial for trial in clocks if min(trial.energy_mj, trial.duration_ns) > 0]
    known.sort(key=lambda trial: trial.energy_mj / trial.duration_ns)
    if not known:
        return ()
    drawn_mw = np.log([trial.energy_mj * 1e9 / trial.duration_ns / gpus for trial in known])
    curves = np.log([trial.step_mj for trial in known]), np.log([trial.step_ns for trial in known])
    steps, found = known[-1].steps, list[Trial]()
    for limit_mw in limits_mw:
        if np.log(limit_mw) >= drawn_mw[0]:
            mj, ns = (float(np.exp(np.interp(np.log(limit_mw), drawn_mw, curve))) for curve in curves)
            found.append(Trial(limit_mw, round(mj * steps), round(ns * steps), steps))
    return tuple(found)
