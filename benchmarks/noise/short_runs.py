"""Measure the choice of a limit in short runs whose script says their length.

    python -m benchmarks.noise.short_runs [--seed 20] [--seeds 3] [--shares 4]

Simulated workloads of every GPU model with white noise, `cost:0.5`, blocks of four steps. For each length:
how much more than the best limit the chosen one costs, beside the limit found; how many limits were measured;
and how often both statements hold. ``--shares 1`` lets the first visit be as long as in a run of any length.
"""

import numpy as np

from analyzers.power_limit.search import advice
from benchmarks.harness import options, table
from tests.analyzers.power_limit.known_curve import CURVES, goal, published

LENGTHS, NOISES, EVERY = (40, 60, 100, 200, 400), (0.02, 0.05, 0.15), 3


def searched(noise: float, length: int, seeds: range) -> list[str]:
    """Return one row: searches in every third workload, another third for each seed."""
    of = goal("cost:0.5")
    excess, usual, limits, bound, saving = [], [], [], [], []
    for seed in seeds:
        for number in range(seed % EVERY, len(CURVES), EVERY):
            curve = published(number, noise=noise, seed=seed)
            chosen = curve.searched(of, length=length)
            excess.append(curve.excess(chosen.limit_mw, of))
            usual.append(curve.excess(curve.limits[0], of))
            limits.append(len(set(curve.visited)))
            bound.append(excess[-1] <= chosen.confidence.p95)
            if chosen.costs is not None and chosen.limit_mw != curve.limits[0]:
                step_j = [
                    curve.seconds(limit) * curve.watts(limit) for limit in (chosen.limit_mw, curve.limits[0])
                ]
                energy = chosen.costs.energy
                saving.append(energy.low <= step_j[0] / step_j[1] - 1 <= energy.high)
    figures = [100 * np.mean(excess), 100 * np.mean(usual), np.mean(limits), 100 * np.mean(bound)]
    share = f"{100 * np.mean(saving):.0f} of {len(saving)}" if saving else "-"
    return [f"{100 * noise:g}", str(length), *(f"{figure:.1f}" for figure in figures), share]


def main() -> None:
    given = options(__doc__, seed=20, seeds=3, shares=advice.SHARES)
    advice.SHARES = given.shares
    seeds = range(given.seed, given.seed + given.seeds)
    head = "noise, % | steps | off the best, % | limit found, % | limits | bound holds, % | saving holds, %"
    rows = [searched(noise, length, seeds) for noise in NOISES for length in LENGTHS]
    table(f"{len(CURVES) // EVERY * given.seeds} searches a row, shares {given.shares}", head, rows)


if __name__ == "__main__":
    main()
