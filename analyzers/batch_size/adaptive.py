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

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, erfc, exp, inf, log, log2, pi, sqrt
from random import Random
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from analyzers.batch_size.policy import Choice, Job, Try, Verdict
from analyzers.batch_size.thompson import History

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Process:
    """A Gaussian process over x: octaves of the batch size above the default."""

    slope: float = 0.0
    """By octave; of the mean, like `bend`."""
    bend: float = 0.0
    level: float = 0.0
    """Standard deviations, like all that follow: of everything, ..."""
    line: float = 0.0
    """... by x, ..."""
    parabola: float = 0.0
    """... by half its square, ..."""
    smooth: float = 0.0
    length: float = 1.0
    """... and of a smooth part, and how far that reaches in octaves."""

    def mean(self, x: Floats) -> Floats:
        return self.slope * x + self.bend * x**2 / 2

    def covariance(self, x: Floats) -> Floats:
        apart = sqrt(3) * np.abs(x[:, None] - x) / self.length
        squares = np.outer(x**2, x**2) / 4
        found = self.level**2 + self.line**2 * np.outer(x, x) + self.parabola**2 * squares
        return np.asarray(found + self.smooth**2 * (1 + apart) * np.exp(-apart))


EPOCHS = Process(slope=0.05, bend=0.05, level=10, line=0.25, parabola=0.03, smooth=0.08, length=1.6)
COST = Process(slope=-0.05, bend=0.08, level=10, line=0.17, parabola=0.02, smooth=0.5, length=8)
"""Logarithms of epochs to the target, and of an epoch's cost, J."""
CHANGED = Process(level=0.5, line=0.15, parabola=0.02, smooth=0.2, length=2)
OTHER = Process(level=1, line=0.1, parabola=0.01, smooth=0.2, length=2.4)
"""What an era's epochs, and a GPU model's or an era's epoch costs, have to themselves."""
SCATTER = ((0.04, 0.02), (0.12, 0.05), (0.35, 0.1))
"""Standard deviations of the log of a run's epochs, and of what a batch size has to itself."""
ROUNDING = 0.15
"""Standard deviation of what whole epochs hide: a size has it to itself, over the epochs that it takes."""
FEW = 3.0
"""The mean of k runs of a size is as uncertain as that of k / (1 + `FEW` / k): its scatter may be its own."""
BAD, WORSE = 0.05, 1.0
"""How likely a size's only run was a bad one, and the standard deviation that it has then."""
BAD_LONG = 0.25
"""Probability that a bad run needs more epochs than one that is given up has had."""
OWN, EXACT, WHOLE = 0.015, 0.001, 0.1
"""Standard deviations of the log of an epoch's cost: what a size has to itself; the least as which it is
known once the power limit is chosen; as it is seen before, from a try with its profiling."""
PRICES, PRICES_DOF = 0.03, 1.0
"""Standard deviation of the log of an epoch's cost from try to try, before any was seen; worth so many."""
NEVER = 0.06
"""Probability for each octave from the nearest size that did that a size never reaches the target."""
PROFILING = 1.2
"""What the first epoch at a size costs, power limits being searched, over what others do."""
COVERAGE, COVERAGE_OF = 0.02, 3.0
"""What each recurrence to come may save by a size that is unlike the curve, in units of the best size's cost,
times the probability of that; it falls with the sizes tried, as if `COVERAGE_OF` had been before."""
COVERAGE_STOP = 1.25
"""A try of a size that the curve does not recommend may cost so many times what the best size costs."""
HORIZON = 10
NODES, COST_NODES = 15, 5
"""Equally likely epochs, and costs of an epoch, that stand for all."""
MOST = 20
"""Tries that did not converge are remembered, the latest."""
ERAS = 3
"""Are remembered, the latest."""
USUAL, ALARM, CLIP = 0.5, 8.0, 4.0
"""An era ends when deviations beyond `USUAL` standard deviations add up to `ALARM`; one counts `CLIP` at most
(Page, "Continuous Inspection Schemes", Biometrika 41, 1954)."""
JUMP, PRICE_CLIP = 0.15, 6.0
"""An era also ends when the log of an epoch's cost has left its level, by the same sum, and by `JUMP`."""
EXPECTED, EXPECTED_DOF = 0.15, 4
"""Standard deviation of a run's log epochs for those alarms, before any were seen; worth so many runs."""


