"""The batch size of a job that recurs, chosen by what is believed about all of them. Pure.

    tries so far -> epochs to the target and cost of an epoch, each a curve over the batch sizes
                 -> the size whose try is expected to cost least, with all recurrences that follow
                 -> after how many epochs that try is given up

What a training costs is its epochs times the cost of one. The logarithm of each is a Gaussian process over
the logarithm of the batch size. An epoch's cost is known once one was run. Epochs scatter from run to run, by
one of `SCATTER`, weighed by how well it explains what was seen; the only run of a size may have been a bad
one. A try that ended before the target says that it needs more epochs than that, or was a bad one. Epochs are
whole: where a few are enough, they hide how sizes differ. On another GPU model a training needs as many
epochs, and the cost of one is another curve of much the same shape.

A size is tried when what the recurrences to come may save by it is more than it costs now: the knowledge
gradient (Ryzhov, Powell, Frazier, "The Knowledge Gradient Algorithm for a General Class of Online Learning
Problems", Operations Research 60, 2012). As many are to come as there were, and `HORIZON` more. A try can be
given up after any epoch, and the best size that has converged trains the job instead; so what matters is what
the next epochs cost and may show, not what was spent.

A size may be unlike the curve, and a curve may mislead far from the sizes that were tried. So a size that no
try has judged is tried despite the curve where that costs little (`uncovered`): the metric of such a
try is compared with that of the best size at the same cost, after an epoch or two.

Once the tries of other sizes have cost more than the default would have, by `LOSS` trainings, nothing is
tried to learn from it until the job has caught up: the best size that has converged is used.

Where epochs, or what they cost, leave their level an era ends: what was seen before it still tells the shape
of the curves, but not where they lie.

The figures of the processes were fitted to Zeus's published V100 traces, and then tuned in the game there
(`recorded_jobs`): decision 10.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, exp, log, log2, sqrt
from random import Random

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.batch_size.belief.cost_belief import CostBelief, believe, doubt
from analyzers.batch_size.belief.failing_runs import bound_of_try
from analyzers.batch_size.belief.gaussian import Floats, equally_likely, within
from analyzers.batch_size.belief.try_summary import JobHistory, Tally, TrySummary
from analyzers.batch_size.policy import Choice, Job, Try, TryVerdict

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


LOSS, LOSS_SHARE = 3.0, 0.02
"""A job may cost so much more than always the default, in units of a training of that: from the start, and
for each recurrence."""
LONGER, LONGER_FIRST, LONGER_TIMES = 2.5, 10, 4
"""The tenth failure of a size that has converged, and each of four times its number, may take so many times
as long: if only short runs are seen, long ones look like failures.

