"""The promise of a plan, compared with the iterations that follow it. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import mean, stdev

from msgspec import Struct

from zeus_stream.protocol.pipelines import IterationRan

WATCHED = 10
"""Iterations that are compared with a promise."""
LATE = 1.01
"""Times a promise that iterations may take."""


class Kept(Struct, frozen=True):
    """The mean duration of the latest iterations, and whether the promise was kept."""

    measured_s: float
    kept: bool


def compare(ran: Sequence[IterationRan], after: int, promised_s: float) -> Kept | None:
    """Compare the latest WATCHED iterations with a promise.

    Args:
        ran: iterations of stage 0, in order.
        after: only later ones ran under the plan.
        promised_s: from the begin of an iteration to the begin of the next.

    Returns:
        None: too few ran yet. A promise counts as kept up to LATE times, and the 95 % interval beyond it.
    """
    begun_ns = [each.t_ns for each in ran if each.iteration > after]
    if len(begun_ns) <= WATCHED or begun_ns[-1] == begun_ns[0]:
        return None
    times_s = [(two - one) / 1e9 for one, two in pairwise(begun_ns[-WATCHED - 1 :])]
    measured_s = mean(times_s)
    return Kept(measured_s, measured_s <= LATE * promised_s + 1.96 * stdev(times_s) / sqrt(len(times_s)))
