"""Batch sizes that the curve does not recommend: when they are tried, at what price, and what it finds."""

from collections.abc import Mapping
from random import Random

from msgspec.structs import replace

from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.policy import Job, TryVerdict
from tests.analyzers.batch_size.recurrences import GPU, POLICY, Tried, history, one_try, recurred

SIZES = tuple(8 * 2**at for at in range(9))
JOB = Job(batch_sizes=SIZES, default=16, max_epochs=80)
HILL = {8: 24, 16: 20, 32: 26, 64: 32, 128: 32, 256: 32, 512: 20, 1024: 9, 2048: 20}
"""Epochs by batch size: a valley at the default, and a deeper one beyond a hill."""
FLAT = {size: 20 + at % 2 for at, size in enumerate(SIZES)}


def played(epochs: Mapping[int, int], recurrences: int) -> tuple[JobHistory, list[Tried]]:
    return recurred(JobHistory(JOB), recurrences, epochs.__getitem__, lambda _: 10.0, metrics=True)


def test_an_optimum_beyond_a_hill_is_found_and_kept() -> None:
    _, tries = played(HILL, 30)
    assert [size for size, *_ in tries[-5:]] == [1024] * 5
    lost = [took for size, took, converged in tries if not converged]
    assert sum(lost) < 2 * HILL[16]


def test_a_size_far_below_the_curve_is_believed_after_one_try() -> None:
    """One run may have been a lucky one, but the next recurrence tries it again."""
    epochs = {**dict.fromkeys(SIZES, 20), 512: 8}
    _, tries = played(epochs, 40)
    sizes = [size for size, *_ in tries]
    first = sizes.index(512)
    assert sizes.count(512) >= len(sizes) - first - 4


def test_where_nothing_is_to_be_found_a_size_is_judged_once_and_for_a_few_epochs() -> None:
    _, tries = played(FLAT, 40)
    given_up = [(size, took) for size, took, converged in tries if not converged]
    assert len(given_up) == len({size for size, _ in given_up})
    assert all(took <= 3 for _, took in given_up)


def test_a_try_behind_at_the_same_cost_is_given_up_and_the_reason_says_so() -> None:
    state, _ = played(HILL, 1)
    a_try = one_try(90, 256, 2, "running", recurrence=5, metrics=(0.01, 0.02))
    verdict = POLICY.verdict(state, a_try)
    assert verdict == TryVerdict(
        go_on=False, reason="the metric of 256 is behind that of 16 at the same cost."
    )
    assert POLICY.verdict(state, replace(a_try, metrics=(0.3, 0.5))).go_on


def test_a_job_whose_other_sizes_cost_more_than_the_default_learns_no_more_until_it_has_caught_up() -> None:
    others = (one_try(number, 32, 40, "stopped", recurrence=1) for number in range(1, 6))
    state = history(JOB, one_try(0, 16, 20), *others)
    choice = POLICY.choose(state, GPU, Random(1))
    assert choice.batch_size == 16
    assert "other sizes have cost more than the default" in choice.reason


def test_a_default_whose_first_run_failed_does_not_keep_the_job_at_the_first_size_that_converged() -> None:
    smaller = (
        one_try(number, 8, 12, "converged" if number % 2 else "stopped", epoch_j=40.0, recurrence=number // 2)
        for number in range(1, 16)
    )
    state = history(JOB, one_try(0, 16, 80, "exhausted", epoch_j=20.0), *smaller)
    assert POLICY.choose(state, GPU, Random(1)).batch_size > 8
