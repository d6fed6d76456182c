"""The coverage of batch sizes: which may be tried although the curve does not recommend it. Pure.

A size may be unlike the curve, and far from the sizes that were tried the curve may mislead. A try judges a
size when it converges, when it has cost as much as the best size, or when its metric is behind that of the
best size at the same cost: after an epoch or two where metrics are reported.
"""

from collections.abc import Sequence
from math import log2

import numpy as np

from analyzers.batch_size.belief.cost_belief import CostBelief
from analyzers.batch_size.belief.gaussian import Floats, within
from analyzers.batch_size.belief.outlook import NODE_Z, PROFILING
from analyzers.batch_size.belief.try_summary import Seen
from analyzers.batch_size.policy import Job

COVERAGE, COVERAGE_OF, COVERAGE_HORIZON = 0.006, 3.0, 300
"""The saving of each recurrence to come by a size that is unlike the curve, in units of the best size's cost,
times the probability of that; it falls with the sizes that have converged, as if `COVERAGE_OF` had been
before. So many more recurrences are expected to come than otherwise."""
COVERAGE_STOP = 1.25
"""A try of a size that the curve does not recommend may cost so many times what the best size costs."""
AWAY, CLOSE = 2.0, 0.6
"""Octaves from the nearest judged size: the probability grows up to the first; below the second, it is 0."""


def uncovered(job: Job, seen: Seen, belief: CostBelief, left: Sequence[int]) -> int | None:
    """Return a size, by index, that no try of this era has judged and that may be tried despite the curve.

    The size that is expected to cost least above the best one goes first, once the recurrences to come may
    save more than that.

    Args:
        job: constants.
        seen: tries so far.
        belief: in all sizes of the job.
        left: sizes among which it is chosen, by index.
    """
    if belief.fresh.all():
        return None  # nothing has run on this setup yet
    best = float(belief.log_cost.min())
    judged = set(belief.proven) | {
        at
        for at, size in enumerate(job.batch_sizes)
        if size in seen.behind
        or any(of == size and least + belief.cost.mean[0, at] >= best for of, least in seen.more)
    }
    octaves = [log2(size) for size in job.batch_sizes]
    away = {
        at: min((abs(octaves[at] - octaves[other]) for other in judged), default=AWAY)
        for at in left
        if at not in judged
    }
    above = _above(belief, _to_judge(seen, belief))
    chance = COVERAGE / (COVERAGE_OF + len(belief.proven))
    may_save = (seen.horizon + COVERAGE_HORIZON) * chance
    fit = [at for at in away if away[at] >= CLOSE and above[at] <= may_save * min(1.0, away[at] / AWAY)]
    return min(fit, key=lambda at: (above[at] / min(AWAY, away[at]), at), default=None)


def _to_judge(seen: Seen, belief: CostBelief) -> Floats:
    """Return what it costs to judge a size that is not better, in units of the best size's cost; shape (n,).

    Where metrics are reported, that is as many epochs as one of the best size is worth.
    """
    price = belief.cost.mean[0]
    if not seen.metrics or not all(seen.metrics.values()):
        return np.full(len(price), COVERAGE_STOP)
    best = int(belief.log_cost.argmin())
    epochs = np.ceil(np.exp(within(price[best] - price)) - 1e-9)
    return np.asarray(np.minimum(COVERAGE_STOP, epochs * np.exp(within(price - belief.log_cost[best]))))


def _above(belief: CostBelief, to_judge: Floats) -> Floats:
    """Return what judging each size is expected to cost above the best one, in units of that; shape (n,)."""
    best = belief.log_cost.min()
    deviation = np.sqrt(belief.epochs.variance + belief.noise[:, None] + belief.cost.variance[0])
    log_cost = belief.epochs.mean + belief.rounding_up + belief.failing + belief.cost.mean[0] - best
    costs = np.exp(within(log_cost[:, :, None] + deviation[:, :, None] * NODE_Z))
    judged = to_judge[:, None]
    dear = costs > np.where(judged < COVERAGE_STOP, 1, COVERAGE_STOP)
    above = np.where(dear, judged, costs - 1).mean(axis=2)
    profiling = (PROFILING - 1) * np.exp(within(belief.cost.mean[0] - best))
    return np.asarray(belief.weight @ above + belief.fresh * profiling)
