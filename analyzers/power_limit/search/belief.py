"""A belief about a curve over the power limits, and what follows from it. Pure.

    explanations of what was measured -> the best limit, the risk that another is better, the limit to measure

A belief is a mixture of normal distributions: one for each kind of curve and each model of the noise, with
its weight.
"""

from math import erf, log, sqrt

import numpy as np
from msgspec import Struct

from analyzers.power_limit.search.noise import Bools, Floats, Indices

TOLERATED = 0.03
"""A limit that is better by such a share should not be left."""
COST = 20.0
"""A limit that is dearer than the best by a share x is visited for 1 + `COST` x times the risk."""
TRUSTED, CHECKED = 0.97, 2
"""Where a remembered curve is this likely, this number of limits is enough. Where its level has changed, one
more: agreement of one may be chance. The highest is among them, since all is compared with it."""
OUTSIDE = 0.05
"""Probability that the truth is outside of an interval."""
FAR, HALVINGS = 6.0, 30
"""Standard deviations within which a quantile is looked for, and how often that range is halved."""
DRAWS = 500
"""Curves drawn to tell the excess."""


class Confidence(Struct, frozen=True):
    """Excess cost of the chosen limit over the best one, as a share of the cost."""

    expected: float
    p95: float


class Curve(Struct, frozen=True):
    """A normal distribution of curves: the objective's logarithm at each of n limits."""

    weight: float
    """Of this distribution among the others."""
    mean: Floats
    """Shape (n,)."""
    covariance: Floats
    """Shape (n, n)."""


