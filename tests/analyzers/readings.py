"""Readings as a collector would make them of a counter whose truth is known."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import numpy as np
import numpy.typing as npt

from analyzers.measurement.energy import KnownEnergy, NoEnergy, measure
from analyzers.measurement.timeline import Timeline
from analyzers.results.readings import READING
from zeus_stream.protocol.readings import ABSENT, Seen

MS = 1_000_000
S = 1_000 * MS


def dice(seed: int) -> Random:
    return Random(seed)


def row(
    seen: Seen,
    t_lo_ns: int,
    t_hi_ns: int,
    *,
    energy_mj: int = ABSENT,
    power_mw: int = ABSENT,
    limit_mw: int = ABSENT,
    requested_mw: int = ABSENT,
    temperature_c: int = ABSENT,
) -> tuple[int, ...]:
    figures = (energy_mj, power_mw, limit_mw, requested_mw, ABSENT, temperature_c, ABSENT)
    return (t_lo_ns, t_hi_ns, *figures, 0, seen)


def readings(*rows: tuple[int, ...]) -> npt.NDArray[np.void]:
    return np.array(list(rows), READING)


def energy(timeline: Timeline, begin_ns: int, end_ns: int) -> KnownEnergy | NoEnergy:
    """Return the energy of one window."""
    return measure(timeline, (begin_ns,), (end_ns,))[0]


def steady(power_w: int, count: int, period_ns: int = 100 * MS, begin_ns: int = 0) -> npt.NDArray[np.void]:
    """Return exact readings of a counter under constant power: change ``k`` is at ``k`` periods."""
    first = row(Seen.FIRST, begin_ns - 1, begin_ns - 1, energy_mj=0)
    changes = [
        row(Seen.CHANGED, t_ns, t_ns, energy_mj=power_w * (t_ns - begin_ns) // MS)
        for t_ns in range(begin_ns, begin_ns + count * period_ns, period_ns)
    ]
    return readings(first, *changes)


@dataclass(frozen=True)
class Virtual:
    """An integrating counter over random power, and what a poller saw of it."""

    ends_ns: list[int]
    """Ends of the stretches of constant power."""
    sums_pj: list[int]
    powers_mw: list[int]
    rows: npt.NDArray[np.void]

    def truth_uj(self, t_ns: int) -> float:
        """Return the energy since 0."""
        index = bisect_right(self.ends_ns, t_ns)
        begin_ns, sum_pj = (self.ends_ns[index - 1], self.sums_pj[index - 1]) if index else (0, 0)
        return (sum_pj + (t_ns - begin_ns) * self.powers_mw[index]) / 1e6


def virtual(seed: int, *, jitter: float = 0.2, seconds: float = 2.0) -> Virtual:
    """Return a counter and its readings, random in load, refreshes and polls."""
    rng = dice(seed)
    until_ns = round(seconds * S)
    lengths_ns = [rng.randint(1 * MS, 80 * MS) for _ in range(2 * until_ns // MS // 40 + 20)]
    ends_ns = [*accumulate(lengths_ns), 10 * until_ns]
    powers_mw = [rng.choice((25_000, rng.randint(30_000, 400_000))) for _ in ends_ns]
    spans_ns = [end - begin for begin, end in zip([0, *ends_ns], ends_ns, strict=False)]
    sums_pj = [*accumulate(span * power for span, power in zip(spans_ns, powers_mw, strict=True))]
    made = Virtual(ends_ns, sums_pj, powers_mw, readings())

    period_ns, poll_ns = rng.randint(10 * MS, 100 * MS), rng.randint(1 * MS, 40 * MS)
    phase_ns = rng.randint(0, period_ns)
    refreshes = [
        max(0, round(phase_ns + index * period_ns + period_ns * jitter * (rng.random() - 0.5)))
        for index in range(until_ns // period_ns + 2)
    ]
    rows: list[tuple[int, ...]] = []
    t_ns, shown, before_ns = refreshes[0] + 1, -1, 0
    while t_ns < until_ns:
        asked_ns = t_ns + rng.randint(0, MS // 2)  # the driver answers somewhere between the stamps
        after_ns = asked_ns + rng.randint(0, MS // 2)
        refresh_ns = refreshes[bisect_right(refreshes, asked_ns) - 1]
        value = int(made.truth_uj(refresh_ns) // 1000)
        if shown < 0:
            rows.append(row(Seen.FIRST, t_ns, after_ns, energy_mj=value))
        elif value != shown:
            rows.append(row(Seen.CHANGED, before_ns, after_ns, energy_mj=value))
        shown, before_ns = value, t_ns
        t_ns = after_ns + rng.randint(poll_ns // 2, poll_ns)
    return Virtual(ends_ns, sums_pj, powers_mw, readings(*rows))
