"""The mean of a series, and the sum of its next values with an interval. Pure.

Values that follow each other are alike, and may grow: what the next values take is not known to the scatter
of those before. A series is kept as means of batches (Law and Kelton, batch means), neighbours merged when
`MOST` are full. The next values are foretold by models of the noise, each weighed by how well it explains
the batches so far:

    white       batches differ by chance
    fading      correlated by exp(-d / T) at d batches' distance, T one of `FADING`: up to a random walk
    growing     the same, around a line whose slope is at most about `SLOPE` of the mean over the batches

The mean of the series gets a flat prior, and so does the logarithm of the variance (restricted likelihood:
Patterson, Thompson, Biometrika 58, 1971). The variance of what is left is thereby that at its own scale.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from zeus_stream.bench.student import student_quantile

Floats = npt.NDArray[np.float64]

MOST = 32
LEAST = 2
"""Batches from which on their scatter is known."""
FADING = (
    (1.0, (0.5, 2.0, 8.0)),
    (4.0, (0.5, 2.0, 16.0)),
    (16.0, (1.0, 8.0, 64.0)),
    (64.0, (4.0, 32.0, 512.0)),
)
"""Batches in which a correlation fades to a third, and its variance over that of white noise."""
WHITE, LINEAR = 0.4, 0.2
"""Probability of white noise, and of a series that grows or shrinks, before any batch."""
SLOPE = 0.3
TURNS = 0.45
"""Share of a change, seen or foretold, that may turn: no trend is known to last.

Of 240 runs in waves (`benchmarks.noise.forecasts`, seeds 2 and 3), 93 % end in the interval; with half of the
change seen, 87 %. The interval is 7.6 % wide to each side, not 5.9 %; in white noise 1.2 % as before.
"""
PIECES = 32
"""Pieces that the time to come is cut into."""


class Sum(Struct, frozen=True):
    """The sum of values that are to come."""

    mean: float
    variance: float | None
    """Of the error of ``mean``. None: there is one batch, so the scatter is not known."""
    freedom: int


class BatchMeans(Struct):
    """The batches of one series."""

    size: int = 1
    """Values of a batch."""
    means: list[float] = field(default_factory=list)
    open: list[float] = field(default_factory=list)
    """Values of the batch that is not full."""
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.open.append(value)
        if len(self.open) < self.size:
            return
        self.means.append(sum(self.open) / self.size)
        self.open.clear()
        if len(self.means) == MOST:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.size *= 2

    def next(self, count: float) -> Sum | None:
        """Return the sum of the next ``count`` values. None: there was no value."""
        if not self.count:
            return None
        batches = len(self.means)
        if count <= 0:
            return Sum(0.0, 0.0, max(1, batches - 1))
        if batches < LEAST:
            return Sum(count * self.total / self.count, None, 0)
        mean, variance = _foretell(np.array(self.means), count / self.size)
        return Sum(count * mean, count**2 * variance, batches - 1)


def added(sums: Iterable[Sum | None]) -> tuple[float, float | None] | None:
    """Return a sum of sums, and half of its 95 % interval (Welch and Satterthwaite); None: not known."""
    known = list(sums)
    found = [each for each in known if each is not None]
    if len(found) < len(known):
        return None
    mean = sum(each.mean for each in found)
    variances = [each.variance for each in found if each.variance is not None]
    if len(variances) < len(found):
        return mean, None
    variance = sum(variances)
    if variance <= 0:
        return mean, 0.0
    parts = sum(v**2 / each.freedom for v, each in zip(variances, found, strict=True) if v)
    return mean, student_quantile(0.975, variance**2 / parts) * sqrt(variance)


def _foretell(means: Floats, ahead: float) -> tuple[float, float]:
    """Return the mean of the time to come, in batches, and the variance of its error."""
    rough = float(np.mean(np.diff(means) ** 2)) / 2  # of neighbours: about the variance of white noise
    if rough <= (1e-9 * float(np.abs(means).mean())) ** 2:
        return float(means[-1]), 0.0
    batches, usual = len(means), float(means.mean())
    inverse, log_determinant = _inverses(batches)
    across, beyond = _to_come(batches, ahead)
    t = np.arange(batches) + 0.5 - batches / 2
    # Products z' K^-1 z of all models K at once: z are a level, what was seen, a line, what is to come.
    level, seen, line, later = range(4)
    vectors = np.stack(
        [np.broadcast_to(each, across.shape) for each in (np.ones(batches), means - usual, t, across)], axis=2
    )
    flat = vectors.transpose(0, 2, 1) @ inverse @ vectors
    until = (batches + ahead) / 2
    log_weights, found = [], []
    for slope, share in ((0.0, 1 - LINEAR), ((SLOPE * usual / batches) ** 2 / rough, LINEAR)):
        by_line = 1 + slope * flat[:, line, line]
        of = flat - slope / by_line[:, None, None] * flat[:, :, [line]] * flat[:, [line], :]
        of[:, later] += slope * until * of[:, line]
        of[:, :, later] += slope * until * of[:, :, line]
        mean = of[:, level, seen] / of[:, level, level]
        squares = np.maximum(of[:, seen, seen] - mean * of[:, level, seen], 1e-9 * rough)
        evidence = -0.5 * (
            log_determinant + np.log(by_line) + np.log(of[:, level, level]) + (batches - 1) * np.log(squares)
        )
        unknown = (1 - of[:, level, later]) ** 2 / of[:, level, level]
        variance = 1 / ahead + beyond + slope * until**2 - of[:, later, later] + unknown
        log_weights.append(np.log(_priors() * share) + evidence)
        found.append(
            (
                mean + of[:, later, seen] - mean * of[:, later, level],
                np.maximum(variance, 0) * squares / (batches - 1),
            )
        )
    log_weight = np.concatenate(log_weights)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean, variance = (np.concatenate(each) for each in zip(*found, strict=True))
    middle = float(weight @ mean)
    quarters = [float(part.mean()) for part in np.array_split(means, min(4, batches))]
    turn = TURNS * max(abs(usual + middle - quarters[-1]), float(np.ptp(quarters)))
    return usual + middle, float(weight @ (variance + (mean - middle) ** 2)) + turn**2


def _priors() -> Floats:
    """Return the probability of white noise, and of each model of fading noise."""
    models = [(time, size) for time, sizes in FADING for size in sizes]
    return np.array([WHITE, *[(1 - WHITE) / len(models)] * len(models)])


@lru_cache(maxsize=MOST)
def _inverses(batches: int) -> tuple[Floats, Floats]:
    """Return the inverse covariance of batches by each model, and the logarithm of its determinant."""
    apart = np.abs(np.subtract.outer(np.arange(batches), np.arange(batches)))
    white = np.eye(batches)
    covariance = [white, *(white + size * np.exp(-apart / time) for time, sizes in FADING for size in sizes)]
    return np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]


def _to_come(batches: int, ahead: float) -> tuple[Floats, Floats]:
    """Return the covariance of the time to come with batches by each model, (m, n), and its own, (m,)."""
    pieces = min(PIECES, ceil(ahead))
    later = ahead / pieces * (np.arange(pieces) + 0.5)
    before = batches - np.arange(batches) - 0.5
    across, beyond = [np.zeros(batches)], [0.0]
    for time, sizes in FADING:
        of_both = np.exp(-(before[:, None] + later) / time).mean(axis=1)
        of_later = float(np.exp(-np.abs(later[:, None] - later) / time).mean())
        across += [size * of_both for size in sizes]
        beyond += [size * of_later for size in sizes]
    return np.array(across), np.array(beyond)
