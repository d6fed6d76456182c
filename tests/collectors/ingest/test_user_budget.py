from hypothesis import given
from hypothesis import strategies as st

from collectors.ingest.user_budget import AT_ONCE, EVENTS_PER_H, HOUR_NS, MAX_USERS, UserBudgets

MB = 1_000_000
LOG = 256 * MB
S = 1_000_000_000


def test_one_user_who_floods_writes_a_quarter_of_the_log_at_once_and_one_log_an_hour() -> None:
    budgets = UserBudgets(LOG)
    at_once = sum(budgets.take(1000, MB, 1, ms * S // 1000) for ms in range(2_000))
    assert at_once == LOG // MB // AT_ONCE
    hour = sum(budgets.take(1000, MB, 1, 2 * S + s * S) for s in range(3_600))
    assert abs(hour - LOG // MB) <= 1
    assert "messages refused" in dict(budgets.status(2 * HOUR_NS))["budget of user 1000"]


def test_a_user_who_floods_takes_nothing_from_another() -> None:
    budgets = UserBudgets(LOG)
    while budgets.take(1000, MB, 1, 0):
        pass
    assert budgets.take(1001, MB, 1, 0)


def test_events_are_counted_beside_bytes() -> None:
    budgets = UserBudgets(LOG)
    assert budgets.take(1, 1, EVENTS_PER_H // AT_ONCE, 0)
    assert not budgets.take(1, 1, 1, 0)
    assert budgets.take(1, 1, 1, HOUR_NS)


def test_a_training_of_8_ranks_at_250_steps_a_second_never_meets_its_budget() -> None:
    budgets = UserBudgets(LOG)
    assert all(budgets.take(1, 70_000, 2_000, s * S) for s in range(24 * 3_600))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, MB), st.integers(0, HOUR_NS)), max_size=200))
def test_no_user_exceeds_the_budget_of_any_hour(messages: list[tuple[int, int, int]]) -> None:
    budgets = UserBudgets(10 * MB)
    taken: dict[int, list[tuple[int, int]]] = {}
    for uid, size, now_ns in sorted(messages, key=lambda message: message[2]):
        if budgets.take(uid, size, 1, now_ns):
            taken.setdefault(uid, []).append((now_ns, size))
    for sizes in taken.values():
        assert sum(size for _, size in sizes) <= 10 * MB + 10 * MB / AT_ONCE + 1


def test_users_are_bounded() -> None:
    budgets = UserBudgets(LOG)
    for uid in range(MAX_USERS + 10):
        budgets.take(uid, 1, 1, 0)
    assert budgets.take(0, 1, 1, 0)
    assert len(budgets.status(0)) == 100