class Belief(Struct, frozen=True, kw_only=True):
    """The posterior of a curve after some visits, as m models. Limits are indices from the highest."""

    factor: float | None
    controls: tuple[Bools, ...]
    """Of each control the limits that stand for it, shape (n,). The highest is of all."""
    energy: Curve | None
    """Of a step, of two controls with a bound on the time. None: it is not asked for."""
    steps: Floats
    """Measured at each limit, shape (n,)."""
    weight: Floats
    """Shape (m,)."""
    mean: Floats
    """Shape (m, n)."""
    covariance: Floats
    """Shape (m, n, n)."""
    kind: Indices
    """Shape (m,): of curve."""
    again: int
    """The first kind that is the remembered curve again, at the tightest level."""
    error: Floats
    """Shape (n,): variance of what was measured at each limit, infinite where nothing was."""
    models: Floats
    """Shape (j,): weight of each model of the noise."""
    variance: Floats
    """Shape (j,): of a step's white noise, by each model."""

    @property
    def middle(self) -> Floats:
        """The mean over all explanations."""
        return np.asarray(self.weight @ self.mean)

    @property
    def remembered(self) -> float:
        """Probability that it is the remembered curve."""
        return min(1.0, float(self.weight[self.kind >= self.again].sum()))

    @property
    def as_remembered(self) -> bool:
        return self.remembered >= TRUSTED

    @property
    def checked(self) -> bool:
        """True if enough limits were measured to exclude agreement with the remembered curve by chance."""
        measured, limits = np.count_nonzero(self.steps), len(self.steps)
        if not self.as_remembered:
            return True
        as_it_was = self.weight[self.kind == self.again].sum() >= TRUSTED  # at the tightest level
        return bool(self.steps[0] and measured >= min(CHECKED if as_it_was else CHECKED + 1, limits))

    @property
    def as_one(self) -> Curve:
        """All of it as one distribution of the same mean and covariance."""
        middle = self.middle
        off = self.mean - middle
        around = self.covariance + off[:, :, None] * off[:, None, :]
        return Curve(1.0, middle, np.tensordot(self.weight, around, 1))

    @property
    def top(self) -> int:
        """The highest limit measured, at whose time a bound is set."""
        return int(np.flatnonzero(self.steps)[0])

    def difference(self, at: int, against: int) -> tuple[float, float]:
        """Return the 95 % interval of the logarithm at one limit over that at another."""
        mean, covariance = self.mean[:, at] - self.mean[:, against], self.covariance
        variance = covariance[:, at, at] + covariance[:, against, against] - 2 * covariance[:, at, against]
        deviation = np.sqrt(np.maximum(variance, 1e-14))
        low, high = (
            _quantile(share, self.weight, mean, deviation) for share in (OUTSIDE / 2, 1 - OUTSIDE / 2)
        )
        return low, high

    def best(self, among: Bools, *, measured: bool = False) -> int:
        """Return the best limit measured of some. With a bound on the time, it may be not ``measured`` yet.

        That is the lowest within the bound; of two controls the one that takes less energy then.
        """
        mean = self.middle
        if self.factor is None:
            return int(min(np.flatnonzero(among & (self.steps > 0)).tolist(), key=lambda i: (mean[i], i)))
        within = among & (mean <= mean[self.top] + log(self.factor))
        within &= (self.steps > 0) | (not measured)
        lowest = [int(np.flatnonzero(within & of).max(initial=self.top)) for of in self.controls]
        return lowest[0] if self.energy is None else min(lowest, key=self.energy.mean.__getitem__)

    def likely_best(self, among: Bools) -> int:
        """Return the limit that is most likely the best of some, measured or not."""
        if self.factor is not None:
            return self.best(among)
        return int(np.argmin(np.where(among, self.middle, np.inf)))

    def against(self, best: int) -> int:
        """Return what other limits are compared with."""
        return best if self.factor is None else self.top

    def risk(self, best: int, *, unremembered: bool = False) -> Floats:
        """Return how likely each limit is so much better that another should be chosen; shape (n,).

        ``unremembered``: as if nothing was remembered.
        """
        of = np.ones(len(self.weight), dtype=bool)
        if unremembered:
            of = self.kind < self.again
        elif self.as_remembered:
            of = self.kind >= self.again
        against, mean, covariance = self.against(best), self.mean[of], self.covariance[of]
        variance = (
            np.diagonal(covariance, axis1=1, axis2=2)
            + covariance[:, against, against, None]
            - 2 * covariance[:, against]
        )
        better = mean[:, against, None] - mean
        if self.factor is not None:
            better += log(self.factor)
            better[:, best] *= -1
            own = next(levels for levels in self.controls if levels[best])
            better[:, :best][:, own[:best]] = -np.inf
        risk = self.weight[of] @ _above(better - TOLERATED, np.sqrt(np.maximum(variance, 1e-14)))
        if self.energy is not None:
            risk = np.where(own, risk, risk * self._less_energy(best))
        risk[against] = 0
        return np.asarray(risk)

    def _less_energy(self, best: int) -> Floats:
        """Return how likely a step at each limit takes less energy than at the best, by `TOLERATED`."""
        assert self.energy is not None
        mean, covariance = self.energy.mean, self.energy.covariance
        variance = np.diag(covariance) + covariance[best, best] - 2 * covariance[best]
        return _above(mean[best] - mean - TOLERATED, np.sqrt(np.maximum(variance, 1e-14)))

    def next(self, best: int, risk: Floats, over: int | None, may: Bools, *, unseen: bool) -> int:
        """Return the limit to measure.

        Args:
            best: what others are compared with.
            risk: of each limit, shape (n,).
            over: the limit of a visit that is long enough, whatever its risk; None: of none.
            may: limits that may be measured now, shape (n,). The highest may be.
            unseen: one that was not measured yet.
        """
        if not self.steps[best]:
            nearer = np.flatnonzero(may & (self.steps == 0) & (np.arange(len(may)) <= best))
            return int(nearer.max(initial=self.top))
        dearer = np.expm1(np.maximum(self.middle - self.middle[best], 0))
        worth = np.where(may, risk / (1 + COST * dearer), -1)
        if unseen:
            return int(np.argmax(np.where(self.steps == 0, worth, -1)))
        other, against = int(np.argmax(worth)), self.against(best)
        if worth[other] <= 0:
            return against
        if over in {other, against}:
            return against if over == other else other
        return other if self.error[other] >= self.error[against] else against

    def excesses(self) -> Floats:
        """Return how much worse than the best each limit is in curves drawn from the belief.

        Shape (draws, n). With a bound on the time: by how much it is broken, or how far below it the time of
        a lower limit stays.
        """
        rng = np.random.default_rng(0)
        counts = np.floor(self.weight * DRAWS + rng.uniform()).astype(int)
        counts[np.argmax(self.weight)] += max(0, DRAWS // 2 - counts.sum())
        of = counts > 0
        variances, axes = np.linalg.eigh(self.covariance[of])
        roots = axes * np.sqrt(np.abs(variances))[:, None]
        which = np.repeat(np.arange(len(roots)), counts[of])
        normal = rng.standard_normal((len(which), self.mean.shape[1], 1))
        drawn = self.mean[of][which] + (roots[which] @ normal)[:, :, 0]
        if self.factor is None:
            return np.asarray(np.expm1(drawn - drawn.min(axis=1, keepdims=True)))
        over = drawn - drawn[:, [self.top]] - log(self.factor)
        worse = np.zeros_like(over)
        for of in self.controls:
            below = np.maximum.accumulate(-over[:, of][:, ::-1], axis=1)[:, ::-1]
            lower = np.concatenate([below[:, 1:], np.zeros((len(drawn), 1))], axis=1)
            worse[:, of] = np.maximum(lower, worse[:, of])
        of_top = worse[:, self.top].copy()
        worse = np.maximum(worse, over)
        worse[:, self.top] = of_top
        return np.asarray(np.expm1(worse))


def confidence(excesses: Floats) -> Confidence:
    """Return what draws of the excess of one limit say."""
    return Confidence(float(excesses.mean()), float(np.quantile(excesses, 0.95)))


def _quantile(share: float, weight: Floats, mean: Floats, deviation: Floats) -> float:
    """Return below which value a mixture of normal distributions has some share."""
    low, high = float((mean - FAR * deviation).min()), float((mean + FAR * deviation).max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if 1 - float(weight @ _above(mean - middle, deviation)) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


_erf = np.vectorize(erf, otypes=[float])


def _above(mean: Floats, deviation: Floats) -> Floats:
    """Return how likely normal values are above 0."""
    return np.asarray(0.5 * (1 + _erf(mean / deviation / sqrt(2))))
