"""The levels that a search chooses from: power limits, or clocks by their nominal power. Pure.

A search works on power. A clock stands for its *nominal power*, about what a busy GPU draws at it:

    nominal power = highest limit x (clock / highest clock) ** `EXPONENT`

So clocks are in the order of their power, the highest clock has the power of the highest limit, and what is
minimized (``MAXPOWER``), what a power budget allows and what is remembered mean the same for both controls.
The exponent only says how far apart clocks are before anything was measured.

A limit is a cap on power: where it binds, it leads to a clock. So a step at a limit takes about what it takes
at the clock at which the job draws that much, give or take an offset that nobody knows: a clock that
fluctuates below a limit may draw more than a steady one. A search of both controls chooses from the limit
found without a locked clock, which all is compared with, lower clocks, and lower limits (`curves`).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

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


def both_levels(limits: Sequence[Level], clocks: Sequence[Level]) -> tuple[Level, ...]:
    """Return the levels of a search of both controls, descending: the highest is the limit found."""
    if not limits or not clocks:
        return tuple(limits or clocks)
    levels = {level.limit_mw: level for level in (*limits, *clocks[1:], limits[0])}
    return tuple(sorted(levels.values(), key=lambda level: -level.limit_mw))


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