# ---- what was seen ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tally:
    """Count, mean and sum of squared deviations of values."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def and_(self, value: float) -> "_Tally":
        off = value - self.mean
        mean = self.mean + off / (self.count + 1)
        return _Tally(self.count + 1, mean, self.squares + off * (value - mean))


Group: TypeAlias = tuple[int, str]
"""Price era and setup."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A summary of the tries that have ended, in the order of their numbers. None equals another."""

    epochs: Mapping[tuple[int, int], _Tally] = field(default_factory=dict)
    """Logarithms, by era and batch size, of those that converged."""
    more: tuple[tuple[int, float], ...] = ()
    """In this era: batch size, and the log of the epochs that were not enough."""
    price: Mapping[tuple[Group, int], _Tally] = field(default_factory=dict)
    """Log of an epoch's cost at the chosen limit, by batch size."""
    whole: Mapping[tuple[Group, int], float] = field(default_factory=dict)
    """The same of tries that had not chosen a limit; the latest."""
    cheapest_j: Mapping[str, float] = field(default_factory=dict)
    """Least cost of a try that converged in this era, by setup."""
    era: int = 0
    price_era: int = 0
    first: int = 0
    """Recurrence of this era."""
    last: int = -1
    up: float = 0.0
    down: float = 0.0
    """By how much epochs were above and below what they used to be, lately."""
    dearer: float = 0.0
    cheaper: float = 0.0
    """The same of the cost of an epoch."""
    failed: frozenset[int] = frozenset()
    """Batch sizes that failed since one last converged."""

    @property
    def horizon(self) -> int:
        """Recurrences that are expected to come."""
        return HORIZON + self.last + 1 - self.first

    @property
    def scatter(self) -> float:
        """Standard deviation of a run's log epochs."""
        return _deviation(self.epochs.values(), EXPECTED, EXPECTED_DOF)

    @property
    def price_scatter(self) -> float:
        """Standard deviation of the log of an epoch's cost, from try to try."""
        return max(EXACT, _deviation(self.price.values(), PRICES, PRICES_DOF))

    def and_(self, a_try: Try) -> "_Seen":
        """Return it with a try that has ended."""
        size, converged = a_try.batch_size, a_try.ended == "converged"
        seen = replace(self, last=max(self.last, a_try.recurrence)).priced(a_try, ended=True)
        if a_try.ended == "lost":
            return seen
        took = log(a_try.epochs)
        if known := seen.epochs.get((seen.era, size)):
            off = (took - known.mean) / (seen.scatter * sqrt(1 + 1 / known.count))
            off = max(-CLIP if converged else 0.0, min(CLIP, off))
            up, down = max(0.0, seen.up + off - USUAL), max(0.0, seen.down - off - USUAL)
            seen = seen.changed(a_try) if max(up, down) > ALARM else replace(seen, up=up, down=down)
        if not converged:
            more = (*seen.more, (size, log(a_try.epochs + 0.5)))[-MOST:]
            return replace(seen, more=more, failed=seen.failed | {size})
        tally = seen.epochs.get((seen.era, size), _Tally()).and_(took)
        epochs = {**seen.epochs, (seen.era, size): tally}
        cheapest_j = min(seen.cheapest_j.get(a_try.setup, inf), a_try.cost_j)
        cheapest = {**seen.cheapest_j, a_try.setup: cheapest_j}
        return replace(seen, epochs=epochs, cheapest_j=cheapest, failed=frozenset())

    def priced(self, a_try: Try, *, ended: bool = False) -> "_Seen":
        """Return it with what an epoch of a try costs; the level is watched when it has ended."""
        epoch_j = a_try.epoch_cost_j or a_try.cost_j / max(1, a_try.epochs)
        key = (self.price_era, a_try.setup), a_try.batch_size
        if not 0 < epoch_j < inf:
            return self
        price = log(epoch_j)
        if a_try.epoch_cost_j is None:
            return replace(self, whole={**self.whole, key: price})
        known = self.price.get(key)
        seen = self
        if known and ended:
            off = (price - known.mean) / (self.price_scatter * sqrt(1 + 1 / known.count))
            off = max(-PRICE_CLIP, min(PRICE_CLIP, off))
            dearer = max(0.0, self.dearer + off - USUAL)
            cheaper = max(0.0, self.cheaper - off - USUAL)
            if max(dearer, cheaper) > ALARM:
                if abs(price - known.mean) > JUMP:
                    return self.changed(a_try).priced(a_try)
                seen = replace(self, price_era=self.price_era + 1, dearer=0.0, cheaper=0.0)
                key, known = ((seen.price_era, a_try.setup), a_try.batch_size), None
            else:
                seen = replace(self, dearer=dearer, cheaper=cheaper)
        return replace(seen, price={**seen.price, key: (known or _Tally()).and_(price)})

    def changed(self, a_try: Try) -> "_Seen":
        """Return it with an era that begins with a try."""
        oldest, oldest_price = self.era + 2 - ERAS, self.price_era + 2 - ERAS
        return _Seen(
            epochs={key: tally for key, tally in self.epochs.items() if key[0] >= oldest},
            price={key: tally for key, tally in self.price.items() if key[0][0] >= oldest_price},
            era=self.era + 1,
            price_era=self.price_era + 1,
            first=a_try.recurrence,
            last=self.last,
        )


