"""A try is behind when its metric is not better than the cheapest size's was at the same cost."""

from math import exp, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.batch_size.belief.try_summary import pace_behind

BEST = tuple(1 - exp(-0.2 * epoch) for epoch in range(1, 11))
"""Ten epochs to the target."""


def after(epochs: int, needs: float) -> list[float]:
    """Return the metrics of a run that needs so many epochs."""
    return [1 - exp(-2 * epoch / needs) for epoch in range(1, epochs + 1)]


@pytest.mark.parametrize(
    ("metrics", "paid"),
    [
        pytest.param(after(2, needs=8), 2, id="ahead"),
        pytest.param(after(1, needs=40), 0.7, id="before the first epoch of the cheapest size"),
        pytest.param(after(10, needs=40), 10, id="as dear as its whole run"),
        pytest.param([], 2, id="no metric"),
        pytest.param([nan], 2, id="no number"),
    ],
)
def test_a_try_that_is_ahead_or_cannot_be_compared_is_not_behind(metrics: list[float], paid: float) -> None:
    assert pace_behind(metrics, BEST, paid) is None


@pytest.mark.parametrize("needs", [10, 20, 60])
def test_a_try_that_is_behind_shows_how_many_epochs_it_needs(needs: float) -> None:
    early, late = pace_behind(after(2, needs), BEST, 2), pace_behind(after(9, needs), BEST, 9)
    assert early is not None
    assert late is not None
    assert exp(early.log_epochs) == pytest.approx(needs, rel=0.1)
    assert exp(late.log_epochs) == pytest.approx(needs, rel=0.1)
    assert late.deviation < early.deviation


def test_a_metric_that_falls_is_compared_the_other_way() -> None:
    falling = [1 - one for one in BEST]
    assert pace_behind([0.99, 0.98], falling, 2) is not None
    assert pace_behind([0.5, 0.1], falling, 2) is None


@given(
    st.lists(st.floats(), min_size=1, max_size=5),
    st.lists(st.floats(), min_size=1, max_size=5),
    st.floats(0, 10),
)
def test_any_metrics_are_answered(metrics: list[float], of_best: list[float], paid: float) -> None:
    pace = pace_behind(metrics, of_best, paid)
    assert pace is None or (isfinite(pace.log_epochs) and pace.deviation > 0)
