"""Quantiles of Student's t distribution, for intervals of means of a few values. Pure."""

from functools import cache
from math import asin, inf, pi, sqrt
from statistics import NormalDist

MOST_FREEDOM = 200
"""Degrees of freedom from which on a quantile is interpolated up to that of a normal distribution."""


@cache
def student_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t, for a share above a half.

    ``freedom``: fewer than 1 count as 1. Between whole degrees it is interpolated in their inverse.
    """
    low = int(max(1, min(freedom, MOST_FREEDOM)))
    low_t = _whole(share, low)
    if freedom <= low:
        return low_t
    high, high_t = inf, NormalDist().inv_cdf(share)
    if low < MOST_FREEDOM:
        high, high_t = low + 1, _whole(share, low + 1)
    return low_t + (1 / low - 1 / freedom) / (1 / low - 1 / high) * (high_t - low_t)


@cache
def _whole(share: float, freedom: int) -> float:
    low, high = 0.0, 1.0
    while _share_below(high, freedom) < share:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_below(middle, freedom) < share else (low, middle)
    return high


def _share_below(t: float, freedom: int) -> float:
    """Return the share of Student's t below a positive ``t`` (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    square = 1 / (1 + t * t / freedom)  # cos^2 of the angle
    sine = sqrt(1 - square)
    term, total, odd = 1.0, 0.0, freedom % 2
    for number in range(freedom // 2):
        total += term
        term *= square * (2 * number + 1 + odd) / (2 * number + 2 + odd)
    if odd:
        return 0.5 + (asin(sine) + sine * sqrt(square) * total) / pi
    return (1 + sine * total) / 2
