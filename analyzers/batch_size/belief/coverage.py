"""The coverage of batch sizes: which may be tried although the curve does not recommend it. Pure.

A size may be unlike the curve, and far from the sizes that were tried the curve may mislead. A try judges a
size when it converges, when it has cost as much as the best size, or when its metric is behind that of the
best size at the same cost: after an epoch or two where metrics are reported.
"""

from collections.abc import Sequence
from math import log2

import numpy as np

from analyzers.batch_size.belief.cost_belief import CostBelief
from analyzers.batch_size.belief.gaussian import Floats, equally_likely, within
from analyzers.batch_size.belief.try_summary import TrySummary
from analyzers.batch_size.policy import Job

PROFILING = 1.2
"""Cost of the first epoch at a size, in which power limits are searched, over that of others."""
NODES, COST_NODES = 15, 5
"""Equally likely epochs, and costs of an epoch, that stand for all."""


NODE_Z, COST_Z = equally_likely(NODES), equally_likely(COST_NODES)
_ALL = np.ones(NODES)
_LEFT = 1 - np.arange(NODES + 1) / NODES
"""Share of runs that need more epochs than the first so many nodes; ..."""
_LEFT_MEAN = np.array([*(NODE_Z[k:].mean() for k in range(NODES)), NODE_Z[-1]])
_LEFT_KNOWN = np.array([*(1 - NODE_Z[k:].var() for k in range(NODES)), 1])
"""... their mean, and the share of the variance that is gone once that is known."""


def outlook(belief: CostBelief, horizon: int) -> tuple[Floats, Floats]:
    """Return what a try of each size is expected to cost, with all that follows, and when to give it up.

    Dimensions in between: hypothesis; size tried; its epoch cost; node of epochs after which it is given up;
    size chosen later. Returns relative costs and epochs, both of shape (n,).
    """
    epochs, weight = belief.epochs, belief.weight
    price, price_variance = belief.cost.mean[0], belief.cost.variance[0]
    unit = belief.log_cost.min()
    # Of what a try will show of an epoch's cost; where it is known well, a try shows nothing of it.
    unknown = price_variance > 1e-4
    price_deviation = np.where(unknown, np.sqrt(price_variance + belief.price_noise), 0)
    deviation = np.sqrt(epochs.variance + belief.noise[:, None])
    by_price = (
        np.where(unknown, 1, 0)[:, None]
        * belief.cost.covariance[0]
        / np.maximum(price_deviation, 0.01)[:, None]
    )
    by_epochs = epochs.covariance / deviation[:, :, None]
    # Of every size, once the tried one's epoch cost is known; then once it converged, or was given up.
    log_cost = (
        epochs.mean + belief.rounding_up + belief.failing + price + (deviation**2 + price_variance) / 2 - unit
    )
    priced = (log_cost[:, None] - by_price**2 / 2)[:, :, None] + by_price[:, None] * COST_Z[:, None]
    after = priced[:, :, :, None] + _moved(by_epochs, NODE_Z, _ALL)
    given_up = priced[:, :, :, None] + _moved(by_epochs, _LEFT_MEAN, _LEFT_KNOWN)
    best_after, best_given_up = _least(after) / NODES, _least(given_up)
    instead = _least(given_up[..., list(belief.proven)]) if belief.proven else best_given_up
    # This try: epochs, and what is paid for them.
    of_success = (price + belief.failing - unit)[:, None]
    an_epoch = np.exp(within(of_success) + price_deviation[:, None] * COST_Z)
    takes = np.maximum(1, np.exp(within(epochs.mean[:, :, None] + deviation[:, :, None] * NODE_Z)))
    takes = np.ceil(takes) if belief.fractional else takes
    until = np.concatenate([np.ones_like(takes[..., :1]), takes], axis=-1)
    never = belief.never[:, None]
    paid = (1 - never) * _before(takes / NODES) + ((1 - never) * _LEFT + never) * until
    # And the recurrences to come. That a size never converges says nothing about others.
    never = never[:, :, None]
    to_come = (1 - never) * (horizon * _before(best_after) + _LEFT * (instead + horizon * best_given_up))
    to_come += never * (instead[..., :1] + horizon * best_given_up[..., :1])
    total = np.tensordot(weight, an_epoch[:, :, None] * paid[:, :, None] + to_come, axes=1)
    profiling = (PROFILING - 1) * an_epoch * belief.fresh[:, None]
    stop = total.mean(axis=1).argmin(axis=1)
    epochs_then = np.exp(weight @ np.log(until[:, np.arange(len(stop)), stop]))
    return (total.min(axis=2) + profiling).mean(axis=1), epochs_then


def _moved(by: Floats, z: Floats, known: Floats) -> Floats:
    """Return how the log of expected costs moves with what is seen: shape (h, n, 1, k, n)."""
    by = by[:, :, None, None]
    return by * z[:, None] - by**2 * known[:, None] / 2


def _least(log_costs: Floats) -> Floats:
    return np.exp(within(log_costs.min(axis=-1)))


def _before(values: Floats) -> Floats:
    """Return the sum of those before each, and of all."""
    return np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)


COVERAGE, COVERAGE_OF, COVERAGE_HORIZON = 0.006, 3.0, 300
"""The saving of each recurrence to come by a size that is unlike the curve, in units of the best size's cost,
times the probability of that; it falls with the sizes that have converged, as if `COVERAGE_OF` had been
before. So many more recurrences are expected to come than otherwise."""
COVERAGE_STOP = 1.25
"""A try of a size that the curve does not recommend may cost so many times what the best size costs."""
AWAY, CLOSE = 2.0, 0.6
"""Octaves from the nearest judged size: the probability grows up to the first; below the second, it is 0."""


def uncovered(job: Job, seen: TrySummary, belief: CostBelief, left: Sequence[int]) -> int | None:
    """Return the index of a size of ``left`` that no try judged and that may be tried despite the curve.

    The size that is expected to cost least above the best one goes first, once the recurrences to come may
    save more than that.
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


def _to_judge(seen: TrySummary, belief: CostBelief) -> Floats:
    """Return the cost of judging a size that is not better, in units of the best size's; shape (n,)."""
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
