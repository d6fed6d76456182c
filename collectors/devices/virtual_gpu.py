"""A GPU made of arithmetic: what it drew, and what its counter says of it. Pure.

Power is piecewise constant: idle, or what the workload draws under limit and clock in force, times noise that
is fixed by a seed for every `NOISE_SLOT_NS`. So the energy of any interval is a sum, exact in pJ
(1 mW for 1 ns), and the same question has the same answer whenever it is asked.

Loads may become known after their time, since a worker writes them down a moment later. What is reported
here may therefore change the past; the counter then counts the difference in at its next refresh.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from enum import Enum
from math import sqrt

from msgspec import Struct

from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load
from zeus_stream.simulated_gpu.workloads import Model

NOISE_SLOT_NS = 5_000_000
LOADS_KEPT = 65_536
"""Loads remembered, at the least; the oldest are forgotten. At 100 steps/s that is ten minutes."""
LIMITS_KEPT = 4_096
"""Changes of the limit remembered, at the least."""
POWERS_KEPT = 1_024
SUMS_KEPT = 1_024
"""Refreshes that a late load can still correct."""


def unit(seed: int, index: int) -> float:
    """Return a number in [0, 1) that looks random: splitmix64 of ``seed`` and ``index``."""
    mask = (1 << 64) - 1
    mixed = (seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


class VirtualGpu:
    """The power of one GPU, from what is known of its limits and loads.

    ``noise``: relative standard deviation of power, below 0.5 (uniform: at most 1.73 times that). ``first``:
    the limit it began with; earlier times are not known.
    """

    def __init__(self, model: Model, noise: float, seed: int, first: LimitChange) -> None:
        self._model, self._swing, self._seed = model, noise * sqrt(3), seed
        self._loads: list[Load] = []
        self._newest = 0
        self._limits = [first]
        self._powers: dict[tuple[str, int, int], int] = {}
        self.known_since_ns = first.since_ns
        """Nothing, or not all, is known of earlier times."""
        self.loads_lost = 0
        """Loads that were never reported, by the gaps in their numbers."""

    @property
    def limit(self) -> LimitChange:
        """The limit in force last, and the lock of the graphics clock."""
        return self._limits[-1]

    def learn_limit(self, change: LimitChange) -> int:
        """Take in a change of the limit. Returns the first instant whose power it may change, ns."""
        since_ns = max(change.since_ns, self._limits[-1].since_ns)
        self._limits.append(LimitChange(since_ns, change.limit_mw, change.locked_mhz))
        if len(self._limits) > 2 * LIMITS_KEPT:
            del self._limits[:LIMITS_KEPT]
            self.known_since_ns = max(self.known_since_ns, self._limits[0].since_ns)
        return since_ns

    def learn_load(self, number: int, load: Load) -> int:
        """Take in the next load, which cuts short the one before, or another end of the newest."""
        if number == self._newest:
            known = self._loads.pop()
            self._loads.append(Load(known.begin_ns, max(load.until_ns, known.begin_ns), known.workload))
            return min(known.until_ns, load.until_ns)
        begin_ns = load.begin_ns
        if number > self._newest + 1:
            self.loads_lost += number - self._newest - 1
            self.known_since_ns = max(self.known_since_ns, begin_ns)
        self._newest = number
        if self._loads:
            last = self._loads[-1]
            begin_ns = max(begin_ns, last.begin_ns)
            self._loads[-1] = Load(last.begin_ns, min(last.until_ns, begin_ns), last.workload)
        self._loads.append(Load(begin_ns, max(load.until_ns, begin_ns), load.workload))
        if len(self._loads) > 2 * LOADS_KEPT:
            del self._loads[:LOADS_KEPT]
            self.known_since_ns = max(self.known_since_ns, self._loads[0].begin_ns)
        return begin_ns

    def energy_pj(self, t0_ns: int, t1_ns: int) -> int:
        """Return the energy of an interval, pJ; adjacent intervals add up to the last pJ."""
        if (steady := self.steady(t0_ns, t1_ns)) is not None:
            return (t1_ns - t0_ns) * steady[0]
        return sum((end - begin) * power for begin, end, power, _ in self._segments(t0_ns, t1_ns))

    def busy_ns(self, t0_ns: int, t1_ns: int) -> int:
        """Return how long of an interval it worked."""
        if (steady := self.steady(t0_ns, t1_ns)) is not None:
            return 0 if steady[1] is None else t1_ns - t0_ns
        return sum(end - begin for begin, end, _, load in self._segments(t0_ns, t1_ns) if load)

    def load_at(self, t_ns: int) -> Load | None:
        """Return what it works on."""
        if (steady := self.steady(t_ns, t_ns + 1)) is not None:
            return steady[1]
        return next((load for _, _, _, load in self._segments(t_ns, t_ns + 1)), None)

    def steady(self, t0_ns: int, t1_ns: int) -> tuple[int, Load | None] | None:
        """Return power (mW) and load of an interval in which nothing changes, quicker than `_segments`."""
        limit = self._limits[-1]
        if self._swing or limit.since_ns > t0_ns or t1_ns < t0_ns:
            return None
        load = self._loads[-1] if self._loads else None
        if load is None or load.until_ns <= t0_ns:
            return self._model.idle_mw, None
        if load.begin_ns <= t0_ns and t1_ns <= load.until_ns:
            return self._power_mw(load.workload, limit.limit_mw, limit.locked_mhz), load
        return None

    def _segments(self, t0_ns: int, t1_ns: int) -> Iterator[tuple[int, int, int, Load | None]]:
        """Yield (begin ns, end ns, mW, load) without gap or overlap."""
        for begin_ns, end_ns, load in self._stretches(t0_ns, t1_ns):
            for start_ns, stop_ns, limit_mw, locked_mhz in self._limited(begin_ns, end_ns):
                power_mw = self._model.idle_mw
                if load:
                    power_mw = self._power_mw(load.workload, limit_mw, locked_mhz)
                if not self._swing:
                    yield start_ns, stop_ns, power_mw, load
                    continue
                at_ns = start_ns
                while at_ns < stop_ns:
                    slot = at_ns // NOISE_SLOT_NS
                    next_ns = min((slot + 1) * NOISE_SLOT_NS, stop_ns)
                    factor = 1 + self._swing * (2 * unit(self._seed, slot) - 1)
                    yield at_ns, next_ns, round(power_mw * factor), load
                    at_ns = next_ns

    def _stretches(self, t0_ns: int, t1_ns: int) -> Iterator[tuple[int, int, Load | None]]:
        """Yield (begin, end, load), load or rest."""
        at_ns = t0_ns
        for index in range(
            bisect_right(self._loads, t0_ns, key=lambda load: load.until_ns), len(self._loads)
        ):
            load = self._loads[index]
            if load.begin_ns >= t1_ns:
                break
            if load.begin_ns > at_ns:
                yield at_ns, load.begin_ns, None
                at_ns = load.begin_ns
            if load.until_ns > at_ns:
                yield at_ns, min(load.until_ns, t1_ns), load
                at_ns = load.until_ns
        if at_ns < t1_ns:
            yield at_ns, t1_ns, None

    def _power_mw(self, workload: str, limit_mw: int, locked_mhz: int) -> int:
        """Return the draw of a workload; the same few are asked for again and again."""
        key = workload, limit_mw, locked_mhz
        if (known := self._powers.get(key)) is None:
            if len(self._powers) >= POWERS_KEPT:
                self._powers.clear()
            known = self._powers[key] = self._model.workloads[workload].power_mw(limit_mw, locked_mhz)
        return known

    def _limited(self, t0_ns: int, t1_ns: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (begin, end, limit, lock of the graphics clock)."""
        index = max(bisect_right(self._limits, t0_ns, key=lambda change: change.since_ns) - 1, 0)
        at_ns, now = t0_ns, self._limits[index]
        for change in self._limits[index + 1 :]:
            if change.since_ns >= t1_ns:
                break
            if change.since_ns > at_ns:
                yield at_ns, change.since_ns, now.limit_mw, now.locked_mhz
                at_ns = change.since_ns
            now = change
        yield at_ns, t1_ns, now.limit_mw, now.locked_mhz


