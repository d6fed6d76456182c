"""Limits of single GPUs on a busy host: steps until they are decided, and whether those that wait are found.

Four GPUs at 200 W, one of which takes 10 % longer (`tests/analyzers/power_limit/test_per_gpu.py`). Steps of
220 ms have white noise; a busy host delays 30 % of them, in some spans four times as much as in others.
``delay``: in the mean over all steps. ``slower``: by how much the limits found slow the job.

python -m benchmarks.noise.single_gpus [--noise 0.001 0.005] [--delays-ms 0 20 60] [--seeds 10] [--seed 10]
"""

import numpy as np

from benchmarks.harness import options, table
from tests.analyzers.power_limit.test_per_gpu import JOB_MW, Job

WORK_S = (0.22, 0.2, 0.2, 0.2)
UNCAPPED_MW = 220_000


def row(noise: float, delay_ms: float, seeds: range) -> list[str]:
    """Return the figures of some runs."""
    steps, lowered, slower = [], [], []
    for seed in seeds:
        job = Job(WORK_S, [UNCAPPED_MW] * len(WORK_S), noise=noise, delay_s=delay_ms / 1000, seed=seed)
        found = job.whole()
        steps.append(found.steps)
        lowered.append(sum(limit_mw < JOB_MW for limit_mw in found.limits_mw))
        slower.append(job.rise(found.limits_mw))
    return [
        f"{100 * noise:g}",
        f"{delay_ms:g}",
        f"{np.median(steps):.0f}",
        f"{max(steps)}",
        f"{sum(lowered)} of {(len(WORK_S) - 1) * len(seeds)}",
        f"{100 * max(slower):.2f}",
    ]


def main() -> None:
    given = options(__doc__, noise=[0.001, 0.005], delays_ms=[0.0, 20.0, 60.0], seeds=10, seed=10)
    seeds = range(given.seed, given.seed + given.seeds)
    head = "noise, % | delay, ms | steps, median | most | GPUs lowered | job slower, most %"
    rows = [row(noise, delay_ms, seeds) for noise in given.noise for delay_ms in given.delays_ms]
    table(f"{len(WORK_S)} GPUs, {given.seeds} runs each", head, rows)


if __name__ == "__main__":
    main()
