"""The mean of a series, and the sum of its next values with an interval. Pure.

Values that follow each other are alike: the next 1,000 steps vary together. Their variance is taken from
means of batches (Law and Kelton, batch means). When `MOST` batches are full, neighbours are merged.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, sqrt

from zeus_stream.records import record

MOST = 32
_T = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (8, 2.306), (10, 2.228),
    (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (inf, 1.960),
)  # fmt: skip
"""Quantiles 0.975 of Student's t, by degrees of freedom."""


def t_quantile(freedom: float) -> float:
    """Return the quantile 0.975 of Student's t, interpolated in the inverse of the degrees of freedom."""
    at = bisect_left(_T, (freedom, 0.0))
    if at == 0:
        return _T[0][1]
    (low, high_t), (high, low_t) = _T[at - 1], _T[at]
    share = (1 / low - 1 / freedom) / (1 / low - 1 / high)
    return high_t + share * (low_t - high_t)


@record
class Sum:
    """The sum of values that are to come."""

    mean: float
    variance: float | None
    """Of the error of ``mean``. None: there is one batch, so the scatter is not known."""
    freedom: int


@dataclass(slots=True)
class BatchMeans:
    """The batches of one series."""

    size: int = 1
    """Values of a batch."""
    means: list[float] = field(default_factory=list)
    open: list[float] = field(default_factory=list)
    """Values of the batch that is not full."""
    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Take in the next value."""
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
        mean = count * self.total / self.count
        batches = len(self.means)
        if count <= 0:
            return Sum(0.0, 0.0, max(1, batches - 1))
        if batches < 2:
            return Sum(mean, None, 0)
        center = sum(self.means) / batches
        scatter = sum((each - center) ** 2 for each in self.means) / (batches - 1)
        # The sum of n values has variance size * scatter * n; the mean has size * scatter / count.
        variance = self.size * scatter * (count + count**2 / self.count)
        return Sum(mean, variance, batches - 1)


def added(sums: Iterable[Sum | None]) -> tuple[float, float | None] | None:
    """Return a sum of sums, and half of its 95 % interval. None: one of them, or its scatter, is not known.

    The degrees of freedom are those of Welch and Satterthwaite.
    """
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
    return mean, t_quantile(variance**2 / parts) * sqrt(variance)
