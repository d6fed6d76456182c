"""The adaptive policy: what it believes, what it concludes, and what no report can break."""

from functools import partial
from math import exp, inf, isfinite, log, nan
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.batch_size.adaptive import BelievedJob, beliefs
from analyzers.batch_size.belief import cost_belief, gaussian
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Choice, Job, Try
from analyzers.results.job_rows import Ended
from tests.analyzers.batch_size.recurrences import GPU, POLICY, history, one_try, recurred

JOB = Job(batch_sizes=(16, 32, 64, 128, 256), default=128, max_epochs=50)
OTHER_GPU = "A40 x 1"
EPOCH_J = {16: 80.0, 32: 42.0, 64: 24.0, 128: 16.0, 256: 14.0}
EPOCHS = {16: 10, 32: 10, 64: 10, 128: 20, 256: 50}
"""Costs 800, 420, 240, 320, 700 J: 64 is the best."""


def training(
    number: int, size: int, epochs: int | None = None, ended: Ended = "converged", *,
    setup: str = GPU, dearer: float = 1.0, recurrence: int | None = None,
) -> Try:  # fmt: skip
    took = EPOCHS[size] if epochs is None else epochs
    at = number if recurrence is None else recurrence
    return one_try(number, size, took, ended, epoch_j=EPOCH_J[size] * dearer, setup=setup, recurrence=at)


after = partial(history, JOB)


def asked(state: JobHistory, setup: str = GPU) -> Choice:
    return POLICY.choose(state, setup, Random(1))


def believed(state: JobHistory, size: int, setup: str = GPU) -> BelievedJob:
    return next(one for one in beliefs(state, setup) if one.batch_size == size)


def recur(
    state: JobHistory, times: int, *, harder: float = 1.0, dearer: float = 1.0
) -> tuple[JobHistory, list[int]]:
    """Return the state after so many recurrences, and the size at which each converged."""
    state, tries = recurred(
        state, times, lambda size: round(EPOCHS[size] * harder), lambda size: EPOCH_J[size] * dearer
    )
    return state, [size for size, _, converged in tries if converged]


def test_the_default_goes_first_and_again_after_it_was_lost() -> None:
    assert asked(after()).batch_size == 128
    assert asked(after(training(0, 128, 3, "lost"))).batch_size == 128
    assert beliefs(after(), GPU) == ()


def test_a_default_that_fails_is_followed_by_its_neighbour() -> None:
    assert asked(after(training(0, 128, 50, "exhausted"))).batch_size in {64, 256}


def test_it_finds_the_best_size_and_stays_there() -> None:
    state, sizes = recur(JobHistory(JOB), 40)
    assert sizes[-20:] == [64] * 20
    assert sizes[0] == 128
    best = believed(state, 64)
    assert best.low_j < 240 < best.high_j
    assert best.expected_cost_j == pytest.approx(240, rel=0.02)
    assert best.tries >= 20
    assert "least expected" in asked(state).reason


def test_what_one_size_teaches_its_neighbours_believe_more_than_those_far_away() -> None:
    before, now = after(training(0, 128)), after(training(0, 128), training(1, 64))
    width = [
        {one.batch_size: log(one.high_j / one.low_j) for one in beliefs(state, GPU)}
        for state in (before, now)
    ]
    assert width[1][32] < 0.8 * width[0][32]
    assert width[1][64] < width[1][32] < width[1][16]


def test_epochs_that_were_not_enough_make_a_size_dearer_but_are_not_its_cost() -> None:
    tries = [training(number, 128) for number in range(3)]
    before = after(*tries)
    given_up = after(*tries, training(3, 32, 9, "stopped"))
    enough = after(*tries, training(3, 32, 9))
    assert believed(enough, 32).expected_cost_j < believed(given_up, 32).expected_cost_j
    assert believed(given_up, 32).low_j > believed(before, 32).low_j
    assert believed(given_up, 32).tries == 0


def test_a_try_that_was_lost_says_nothing_of_epochs() -> None:
    tries = [training(0, 128), training(1, 64)]
    lost = after(*tries, training(2, 64, 9, "lost"))
    for with_lost, without in zip(beliefs(lost, GPU), beliefs(after(*tries), GPU), strict=True):
        assert with_lost.tries == without.tries
        assert with_lost.expected_cost_j == pytest.approx(without.expected_cost_j, rel=0.05)


def test_a_hopeless_try_is_given_up_and_a_proven_size_may_take_beta_times_its_cost() -> None:
    state = after(*(training(number, 64) for number in range(4)))
    hopeless = replace(training(4, 16, 1, "running"), epoch_cost_j=500.0)
    verdict = POLICY.verdict(state, hopeless)
    assert not verdict.go_on
    assert "16" in verdict.reason
    assert POLICY.verdict(state, training(4, 64, 19, "running")).go_on
    assert not POLICY.verdict(state, training(4, 64, 22, "running")).go_on
    assert POLICY.verdict(after(), training(0, 128, 49, "running")).go_on


