from hypothesis import given
from hypothesis import strategies as st

from zeus_stream.clock import monotonic_ns, to_next_s


@given(st.integers(1, 5_000))
def test_who_wait_for_the_next_multiple_wake_together(every_ms: int) -> None:
    every_ns = every_ms * 1_000_000
    before_ns = monotonic_ns()
    wait_s = to_next_s(every_ns / 1e9)
    after_ns = monotonic_ns()
    assert 0 < wait_s <= every_ns / 1e9
    earliest_ns, latest_ns = before_ns + wait_s * 1e9 - 1_000, after_ns + wait_s * 1e9 + 1_000
    assert latest_ns // every_ns * every_ns >= earliest_ns, "it ends at a multiple"
