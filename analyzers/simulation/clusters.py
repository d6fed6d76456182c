"""A cluster of recurring jobs: each group of a table of submissions becomes a recorded workload. Pure.

    submissions -> job groups -> clusters of groups that take about as long -> a workload for each cluster

Groups are clustered by the mean runtime of their jobs (K-means), into as many clusters as there are
workloads. Clusters and workloads are matched in the order of their mean runtimes. A recurrence takes as many
times its workload as its runtime is of the mean of all jobs of its cluster. A policy sees the cost without
that factor. Submissions are as far apart, in such means, as in the table: as many overlap where all run at
the default batch size.

Sources: clusters: You, Chung, Chowdhury, "Zeus", NSDI 2023, section 6.3; the factor: `runtime_ratio` in the
simulator of that paper. There, jobs overlap by the times of the table, however long they take.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from statistics import fmean

import numpy as np
from msgspec import Struct

from analyzers.batch_size.belief.gaussian import Floats
from analyzers.simulation.recorded_jobs import Amount, Time


class Submission(Struct, frozen=True):
    """A job that was submitted to a cluster."""

    group: str
    """Jobs of a group are recurrences of one job."""
    submitted_s: Time
    """Since any instant."""
    runtime_s: Amount


def assigned(
    submissions: Sequence[Submission], runtimes_s: Mapping[str, float]
) -> dict[str, tuple[str, tuple[tuple[float, float], ...]]]:
    """Return the workload of each job group, and begin (s) and scale of its recurrences, in order.

    ``runtimes_s``: of workloads, at their default batch size. Raises ValueError: there are fewer groups.
    """
    groups: dict[str, list[Submission]] = {}
    for each in sorted(submissions, key=lambda each: each.submitted_s):
        groups.setdefault(each.group, []).append(each)
    if len(groups) < len(runtimes_s):
        raise ValueError(f"it has {len(groups)} job groups for {len(runtimes_s)} workloads")
    means_s = np.array([fmean(each.runtime_s for each in of) for of in groups.values()])
    clusters = k_means(means_s, len(runtimes_s))
    workloads = sorted(runtimes_s, key=runtimes_s.__getitem__)
    runtimes_of: list[list[float]] = [[] for _ in workloads]
    for of, at in zip(groups.values(), clusters, strict=True):
        runtimes_of[at] += [each.runtime_s for each in of]
    found = {}
    for (name, of), at in zip(groups.items(), clusters, strict=True):
        usual_s, workload = fmean(runtimes_of[at]), workloads[at]
        time = runtimes_s[workload] / usual_s
        starts = ((each.submitted_s - of[0].submitted_s) * time for each in of)
        scales = (each.runtime_s / usual_s for each in of)
        found[name] = workload, tuple(zip(starts, scales, strict=True))
    return found


def k_means(values: Floats, count: int) -> list[int]:
    """Return the cluster of each of some values, 0 to ``count`` - 1, upwards; none is empty.

    It is the best of all partitions, by the sum of squares within clusters: a cluster of numbers is a span of
    them in order, so dynamic programming finds it.
    """
    order = np.argsort(values, kind="stable")
    sums, squares = (np.concatenate([[0.0], np.cumsum(values[order] ** power)]) for power in (1, 2))
    begins = np.zeros((count, len(sums)), dtype=int)
    cost = np.where(np.arange(len(sums)) == 0, 0.0, np.inf)
    for cluster in range(count):
        before, cost = cost, np.full(len(sums), np.inf)
        for end in range(cluster + 1, len(sums)):
            of = np.arange(cluster, end)
            within = squares[end] - squares[of] - (sums[end] - sums[of]) ** 2 / (end - of)
            begins[cluster, end] = of[np.argmin(before[of] + within)]
            cost[end] = np.min(before[of] + within)
    found, end = [0] * len(values), len(values)
    for cluster in reversed(range(count)):
        begin = int(begins[cluster, end])
        for at in order[begin:end].tolist():
            found[at] = cluster
        end = begin
    return found


GROUPS, RECURRENCES, SCATTER = 18, (30, 90), 0.3
"""Of a synthetic cluster: job groups, their recurrences, and the standard deviation of log runtimes."""


def synthetic() -> tuple[Submission, ...]:
    """Return the submissions of a cluster that was never recorded, the same each time.

    Mean runtimes are log-uniform from a minute to a day. In the mean 0.5 to 4 jobs of a group overlap.
    """
    dice, made = Random("cluster"), list[Submission]()  # noqa: S311  (dice of a game)
    for group in range(GROUPS):
        usual_s = 60 * (24 * 60) ** dice.random()
        gap_s = usual_s / dice.uniform(0.5, 4)
        gaps_s = (dice.expovariate(1 / gap_s) for _ in range(dice.randint(*RECURRENCES)))
        made += [
            Submission(str(group + 1), at_s, usual_s * dice.lognormvariate(0, SCATTER))
            for at_s in accumulate(gaps_s)
        ]
    return tuple(made)
