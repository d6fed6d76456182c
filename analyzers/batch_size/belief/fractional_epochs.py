"""Epochs to the target with their fraction, from the metric after each epoch. Pure.

Epochs are paid as a whole. Where two or three are enough, whole epochs hide how batch sizes differ: the
metric passes the target early or late in the last of them.
"""

from collections.abc import Sequence
from math import isfinite

LEAST_FRACTION = 0.05
"""Of the last epoch, at least."""


def epochs_to_target(
    epochs: int, metrics: Sequence[float], target: float | None, *, lower_is_better: bool
) -> float:
    """Return after how many epochs a try has reached its target, by a straight line through the last epoch.

    The line begins at the best metric of the epochs before.

    Args:
        epochs: whole ones, until the target was reached.
        metrics: after each of them.
        target: of the metric; None: not known.
        lower_is_better: as the job says.

    Returns:
        ``epochs`` where the metric does not tell: after a single epoch, where the metric of an epoch is
        missing, or where it did not pass the target in the last epoch.
    """
    if target is None or epochs < 2 or len(metrics) != epochs or not all(map(isfinite, metrics)):
        return float(epochs)
    sign = -1.0 if lower_is_better else 1.0
    before, after, aim = max(sign * one for one in metrics[:-1]), sign * metrics[-1], sign * target
    if not before < aim <= after:
        return float(epochs)
    share = (aim - before) / (after - before)
    return epochs - 1 + max(LEAST_FRACTION, share) if isfinite(share) else float(epochs)