def _deviation(tallies: Iterable[_Tally], expected: float, dof: float) -> float:
    """Return the pooled standard deviation, with an expected one that counts as ``dof`` values."""
    squares = dof * expected**2
    for tally in tallies:
        dof += tally.count - 1
        squares += tally.squares
    return sqrt(squares / dof)


@dataclass(frozen=True, slots=True)
class State:
    """A job, its tries, and what those that have ended have shown."""

    history: History
    seen: _Seen = field(default=_Seen(), compare=False)

    def heard(self, a_try: Try) -> "State":
        """Return it with a report of a try. All tries are counted again where the report comes late."""
        history = self.history.heard(a_try)
        if history is self.history or a_try.ended == "running":
            return State(history, self.seen)
        late = any(one.number > a_try.number and one.ended != "running" for one in history.tries)
        again = late or any(
            one.number == a_try.number and one.ended != "running" for one in self.history.tries
        )
        seen = _Seen() if again else self.seen
        for one in history.tries if again else (a_try,):
            if one.ended != "running" and one.epochs > 0 and one.batch_size > 0:
                seen = seen.and_(one)
        return State(history, seen)


# ---- what is believed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Point:
    """An observation of a curve."""

    group: Hashable
    at: int
    """Index of the batch size."""
    value: float
    variance: tuple[float, ...]
    """By hypothesis."""


@dataclass(frozen=True, slots=True)
class _Curves:
    """Normal distributions of curves over n batch sizes, one by each of h hypotheses."""

    mean: Floats
    """Shape (h, n)."""
    covariance: Floats
    """Shape (h, n, n)."""
    evidence: Floats
    """Logarithm; shape (h,)."""

    @property
    def variance(self) -> Floats:
        return np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0)

    def given_more(self, at: int, least: float, noise: Floats, bad: float) -> tuple["_Curves", Floats]:
        """Return them once a value seen at a size was above ``least``; the moments are matched.

        With them, how likely that was by the curves alone, by hypothesis.

        Args:
            at: index of the size.
            least: what the value was above.
            noise: variance of the value, by hypothesis.
            bad: how likely it is that the value was above it whatever the curve says there.
        """
        deviation = np.sqrt(self.variance[:, at] + noise)
        z = (least - self.mean[:, at]) / deviation
        hazard = np.array([_mean_beyond(one) for one in z.tolist()])
        above = np.array([max(1e-12, erfc(one / sqrt(2)) / 2) for one in z.tolist()])
        beyond = (1 - bad) * above
        share = beyond / (bad + beyond)
        shrink = share * np.minimum(0.999, hazard * (hazard - z)) - share * (1 - share) * hazard**2
        gain = self.covariance[:, at] / deviation[:, None]
        mean = self.mean + gain * (share * hazard)[:, None]
        covariance = self.covariance - shrink[:, None, None] * gain[:, :, None] * gain[:, None]
        return replace(self, mean=mean, covariance=covariance), above

    def only(self, hypotheses: npt.NDArray[np.bool_], sizes: int) -> "_Curves":
        """Return some of them, at the first so many sizes."""
        return _Curves(
            self.mean[hypotheses, :sizes],
            self.covariance[hypotheses, :sizes, :sizes],
            self.evidence[hypotheses],
        )


def _mean_beyond(z: float) -> float:
    """Return the mean of what is above z of a standard normal distribution."""
    above = 0.5 * erfc(z / sqrt(2))
    return exp(-(z**2) / 2) / sqrt(2 * pi) / above if above > 1e-12 else z + 1 / z


