"""The difference of two functions that were measured in turns, with its interval. Pure.

A GPU warms up while it works, and its power rises with it. Functions are therefore measured in rounds, and
every second round runs backwards: A B, B A. In a pair of rounds a drift that is linear in time cancels.
The logarithms of the ratios of all pairs give a mean and its interval by Student's t.
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

from msgspec import Struct

from zeus_stream.bench.student import student_quantile
from zeus_stream.errors import RefusedError

SHOWN = 0.975
"""Quantile of the interval that people see: 95 %, two-sided."""
PROOF = 0.995
"""Quantile of a proof: one-sided, so that at most 1 of 200 differences at the threshold is a failure."""
LEAST_PAIRS = 3
LEAST_SESSIONS = 3
"""Earlier sessions whose scatter says how far two sessions differ without a change."""


class EnergyDifference(Struct, frozen=True, kw_only=True):
    """A change of the energy of one call, %, against a baseline."""

    percent: float
    low_percent: float
    """Lower end of the 95 % interval, as is the next its upper end."""
    high_percent: float
    proven_percent: float
    """It is more than this with a confidence of 99.5 %, shared by all comparisons of a session."""
    samples: int
    """Pairs of rounds, or earlier sessions."""

    def exceeds(self, percent: float) -> bool:
        """Tell whether it is proven that the change is above this."""
        return self.proven_percent > percent


def order_of_round(number: int, variants: int) -> Sequence[int]:
    """Return the variants of a round in the order in which they are measured."""
    return range(variants) if number % 2 == 0 else range(variants)[::-1]


def compare_rounds(
    baseline: Sequence[float | None], other: Sequence[float | None], comparisons: int = 1
) -> EnergyDifference:
    """Return the change from a baseline to another function, of energies of a call by round.

    ``comparisons``: functions compared with it. Raises RefusedError: fewer than `LEAST_PAIRS` pairs.
    """
    ratios = [
        log(new / old) if old and new and old > 0 and new > 0 else None
        for old, new in zip(baseline, other, strict=True)
    ]
    pairs = [
        (first + second) / 2
        for first, second in zip(ratios[::2], ratios[1::2], strict=False)
        if first is not None and second is not None
    ]
    if len(pairs) < LEAST_PAIRS:
        raise RefusedError(
            f"bench: could not compare: {len(pairs)} pairs of rounds have an energy, and {LEAST_PAIRS} are"
            " needed. Give more --rounds, or longer --seconds."
        )
    return _difference(fmean(pairs), stdev(pairs) / sqrt(len(pairs)), len(pairs), comparisons)


def compare_sessions(
    earlier: Sequence[float], energy_j: float, comparisons: int = 1
) -> EnergyDifference | None:
    """Return the change of a session against earlier ones, as wide as they scatter. None: too few."""
    if len(earlier) < LEAST_SESSIONS:
        return None
    known = [log(each) for each in earlier]
    deviation = stdev(known) * sqrt(1 + 1 / len(known))
    return _difference(log(energy_j) - fmean(known), deviation, len(known), comparisons)


def _difference(mean: float, deviation: float, samples: int, comparisons: int) -> EnergyDifference:
    shown = student_quantile(SHOWN, samples - 1) * deviation
    proof = student_quantile(1 - (1 - PROOF) / comparisons, samples - 1) * deviation
    return EnergyDifference(
        percent=_percent(mean),
        low_percent=_percent(mean - shown),
        high_percent=_percent(mean + shown),
        proven_percent=_percent(mean - proof),
        samples=samples,
    )


def mean_energy(energies_j: Sequence[float | None], *, share: float = SHOWN) -> tuple[float, float, float]:
    """Return the mean energy of one call and its interval. ``share``: quantile at both ends.

    Raises RefusedError: fewer than two are known.
    """
    known = [energy for energy in energies_j if energy is not None]
    if len(known) < 2:
        raise RefusedError(
            "bench: could not measure: fewer than two repeats have an energy."
            " `zeus-stream doctor` says what is missing."
        )
    mean = fmean(known)
    half = student_quantile(share, len(known) - 1) * stdev(known) / sqrt(len(known))
    return mean, mean - half, mean + half


def _percent(logarithm: float) -> float:
    return 100 * (exp(logarithm) - 1)
