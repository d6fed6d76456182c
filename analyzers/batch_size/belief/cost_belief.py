"""Beliefs about the cost of each batch size: a curve of its epochs and one of their cost. Pure."""

from collections.abc import Hashable
from functools import lru_cache
from math import exp, log, log2, sqrt

import numpy as np
from msgspec import Struct

from analyzers.batch_size.belief.failing_runs import bound_of_try
from analyzers.batch_size.belief.gaussian import (
    Curves,
    Floats,
    GaussianPoint,
    GaussianProcess,
    conditioned,
    equally_likely,
    within,
)
from analyzers.batch_size.belief.try_summary import MetricPace, Tally, TrySummary
from analyzers.batch_size.policy import Job

EPOCHS = GaussianProcess(slope=0.05, bend=0.05, level=10, line=0.25, parabola=0.03, smooth=0.08, length=1.6)
COST = GaussianProcess(slope=-0.05, bend=0.08, level=10, line=0.17, parabola=0.02, smooth=0.5, length=8)
"""Logarithms of epochs to the target, and of an epoch's cost, J."""
CHANGED = GaussianProcess(level=0.5, line=0.15, parabola=0.02, smooth=0.2, length=2)
OTHER = GaussianProcess(level=1, line=0.1, parabola=0.01, smooth=0.2, length=2.4)
"""What an era's epochs, and a GPU model's or an era's epoch costs, have to themselves."""
SCATTER = ((0.03, 0.02), (0.07, 0.05), (0.14, 0.08), (0.35, 0.12))
"""Standard deviations of the log of a run's epochs, and of what a batch size has to itself. With 0.12 alone
between 0.04 and 0.35, runs that scatter by 0.08 were believed too little: the second-best size stayed."""
ROUNDING = 0.15
"""Standard deviation of what whole epochs hide: a size has it to itself, over the epochs that it takes."""
INTERPOLATED = 0.12
"""The same where the metric tells the fraction of an epoch: by a straight line, and with noise."""
FEW = 1.5
"""The mean of k runs of a size is as uncertain as that of k / (1 + `FEW` / k): its scatter may be its own."""
BAD, WORSE = 0.05, 1.0
"""How likely a size's only run was a bad one, and the standard deviation that it has then."""
BAD_LONG = 0.25
"""Probability that a bad run needs more epochs than one that is given up has had."""
OWN, WHOLE = 0.015, 0.1
"""Standard deviations of the log of an epoch's cost: what a size has to itself; and as it is seen in a
try with its profiling."""
UNLIKE, BELOW = 0.05, 0.3
"""The probability that a size is unlike the curve, with a standard deviation of `WORSE`: supposed if its log
epochs are so far below the line through the two nearest others."""
NODE_Z = equally_likely(15)
ROUNDED = 2.0
"""What is expected of rounding up is worth so many runs."""
NEVER = 0.06
"""Probability for each octave from the nearest size that did that a size never reaches the target."""


