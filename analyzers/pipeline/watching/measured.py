"""Time and energy of iterations before a plan and under it. Pure.

Promises come from a profile; what a plan saves is measured. Energies of single iterations are interpolated
between refreshes of a counter: an error at one end is in both neighbours with opposite signs, so intervals
are rather too wide.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import mean, median, stdev

import numpy as np
from msgspec import Struct

from analyzers.measurement.timeline import Timeline
from analyzers.pipeline.frontier import PipelineProfile
from analyzers.pipeline.graph import PipelineGraph
from analyzers.pipeline.stage_record import StageRecord
from zeus_stream.protocol.pipelines import IterationRan

WATCHED = 10
"""Iterations that are compared with a promise."""
LATE = 1.01
"""Times a promise that iterations may take."""
KEPT = 400
"""Latest iterations that a comparison is made from."""
BLOCK, MOST_BLOCK = 10, 100
"""Iterations that are taken in at once; those whose energy is not known by then are left out."""
OFF = 0.05
"""Share by which the duration of an iteration by its profile may differ from the measured one."""
DEPENDS = 1.02
"""Times as long at the lowest clock as at the highest. Below, an instruction does not depend on it."""


class Change(Struct, frozen=True):
    """A share by which something is less than before, with its 95 % interval."""

    share: float
    low: float
    high: float


@dataclass(slots=True)
class Iterations:
    """Durations and energies of iterations, all GPUs together."""

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    energies_j: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: int = -1
    """Number of the last one."""

    def add(self, stages: Sequence[tuple[Timeline, Sequence[IterationRan]]]) -> bool:
        """Take in iterations in a row, by stage, one more than count. False: an energy is not known (yet)."""
        energies = [energies_j(timeline, [each.t_ns for each in ran]) for timeline, ran in stages]
        known = [each for each in energies if each is not None]
        if len(known) < len(energies):
            return False
        self.energies_j.extend(np.sum(known, axis=0).tolist())
        self.times_s.extend((two.t_ns - one.t_ns) / 1e9 for one, two in pairwise(stages[0][1]))
        return True

    def follow(self, stages: Sequence[tuple[Timeline, StageRecord]], after: int) -> bool:
        """Take in what every stage has run after an iteration and since the last time, in blocks."""
        first = max(after, self.last) + 1
        end = min(stage.iteration for _, stage in stages)
        if end - first < BLOCK:
            return False
        ran = [
            (timeline, [each for each in stage.ran if first <= each.iteration <= end])
            for timeline, stage in stages
        ]
        whole = all(len(each) == end - first + 1 for _, each in ran)
        taken = whole and self.add(ran)
        if taken or not whole or end - first > MOST_BLOCK:
            self.last = end - 1
        return taken


def less(before: Sequence[float], now: Sequence[float]) -> Change | None:
    """Return by which share a mean is less than before; None: too few values."""
    if min(len(before), len(now)) < 2:
        return None
    ratio = mean(now) / mean(before)
    parts = [stdev(each) ** 2 / len(each) / mean(each) ** 2 for each in (before, now)]
    total = sum(parts)
    each_freedom = zip(parts, (len(before) - 1, len(now) - 1), strict=True)
    freedom = total**2 / sum(part**2 / of for part, of in each_freedom) if total else 1e9  # Welch
    # Student's t at 97.5 %, by its expansion in the degrees of freedom (Abramowitz and Stegun 26.7.5)
    deviations = 1.96 + 2.372 / freedom + 2.823 / freedom**2
    off = ratio * deviations * sqrt(total)
    return Change(1 - ratio, 1 - ratio - off, 1 - ratio + off)


def energies_j(timeline: Timeline, edges_ns: Sequence[int]) -> np.ndarray | None:
    """Return the energies of a GPU between instants, interpolated between refreshes; None: not known."""
    knots = timeline.knots()
    if not len(knots.mid_ns) or not knots.mid_ns[0] <= edges_ns[0] < edges_ns[-1] <= knots.mid_ns[-1]:
        return None
    return np.diff(np.interp(edges_ns, knots.mid_ns, knots.energy_uj)) / 1e6


def compare(ran: Sequence[IterationRan], after: int, promised_s: float) -> tuple[float, bool] | None:
    """Return the mean duration of the latest WATCHED iterations, s, and whether it kept a promise.

    ``after``: only later ones ran under the plan. None: too few ran yet. A promise counts as kept up to LATE
    times, and the 95 % interval beyond it.
    """
    pairs = pairwise(each for each in ran if each.iteration > after)
    following = [(two.t_ns - one.t_ns) / 1e9 for one, two in pairs if two.iteration == one.iteration + 1]
    times_s = following[-WATCHED:]
    if len(times_s) < WATCHED or not any(times_s):
        return None
    measured_s = mean(times_s)
    return measured_s, measured_s <= LATE * promised_s + 1.96 * stdev(times_s) / sqrt(len(times_s))


def doubt(
    graph: PipelineGraph,
    profile: PipelineProfile,
    iterations_s: Sequence[float],
    own_s: Sequence[Sequence[float]],
    *,
    by_device: bool,
) -> str:
    """Return why a profile does not describe the iterations that it was measured in; empty: it does.

    ``iterations_s``: from begin to begin, at the highest clock. ``own_s``: by stage, from the begin of its
    first instruction to the end of its last. ``by_device``: instructions are stamped when the GPU reaches
    them. Otherwise a queue between Python and the GPU is seen only in the whole iteration.
    """
    if all(known[-1].time_s < DEPENDS * known[0].time_s for known in profile.options.values()):
        return "no instruction takes longer at a lower clock"
    lengths_s = [profile.of(each)[0].time_s for each in graph.instructions]
    starts_s = graph.starts_s(lengths_s)
    if by_device:
        found = [
            (
                starts_s[chain[-1]] + lengths_s[chain[-1]] - starts_s[chain[0]],
                median(took_s),
                f"stage {stage}",
            )
            for stage, (chain, took_s) in enumerate(zip(graph.orders, own_s, strict=True))
        ]
    else:
        found = [(graph.makespan_s(lengths_s), median(iterations_s), "an iteration")]
    profiled_s, took_s, what = max(found, key=lambda each: abs(each[0] / each[1] - 1))
    if abs(profiled_s / took_s - 1) <= OFF:
        return ""
    why = "" if by_device else "; instructions are stamped where Python dispatches them"
    return f"by the profile {what} takes {profiled_s:.4g} s, and it took {took_s:.4g} s{why}"
