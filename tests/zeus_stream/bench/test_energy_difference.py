"""Differences of functions that were measured in turns."""

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.noise.bench_drift import ABOVE, session, shares
from zeus_stream.bench.energy_difference import (
    EnergyDifference,
    compare_rounds,
    compare_sessions,
    mean_energy,
    order_of_round,
)
from zeus_stream.bench.student import student_quantile
from zeus_stream.errors import RefusedError


@pytest.mark.parametrize("share", [0.6, 0.95, 0.975, 0.995, 0.9995])
def test_the_quantiles_are_those_of_students_t(share: float) -> None:
    from scipy import stats  # 0.7 s of each worker's collection

    for freedom in (1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 30.0, 99.0):
        assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-6)
    for freedom in (3.3, 10.5, 1e3, 1e9, inf):
        assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=0.03)


def test_every_second_round_runs_backwards() -> None:
    assert [list(order_of_round(number, 3)) for number in range(2)] == [[0, 1, 2], [2, 1, 0]]


@given(slope=st.floats(-0.01, 0.01), percent=st.floats(-50, 100), rounds=st.integers(3, 20))
def test_a_drift_that_is_linear_in_time_changes_no_difference(
    slope: float, percent: float, rounds: int
) -> None:
    energies: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * rounds):
        for place, index in enumerate(order_of_round(number, 2)):
            drift = exp(slope * (2 * number + place))
            energies[index].append(drift * (1 + index * percent / 100))
    change = compare_rounds(*energies)
    assert change.percent == pytest.approx(percent, abs=1e-6)
    assert change.high_percent - change.low_percent < 1e-6


def test_a_round_without_an_energy_is_left_out_with_its_pair() -> None:
    before, after = [1.0] * 8, [1.2, 1.2, None, 9.0, 1.2, 1.2, 1.2, 1.2]
    change = compare_rounds(before, after)
    assert (change.samples, round(change.percent, 6)) == (3, 20)


def test_too_few_pairs_of_rounds_compare_nothing() -> None:
    with pytest.raises(RefusedError, match="2 pairs of rounds"):
        compare_rounds([1.0] * 5, [1.0] * 5)
    with pytest.raises(RefusedError, match="fewer than two repeats"):
        mean_energy([1.0, None])


def test_a_session_is_compared_with_the_scatter_of_earlier_ones() -> None:
    steady = compare_sessions([100.0, 100.1, 99.9, 100.0, 100.2], 110.0)
    rough = compare_sessions([100.0, 120.0, 90.0, 105.0, 97.0], 110.0)
    assert steady is not None
    assert rough is not None
    assert (steady.exceeds(ABOVE), rough.exceeds(ABOVE)) == (True, False)
    assert compare_sessions([100.0, 100.0], 200.0) is None


def test_a_comparison_of_many_proves_less_than_a_comparison_of_one() -> None:
    energies = session(Random(7), 10, 10, 0)
    one, many = compare_rounds(*energies), compare_rounds(*energies, comparisons=5)
    assert many.proven_percent < one.proven_percent
    assert (many.low_percent, many.high_percent) == (one.low_percent, one.high_percent)


@pytest.mark.parametrize("warm_up_s", [0.0, 20.0])
def test_intervals_hold_and_nothing_fails_falsely_while_a_gpu_warms_up(warm_up_s: float) -> None:
    def change(rng: Random, percent: float) -> EnergyDifference:
        return compare_rounds(*session(rng, percent, 10, warm_up_s))

    held, failed, at_threshold, found = shares(300, f"test {warm_up_s}", change)
    assert 0.93 <= held <= 0.97
    assert (failed, at_threshold <= 0.02) == (0, True)  # 0.5 % of 300 are 1.5
    assert found > 0.9