def test_a_size_that_failed_is_not_tried_again_before_one_has_converged() -> None:
    state = after(training(0, 128), training(1, 64, 12, "stopped"))
    choice = asked(state)
    assert choice.batch_size != 64
    assert "64 did not reach the target" in choice.reason


def test_a_size_that_has_converged_may_be_tried_again_after_a_bad_run() -> None:
    state, _ = recur(JobHistory(JOB), 30)
    number = state.tries[-1].number + 1
    assert asked(state.heard(training(number, 64, 21, "stopped", recurrence=30))).batch_size == 64


def test_the_first_run_of_a_size_that_was_given_up_may_have_been_a_bad_one() -> None:
    tries = [*(training(number, 128) for number in range(3)), training(3, 64), training(4, 64)]
    before = believed(after(*tries), 16).expected_cost_j
    once, twice = (
        believed(
            after(*tries, *(training(5 + more, 32, 45, "stopped") for more in range(runs))), 16
        ).expected_cost_j
        for runs in (1, 2)
    )
    assert before < once < 1.3 * before
    assert twice > 2 * once


def test_trainings_of_few_epochs_tell_less_of_other_sizes() -> None:
    many, few = (
        believed(after(*(training(number, 128, epochs) for number in range(4))), 64) for epochs in (20, 1)
    )
    assert log(few.high_j / few.low_j) > 1.1 * log(many.high_j / many.low_j)


def test_while_an_unknown_size_is_tried_others_run_at_the_best_that_is_known() -> None:
    state = after(training(0, 128))
    first = asked(state).batch_size
    assert first != 128
    running = state.heard(training(1, first, 0, "running"))
    beside = asked(running)
    assert beside.batch_size == 128
    assert f"while {first} is being tried" in beside.reason


def test_another_gpu_begins_with_what_the_first_has_taught() -> None:
    state, _ = recur(JobHistory(JOB), 30)
    assert asked(state, OTHER_GPU).batch_size == 64
    # There, large sizes are much cheaper than here, and once that was seen the best size is another.
    number = state.tries[-1].number + 1
    for size, dearer in ((64, 1.0), (128, 0.5)):
        state = state.heard(training(number, size, setup=OTHER_GPU, dearer=dearer))
        number += 1
    assert believed(state, 128, OTHER_GPU).expected_cost_j == pytest.approx(160, rel=0.1)
    assert believed(state, 128).expected_cost_j == pytest.approx(320, rel=0.1)
    assert asked(state, GPU).batch_size == 64
    assert asked(state, OTHER_GPU).batch_size in {128, 256}


def test_sizes_that_the_job_no_longer_has_still_teach() -> None:
    shrunk = replace(JOB, batch_sizes=(64, 256), default=256)
    state = history(shrunk, *(training(number, 128) for number in range(3)))
    assert believed(state, 64).tries == 0
    assert asked(state).batch_size in {64, 256}


@pytest.mark.parametrize("harder", [1.4, 2.2])
def test_a_job_that_becomes_harder_is_noticed(harder: float) -> None:
    state, _ = recur(JobHistory(JOB), 30)
    state, sizes = recur(state, 15, harder=harder)
    assert believed(state, 64).expected_cost_j == pytest.approx(240 * harder, rel=0.1)
    assert len(sizes) == 15
    assert sizes.count(64) >= 8


def test_a_lasting_change_of_what_epochs_cost_is_noticed_and_one_dear_try_is_none() -> None:
    before, _ = recur(JobHistory(JOB), 30)
    once, _ = recur(before, 1, dearer=3.0)
    assert once.seen.era == before.seen.era
    assert believed(once, 64).expected_cost_j < 1.5 * 240
    state, _ = recur(once, 2, dearer=3.0)
    assert believed(state, 64).expected_cost_j == pytest.approx(720, rel=0.15)
    assert believed(state, 16).expected_cost_j > 1.4 * believed(before, 16).expected_cost_j


def test_costs_that_scatter_are_no_change_and_the_best_size_stays() -> None:
    dice, state, sizes = Random(3), JobHistory(JOB), list[int]()
    for _ in range(60):
        state, reached = recur(state, 1, dearer=exp(dice.gauss(0, 0.08)))
        sizes += reached
    assert state.seen.era == 0
    assert sizes[-20:].count(64) >= 18
    assert state.seen.price_scatter == pytest.approx(0.08, rel=0.35)


