"""Epochs to the target with their fraction, from the metric after each epoch. Pure.

Epochs are paid as a whole. Where two or three are enough, whole epochs hide how batch sizes differ: the
metric passes the target early or late in the last of them.
"""

from collections.abc import Sequence
from math import isfinite

from analyzers.batch_size.policy import Job

LEAST_FRACTION = 0.05
"""Of the last epoch, at least."""
RESOLVED = 4.0
"""Steps of the metric that the last epoch gains at least, if its fraction is to be known."""


def epochs_to_target(epochs: int, metrics: Sequence[float], job: Job) -> float:
    """Return after how many epochs a try has reached its target, by a straight line through the last epoch.

    The line begins at the best metric of the epochs before.

    Args:
        epochs: whole ones, until the target was reached.
        metrics: after each of them.
        job: has the target, and how exactly the metric is known.

    Returns:
        ``epochs`` where the metric does not tell: after a single epoch, where the metric of an epoch is
        missing, where it did not pass the target in the last epoch, or where it is only known in steps.
    """
    target = job.target
    if target is None or epochs < 2 or len(metrics) != epochs or not all(map(isfinite, metrics)):
        return float(epochs)
    sign = -1.0 if job.lower_is_better else 1.0
    before, after, aim = max(sign * one for one in metrics[:-1]), sign * metrics[-1], sign * target
    if not before < aim <= after or after - before < RESOLVED * job.metric_step:
        return float(epochs)
    share = (aim - before) / (after - before)
    return epochs - 1 + max(LEAST_FRACTION, share) if isfinite(share) else float(epochs)