Variants are in docs/measurements/batch-sizes.md. A job in which 14 of 100 runs are short cost 3.3 times the
optimum, and at most 1.7 with it."""
STREAK = 6
"""A size that has failed so often since it last converged waits until another size has converged."""


class BelievedJob(Struct, frozen=True):
    """The believed cost of a training at a batch size, J."""

    batch_size: int
    expected_cost_j: float
    low_j: float
    high_j: float
    """95 % interval of its mean."""
    tries: int
    """That converged, of this era."""

    def __str__(self) -> str:
        return f"{self.expected_cost_j:.3g} J ({self.low_j:.3g} to {self.high_j:.3g})"


def beliefs(history: JobHistory, setup: str) -> tuple[BelievedJob, ...]:
    """Return what is believed of each batch size; nothing before a try has converged."""
    job, seen = history.job, history.seen
    return _summaries(job, seen, believe(job, seen, setup)) if seen.epochs else ()


def _summaries(job: Job, seen: TrySummary, belief: CostBelief) -> tuple[BelievedJob, ...]:
    expected, low, high = np.exp(np.clip([belief.log_cost, *belief.bounds], -700, 700)).tolist()
    return tuple(
        BelievedJob(size, cost_j, low_j, high_j, seen.epochs.get((seen.era, size), Tally()).count)
        for size, cost_j, low_j, high_j in zip(job.batch_sizes, expected, low, high, strict=True)
    )


class Adaptive(Struct, frozen=True):
    """The policy. Nothing is drawn."""

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (the words are the protocol's)
        job, seen = history.job, history.seen
        failed = f"{_listed(seen.failed)} did not reach the target. " if seen.failed else ""
        left = [
            at
            for at, size in enumerate(job.batch_sizes)
            if size not in seen.failed
            or ((seen.era, size) in seen.epochs and seen.pending.get(size, 0) < STREAK)
        ]
        if not left:
            failed = f"No batch size has reached the target {_since(history)}. "
            left = list(range(len(job.batch_sizes)))
        if not seen.epochs:
            nearest = min(left, key=lambda at: abs(log(job.batch_sizes[at] / job.default)))
            return Choice(
                job.batch_sizes[nearest], reason=f"{failed}The default, or the nearest to it, goes first."
            )
        belief = believe(job, seen, setup)
        believed = _summaries(job, seen, belief)
        value, _ = outlook(belief, seen.horizon)
        least = min(left, key=lambda at: (belief.log_cost[at], at))
        running = {a_try.batch_size for a_try in history.tries if a_try.ended == "running"}
        known = [at for at in left if at in belief.proven]
        best = min(known, key=lambda at: (belief.log_cost[at], at), default=least)
        if _overspent(job, seen, setup, belief):
            at = best
            why = f"{believed[at]}, the best that has converged: other sizes have cost more than the default."
        elif known and any(believed[at].batch_size in running and at not in belief.proven for at in left):
            at = best
            why = f"{believed[at]}, the best that has converged, while {_listed(running)} is being tried."
        elif (at := min(left, key=lambda at: (value[at], at))) in belief.proven and (
            new := uncovered(job, seen, belief, left)
        ) is not None:
            at = new
            why = f"{believed[at]}; no try has judged it, and that may cost little."
        elif at == least:
            why = f"{believed[at]}, the least expected."
        else:
            why = (
                f"{believed[at]} against {believed[least]} at {believed[least].batch_size}: to know it better"
                f" may pay within {seen.horizon} recurrences."
            )
        return Choice(believed[at].batch_size, reason=failed + why)

    def verdict(self, history: JobHistory, a_try: Try) -> TryVerdict:
        job, seen = history.job, history.seen
        if not seen.epochs or a_try.batch_size not in job.batch_sizes:
            return TryVerdict(go_on=True)
        most, covers = _limit(job, seen, replace(a_try, epochs=1, cost_j=0.0, metrics=()))
        if a_try.epochs < most:
            if not (covers and seen.pace_behind(a_try)):
                return TryVerdict(go_on=True)
            best = seen.cheapest(a_try.setup)
            return TryVerdict(
                go_on=False,
                reason=f"the metric of {a_try.batch_size} is behind that of {best} at the same cost.",
            )
        pays = f"a try of {a_try.batch_size} pays for {most} epoch{'' if most == 1 else 's'} at most"
        return TryVerdict(go_on=False, reason=f"{pays}, this one has made {a_try.epochs}.")


def _overspent(job: Job, seen: TrySummary, setup: str, belief: CostBelief) -> bool:
    """Return whether the tries of other sizes in this era have cost more than the default would have.

    That is not known where the default has not converged in this era: then no size is kept for it.
    """
    default = job.batch_sizes.index(job.default)
    if default not in belief.proven:
        return False
    spent_j = sum(j for (of, size), j in seen.spent_j.items() if of == setup and size != job.default)
    count = sum(number for (of, _), number in seen.reached.items() if of == setup)
    default_j, by_default = exp(within(belief.log_cost[default])), seen.reached.get((setup, job.default), 0)
    if by_default:
        default_j = max(default_j, seen.spent_j[setup, job.default] / by_default)
    return spent_j > default_j * (count - by_default + LOSS + LOSS_SHARE * count)


def _listed(sizes: frozenset[int] | set[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes))


def _since(history: JobHistory) -> str:
    reached = [one.recurrence for one in history.tries if one.ended == "converged"]
    return f"since recurrence {max(reached)}" if reached else "yet"


def _may_take_longer(seen: TrySummary, size: int) -> bool:
    """Return whether so many runs of a size failed that the next one shows if long runs converge."""
    failures = seen.pending.get(size, 0) + seen.missed.get(size, 0)
    while failures > LONGER_FIRST and failures % LONGER_TIMES == 0:
        failures //= LONGER_TIMES
    return failures == LONGER_FIRST


@lru_cache(maxsize=16)
def _limit(job: Job, seen: TrySummary, a_try: Try) -> tuple[int, bool]:
    """Return after how many epochs a try is given up, and whether that is because nothing judged its size.

    One of a size that has converged may cost beta times what is expected of the best, and no more than makes
    a success cheapest, as often as runs fail; of any other, also no more than pays.
    """
    seen = seen.priced(a_try)
    belief = believe(job, seen, a_try.setup)
    at = job.batch_sizes.index(a_try.batch_size)
    best = float(within(belief.log_cost.min() - belief.cost.mean[0, at]))
    bound = job.beta * exp(best)
    if at in belief.proven:
        known = seen.epochs[seen.era, a_try.batch_size]
        deviation = seen.scatter * sqrt(1 + doubt(known.count))
        rate = seen.failing_rate(a_try.batch_size, pending=False)
        usual = exp(known.mean) * bound_of_try(rate, deviation, job.beta)[0]
        longer = LONGER if _may_take_longer(seen, a_try.batch_size) else 1.0
        return max(1, ceil(min(bound, usual) * longer)), False
    if (least_j := seen.cheapest_j.get(a_try.setup)) is not None:
        bound = min(bound, job.beta * least_j * exp(-float(within(belief.cost.mean[0, at]))))
    pays = float(outlook(belief, seen.horizon)[1][at])
    covers = uncovered(job, seen, belief, [at]) is not None and COVERAGE_STOP * exp(best) > pays
    if covers:
        pays = COVERAGE_STOP * exp(best)
    return max(1, ceil(min(bound, pays) - 1e-9)), covers
