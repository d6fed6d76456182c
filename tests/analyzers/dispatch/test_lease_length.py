"""Leases outlast the delays that are seen, and not more than that."""

from hypothesis import given
from hypothesis import strategies as st

from analyzers.dispatch.collector_link import LeaseLength

MS, S = 1_000_000, 1_000_000_000


def test_a_lease_on_an_idle_host_is_as_the_settings_have_it() -> None:
    lease = LeaseLength(1_500)
    for at_s in range(100):
        lease.delayed(at_s * S, 3 * MS)
    assert lease.ms(100 * S) == 1_500


def test_a_lease_grows_with_a_delay_and_shrinks_when_it_is_long_ago() -> None:
    lease = LeaseLength(1_500)
    lease.delayed(0, 2 * S)
    lease.delayed(S, 10 * MS)
    assert lease.ms(2 * S) == 4 * 2_000
    assert lease.ms(62 * S) == 1_500


@given(st.lists(st.tuples(st.integers(0, 10 * S), st.integers(-S, 100 * S)), max_size=50))
def test_a_lease_outlasts_every_delay_of_late_within_its_bounds(delays: list[tuple[int, int]]) -> None:
    lease = LeaseLength(1_500, factor=3, most_ms=9_000, remembered_s=20)
    now_ns, seen = 0, list[tuple[int, int]]()
    for after_ns, delay_ns in delays:
        now_ns += after_ns
        lease.delayed(now_ns, delay_ns)
        seen.append((now_ns, delay_ns))
        worst_ns = max(late_ns for at_ns, late_ns in seen if now_ns - at_ns <= 20 * S)
        assert lease.ms(now_ns) == max(1_500, round(min(3 * worst_ns / MS, 9_000)))
