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

Where epochs, or what they cost, leave their level an era ends: what was seen before it still tells the shape
of the curves, but not where they lie.

The figures of the processes were fitted to Zeus's published V100 traces; those of the epochs were then tuned
in the game there (`recorded_jobs`): flatter than fitted (slope 0.15, bend 0.08), so that larger sizes are
tried, and smoother (0.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, log
from random import Random
from statistics import NormalDist

import numpy as np

from analyzers.batch_size.cost_belief import CostBelief, believe
from analyzers.batch_size.gaussian import Floats
from analyzers.batch_size.policy import Choice, Job, Try, Verdict
from analyzers.batch_size.thompson import History
from analyzers.batch_size.try_summary import Seen, State, Tally

PROFILING = 1.2
"""What the first epoch at a size costs, power limits being searched, over what others do."""
COVERAGE, COVERAGE_OF = 0.02, 3.0
"""What each recurrence to come may save by a size that is unlike the curve, in units of the best size's cost,
times the probability of that; it falls with the sizes tried, as if `COVERAGE_OF` had been before."""
COVERAGE_STOP = 1.25
"""A try of a size that the curve does not recommend may cost so many times what the best size costs."""
NODES, COST_NODES = 15, 5
"""Equally likely epochs, and costs of an epoch, that stand for all."""


# ---- what follows ----------------------------------------------------------------------------------------


def _equally_likely(count: int) -> Floats:
    z = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return np.asarray(z / np.sqrt(np.mean(z**2)))


_Z, _Z_COST = _equally_likely(NODES), _equally_likely(COST_NODES)
_ALL = np.ones(NODES)
_LEFT = 1 - np.arange(NODES + 1) / NODES
"""Share of runs that need more epochs than the first so many nodes; ..."""
_LEFT_MEAN = np.array([*(_Z[k:].mean() for k in range(NODES)), _Z[-1]])
_LEFT_KNOWN = np.array([*(1 - _Z[k:].var() for k in range(NODES)), 1])
"""... their mean, and the share of the variance that is gone once that is known."""


def _outlook(belief: CostBelief, horizon: int) -> tuple[Floats, Floats]:
    """Return what a try of each size is expected to cost, with all that follows, and when to give it up.

    Dimensions of what is in between: hypothesis; size tried; its epoch cost; node of epochs, after none or
    more of which it is given up; size chosen later.

    Returns:
        Relative costs of this recurrence and those to come; epochs. Both of shape (n,).
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
    log_cost = epochs.mean + price + (deviation**2 + price_variance) / 2 - unit
    priced = (log_cost[:, None] - by_price**2 / 2)[:, :, None] + by_price[:, None] * _Z_COST[:, None]
    after = priced[:, :, :, None] + _moved(by_epochs, _Z, _ALL)
    given_up = priced[:, :, :, None] + _moved(by_epochs, _LEFT_MEAN, _LEFT_KNOWN)
    best_after, best_given_up = _least(after) / NODES, _least(given_up)
    instead = _least(given_up[..., list(belief.proven)]) if belief.proven else best_given_up
    # This try: epochs, and what is paid for them.
    an_epoch = np.exp(_within(price - unit)[:, None] + price_deviation[:, None] * _Z_COST)
    takes = np.maximum(1, np.exp(_within(epochs.mean[:, :, None] + deviation[:, :, None] * _Z)))
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
    return np.exp(_within(log_costs.min(axis=-1)))


def _before(values: Floats) -> Floats:
    """Return the sum of those before each, and of all."""
    return np.concatenate([np.zeros_like(values[..., :1]), values.cumsum(axis=-1)], axis=-1)


def _within(log_value: Floats) -> Floats:
    """Return it within what can be added up."""
    return np.clip(log_value, -80, 80)


# ---- the policy ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Believed:
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


def beliefs(state: State, setup: str) -> tuple[Believed, ...]:
    """Return what is believed of each batch size; nothing before a try has converged."""
    job, seen = state.history.job, state.seen
    return _summaries(job, seen, believe(job, seen, setup)) if seen.epochs else ()


def _summaries(job: Job, seen: Seen, belief: CostBelief) -> tuple[Believed, ...]:
    expected, low, high = np.exp(np.clip([belief.log_cost, *belief.bounds], -700, 700)).tolist()
    return tuple(
        Believed(size, cost_j, low_j, high_j, seen.epochs.get((seen.era, size), Tally()).count)
        for size, cost_j, low_j, high_j in zip(job.batch_sizes, expected, low, high, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The policy. Nothing is drawn."""

    def start(self, job: Job) -> State:
        return State(History(job))

    def began(self, state: State, a_try: Try) -> State:
        return state.heard(a_try)

    def ended(self, state: State, a_try: Try) -> State:
        return state.heard(a_try)

    def choose(self, state: State, setup: str, rng: Random) -> Choice:  # noqa: ARG002  (the words are the protocol's)
        job, seen = state.history.job, state.seen
        failed = f"{_listed(seen.failed)} did not reach the target. " if seen.failed else ""
        left = [
            at
            for at, size in enumerate(job.batch_sizes)
            if size not in seen.failed or (seen.era, size) in seen.epochs
        ]
        if not left:
            failed = f"No batch size has reached the target {_since(state)}. "
            left = list(range(len(job.batch_sizes)))
        if not seen.epochs:
            nearest = min(left, key=lambda at: abs(log(job.batch_sizes[at] / job.default)))
            return Choice(
                job.batch_sizes[nearest], reason=f"{failed}The default, or the nearest to it, goes first."
            )
        belief = believe(job, seen, setup)
        believed = _summaries(job, seen, belief)
        value, _ = _outlook(belief, seen.horizon)
        least = min(left, key=lambda at: (belief.log_cost[at], at))
        running = {a_try.batch_size for a_try in state.history.tries if a_try.ended == "running"}
        known = [at for at in left if at in belief.proven]
        if known and any(believed[at].batch_size in running and at not in belief.proven for at in left):
            at = min(known, key=lambda at: (belief.log_cost[at], at))
            why = f"{believed[at]}, the best that has converged, while {_listed(running)} is being tried."
        elif (at := min(left, key=lambda at: (value[at], at))) in belief.proven and (
            new := _uncovered(job, seen, belief, left)
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

    def verdict(self, state: State, a_try: Try) -> Verdict:
        job, seen = state.history.job, state.seen
        if not seen.epochs or a_try.batch_size not in job.batch_sizes:
            return Verdict(go_on=True)
        most = _limit(job, seen, replace(a_try, epochs=1, cost_j=0.0, metrics=()))
        if a_try.epochs < most:
            return Verdict(go_on=True)
        return Verdict(go_on=False, reason=f"more than {most} epochs of {a_try.batch_size} do not pay.")


def _uncovered(job: Job, seen: Seen, belief: CostBelief, left: Sequence[int]) -> int | None:
    """Return a size, by index, that no try of this era has judged and that may be tried despite the curve.

    A size may be unlike all others. A try judges it when it converges, or costs as much as the best size. The
    size that is expected to cost least above the best one goes first, once the recurrences to come may save
    more than that.
    """
    if belief.fresh.all():
        return None  # nothing has run on this setup yet
    best = float(belief.log_cost.min())
    judged = set(belief.proven) | {
        at
        for at, size in enumerate(job.batch_sizes)
        if any(of == size and least + belief.cost.mean[0, at] >= best for of, least in seen.more)
    }
    new = [at for at in left if at not in judged]
    above = _above(belief)
    at = min(new, key=lambda at: (above[at], at), default=None)
    may_save = seen.horizon * COVERAGE / (COVERAGE_OF + len(judged))
    return at if at is not None and above[at] <= may_save else None


def _above(belief: CostBelief) -> Floats:
    """Return what judging each size is expected to cost above the best one, in units of that; shape (n,).

    A try is given up at `COVERAGE_STOP`, and the best size follows then.
    """
    best = belief.log_cost.min()
    deviation = np.sqrt(belief.epochs.variance + belief.noise[:, None] + belief.cost.variance[0])
    log_cost = belief.epochs.mean + belief.cost.mean[0] - best
    costs = np.exp(_within(log_cost[:, :, None] + deviation[:, :, None] * _Z))
    above = np.where(costs > COVERAGE_STOP, COVERAGE_STOP, costs - 1).mean(axis=2)
    profiling = (PROFILING - 1) * np.exp(_within(belief.cost.mean[0] - best))
    return np.asarray(belief.weight @ above + belief.fresh * profiling)


def _listed(sizes: frozenset[int] | set[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes))


def _since(state: State) -> str:
    reached = [one.recurrence for one in state.history.tries if one.ended == "converged"]
    return f"since recurrence {max(reached)}" if reached else "yet"


@lru_cache(maxsize=16)
def _limit(job: Job, seen: Seen, a_try: Try) -> int:
    """Return after how many epochs a try is given up.

    One of a size that has converged may cost beta times what is expected of the best; of any other, also no
    more than pays.
    """
    seen = seen.priced(a_try)
    belief = believe(job, seen, a_try.setup)
    at = job.batch_sizes.index(a_try.batch_size)
    best = float(_within(belief.log_cost.min() - belief.cost.mean[0, at]))
    bound = job.beta * exp(best)
    if at in belief.proven:
        return max(1, ceil(bound))
    if (least_j := seen.cheapest_j.get(a_try.setup)) is not None:
        bound = min(bound, job.beta * least_j * exp(-float(_within(belief.cost.mean[0, at]))))
    pays = float(_outlook(belief, seen.horizon)[1][at])
    if _uncovered(job, seen, belief, [at]) is not None:
        pays = max(pays, COVERAGE_STOP * exp(best))
    return max(1, ceil(min(bound, pays) - 1e-9))
