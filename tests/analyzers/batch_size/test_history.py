"""What a policy is told of a job, and that its choices are of nothing else."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import field
from msgspec.structs import replace

from analyzers.batch_size import registry
from analyzers.batch_size.history import MAX_RECURRENCE_TRIES, Learned, choose, learn
from analyzers.batch_size.policy import Choice, Job, Try
from analyzers.batch_size.registry import Default
from analyzers.results.rows import Ended, JobRow, TryRow
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
    """Each size in turn, whatever became of it. Remembers what it was told."""

    stop_cost_j: float = float("inf")
    told: list[tuple[str, int, str]] = field(default_factory=list)

    def start(self, job: Job) -> Job:
        self.told.clear()
        return job

    def began(self, state: Job, a_try: Try) -> Job:
        self.told.append(("began", a_try.number, a_try.ended))
        return state

    def ended(self, state: Job, a_try: Try) -> Job:
        self.told.append(("ended", a_try.number, a_try.ended))
        return state

    def choose(self, state: Job, setup: str, rng: Random) -> Choice:  # noqa: ARG002
        sizes = state.batch_sizes
        begun = sum(what == "began" for what, _, _ in self.told)
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
    in_order, shuffled = Learned(row=ROW), Learned(row=ROW)
    for row in rows:
        in_order.put(replace(row, ended="running", ended_wall_ns=None))
        if rng.random() < 0.5:
            learn(policy, in_order)
        in_order.put(row)
    for row in rng.sample(rows, len(rows)):
        shuffled.put(row)
        learn(policy, shuffled)
    assert learn(policy, in_order) == learn(policy, shuffled)
    chosen = choose(policy, in_order, SETUP)
    assert chosen == choose(policy, shuffled, SETUP)
    assert chosen.batch_size in ROW.batch_sizes
    assert "failed:" not in chosen.reason


@given(HISTORIES)
def test_a_policy_hears_of_each_try_once_and_of_its_end_after_its_beginning(
    history: list[tuple[str, int, int, int]],
) -> None:
    policy, learned = Turns(), Learned(row=ROW)
    for number, one in enumerate(history, 1):
        learned.put(a_try(number, *one))
    learn(policy, learned)
    offered = {number: one for number, one in enumerate(history, 1) if one[3] != 128}
    assert sorted(number for what, number, _ in policy.told if what == "began") == sorted(offered)
    ended = {number: how for what, number, how in policy.told if what == "ended"}
    assert ended == {number: one[0] for number, one in offered.items() if one[0] != "running"}
    for number in ended:
        places = [place for place, (_, of, _) in enumerate(policy.told) if of == number]
        assert [policy.told[place][0] for place in places] == ["began", "ended"]


def test_a_recurrence_that_never_ends_gives_way_to_the_next() -> None:
    learned = Learned(row=ROW)
    for number in range(1, MAX_RECURRENCE_TRIES + 1):
        assert learned.next_recurrence() == 1
        learned.put(replace(a_try(number, "stopped", number, 1), recurrence=1))
    assert learned.next_recurrence() == 2


def test_there_are_so_many_policies_and_no_others() -> None:
    with pytest.raises(SettingsError, match="Choose one of"):
        registry.parse("clever")
    assert choose(registry.parse("default"), Learned(row=ROW), SETUP).batch_size == 32
