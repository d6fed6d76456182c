"""Gaussian processes over the logarithm of the batch size, and curves given what was seen of them. Pure."""

from collections.abc import Hashable, Sequence
from math import erfc, exp, pi, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

Floats = npt.NDArray[np.float64]


def equally_likely(count: int) -> Floats:
    """Return so many equally likely values that stand for a standard normal distribution."""
    z = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    return np.asarray(z / np.sqrt(np.mean(z**2)))


def within(log_value: Floats) -> Floats:
    """Return it within what can be added up."""
    return np.clip(log_value, -80, 80)


class GaussianProcess(Struct, frozen=True, kw_only=True):
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


class GaussianPoint(Struct, frozen=True):
    """An observation of a curve."""

    group: Hashable
    at: int
    """Index of the batch size."""
    value: float
    variance: tuple[float, ...]
    """By hypothesis."""


class Curves(Struct, frozen=True):
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

    def given_more(self, at: int, least: float, noise: Floats, bad: float) -> tuple["Curves", Floats]:
        """Return them once a value seen at a size was above ``least``, by matched moments, and its
        likelihoods.

        ``noise``: variance of the value, by hypothesis. ``bad``: how likely the value was above it anyway.
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

    def only(self, hypotheses: npt.NDArray[np.bool_], sizes: int) -> "Curves":
        """Return some of them, at the first so many sizes."""
        return Curves(
            self.mean[hypotheses, :sizes],
            self.covariance[hypotheses, :sizes, :sizes],
            self.evidence[hypotheses],
        )


def _mean_beyond(z: float) -> float:
    """Return the mean of what is above z of a standard normal distribution."""
    above = 0.5 * erfc(z / sqrt(2))
    return exp(-(z**2) / 2) / sqrt(2 * pi) / above if above > 1e-12 else z + 1 / z


def conditioned(
    x: Floats,
    common: GaussianProcess,
    own: GaussianProcess,
    group: Hashable,
    points: Sequence[GaussianPoint],
    alone: Floats,
) -> Curves:
    """Return the curves of a group, given what was seen of all groups.

    ``common``: of all groups; ``own``: of each, as soon as there are two. ``alone``: standard deviation of
    what each size has to itself, by hypothesis; shape (h, n) or (h, 1).
    """
    number = {of: i for i, of in enumerate(dict.fromkeys([group, *(point.group for point in points)]))}
    of = np.array([number[point.group] for point in points], dtype=int)
    at = np.array([point.at for point in points], dtype=int)
    noise = np.array([point.variance for point in points]).reshape(len(points), len(alone)).T
    shared = common.covariance(x) + (alone**2)[:, :, None] * np.eye(len(x))
    apart = own.covariance(x) if len(number) > 1 else np.zeros((len(x), len(x)))
    seen = shared[:, at[:, None], at] + np.where(of[:, None] == of, apart[at[:, None], at], 0)
    seen += noise[:, :, None] * np.eye(len(at))
    cross = shared[:, at] + np.where(of[:, None] == 0, apart[at], 0)
    mean = common.mean(x)
    off = np.array([point.value for point in points]) - mean[at]
    gain = np.swapaxes(np.linalg.solve(seen, cross), 1, 2)
    surprise = np.linalg.solve(seen, np.broadcast_to(off[:, None], (len(alone), len(at), 1)))[:, :, 0] @ off
    evidence = -0.5 * (surprise + np.linalg.slogdet(seen)[1])
    return Curves(mean + gain @ off, shared + apart - gain @ cross, evidence)
