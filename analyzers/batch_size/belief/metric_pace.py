"""The pace of a try by its metric: whether it is behind the cheapest size at the same cost. Pure."""

from collections.abc import Sequence
from math import log

from msgspec import Struct

LEAST = 0.1
"""Epochs of the cheapest size that any metric stands for, at least."""
EXACT, EXTRAPOLATED = 0.05, 0.35
"""Standard deviation of the log of the expected epochs, and more of it for each factor e that lies ahead."""


class Pace(Struct, frozen=True):
    """The epochs to the target that a metric lets expect."""

    log_epochs: float
    deviation: float
    """Standard deviation."""


def pace_behind(metrics: Sequence[float], of_best: Sequence[float], paid: float) -> Pace | None:
    """Return the pace of a try whose metric is not better than that of the cheapest size at the same cost.

    Args:
        metrics: of the try, after each epoch so far.
        of_best: of a run of the cheapest size that reached the target, after each of its epochs.
        paid: how many epochs of the cheapest size would have cost as much.

    Returns:
        None where the try is ahead, or where that is not known: before the first epoch of the cheapest size
        and past its last.
    """
    if not metrics or not 1 <= paid < len(of_best):
        return None
    sign = 1 if of_best[-1] >= of_best[0] else -1
    rising = [sign * one for one in of_best]
    metric, low = sign * metrics[-1], int(paid)
    if not metric <= rising[low - 1] + (paid - low) * (rising[low] - rising[low - 1]):
        return None
    at = next((at for at, one in enumerate(rising) if one >= metric), len(rising) - 1)
    if at:
        then = at + (metric - rising[at - 1]) / (rising[at] - rising[at - 1])
    else:
        then = metric / rising[0] if 0 < metric < rising[0] else 1.0
    ahead = log(len(of_best) / max(LEAST, then))
    return Pace(log(len(metrics)) + ahead, EXACT + EXTRAPOLATED * ahead)