class CostBelief(Struct, frozen=True, kw_only=True):
    """Beliefs about n batch sizes on a setup, by each of h hypotheses."""

    epochs: Curves
    noise: Floats
    """Variance of a run's log epochs; shape (h,)."""
    weight: Floats
    """Probability; shape (h,)."""
    cost: Curves
    """By one hypothesis."""
    never: Floats
    """Probability that a size does not reach the target; shape (n,)."""
    price_noise: float
    """Variance of the log of an epoch's cost, from try to try."""
    fresh: Floats
    """1 for each size whose power limits were not profiled on the setup, 0 for others; shape (n,)."""
    proven: tuple[int, ...]
    """Sizes, by index, that converged in this era."""
    failing: Floats
    """Log of the cost of a success over that of a run that converges; shape (n,)."""
    fractional: bool
    """The epochs have fractions; a run pays whole ones."""
    rounded: Floats
    """Log of whole epochs over those with a fraction, in the runs of each size; its weight; shape (2, n)."""

    @property
    def rounding_up(self) -> Floats:
        """Log of expected whole epochs over expected epochs; shape (h, n)."""
        if not self.fractional:
            return np.zeros_like(self.epochs.mean)
        deviation = np.sqrt(self.epochs.variance + self.noise[:, None])
        runs = np.exp(within(self.epochs.mean[:, :, None] + deviation[:, :, None] * NODE_Z))
        expected = np.log(np.ceil(runs).mean(axis=2) / runs.mean(axis=2))
        of_runs, weight = self.rounded
        return np.asarray(expected + weight * (of_runs - expected))

    @property
    def log_cost(self) -> Floats:
        """Log of the expected cost, J; shape (n,)."""
        spread = (self.epochs.variance + self.noise[:, None]) / 2 + self.rounding_up
        logs = self.epochs.mean + spread + np.log(self.weight)[:, None]
        prices = self.cost.mean[0] + self.cost.variance[0] / 2
        return np.asarray(np.logaddexp.reduce(logs, axis=0) + prices + self.failing)

    @property
    def bounds(self) -> Floats:
        """Log of the 95 % interval of a size's mean cost, J; shape (2, n)."""
        by_hypothesis = self.epochs.mean + self.noise[:, None] / 2 + self.rounding_up
        mean = self.weight @ by_hypothesis
        variance = self.weight @ (self.epochs.variance + (by_hypothesis - mean) ** 2) + self.cost.variance[0]
        return np.asarray(
            mean + self.failing + self.cost.mean[0] + np.array([[-1.96], [1.96]]) * np.sqrt(variance)
        )


