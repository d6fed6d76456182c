"""Energy of a GPU between two instants, with bounds, or `Missing`. Pure.

The energy at an instant is what `energy_fit` fixed from the events around it, or is read off a straight
line between the knots on either side; the energy of a window is the difference at its two ends. So adjacent
windows share an edge, and add up to the last uJ.

Bounds of a counter that integrates are hard: at an instant it had counted at least what it was *surely*
seen to show before, and at most what it was *surely* seen to show only later, plus the mJ it rounds away.
The truth of this counter lies within, however the power moved. A counter that sees a part of the time has
none. Bounds of power readings say less: as if between two readings the lesser, or the greater, had been
drawn all the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from analyzers.measurement.counter_kind import COVERED
from analyzers.measurement.energy_fit import WAIT_NS, Shape
from analyzers.measurement.timeline import GAP_NS, Ints, Timeline

QUANTUM_UJ = 1_000
"""A counter shows whole millijoules."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no energy, for this reason."""

    reason: str


Z = 1.96
"""Standard deviations on either side that hold 95 %."""
Estimator = Literal["counter", "power", "shaped"]


@dataclass(frozen=True, slots=True)
class Energy:
    """What a GPU used between two instants."""

    energy_uj: int
    low_uj: int | None
    """Hard bound; None for a counter that does not see all."""
    high_uj: int | None
    p2_5_uj: int
    """The truth is less than this in one case of 40, and in as many more than ``p97_5_uj``."""
    p97_5_uj: int
    phase_coverage: float | None
    """See `analyzers.measurement.energy_fit.Shape.phase_coverage`."""
    estimator: Estimator
    quality: str
    """``ok``, or what is wrong, separated by ``; ``."""


@dataclass(frozen=True, slots=True)
class Meter:
    """One GPU: what was read of it, and what its events tell beside."""

    timeline: Timeline
    shape: Shape = field(default_factory=Shape)

    def settled(self, t_ns: int, now_ns: int) -> bool:
        """Return whether the energy at ``t_ns`` may be asked for at frame time ``now_ns``, for good."""
        timeline = self.timeline
        if timeline.gone is not None or not timeline.sees_all or not timeline.settled(t_ns):
            return timeline.settled(t_ns)
        knots = timeline.knots()
        return now_ns >= int(knots.hi_ns[np.searchsorted(knots.lo_ns, t_ns)]) + WAIT_NS

    def measure(self, begin_ns: Sequence[int], end_ns: Sequence[int], now_ns: int) -> list[Energy | Missing]:
        """Return the energies of windows as `measure` does, shaped by the events heard until ``now_ns``."""
        self.shape.advance(self.timeline, max(end_ns), now_ns)
        return measure(self.timeline, begin_ns, end_ns, self.shape)


def energy(timeline: Timeline, begin_ns: int, end_ns: int) -> Energy | Missing:
    """Return the energy of one window."""
    return measure(timeline, (begin_ns,), (end_ns,))[0]


