"""Energy of a GPU between two instants, with bounds, or `Missing`. Pure.

The energy at an instant is read off a straight line between the knots on either side; the energy of a
window is the difference at its two ends. So adjacent windows share an edge, and add up to the last uJ.

Bounds of a counter that integrates are hard: at an instant it had counted at least what it was *surely*
seen to show before, and at most what it was *surely* seen to show only later, plus the mJ it rounds away.
The truth of this counter lies within, however the power moved. Bounds of power readings say less: as if
between two readings the lesser, or the greater, had been drawn all the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.timeline import GAP_NS, Estimator, Ints, Timeline

QUANTUM_UJ = 1_000
"""A counter shows whole millijoules."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no energy, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Energy:
    """What a GPU used between two instants."""

    energy_uj: int
    low_uj: int
    high_uj: int
    estimator: Estimator
    quality: str
    """``ok``, or what is wrong, separated by ``; ``."""


def energy(timeline: Timeline, begin_ns: int, end_ns: int) -> Energy | Missing:
    """Return the energy of one window."""
    return measure(timeline, (begin_ns,), (end_ns,))[0]


def measure(timeline: Timeline, begin_ns: Sequence[int], end_ns: Sequence[int]) -> list[Energy | Missing]:
    """Return the energies of many windows at the price of one. Nothing is extrapolated.

    Args:
        timeline: of the GPU.
        begin_ns: shape (n,), CLOCK_MONOTONIC of its host.
        end_ns: shape (n,).
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

    def between(sums: Ints) -> Ints:
        """Return what was added to a sum within each window."""
        at: Ints = sums[left] + np.rint(part * (sums[left + 1] - sums[left])).astype(np.int64)
        return at[count:] - at[:count]

    if timeline.estimator == "counter":
        least_uj, most_uj = knots.energy_uj[before], knots.energy_uj[after] + QUANTUM_UJ
        low_uj, high_uj = (
            np.maximum(least_uj[count:] - most_uj[:count], 0),
            most_uj[count:] - least_uj[:count],
        )
    else:
        low_uj, high_uj = between(knots.low_uj), between(knots.high_uj)
    figures = zip(
        between(knots.energy_uj).tolist(),
        low_uj.tolist(),
        high_uj.tolist(),
        between(knots.unseen_ns).tolist(),
        np.maximum(width_ns[:count], width_ns[count:]).tolist(),
        (left[:count] == left[count:]).tolist(),
        strict=True,
    )
    # A counter's first value (odd epoch) is not yet a change.
    early[:count] |= knots.epoch[before[:count]] % 2 == 1
    return [
        Energy(used, low, high, timeline.estimator, _quality(unseen, coarse, within=within))
        if whole[i] and ordered[i]
        else Missing(_reason(timeline, end_ns[i], early=early[i], late=late[count + i], ordered=ordered[i]))
        for i, (used, low, high, unseen, coarse, within) in enumerate(figures)
    ]


def _quality(unseen_ns: int, coarse_ns: int, *, within: bool) -> str:
    words = []
    if unseen_ns > 0:
        words.append(f"unseen for {unseen_ns / 1e9:.1f} s")
    if coarse_ns > GAP_NS:
        words.append(f"an edge between readings {coarse_ns / 1e9:.1f} s apart")
    if within:
        words.append("within one refresh")
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
