"""Knots of a timeline: where each lies, what was counted until then, and in which epoch. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

GAP_NS = 1_500_000_000
"""Longer between two knots (three default heartbeats), and the time between them counts as unseen."""
HANG_NS = 1_500_000_000
"""A read that took longer than this hung in the driver, and its time counts as unseen."""
MARGIN = 1.5
"""Power may exceed the highest limit by this factor for a moment: no reading above it is believed either."""
LATE_NS = 100_000_000
"""A refresh may be late by this, and the next one punctual."""
FILLED = 0.05
"""Standard deviation at least of an energy that is filled in from power, as a part of it."""
WIDE_NS = 2_000_000
"""A knot that is known less closely is placed where the refreshes before it let expect it."""
AMBIGUOUS = 1.5
"""Bounds wider than so many periods leave open which refresh was read."""
REGULAR = 20
"""Refreshes are regular if most of them stray by less than this part of their period."""
PERIODS = 16
"""Intervals between changes that `Timeline.period_ns` is the median of."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Estimator = Literal["counter", "power"]


class Row:
    """Row numbers of the tables that hold the knots; plain numbers, since they are used so often."""

    LO = 0
    HI = 1
    MID = 2
    ENERGY = 3
    UNSEEN = 4
    POWER = 5
    EPOCH = 6
    FIRST = 7
    """0; 1 after a pause; `RESET`."""
    TEMPERATURE = 8
    COUNT = 9


RESET = 2
"""The counter was seen to fall."""
WIDE = Row.POWER
"""Rows before it are int64, from it on int32."""


class Knots(NamedTuple):
    """The known points of a GPU's energy, oldest first; shape (n,) each."""

    lo_ns: Ints
    """The knot's instant lies within ``lo_ns`` and ``hi_ns``; never falls."""
    hi_ns: Ints
    mid_ns: Ints
    energy_uj: Ints
    """Counted by then, within its epoch; never falls within one."""
    unseen_ns: Ints
    """Time so far that lay between knots more than `GAP_NS` apart."""
    epoch: Ints
    doubt_ns: Floats
    """Standard deviations of ``mid_ns``."""


