"""The reference policy: the worked case of pruning, what it believes, and what no report can break."""

from itertools import count
from math import inf
from random import Random
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Job
from analyzers.batch_size.thompson import CostNormal, Reference, draw, observe, prune
from analyzers.results.job_rows import Ended
from tests.analyzers.batch_size.recurrences import GPU, history, one_try

JOB = Job(batch_sizes=(8, 16, 32, 64, 128, 256), default=128, max_epochs=20)
MENDED, FAITHFUL = Reference(), Reference(faithful=True)
POLICIES = [pytest.param(MENDED, id="mended"), pytest.param(FAITHFUL, id="faithful")]


def tries(*ended: tuple[int, float, Ended]) -> JobHistory:
    """Return the history of tries (size, cost, how it ended), a recurrence each."""
    each = enumerate(ended)
    return history(JOB, *(one_try(number, size, 3, how, cost_j=cost) for number, (size, cost, how) in each))


@pytest.mark.parametrize("policy", POLICIES)
def test_pruning_goes_down_and_up_twice(policy: Reference) -> None:
    costs = {128: 10.0, 64: 9.0, 32: 8.0, 16: 12.0, 256: 15.0}
    failing = [{8}, {16, 256}]
    state, chosen, rng, numbers = JobHistory(JOB), [], Random(1), count()
    for number in numbers:
        fails = failing[0] if number < 6 else failing[1]
        choice = policy.choose(state, GPU, rng)
        if not choice.reason.startswith("pruning"):
            break
        size = choice.batch_size
        chosen.append(size)
        how: Ended = "stopped" if size in fails else "converged"
        cost_j = costs.get(size, 16.0)
        state = state.heard(one_try(number, size, 0, how, cost_j=cost_j))
    assert chosen == [128, 64, 32, 16, 8, 256, 32, 16, 64, 128, 256]
    assert prune(JOB, state.tries, 2).sizes == (32, 64, 128)
    assert {policy.choose(state, GPU, rng).batch_size for _ in range(50)} <= {32, 64, 128}


def test_a_lost_try_is_made_again_and_its_late_report_still_counts() -> None:
    state = tries((128, 10, "converged"), (64, 2, "lost"))
    assert MENDED.choose(state, GPU, Random()).batch_size == 64
    late = state.heard(replace(state.tries[1], cost_j=9.0, ended="converged"))
    assert MENDED.choose(late, GPU, Random()).batch_size == 32
    assert MENDED.choose(late, GPU, Random()).stop_cost_j == 2 * 9.0


def test_what_runs_beside_an_exploring_try_runs_at_the_best_size_known() -> None:
    state = tries((128, 10, "converged"), (64, 9, "converged"), (32, 1, "running"))
    assert MENDED.choose(state, GPU, Random()).batch_size == 64
    assert MENDED.choose(tries((128, 1, "running")), GPU, Random()).batch_size == 128


def test_a_failed_try_does_not_lower_the_bound() -> None:
    state = tries((128, 10, "converged"), (64, 4, "exhausted"))
    assert MENDED.choose(state, GPU, Random()).stop_cost_j == 20
    assert FAITHFUL.choose(state, GPU, Random()).stop_cost_j == 8


def test_a_size_costs_what_its_recurrence_cost_from_there_on() -> None:
    policy = Reference(rounds=0)
    job = replace(JOB, batch_sizes=(64, 128))
    state = history(
        job,
        one_try(0, 128, 0, cost_j=10.0),
        one_try(1, 64, 0, cost_j=9.0),
        one_try(2, 64, 0, "stopped", cost_j=18.0),
        one_try(3, 128, 0, cost_j=10.0, recurrence=2),
    )
    assert {size: belief.mean for size, belief in policy.beliefs(state, GPU).items()} == {64: 18.5, 128: 10}
    # 64 cost 9 and 18 + 10, so 128 with 10 and 10 is what is drawn most of the time.
    rng = Random(1)
    drawn = [policy.choose(state, GPU, rng).batch_size for _ in range(200)]
    assert 120 < drawn.count(128) < 200


def test_when_all_sizes_fail_the_bound_is_lifted_and_the_job_is_learned_anew() -> None:
    state = tries(*((size, 10, "converged") for size in (128, 64, 32, 16, 8, 256, 128, 64, 32, 16, 8, 256)))
    policy, rng, number = MENDED, Random(3), 12
    tried = []
    while policy.choose(state, GPU, rng).stop_cost_j < inf:
        size = policy.choose(state, GPU, rng).batch_size
        state = state.heard(one_try(number, size, 0, "stopped", cost_j=20, recurrence=12))
        tried.append(size)
        number += 1
    assert sorted(tried) == list(JOB.batch_sizes)
    state = state.heard(one_try(number, 64, 0, cost_j=25, recurrence=12))
    assert policy.choose(state, GPU, rng).stop_cost_j == 50


def test_only_the_latest_costs_of_a_size_count() -> None:
    job = replace(JOB, window=2)
    state = JobHistory(
        job, tries((128, 1, "converged"), (128, 10, "converged"), (128, 12, "converged")).tries
    )
    assert MENDED.choose(state, GPU, Random()).stop_cost_j == 20
    assert FAITHFUL.choose(state, GPU, Random()).stop_cost_j == 2


def test_another_gpu_model_starts_anew() -> None:
    state = tries((128, 10, "converged"), (64, 9, "converged"))
    assert MENDED.choose(state, "A40 x 1", Random()).batch_size == 128
    assert MENDED.choose(state, "A40 x 1", Random()).stop_cost_j == inf


@given(st.lists(st.floats(1, 1e6), min_size=2, max_size=20))
def test_with_a_flat_prior_the_belief_is_the_mean_and_its_error(costs: list[float]) -> None:
    belief = observe(costs)
    assert belief.mean == pytest.approx(fmean(costs))
    assert belief.variance == pytest.approx(pvariance(costs) / len(costs), rel=1e-6, abs=1e-6)


def test_a_draw_prefers_what_is_cheaper_as_far_as_that_is_known() -> None:
    rng = Random(5)
    known = [(8, CostNormal(10.0, 0.01)), (16, CostNormal(11.0, 0.01))]
    doubted = [(8, CostNormal(10.0, 0.01)), (16, CostNormal(11.0, 100.0))]
    assert [draw(known, rng) for _ in range(50)] == [8] * 50
    assert 50 < sum(draw(doubted, rng) == 16 for _ in range(200)) < 150
