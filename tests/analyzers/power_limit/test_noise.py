"""Models of the noise, on blocks whose noise is known."""

from math import sqrt

import numpy as np
import pytest

from analyzers.power_limit.search.noise import (
    MOST_BLOCKS,
    Blocks,
    Floats,
    Means,
    limit_means,
    merged,
    visit_variances,
)

STEPS = 4


def blocks(noise: Floats, visit: int = 10, limits: int = 2) -> Blocks:
    """Return blocks of the steps of a run, in visits of some blocks at each of the limits in turn."""
    value = noise[: len(noise) // STEPS * STEPS].reshape(-1, STEPS).mean(axis=1)
    number = np.arange(len(value))
    position, steps = np.asarray(STEPS * number + 2, dtype=np.float64), np.full(len(value), 4.0)
    return Blocks(number // visit % limits, position, steps, value, number // visit)


def weights(means: Means) -> Floats:
    found = np.exp(means.log_weight - means.log_weight.max())
    return np.asarray(found / found.sum())


def known(noise: Floats) -> tuple[Means, Floats]:
    of = blocks(noise)
    means = limit_means(of, 0.02, np.zeros((len(of.at), len(of.at))))
    return means, weights(means)


def test_independent_steps_are_taken_for_that() -> None:
    means, weight = known(0.02 * np.random.default_rng(1).normal(size=240))
    assert weight[0] > 0.5
    assert sqrt(weight @ means.variance) == pytest.approx(0.02, rel=0.3)


def test_a_visit_of_a_whole_period_is_worth_much_more_than_one_of_half_of_it() -> None:
    rng = np.random.default_rng(2)
    means, weight = known(0.1 * np.sin(2 * np.pi * np.arange(240) / 40) + 0.01 * rng.normal(size=240))
    assert weight[0] < 0.01
    half, whole = visit_variances(means.variance, weight, [20, 40])
    assert whole < half / 4


def test_what_is_correlated_is_known_less_well_than_its_scatter_says() -> None:
    rng, value, values = np.random.default_rng(3), 0.0, []
    for shock in rng.normal(size=240):
        value = 0.95 * value + sqrt(1 - 0.95**2) * 0.03 * shock
        values.append(value)
    means, weight = known(np.array(values))
    naive = np.var(values) / 120
    assert weight @ means.covariance[:, 0, 0] > 3 * naive


def test_means_are_known_as_well_as_is_said() -> None:
    inside = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        period = rng.uniform(15, 80)
        swing = 0.1 * np.sin(2 * np.pi * (np.arange(240) / period + rng.uniform()))
        means, weight = known(swing + 0.02 * rng.normal(size=240))
        off = weight @ (means.mean[:, 0] - means.mean[:, 1])
        covariance = np.tensordot(weight, means.covariance, 1)
        deviation = sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        inside.append(abs(off) <= 2 * deviation)
    assert np.mean(inside) >= 0.9


def test_many_blocks_are_merged_within_their_visits() -> None:
    of = blocks(np.arange(4.0 * 200), visit=20)
    some = merged(of)
    assert len(some.at) <= MOST_BLOCKS
    assert some.steps.sum() == of.steps.sum()
    assert some.value @ some.steps == pytest.approx(of.value @ of.steps)
    assert set(some.visit) == set(of.visit)
    assert merged(blocks(np.arange(4.0 * MOST_BLOCKS))).steps.max() == STEPS