def place(knots: Ints, before_ns: Ints, before_uj: Ints) -> None:
    """Work out the middles of ``knots``, given up to `PERIODS` + 1 middles before, and their energies.

    One that a late look left wide open is where the regular ones before it let expect it, within its bounds.
    After a read within which the counter may have been refreshed more than once, it is where the energy at
    the recent mean power predicts it.
    """
    lo_ns, hi_ns = knots[Row.LO], knots[Row.HI]
    mid_ns = np.concatenate((before_ns, lo_ns + (hi_ns - lo_ns) // 2))
    energy_uj = np.concatenate((before_uj, knots[Row.ENERGY]))
    for place in np.flatnonzero(hi_ns - lo_ns > WIDE_NS):
        at = len(before_ns) + place
        period_ns = _period_ns(mid_ns[max(at - PERIODS - 1, 0) : at].tolist())
        if period_ns is None:
            continue
        since_ns = mid_ns[at] - mid_ns[at - 1]
        used_uj = energy_uj[at - 1] - energy_uj[at - 1 - PERIODS]
        if hi_ns[place] - lo_ns[place] > AMBIGUOUS * period_ns and used_uj > 0:
            took_ns = mid_ns[at - 1] - mid_ns[at - 1 - PERIODS]
            since_ns = took_ns * float((energy_uj[at] - energy_uj[at - 1]) / used_uj)
        expected_ns = mid_ns[at - 1] + max(round(since_ns / period_ns), 1) * period_ns
        mid_ns[at] = min(max(expected_ns, lo_ns[place]), hi_ns[place])
    knots[Row.MID] = mid_ns[len(before_ns) :]


def _period_ns(mid_ns: Sequence[int]) -> int | None:
    """Return the median distance of `PERIODS` + 1 instants; None: they are fewer, or not regular."""
    steps_ns = sorted(after - before for before, after in pairwise(mid_ns))
    if len(steps_ns) < PERIODS:
        return None
    period_ns = round((steps_ns[PERIODS // 2 - 1] + steps_ns[PERIODS // 2]) / 2)
    strays_ns = sorted(abs(step_ns - period_ns) for step_ns in steps_ns)
    quartile_ns = (3 * strays_ns[PERIODS * 3 // 4 - 1] + strays_ns[PERIODS * 3 // 4]) / 4
    return period_ns if quartile_ns < period_ns / REGULAR else None


class Jump(NamedTuple):
    """A step of a counter that cannot be."""

    t_ns: int
    grown_uj: int
    most_uj: int
    """The energy that the GPU can have drawn, uJ."""
    since_ns: int
    """From when on it is not known from the counter what was drawn."""
    filled_uj: int | None
    """What was drawn, by the power on both sides; None: it was not read, so the counter starts over."""
    deviation_uj: int = 0
    """Standard deviation of ``filled_uj``."""


def bridge(knots: Ints, before: Ints | None, most_mw: int) -> Ints:
    """Return the knots without first values before which the counter cannot have been reset.

    A counter that began at zero within a pause shows no more at its end than the highest power times the
    pause. One that shows more, and no less than before, has counted on. When it changed to its first
    value is not known, so that is no knot; the next change is.
    """
    firsts = np.flatnonzero(knots[Row.FIRST] == 1)
    if not len(firsts):
        return knots
    previous = knots[:, :1] * 0 if before is None else before
    previous = np.concatenate((previous, knots[:, :-1]), axis=1)
    # mW x ns = pJ; from the last read with the value before
    most_uj = MARGIN * most_mw * (knots[Row.HI] - previous[Row.LO]) / 1e6
    grown_uj = knots[Row.ENERGY] - previous[Row.ENERGY]
    counted_on = (knots[Row.ENERGY] > most_uj) & (grown_uj >= 0) & (grown_uj <= most_uj)
    counted_on[0] &= before is not None
    bridged = firsts[counted_on[firsts]]
    return np.delete(knots, bridged, axis=1)


def fill_jumps(knots: Ints, before: Ints | None, most_mw: int) -> list[Jump]:
    """Take steps of the counter that the GPU cannot have drawn out of it, in favour of the power beside it.

    Until `LATE_NS` after its time, a refresh may show what was drawn since. Without readings of power a knot
    to which the counter jumped is marked as reset.
    """
    last = knots[:, :1] if before is None else before
    previous = np.concatenate((last, knots[:, :-1]), axis=1)
    elapsed_ns = knots[Row.HI] - previous[Row.LO] + LATE_NS
    most_uj = MARGIN * most_mw * elapsed_ns / 1e6  # mW x ns = pJ
    grown_uj = knots[Row.ENERGY] - previous[Row.ENERGY]
    jumped = np.flatnonzero((knots[Row.FIRST] == 0) & (grown_uj > most_uj))
    jumps = []
    for at in jumped.tolist():
        power_mw = knots[Row.POWER, max(at - PERIODS, 0) : at + 1]
        power_mw = np.append(previous[Row.POWER, at], power_mw)
        since_ns, took_ns = int(previous[Row.LO, at]), int(knots[Row.HI, at] - previous[Row.HI, at])
        most, filled_uj, deviation_uj = int(most_uj[at]), None, 0
        if (power_mw < 0).any():  # there is no reading of power
            knots[Row.FIRST, at] = RESET
        else:
            mean_mw = (power_mw[0] + power_mw[-1]) / 2
            filled_uj = min(round(mean_mw * took_ns / 1e6), most)  # mW x ns = pJ
            deviation_mw = max(float(power_mw.std()), abs(power_mw[-1] - power_mw[0]) / 2, FILLED * mean_mw)
            deviation_uj = round(deviation_mw * took_ns / 1e6)
            knots[Row.ENERGY, at:] -= int(grown_uj[at]) - filled_uj
        jumps.append(Jump(int(knots[Row.HI, at]), int(grown_uj[at]), most, since_ns, filled_uj, deviation_uj))
    return jumps


def hung_ns(knots: Ints, before: Ints | None) -> Ints:
    """Return for how long the driver hung before each knot; 0 where it did not."""
    last = knots[Row.LO, :1] if before is None else before[Row.HI]
    since_ns = np.maximum(knots[Row.LO], np.concatenate((last, knots[Row.HI, :-1])))
    open_ns = knots[Row.HI] - since_ns
    hung: Ints = np.where((open_ns > HANG_NS) & (knots[Row.FIRST] == 0), open_ns, 0)
    return hung


def chain(knots: Ints, before: Ints | None, estimator: Estimator) -> None:
    """Work out the rows of ``knots`` that depend on the knot before each."""
    last = knots[:, :1] if before is None else before
    previous = np.concatenate((last, knots[:, :-1]), axis=1)
    elapsed_ns = knots[Row.MID] - previous[Row.MID]
    unseen_ns = np.where(elapsed_ns > GAP_NS, elapsed_ns, hung_ns(knots, before))
    knots[Row.UNSEEN] = (0 if before is None else last[Row.UNSEEN]) + np.cumsum(unseen_ns)
    if estimator == "power":
        held_uj = previous[Row.POWER] * elapsed_ns // 1_000_000  # mW x ns = pJ
        knots[Row.ENERGY] = (0 if before is None else last[Row.ENERGY]) + np.cumsum(held_uj)
    else:
        fell = knots[Row.ENERGY] < previous[Row.ENERGY]
        knots[Row.FIRST] = np.where(fell, RESET, knots[Row.FIRST])
    first = knots[Row.FIRST] > 0
    epochs = (0 if before is None else (last[Row.EPOCH] + 1) // 2) + np.cumsum(first)
    # Even numbers are epochs; an odd one sets apart a counter's first value. Power is valid at once.
    knots[Row.EPOCH] = 2 * epochs - (first if estimator == "counter" else 0)