def believe(job: Job, seen: TrySummary, setup: str) -> CostBelief:
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
    rates = {size: seen.failing_rate(size) for size in sizes}
    epochs, noise, weight, never = _epochs(
        octaves,
        count,
        seen.era,
        tuple((era, index[size], tally) for (era, size), tally in seen.epochs.items()),
        tuple((index[size], least) for size, least in seen.more),
        tuple((1 - np.exp(-NEVER * away)).tolist()),
        tuple((index[size], pace) for size, pace in seen.behind.items()),
        tuple(rates.values()),
        fractional=seen.fractional,
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
    return CostBelief(
        epochs=epochs,
        noise=noise,
        weight=weight,
        cost=cost,
        never=never,
        price_noise=scatter**2,
        fresh=np.array([float((group, size) not in prices) for size in job.batch_sizes]),
        proven=tuple(at for at, size in enumerate(job.batch_sizes) if size in proven),
        failing=np.array(
            [log(bound_of_try(rates[size], seen.scatter, job.beta)[1]) for size in job.batch_sizes]
        ),
        fractional=seen.fractional,
        rounded=np.array([_rounded(seen, size) for size in job.batch_sizes]).T,
    )


def _rounded(seen: TrySummary, size: int) -> tuple[float, float]:
    """Return what rounding up has added to the log epochs of a size's runs, and how much that counts."""
    count = seen.epochs.get((seen.era, size), Tally()).count
    return seen.whole_epochs.get((seen.era, size), 0.0), count / (count + ROUNDED)


@lru_cache(maxsize=4)
def _epochs(
    octaves: tuple[float, ...],
    count: int,
    era: int,
    seen: tuple[tuple[int, int, Tally], ...],
    more: tuple[tuple[int, float], ...],
    never: tuple[float, ...],
    paces: tuple[tuple[int, MetricPace], ...],
    rates: tuple[float, ...],
    *,
    fractional: bool,
) -> tuple[Curves, Floats, Floats, Floats]:
    """Return log epochs at the first ``count`` sizes, their noise, weights, and what never converges."""
    low = _below(octaves, era, seen)
    single = [i for i, (*_, tally) in enumerate(seen) if tally.count == 1 and len(seen) > 1 and i not in low]
    supposed = [
        *((*scatter, -1, -1) for scatter in SCATTER),
        *((*scatter, bad, -1) for scatter in SCATTER[1:-1] for bad in single),
        *((*scatter, -1, unlike) for scatter in SCATTER for unlike in low),
    ]
    points = [
        GaussianPoint(
            of, at, tally.mean,
            tuple(noise**2 * doubt(tally.count) + (i == bad) * WORSE**2 for noise, _, bad, _ in supposed),
        )
        for i, (of, at, tally) in enumerate(seen)
    ]  # fmt: skip
    points += [
        GaussianPoint(era, at, pace.log_epochs, tuple(pace.deviation**2 + one[0] ** 2 for one in supposed))
        for at, pace in paces
    ]
    rounding = (INTERPOLATED if fractional else ROUNDING) / exp(min(tally.mean for *_, tally in seen))
    alone = np.array([[sqrt(own**2 + rounding**2)] * len(octaves) for _, own, *_ in supposed])
    for at, (*_, unlike) in enumerate(supposed):
        if unlike >= 0:
            alone[at, seen[unlike][1]] = WORSE
    found = conditioned(np.array(octaves), EPOCHS, CHANGED, era, points, alone)
    noise = np.array([noise**2 for noise, *_ in supposed])
    squares, dof = sum(tally.squares for *_, tally in seen), sum(tally.count - 1 for *_, tally in seen)
    prior = np.array(
        [log(BAD) if bad >= 0 else log(UNLIKE) if unlike >= 0 else 0.0 for *_, bad, unlike in supposed]
    )
    evidence = found.evidence + prior - (squares / noise + dof * np.log(noise)) / 2
    weight = np.exp(evidence - evidence.max())
    likely = weight > 0.01 * weight.sum()
    found, noise, weight = found.only(likely, len(octaves)), noise[likely], weight[likely]
    weight = weight / weight.sum()
    heard = {at for of, at, _ in seen if of == era}
    lost = [0.0 if at in heard else chance for at, chance in enumerate(never)]
    for at, least in more:
        bad = 0 if at in heard else BAD
        found, above = found.given_more(at, least, noise, rates[at] + (1 - rates[at]) * bad)
        long = bad * BAD_LONG + (1 - bad) * float(weight @ above)
        lost[at] /= lost[at] + (1 - lost[at]) * (rates[at] + (1 - rates[at]) * long)
        heard.add(at)
    return found.only(np.full(len(noise), True), count), noise, weight, np.array(lost[:count])  # noqa: FBT003


def _below(octaves: tuple[float, ...], era: int, seen: tuple[tuple[int, int, Tally], ...]) -> list[int]:
    """Return which of those seen need far fewer epochs than the line through the two nearest others says."""
    known = [(octaves[at], tally.mean, i) for i, (of, at, tally) in enumerate(seen) if of == era]
    low = []
    for x, value, i in known:
        others = sorted((abs(other[0] - x), other) for other in known if other[0] != x)
        if len(others) < 2:
            continue
        (first, begin, _), (last, end, _) = others[0][1], others[1][1]
        if value < begin + (end - begin) * (x - first) / (last - first) - BELOW:
            low.append(i)
    return low


def doubt(count: int) -> float:
    """Return the variance of the mean of so many runs, over that of one of many."""
    return (1 + FEW / count) / count


@lru_cache(maxsize=4)
def _cost(
    octaves: tuple[float, ...],
    count: int,
    group: Hashable,
    seen: tuple[tuple[Hashable, int, float, float], ...],
) -> Curves:
    """Return the curve of the log of an epoch's cost at the first ``count`` sizes."""
    points = [GaussianPoint(of, at, price, (variance,)) for of, at, price, variance in seen]
    return conditioned(np.array(octaves), COST, OTHER, group, points, np.array([[OWN]])).only(
        np.array([True]), count
    )