class Refreshes(Struct, frozen=True):
    """When power and counter are refreshed: at ``k * period + phase``, each off by up to the jitter."""

    period_ns: int
    phase_ns: int
    jitter_ns: int
    """Below half a period."""
    seed: int

    def at_ns(self, index: int) -> int:
        """Return when refresh ``index`` happens."""
        if not self.jitter_ns:
            return index * self.period_ns + self.phase_ns
        off_ns = round(self.jitter_ns * (2 * unit(self.seed, index) - 1))
        return index * self.period_ns + self.phase_ns + off_ns

    def last(self, now_ns: int) -> int:
        """Return the index of the newest refresh at ``now_ns``."""
        index = (now_ns - self.phase_ns) // self.period_ns
        if not self.jitter_ns:
            return index
        index += 1
        while self.at_ns(index) > now_ns:
            index -= 1
        return index


class Kind(Enum):
    """The sum that a counter shows at each refresh."""

    INTEGRATING = "integrating"
    """All energy since the last."""
    BOXCAR = "boxcar"
    """Mean power of the window before it, times the period: it never sees the rest."""


class VirtualCounter:
    """An energy counter that is refreshed now and then, and never falls unless it is reset."""

    def __init__(
        self, draw: VirtualGpu, refreshes: Refreshes, kind: Kind, window_ns: int, start: tuple[int, int]
    ) -> None:
        """``start``: index of a refresh, and the energy counted at it, pJ."""
        self._draw, self._refreshes, self._kind, self._window_ns = draw, refreshes, kind, window_ns
        self._sums = deque([start], maxlen=SUMS_KEPT)
        self._shown_pj = start[1]

    def rewind(self, t_ns: int) -> None:
        """Forget what was added up after ``t_ns``: it is known better now."""
        while len(self._sums) > 1 and self._refreshes.at_ns(self._sums[-1][0]) > t_ns:
            self._sums.pop()

    def reset(self, t_ns: int) -> None:
        """Start over from 0 at the refresh before ``t_ns``."""
        self._sums.clear()
        self._sums.append((self._refreshes.last(t_ns), 0))
        self._shown_pj = 0

    def read_pj(self, now_ns: int) -> tuple[int, int]:
        """Return the index of the newest refresh and what the counter shows since."""
        newest = self._refreshes.last(now_ns)
        index, total_pj = self._sums[-1]
        if newest > index and self._kind is Kind.INTEGRATING:  # also if it was not read for a while
            begin_ns, end_ns = self._refreshes.at_ns(index), self._refreshes.at_ns(newest)
            index, total_pj = newest, total_pj + self._draw.energy_pj(begin_ns, end_ns)
            self._sums.append((index, total_pj))
        while index < newest:
            index += 1
            total_pj += self._added_pj(index)
            self._sums.append((index, total_pj))
        self._shown_pj = max(self._shown_pj, total_pj)
        return newest, self._shown_pj

    def _added_pj(self, index: int) -> int:
        """Return what a counter that sees a window adds at a refresh."""
        at_ns = self._refreshes.at_ns(index)
        seen_pj = self._draw.energy_pj(at_ns - self._window_ns, at_ns)
        return seen_pj * self._refreshes.period_ns // self._window_ns
