"""Epochs to the target have a fraction where the metric tells one, and batch sizes are told apart by it."""

from math import ceil, exp, inf, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.batch_size.adaptive import beliefs
from analyzers.batch_size.belief.try_summary import JobHistory, epochs_to_target
from analyzers.batch_size.known_jobs import LearnedHistory
from analyzers.batch_size.policy import Job
from tests.analyzers.batch_size.recurrences import history, one_try
from tests.analyzers.batch_size.test_history import ROW, a_try

SIZES = (16, 32, 64, 128, 256)
JOB = Job(batch_sizes=SIZES, default=64, max_epochs=20, target=0.8)


@pytest.mark.parametrize(
    ("epochs", "metrics", "needed"),
    [
        pytest.param(3, (0.4, 0.6, 1.0), 2.5, id="halfway through the last epoch"),
        pytest.param(3, (0.7, 0.6, 0.9), 2.5, id="from the best metric before"),
        pytest.param(3, (0.4, 0.6, 0.8), 3.0, id="at its end"),
        pytest.param(2, (0.79999, 1.8), 1.05, id="at its begin"),
        pytest.param(1, (0.9,), 1.0, id="after one epoch nothing is known of its begin"),
        pytest.param(3, (0.6, 0.9), 3.0, id="the metric of an epoch is missing"),
        pytest.param(2, (0.4, 0.6, 0.9), 2.0, id="more metrics than epochs"),
        pytest.param(3, (0.4, nan, 0.9), 3.0, id="no number"),
        pytest.param(3, (0.4, -inf, 0.9), 3.0, id="not finite"),
        pytest.param(3, (0.4, 0.9, 0.95), 3.0, id="the target had been reached before"),
        pytest.param(3, (0.4, 0.5, 0.6), 3.0, id="the target was not reached"),
    ],
)
def test_a_straight_line_through_the_last_epoch_tells_the_fraction(
    epochs: int, metrics: tuple[float, ...], needed: float
) -> None:
    assert epochs_to_target(epochs, metrics, JOB) == pytest.approx(needed)
    falling = [-one for one in metrics]
    assert epochs_to_target(
        epochs, falling, replace(JOB, target=-0.8, lower_is_better=True)
    ) == pytest.approx(needed)
    assert epochs_to_target(epochs, metrics, replace(JOB, target=None)) == epochs


def test_a_metric_that_is_known_in_steps_tells_no_fraction_within_a_few_of_them() -> None:
    metrics = (0.4, 0.7, 0.9)
    assert epochs_to_target(3, metrics, replace(JOB, metric_step=0.04)) == pytest.approx(2.5)
    assert epochs_to_target(3, metrics, replace(JOB, metric_step=0.1)) == 3


@given(st.integers(1, 6), st.lists(st.floats(), max_size=6), st.floats(), st.integers(0, 1))
def test_any_metrics_are_answered_within_the_last_epoch(
    epochs: int, metrics: list[float], target: float, lower_is_better: int
) -> None:
    job = replace(JOB, target=target, lower_is_better=bool(lower_is_better))
    assert epochs - 1 < epochs_to_target(epochs, metrics, job) <= epochs


def trained(needs: dict[int, float], *, metrics: bool) -> JobHistory:
    """Return the state after a try of each size, whose metric passes the target after so many epochs."""
    tries = []
    for number, (size, exact) in enumerate(needs.items()):
        whole = ceil(exact)
        seen = tuple(1 - exp(log(1 - 0.8) * at / exact) for at in range(1, whole + 1)) if metrics else ()
        tries.append(one_try(number, size, whole, metrics=seen))
    return history(JOB, *tries)


def expected(state: JobHistory, size: int) -> float:
    return next(one.expected_cost_j for one in beliefs(state, "gpu") if one.batch_size == size)


def test_sizes_with_as_many_whole_epochs_are_told_apart_by_the_fraction() -> None:
    needs = {64: 2.7, 32: 2.1}  # three epochs each
    blind, told = (trained(needs, metrics=metrics) for metrics in (False, True))
    assert expected(told, 16) < expected(told, 128) * 0.85
    assert expected(blind, 16) > expected(blind, 128) * 0.85


def test_whole_epochs_are_paid() -> None:
    state = trained({64: 2.1, 32: 2.2}, metrics=True)
    assert 25 < expected(state, 64) < 33  # three epochs of 10 J, where 2.1 would cost 21


def test_the_rows_of_live_tries_tell_fractions() -> None:
    learned = LearnedHistory(row=ROW)
    learned.put(replace(a_try(1, "converged", 1, 2), metrics=(0.5, 0.8, 1.0)))
    assert learned.known().seen.epochs[0, 32].mean == pytest.approx(log(2.5))
