"""Runs that fail though their batch size converges: how often, and when a try is better begun again. Pure.

A run that needs many times the epochs of others, or never converges, is not waited for. After which epoch a
try is given up follows from the cost of a success: the expected epochs of a try that ends there, over the
probability that it converges by then (Luby, Sinclair, Zuckerman, "Optimal Speedup of Las Vegas Algorithms",
Information Processing Letters 47, 1993).
"""

from collections.abc import Mapping
from functools import lru_cache
from math import erfc, inf, log, sqrt

EXPECTED_RATE, LIKE_OTHERS = 0.03, 3.0
"""The probability that a run fails, as if another batch size had shown it; what others show is worth so many
runs. 0.1 is no better and no worse, within the noise of 144 worlds (docs/measurements/batch-sizes.md)."""
STEPS = 60
"""Bounds of a try that are compared."""


def failing_rate(missed: Mapping[int, int], runs: Mapping[int, int], size: int) -> float:
    """Return the probability that a run of a size fails: its own runs, and the mean of the other sizes.

    ``missed`` and ``runs``: by batch size, runs that failed, and all of sizes that have converged.
    """
    if not any(missed.values()):
        return 0.0

    def rate(of: int, prior: float) -> float:
        return (missed.get(of, 0) + prior * LIKE_OTHERS) / (runs.get(of, 0) + LIKE_OTHERS)

    weights = {of: count / (count + LIKE_OTHERS) for of, count in runs.items() if of != size}
    others = sum(weight * rate(of, EXPECTED_RATE) for of, weight in weights.items())
    return rate(size, (EXPECTED_RATE + others) / (1 + sum(weights.values())))


@lru_cache(maxsize=256)
def bound_of_try(rate: float, deviation: float, most: float) -> tuple[float, float]:
    """Return after how many times the usual epochs a try is given up, and the cost of a success.

    ``deviation``: of the log epochs. The cost, in usual epochs, includes the tries that are given up.
    """
    if not rate:
        return most, 1.0
    best, least, paid, before = most, inf, 0.0, 0.0
    for at in range(1, STEPS + 1):
        bound = most * (at / STEPS)
        converged = (1 - rate) * erfc(-log(bound) / (deviation * sqrt(2))) / 2
        paid += (1 - before) * most / STEPS
        before = converged
        if converged > 1e-6 and paid / converged < least:
            best, least = bound, paid / converged
    return best, least