def _curves(
    x: Floats,
    common: Process,
    own: Process,
    group: Hashable,
    points: Sequence[_Point],
    alone: Sequence[float],
) -> _Curves:
    """Return the curves of a group, given what was seen of all groups.

    Args:
        x: shape (n,).
        common: what the curves of all groups have in common.
        own: what each has to itself, as soon as there are two.
        group: whose are wanted.
        alone: standard deviation of what each size has to itself, by hypothesis.
    """
    number = {of: i for i, of in enumerate(dict.fromkeys([group, *(point.group for point in points)]))}
    of = np.array([number[point.group] for point in points], dtype=int)
    at = np.array([point.at for point in points], dtype=int)
    noise = np.array([point.variance for point in points]).reshape(len(points), len(alone)).T
    shared = common.covariance(x) + np.array(alone)[:, None, None] ** 2 * np.eye(len(x))
    apart = own.covariance(x) if len(number) > 1 else np.zeros((len(x), len(x)))
    seen = shared[:, at[:, None], at] + np.where(of[:, None] == of, apart[at[:, None], at], 0)
    seen += noise[:, :, None] * np.eye(len(at))
    cross = shared[:, at] + np.where(of[:, None] == 0, apart[at], 0)
    mean = common.mean(x)
    off = np.array([point.value for point in points]) - mean[at]
    gain = np.swapaxes(np.linalg.solve(seen, cross), 1, 2)
    surprise = np.linalg.solve(seen, np.broadcast_to(off[:, None], (len(alone), len(at), 1)))[:, :, 0] @ off
    evidence = -0.5 * (surprise + np.linalg.slogdet(seen)[1])
    return _Curves(mean + gain @ off, shared + apart - gain @ cross, evidence)


@dataclass(frozen=True, slots=True)
class _Belief:
    """Beliefs about n batch sizes on a setup, by each of h hypotheses."""

    epochs: _Curves
    noise: Floats
    """Variance of a run's log epochs; shape (h,)."""
    weight: Floats
    """Probability; shape (h,)."""
    cost: _Curves
    """By one hypothesis."""
    never: Floats
    """Probability that a size does not reach the target; shape (n,)."""
    price_noise: float
    """Variance of the log of an epoch's cost, from try to try."""
    fresh: Floats
    """1 for each size whose power limits were not profiled on the setup, 0 for others; shape (n,)."""
    proven: tuple[int, ...]
    """Sizes, by index, that converged in this era."""

    @property
    def log_cost(self) -> Floats:
        """Log of the expected cost, J; shape (n,)."""
        spread = (self.epochs.variance + self.noise[:, None]) / 2
        logs = self.epochs.mean + spread + np.log(self.weight)[:, None]
        return np.asarray(np.logaddexp.reduce(logs, axis=0) + self.cost.mean[0] + self.cost.variance[0] / 2)

    @property
    def bounds(self) -> Floats:
        """Log of the 95 % interval of a size's mean cost, J; shape (2, n)."""
        by_hypothesis = self.epochs.mean + self.noise[:, None] / 2
        mean = self.weight @ by_hypothesis
        variance = self.weight @ (self.epochs.variance + (by_hypothesis - mean) ** 2) + self.cost.variance[0]
        return np.asarray(mean + self.cost.mean[0] + np.array([[-1.96], [1.96]]) * np.sqrt(variance))


def _believe(job: Job, seen: _Seen, setup: str) -> _Belief:
    """Return the belief once a try has converged."""
    of_tries = (*seen.epochs, *seen.price, *seen.whole)
    others = {size for _, size in of_tries} | {size for size, _ in seen.more}
    sizes = (*job.batch_sizes, *sorted(others - set(job.batch_sizes)))
    octaves = tuple(log2(size / job.default) for size in sizes)
    index = {size: at for at, size in enumerate(sizes)}
    count = len(job.batch_sizes)
    reached = {octaves[index[size]] for _, size in seen.epochs}
    away = np.array([min(abs(x - other) for other in reached) for x in octaves])
    proven = {size for era, size in seen.epochs if era == seen.era}
    epochs, noise, weight, never = _epochs(
        octaves,
        count,
        seen.era,
        tuple((era, index[size], tally) for (era, size), tally in seen.epochs.items()),
        tuple((index[size], least) for size, least in seen.more),
        tuple((1 - np.exp(-NEVER * away)).tolist()),
    )
    group = seen.price_era, setup
    scatter = seen.price_scatter
    prices = {key: (tally.mean, scatter**2 / tally.count) for key, tally in seen.price.items()}
    whole = {key: (price, WHOLE**2) for key, price in seen.whole.items() if key not in prices}
    cost = _cost(
        octaves,
        count,
        group,
        tuple((of, index[size], *price) for (of, size), price in (prices | whole).items()),
    )
    return _Belief(
        epochs,
        noise,
        weight,
        cost,
        never,
        scatter**2,
        np.array([float((group, size) not in prices) for size in job.batch_sizes]),
        tuple(at for at, size in enumerate(job.batch_sizes) if size in proven),
    )


