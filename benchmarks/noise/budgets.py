"""A power budget shared out by what each run gains from a watt, beside one cap for all, on published curves.

Runs are drawn from Zeus's published V100 and A40 power traces, `PEERS` at a time, one GPU each. A budget is
a share of the sum of their highest limits. Throughput: the mean over the runs of their speed, as a share of
that at the highest limit; between the limits published, times are linear in the logarithms.

equal       every GPU has the same part of the budget as its limit, as scripts around `nvidia-smi -pl` have it
shared      by profiles: what a run of each measured at every published limit, with 1 % noise, as a dozen
            steps of 2 % noise leave it
unknown     the same without profiles: by the usual curve, so by the GPU models alone
best        the largest throughput there is on the limits that `shared` may choose from, by trying them all

Where no limit caps a workload, published times differ by 5 to 14 % as runs do, without order: the worst draws
are theirs, and the throughputs above 100 %.

python -m benchmarks.noise.budgets --traces DIR [--draws 300] [--shares 0.6 0.7 0.8 0.9]
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import numpy as np

from analyzers.power_budget.allocation import Bound, Unit, share_out, speeds
from analyzers.power_limit.selectors import Trial
from analyzers.power_limit.visits import limits_mw
from benchmarks.harness import table
from benchmarks.noise.published import Curve, curves

PEERS = (2, 4, 8)
MOST_TRIED = 4
"""GPUs for which every sharing is tried."""
STRIDE_MW = 25_000
NOISE = 0.01


def speed(curve: Curve, limit_mw: float) -> float:
    """Return the true speed at a limit, as a share of that at the highest."""
    log_ns = np.interp(np.log(limit_mw), np.log(curve.limits_mw[::-1]), np.log(curve.step_ns[::-1]))
    return float(np.exp(np.log(curve.step_ns[0]) - log_ns))


def measured(curve: Curve, rng: Random) -> list[Trial]:
    """Return what a run would have measured of a curve."""
    points = zip(curve.limits_mw, curve.step_ns, curve.step_mj, strict=True)
    return [
        Trial(limit, round(mj * 100), round(ns * 100 * (1 + NOISE * rng.gauss(0, 1))), 100)
        for limit, ns, mj in points
    ]


def shared(peers: Sequence[Curve], most_mw: int, profiles: Sequence[Sequence[Trial]]) -> list[int]:
    """Return the limits that the budget gives."""
    units = []
    for number, (curve, trials) in enumerate(zip(peers, profiles, strict=True)):
        limits = limits_mw(curve.limits_mw[0], curve.limits_mw[-1], STRIDE_MW)[::-1]
        units.append(Unit(f"{number}", (f"{number}",), limits, speeds(limits, 1, trials)))
    chosen = share_out(units, [Bound(frozenset(unit.name for unit in units), most_mw)])
    assert sum(chosen.values()) <= most_mw
    return [chosen[unit.name] for unit in units]


def best(peers: Sequence[Curve], most_mw: int) -> float:
    """Return the largest throughput on the limits there are."""
    grids = [limits_mw(curve.limits_mw[0], curve.limits_mw[-1], STRIDE_MW) for curve in peers]
    truths = [
        {limit: speed(curve, limit) for limit in grid} for curve, grid in zip(peers, grids, strict=True)
    ]
    return max(
        sum(truth[limit] for truth, limit in zip(truths, chosen, strict=True)) / len(peers)
        for chosen in product(*grids)
        if sum(chosen) <= most_mw
    )


def throughput(peers: Sequence[Curve], limits: Sequence[float]) -> float:
    return sum(speed(curve, limit) for curve, limit in zip(peers, limits, strict=True)) / len(peers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=Path, required=True, help="directory of summary_power_*.csv")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.6, 0.7, 0.8, 0.9])
    given = parser.parse_args()
    published = list(curves(given.traces))
    rows = []
    for count, share in product(PEERS, given.shares):
        rng = Random(f"{count} {share}")
        ways: dict[str, list[float]] = {name: [] for name in ("equal", "shared", "unknown", "best")}
        for _ in range(given.draws):
            peers = rng.sample(published, count)
            most_mw = round(share * sum(curve.limits_mw[0] for curve in peers))
            equal = [min(most_mw / count, curve.limits_mw[0]) for curve in peers]
            profiles = [measured(curve, rng) for curve in peers]
            ways["equal"].append(throughput(peers, equal))
            ways["shared"].append(throughput(peers, shared(peers, most_mw, profiles)))
            ways["unknown"].append(throughput(peers, shared(peers, most_mw, [()] * count)))
            if count <= MOST_TRIED:
                ways["best"].append(best(peers, most_mw))
        gain = 100 * (np.array(ways["shared"]) / np.array(ways["equal"]) - 1)
        means = [f"{100 * np.mean(values):.1f}" if values else "-" for values in ways.values()]
        of_best = "-"
        if ways["best"]:
            of_best = f"{100 * np.mean(np.array(ways['shared']) / np.array(ways['best'])):.1f}"
        spread = [f"{value:+.1f}" for value in np.percentile(gain, [50, 10, 90])]
        rows.append([count, f"{100 * share:.0f}", *means, *spread, f"{gain.min():+.1f}", of_best])
    head = (
        "GPUs | budget, % | equal: throughput, % | shared | unknown | best | shared over equal, median % | "
        "p10 | p90 | worst | shared, % of best"
    )
    table(f"{len(published)} published curves, {given.draws} draws of each number", head, rows)


if __name__ == "__main__":
    main()
