from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zeus_stream.transport.listening.connection_limits import ConnectionLimits, ConnectionSlot

FLOODING, BYSTANDER = 1, 2


def entered(limits: ConnectionLimits, user: int, closed: list[ConnectionSlot]) -> ConnectionSlot | None:
    made: list[ConnectionSlot] = []
    place = limits.enter(user, lambda: closed.append(made[0]))
    if place is not None:
        made.append(place)
    return place


def test_the_user_with_most_connections_makes_room_for_another() -> None:
    limits, closed = ConnectionLimits(4), list[ConnectionSlot]()
    flooding = [entered(limits, FLOODING, closed) for _ in range(4)]
    assert flooding[0] is not None
    limits.settle(flooding[0])
    assert entered(limits, BYSTANDER, closed) is not None
    assert closed == [flooding[1]]  # the oldest that has sent nothing
    assert len(limits) == 4


def test_a_user_with_most_connections_takes_the_place_of_its_own_silent_one_or_is_refused() -> None:
    now_ns, closed = 0, list[ConnectionSlot]()
    limits = ConnectionLimits(2, silent_ns=10, now=lambda: now_ns)
    first, second = (entered(limits, FLOODING, closed) for _ in range(2))
    now_ns = 9
    assert entered(limits, FLOODING, closed) is None, "that has had no time to speak yet"
    now_ns = 10
    assert entered(limits, FLOODING, closed) is not None
    assert closed == [first]
    assert second is not None
    limits.settle(second)
    now_ns = 20
    third = entered(limits, FLOODING, closed)
    assert third is not None
    limits.settle(third)
    assert entered(limits, FLOODING, closed) is None
    assert limits.refused == 4


def test_the_largest_incomplete_message_of_the_user_with_most_is_cut() -> None:
    limits, closed = ConnectionLimits(10, most_bytes=100), list[ConnectionSlot]()
    flooding = [entered(limits, FLOODING, closed) for _ in range(3)]
    bystander = entered(limits, BYSTANDER, closed)
    for place, size in zip([*flooding, bystander], (30, 40, 20, 25), strict=True):
        assert place is not None
        limits.hold(place, size)
    assert closed == [flooding[1]]


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "settle", "leave", "hold"]), st.integers(0, 5)), max_size=80)
)
def test_connections_and_bytes_stay_within_their_limits(moves: list[tuple[str, int]]) -> None:
    limits, closed, there = ConnectionLimits(5, most_bytes=20), list[ConnectionSlot](), list[ConnectionSlot]()
    for move, number in moves:
        if move == "enter":
            if (place := entered(limits, number, closed)) is not None:
                there.append(place)
        elif there:
            place = there[number % len(there)]
            if move == "hold":
                limits.hold(place, 3 * number)
            elif move == "settle":
                limits.settle(place)
            else:
                limits.leave(place)
                there.remove(place)
        there = [place for place in there if place not in closed]
        assert len(limits) == len(there) <= 5
        assert sum(place.held_bytes for place in there) <= 20


@given(st.lists(st.integers(1, 3), min_size=1, max_size=60))
def test_no_user_keeps_another_out(users: list[int]) -> None:
    limits, closed, there = ConnectionLimits(6), list[ConnectionSlot](), list[ConnectionSlot]()
    for user in users:
        held = Counter(place.user for place in there if place not in closed)
        place = entered(limits, user, closed)
        assert place is not None or held[user] == max(held.values())
        if place is not None:
            there.append(place)
            limits.settle(place)