@lru_cache(maxsize=4)
def _epochs(
    octaves: tuple[float, ...],
    count: int,
    era: int,
    seen: tuple[tuple[int, int, _Tally], ...],
    more: tuple[tuple[int, float], ...],
    never: tuple[float, ...],
) -> tuple[_Curves, Floats, Floats, Floats]:
    """Return the log epochs at the first ``count`` sizes, their noise, weights, and what never converges.

    See `_Belief`. ``never`` is what is believed of that before any try failed.
    """
    single = [i for i, (*_, tally) in enumerate(seen) if tally.count == 1 and len(seen) > 1]
    supposed = [*((*scatter, -1) for scatter in SCATTER), *((*SCATTER[1], bad) for bad in single)]
    points = [
        _Point(
            of, at, tally.mean,
            tuple(noise**2 * _doubt(tally.count) + (i == bad) * WORSE**2 for noise, _, bad in supposed),
        )
        for i, (of, at, tally) in enumerate(seen)
    ]  # fmt: skip
    rounding = ROUNDING / exp(min(tally.mean for *_, tally in seen))
    alone = [sqrt(own**2 + rounding**2) for _, own, _ in supposed]
    found = _curves(np.array(octaves), EPOCHS, CHANGED, era, points, alone)
    noise = np.array([noise**2 for noise, *_ in supposed])
    within = sum(tally.squares for *_, tally in seen), sum(tally.count - 1 for *_, tally in seen)
    prior = np.array([log(BAD) if bad >= 0 else 0.0 for *_, bad in supposed])
    evidence = found.evidence + prior - (within[0] / noise + within[1] * np.log(noise)) / 2
    weight = np.exp(evidence - evidence.max())
    likely = weight > 0.01 * weight.sum()
    found, noise, weight = found.only(likely, len(octaves)), noise[likely], weight[likely]
    weight = weight / weight.sum()
    heard = {at for of, at, _ in seen if of == era}
    lost = [0.0 if at in heard else chance for at, chance in enumerate(never)]
    for at, least in more:
        bad = 0 if at in heard else BAD
        found, above = found.given_more(at, least, noise, bad)
        by_chance = bad * BAD_LONG + (1 - bad) * float(weight @ above)
        lost[at] /= lost[at] + (1 - lost[at]) * by_chance
        heard.add(at)
    return found.only(np.full(len(noise), True), count), noise, weight, np.array(lost[:count])  # noqa: FBT003


def _doubt(count: int) -> float:
    """Return the variance of the mean of so many runs, over that of one of many."""
    return (1 + FEW / count) / count


@lru_cache(maxsize=4)
def _cost(
    octaves: tuple[float, ...],
    count: int,
    group: Hashable,
    seen: tuple[tuple[Hashable, int, float, float], ...],
) -> _Curves:
    """Return the curve of the log of an epoch's cost at the first ``count`` sizes."""
    points = [_Point(of, at, price, (variance,)) for of, at, price, variance in seen]
    return _curves(np.array(octaves), COST, OTHER, group, points, [OWN]).only(np.array([True]), count)


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


def _outlook(belief: _Belief, horizon: int) -> tuple[Floats, Floats]:
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
    return _summaries(job, seen, _believe(job, seen, setup)) if seen.epochs else ()


def _summaries(job: Job, seen: _Seen, belief: _Belief) -> tuple[Believed, ...]:
    expected, low, high = np.exp(np.clip([belief.log_cost, *belief.bounds], -700, 700)).tolist()
    return tuple(
        Believed(size, cost_j, low_j, high_j, seen.epochs.get((seen.era, size), _Tally()).count)
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
        belief = _believe(job, seen, setup)
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


def _uncovered(job: Job, seen: _Seen, belief: _Belief, left: Sequence[int]) -> int | None:
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


def _above(belief: _Belief) -> Floats:
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
def _limit(job: Job, seen: _Seen, a_try: Try) -> int:
    """Return after how many epochs a try is given up.

    One of a size that has converged may cost beta times what is expected of the best; of any other, also no
    more than pays.
    """
    seen = seen.priced(a_try)
    belief = _believe(job, seen, a_try.setup)
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