def test_a_level_that_rises_a_little_for_good_keeps_what_epochs_have_shown() -> None:
    before, _ = recur(JobHistory(JOB), 40)
    state, sizes = recur(before, 15, dearer=1.12)
    assert state.seen.era == before.seen.era
    assert state.seen.price_era > before.seen.price_era
    assert set(sizes) == {64}
    assert believed(state, 64).expected_cost_j == pytest.approx(240 * 1.12, rel=0.05)


def test_a_size_that_failed_for_twice_the_best_cost_is_not_tried_twice() -> None:
    """As ImageNet on a P100: one other size, and it never converges."""
    job = replace(JOB, batch_sizes=(64, 128), default=128)
    needs = {64: inf, 128: 32}
    _, tries = recurred(JobHistory(job), 20, needs.__getitem__, lambda _: 16.0)
    [(failed, epochs, _)] = [one for one in tries if not one[2]]
    assert failed == 64
    assert epochs <= 64


def test_a_size_unlike_its_neighbours_is_found_where_all_others_cost_the_same() -> None:
    sizes = tuple(16 * 2**at for at in range(8))
    job = replace(JOB, batch_sizes=sizes, default=16)
    _, tries = recurred(JobHistory(job), 60, lambda size: 8 if size == sizes[6] else 20, lambda _: 10.0)
    assert [size for size, _, converged in tries if converged][-10:] == [sizes[6]] * 10


def test_a_target_that_nobody_reaches_any_more_is_said() -> None:
    state, _ = recur(JobHistory(JOB), 30)
    number = state.tries[-1].number
    for _ in range(40):
        number += 1
        choice = asked(state)
        state = state.heard(training(number, choice.batch_size, 50, "exhausted", recurrence=30))
        if choice.reason.startswith("No batch size"):
            break
    assert choice.reason.startswith("No batch size has reached the target since recurrence 29.")
    never = after(*(training(at, size, 50, "exhausted") for at, size in enumerate(JOB.batch_sizes)))
    assert asked(never).reason.startswith("No batch size has reached the target yet.")


def test_a_proven_size_that_fails_again_and_again_is_left_for_another() -> None:
    tries = [training(number, size) for number, size in enumerate((128, 64, 256, 32, 64, 64, 64, 64))]
    failed = [training(number, 64, 12, "stopped", recurrence=8) for number in range(8, 11)]
    assert asked(after(*tries, *failed[:1])).batch_size == 64
    assert asked(after(*tries, *failed)).batch_size != 64


@given(
    st.lists(st.tuples(st.integers(0, 6), st.floats(-5, 5)), min_size=1, max_size=7, unique_by=lambda s: s[0])
)
def test_a_curve_runs_through_what_was_seen_exactly(seen: list[tuple[int, float]]) -> None:
    points = [gaussian.GaussianPoint("a", at, value, (1e-8,)) for at, value in seen]
    found = gaussian.conditioned(
        np.arange(7.0), cost_belief.COST, cost_belief.OTHER, "a", points, np.array([[0.5]])
    )
    for at, value in seen:
        assert found.mean[0, at] == pytest.approx(value, abs=1e-3)
        assert found.variance[0, at] < 1e-5
    assert np.linalg.eigvalsh(found.covariance[0]).min() > -1e-6


@pytest.mark.parametrize("bad", [0.0, 0.05, 0.5])
def test_moments_beyond_a_value_are_those_of_draws(bad: float) -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal(800_000)
    seen = z[(z > 0.7) | (rng.random(len(z)) < bad)]
    curves = gaussian.Curves(np.zeros((1, 1)), np.ones((1, 1, 1)), np.zeros(1))
    found, _ = curves.given_more(0, 0.7, np.zeros(1), bad)
    assert found.mean[0, 0] == pytest.approx(seen.mean(), abs=0.01)
    assert found.variance[0, 0] == pytest.approx(seen.var(), abs=0.01)


def test_a_try_that_was_profiled_and_none_whose_limit_was_chosen_are_no_change() -> None:
    profiled = replace(training(0, 64), cost_j=1.4 * 240, epoch_cost_j=None)
    before = after(profiled)
    assert 1.3 * 240 < believed(before, 64).expected_cost_j < 1.7 * 240
    state = after(profiled, training(1, 64), replace(profiled, number=2, recurrence=2))
    assert believed(state, 64).expected_cost_j == pytest.approx(240, rel=0.2)
    assert believed(state, 64).tries == 3


def test_costs_that_are_no_numbers_are_left_out() -> None:
    state = after(training(0, 128), replace(training(1, 64), epoch_cost_j=nan))
    assert all(isfinite(one.expected_cost_j) for one in beliefs(state, GPU))
