"""A table of submissions becomes recorded workloads: by runtime, in order, as many at a time as it has."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.simulation.clusters import Submission, assigned, k_means, synthetic
from analyzers.simulation.recorded_jobs import world
from analyzers.simulation.runner import Game
from analyzers.simulation.traces import PUBLISHED, read


@given(st.lists(st.floats(1, 1e4), min_size=3, max_size=8))
def test_clusters_are_the_best_of_all_partitions(values: list[float]) -> None:
    def scatter(clusters: list[list[float]]) -> float:
        return sum(float(np.var(of)) * len(of) for of in clusters)

    found = k_means(np.array(values), 3)
    mine = scatter(
        [[v for v, at in zip(values, found, strict=True) if at == cluster] for cluster in range(3)]
    )
    x = sorted(values)
    least = min(scatter([x[:i], x[i:j], x[j:]]) for i, j in combinations(range(1, len(x)), 2))
    assert mine == pytest.approx(least, rel=1e-6, abs=1e-3)


def test_groups_are_matched_and_scaled_by_their_runtimes() -> None:
    table = [
        Submission("short", 100, 8),
        Submission("long", 0, 900),
        Submission("short", 104, 12),
        Submission("shorter", 50, 5),
        Submission("long", 2_000, 1_100),
    ]
    found = assigned(table, {"asr": 500.0, "vision": 40.0})
    assert {group: workload for group, (workload, _) in found.items()} == {
        "long": "asr",
        "short": "vision",
        "shorter": "vision",
    }
    # Means of all jobs of a cluster: 1000 s; 25 / 3 s. Submissions keep their overlap.
    assert np.array(found["long"][1]) == pytest.approx(np.array([(0, 0.9), (1_000, 1.1)]))
    assert np.array(found["short"][1]) == pytest.approx(
        np.array([(0, 8 * 3 / 25), (4 * 40 * 3 / 25, 12 * 3 / 25)])
    )
    with pytest.raises(ValueError, match="3 job groups for 4 workloads"):
        assigned(table, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})


def test_the_synthetic_cluster_is_the_same_each_time_and_covers_all_workloads() -> None:
    workloads = {str(number): 10.0**number for number in range(6)}
    found = assigned(synthetic(), workloads)
    assert found == assigned(synthetic(), workloads)
    assert {workload for workload, _ in found.values()} == set(workloads)


def test_a_policy_sees_the_cost_without_the_factor_of_a_submission() -> None:
    traces = read(PUBLISHED)
    squad = world(traces, "v100", traces.workloads["squad"])
    usual, longer = (
        Game(
            world=replace(squad, submissions=tuple((at * 1e9, factor) for at in range(12))),
            player="adaptive",
            seed=1,
        ).play()
        for factor in (1.0, 3.0)
    )
    assert [one.batch_size for one in longer] == [one.batch_size for one in usual]
    assert [one.spent.cost_j for one in longer] == pytest.approx([3 * one.spent.cost_j for one in usual])