def measure(
    timeline: Timeline, begin_ns: Sequence[int], end_ns: Sequence[int], shape: Shape | None = None
) -> list[Energy | Missing]:
    """Return the energies of many windows at the price of one. Nothing is extrapolated.

    Args:
        timeline: of the GPU.
        begin_ns: shape (n,), CLOCK_MONOTONIC of its host.
        end_ns: shape (n,).
        shape: what was fixed of its energies; where it was not, or without one, lines are straight.
    """
    count = len(begin_ns)
    knots = timeline.knots()
    size = len(knots.mid_ns)
    if size < 2:
        return [Missing("no readings of this GPU")] * count
    t_ns = np.array((*begin_ns, *end_ns), np.int64)
    before = np.searchsorted(knots.hi_ns, t_ns, side="right") - 1  # the last knot surely before it
    after = np.searchsorted(knots.lo_ns, t_ns)  # the first knot surely after it
    early, late = before < 0, after == size
    # Outside the knots what follows means nothing, and is not used.
    before, after = np.maximum(before, 0), np.minimum(after, size - 1)
    whole = ~early & ~late & (knots.epoch[before] == knots.epoch[after])
    whole = whole[:count] & whole[count:] & (knots.epoch[after[:count]] == knots.epoch[before[count:]])
    ordered = t_ns[:count] <= t_ns[count:]

    left = np.clip(np.searchsorted(knots.mid_ns, t_ns, side="right") - 1, 0, size - 2)
    width_ns = knots.mid_ns[left + 1] - knots.mid_ns[left]
    part = np.clip((t_ns - knots.mid_ns[left]) / np.maximum(width_ns, 1), 0.0, 1.0)

    def at(sums: Ints) -> Ints:
        """Return a sum at each instant, by straight lines."""
        line: Ints = sums[left] + np.rint(part * (sums[left + 1] - sums[left])).astype(np.int64)
        return line

    def between(line: Ints) -> Ints:
        return line[count:] - line[:count]

    straight_uj = at(knots.energy_uj)
    used_uj = between(straight_uj)
    estimators: list[Estimator] = [timeline.estimator] * count
    low_uj, high_uj = between(at(knots.low_uj)), between(at(knots.high_uj))
    likely_low_uj, likely_high_uj = low_uj, high_uj
    bounded, told, coverage = True, True, None
    if timeline.sees_all:
        least_uj, most_uj = knots.energy_uj[before], knots.energy_uj[after] + QUANTUM_UJ
        low_uj, high_uj = (
            np.maximum(least_uj[count:] - most_uj[:count], 0),
            most_uj[count:] - least_uj[:count],
        )
        likely_low_uj, likely_high_uj = low_uj, high_uj
        if shape is not None:
            bounded, told = shape.counter.bounded, shape.kind is not None
            coverage = shape.phase_coverage
            fixed = shape.at(t_ns, knots.epoch[before])
            shaped = fixed.known[:count] & fixed.known[count:]
            # What a boxcar counted and what was used run apart: there both ends are of one or the other.
            usable = fixed.known if shape.window_ns is None else np.tile(shaped, 2)
            used_uj = between(np.where(usable, fixed.energy_uj, straight_uj))
            give_or_take_uj = Z * 1e6 * np.sqrt(shape.variance(fixed))
            # How far off it is while it may not be of this kind, the model cannot tell.
            sure = shaped & shape.sure
            likely_low_uj = _rounded(np.where(sure, used_uj - give_or_take_uj, low_uj))
            likely_high_uj = _rounded(np.where(sure, used_uj + give_or_take_uj, high_uj))
            estimators = ["shaped" if known else timeline.estimator for known in shaped.tolist()]
            if bounded:
                likely_low_uj, likely_high_uj = (
                    np.maximum(likely_low_uj, low_uj),
                    np.minimum(likely_high_uj, high_uj),
                )
        likely_low_uj, likely_high_uj = (
            np.clip(likely_low_uj, 0, used_uj),
            np.maximum(likely_high_uj, used_uj),
        )
    figures = zip(
        used_uj.tolist(),
        low_uj.tolist() if bounded else [None] * count,
        high_uj.tolist() if bounded else [None] * count,
        likely_low_uj.tolist(),
        likely_high_uj.tolist(),
        estimators,
        between(at(knots.unseen_ns)).tolist(),
        np.maximum(width_ns[:count], width_ns[count:]).tolist(),
        (left[:count] == left[count:]).tolist(),
        strict=True,
    )
    # A counter's first value (odd epoch) is not yet a change.
    early[:count] |= knots.epoch[before[:count]] % 2 == 1
    return [
        Energy(
            *(used, low, high, likely_low, likely_high, coverage, estimator),
            _quality(
                unseen,
                coarse,
                within=within and estimator != "shaped",
                bounded=bounded,
                told=told,
                coverage=coverage,
            ),
        )
        if whole[i] and ordered[i]
        else Missing(_reason(timeline, end_ns[i], early=early[i], late=late[count + i], ordered=ordered[i]))
        for i, (used, low, high, likely_low, likely_high, estimator, unseen, coarse, within) in enumerate(
            figures
        )
    ]


def _rounded(values: npt.NDArray[np.float64]) -> Ints:
    whole: Ints = np.rint(values).astype(np.int64)
    return whole


def _quality(
    unseen_ns: int, coarse_ns: int, *, within: bool, bounded: bool, told: bool, coverage: float | None
) -> str:
    words = []
    if unseen_ns > 0:
        words.append(f"unseen for {unseen_ns / 1e9:.1f} s")
    if coarse_ns > GAP_NS:
        words.append(f"an edge between readings {coarse_ns / 1e9:.1f} s apart")
    if within:
        words.append("within one refresh")
    if not bounded:
        words.append("the sensor sees a part of the time" if told else "counter kind not known yet")
    if coverage is not None and coverage < COVERED:
        words.append("aliased")
    return "; ".join(words) or "ok"


def _reason(timeline: Timeline, end_ns: int, *, early: bool, late: bool, ordered: bool) -> str:
    if not ordered:
        return "it ends before it begins"
    if early:
        return "no counter change or power reading was seen before its begin"
    if not late:
        return "the counter started over (reset, or the GPU or its collector was gone)"
    if timeline.gone is not None:
        return f"the GPU was gone at its end: {timeline.gone}"
    if timeline.heard_ns >= end_ns:
        return "the counter did not change after its end"
    return "no reading from after its end"
