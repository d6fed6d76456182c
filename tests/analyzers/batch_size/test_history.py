"""What a policy is told of a job, and that its choices are of nothing else."""

from math import inf, isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.batch_size import registry
from analyzers.batch_size.adaptive import Adaptive, beliefs
from analyzers.batch_size.belief.try_summary import JobHistory
from analyzers.batch_size.known_jobs import MAX_RECURRENCE_TRIES, LearnedHistory, choose
from analyzers.batch_size.policy import Choice, Job, Policy, Try
from analyzers.batch_size.registry import Default
from analyzers.batch_size.thompson import Reference
from analyzers.results.job_rows import Ended
from analyzers.results.rows import JobRow, TryRow
from zeus_stream.errors import SettingsError

SETUP = "Tesla V100-PCIE-16GB x1"
ROW = JobRow(
    job="nightly",
    version=1,
    batch_sizes=(16, 32, 64),
    default_batch_size=32,
    metric="accuracy",
    target=0.9,
    lower_is_better=False,
    max_epochs=10,
    eta=0.5,
    beta=2.0,
    cost_window=0,
)


class Turns(Default, frozen=True):
    """Each size in turn, whatever became of it."""

    stop_cost_j: float = float("inf")

    def choose(self, history: JobHistory, setup: str, rng: Random) -> Choice:  # noqa: ARG002
        sizes, begun = history.job.batch_sizes, len(history.tries)
        return Choice(sizes[begun % len(sizes)], self.stop_cost_j, f"turn {begun} on {setup}")


def a_try(number: int, ended: str, began_s: int, took_s: int, size: int = 32) -> TryRow:
    how: Ended = ended  # type: ignore[assignment]
    ended_ns = None if ended == "running" else (began_s + took_s) * 10**9
    return TryRow(
        job="nightly",
        number=number,
        version=1,
        recurrence=number,
        run=f"run-{number}",
        session=f"s-{number}",
        attempt=0,
        setup=SETUP,
        batch_size=size,
        policy="reference",
        reason="",
        stop_cost_j=None,
        began_wall_ns=began_s * 10**9,
        ended_wall_ns=ended_ns,
        epochs=3,
        energy_j=100.0,
        duration_s=1.0,
        cost_j=100.0 + number,
        epoch_cost_j=33.0,
        metrics=(0.5, 0.9),
        ended=how,
        ended_why="",
    )


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["running", "converged", "stopped", "exhausted", "lost"]),
        st.integers(0, 100),
        st.integers(0, 100),
        st.sampled_from([16, 32, 64, 128]),
    ),
    max_size=12,
)


@given(HISTORIES, st.randoms(), st.sampled_from(["adaptive", "reference"]))
@settings(max_examples=50, deadline=None)
def test_whatever_the_order_in_which_rows_came_a_policy_knows_and_chooses_the_same(
    history: list[tuple[str, int, int, int]], rng: Random, name: str
) -> None:
    rows = [a_try(number, *one) for number, one in enumerate(history, 1)]
    policy = registry.parse(name)
    in_order, shuffled = LearnedHistory(row=ROW), LearnedHistory(row=ROW)
    for row in rows:
        in_order.put(replace(row, ended="running", ended_wall_ns=None))
        if rng.random() < 0.5:
            in_order.known()
        in_order.put(row)
    for row in rng.sample(rows, len(rows)):
        shuffled.put(row)
        shuffled.known()
    assert in_order.known() == shuffled.known()
    chosen = choose(policy, in_order, SETUP)
    assert chosen == choose(policy, shuffled, SETUP)
    assert chosen.batch_size in ROW.batch_sizes
    assert "failed:" not in chosen.reason


@given(HISTORIES)
def test_a_policy_knows_each_try_of_an_offered_size_once(history: list[tuple[str, int, int, int]]) -> None:
    learned = LearnedHistory(row=ROW)
    for number, one in enumerate(history, 1):
        learned.put(a_try(number, *one))
    known = {one.number: one.ended for one in learned.known().tries}
    assert known == {number: one[0] for number, one in enumerate(history, 1) if one[3] != 128}


def test_a_measurement_that_is_corrected_counts_though_it_is_lower() -> None:
    learned = LearnedHistory(row=ROW)
    learned.put(a_try(1, "converged", 1, 2))
    assert learned.known().tries[0].cost_j == 101.0
    learned.put(replace(a_try(1, "converged", 1, 2), cost_j=50.0))
    assert learned.known().tries[0].cost_j == 50.0


def test_a_recurrence_that_never_ends_gives_way_to_the_next() -> None:
    learned = LearnedHistory(row=ROW)
    for number in range(1, MAX_RECURRENCE_TRIES + 1):
        assert learned.next_recurrence() == 1
        learned.put(replace(a_try(number, "stopped", number, 1), recurrence=1))
    assert learned.next_recurrence() == 2


def test_there_are_so_many_policies_and_no_others() -> None:
    with pytest.raises(SettingsError, match="Choose one of"):
        registry.parse("clever")
    assert choose(registry.parse("default"), LearnedHistory(row=ROW), SETUP).batch_size == 32


JOB = Job(batch_sizes=(16, 32, 64, 128, 256), default=128, max_epochs=50)
REPORTS = st.lists(
    st.builds(
        Try,
        number=st.integers(0, 12),
        recurrence=st.integers(0, 6),
        batch_size=st.sampled_from((*JOB.batch_sizes, 1, 7, 10**9)),
        setup=st.sampled_from(("V100 x 1", "A40 x 1")),
        epochs=st.one_of(st.integers(0, 3), st.integers(0, 10**6)),
        cost_j=st.one_of(st.floats(0, 1e12), st.just(inf)),
        epoch_cost_j=st.one_of(st.none(), st.floats(0, 1e300), st.just(inf)),
        ended=st.sampled_from(("running", "converged", "stopped", "exhausted", "lost")),
    ),
    max_size=14,
)
POLICIES: dict[str, Policy[JobHistory]] = {
    "adaptive": Adaptive(),
    "mended": Reference(),
    "faithful": Reference(faithful=True),
    "bare": Reference(rounds=0, stop=False),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=40)
@given(REPORTS, st.randoms(use_true_random=False), st.sampled_from([0, 2]))
def test_whatever_is_reported_in_any_order_there_is_one_history_and_a_choice(
    name: str, reports: list[Try], rng: Random, window: int
) -> None:
    """Of a try, some reports come twice or contradict each other."""
    policy, job = POLICIES[name], replace(JOB, window=window)
    if name != "adaptive":  # `LearnedHistory` leaves out sizes that the job no longer has
        reports = [one for one in reports if one.batch_size in JOB.batch_sizes]
    state, other = JobHistory(job), JobHistory(job)
    for one in reports:
        assert isinstance(policy.verdict(state, one).go_on, bool)
        state = state.heard(one)
        choice = policy.choose(state, "V100 x 1", Random(1))
        assert choice.batch_size in JOB.batch_sizes
        assert choice.stop_cost_j >= 0
        assert choice.reason
    for one in rng.sample(reports, len(reports)):
        other = other.heard(one)
    assert other == state
    setup = "A40 x 1"
    assert (
        policy.choose(other, setup, Random(1)).batch_size == policy.choose(state, setup, Random(1)).batch_size
    )
    for believed in beliefs(state, setup) if name == "adaptive" else ():
        assert 0 <= believed.low_j <= min(believed.high_j, believed.expected_cost_j)
        assert isfinite(believed.high_j)
