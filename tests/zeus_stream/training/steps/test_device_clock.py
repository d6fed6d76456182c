from hypothesis import given
from hypothesis import strategies as st

from zeus_stream.training.steps.device_clock import MAX_DRIFT, SLACK_NS, SPAN_NS, DeviceClock

MS = 1_000_000
START_NS = 10**17
"""Of the host's clock: floats would not hold it."""

gaps = st.lists(
    st.tuples(st.integers(0, 2_000 * MS), st.integers(0, 50 * MS), st.integers(0, 50 * MS)),
    min_size=1, max_size=80,
)  # fmt: skip
"""Since the event before; by how much it lies above its lower and below its upper bound."""


@given(gaps, st.floats(-0.9, 0.9))
def test_an_event_lies_within_what_it_is_placed_in_and_that_within_its_own_bounds(
    events: list[tuple[int, int, int]], drift: float
) -> None:
    clock, true_ns = DeviceClock(), START_NS
    for since_ns, above_ns, below_ns in events:
        true_ns += since_ns
        gpu_ns = round((true_ns - START_NS) * (1 + drift * MAX_DRIFT))
        own = true_ns - above_ns, true_ns + below_ns
        clock.observe(gpu_ns, *own)
        low_ns, high_ns = clock.place(gpu_ns, *own)
        assert own[0] <= low_ns <= true_ns <= high_ns <= own[1]
    assert clock.restarts == 0


def looks(clock: DeviceClock, begin_ns: int, count: int, shift_ns: int = 0) -> None:
    """Events every 20 ms, bounded within 2 ms on the wide side, and within 10 us of either bound in turn."""
    for number in range(count):
        at_ns = begin_ns + number * 20 * MS
        near, far = 10_000, 2 * MS
        low_ns, high_ns = (at_ns - near, at_ns + far) if number % 2 else (at_ns - far, at_ns + near)
        clock.observe(at_ns, START_NS + low_ns + shift_ns, START_NS + high_ns + shift_ns)


def test_many_loose_bounds_make_a_tight_one() -> None:
    clock = DeviceClock()
    looks(clock, 0, 200)
    low_ns, high_ns = clock.place(3_000 * MS, START_NS, START_NS + 10_000 * MS)
    assert high_ns - low_ns < 2 * 10_000 + 4 * SLACK_NS


def test_what_a_clock_keeps_does_not_grow() -> None:
    clock = DeviceClock()
    looks(clock, 0, 5_000)
    assert clock._fit is not None
    assert clock._next is not None
    assert SPAN_NS // 2 <= 5_000 * 20 * MS - clock._fit.gpu_ns <= SPAN_NS
    assert len(clock._fit.corners) + len(clock._next.corners) < 40


def test_a_clock_that_was_set_is_fitted_anew() -> None:
    clock = DeviceClock()
    looks(clock, 0, 200)
    looks(clock, 4_000 * MS, 200, shift_ns=60_000 * MS)
    assert clock.restarts >= 1
    low_ns, high_ns = clock.place(7_000 * MS, START_NS, START_NS + 100_000 * MS)
    assert low_ns <= START_NS + 67_000 * MS <= high_ns
    assert high_ns - low_ns < 100_000


def test_what_is_older_than_the_fit_or_contradicts_it_keeps_its_own_bounds() -> None:
    clock = DeviceClock()
    assert clock.place(0, 5, 9) == (5, 9)
    looks(clock, 0, 3_000)
    assert clock.place(0, 5, 9) == (5, 9)
    assert clock.place(59_000 * MS, 5, 9) == (5, 9)


def test_after_a_long_pause_it_is_fitted_anew() -> None:
    clock = DeviceClock()
    looks(clock, 0, 200)
    after_ns = 4_000 * MS + SPAN_NS
    clock.observe(after_ns, START_NS + after_ns, START_NS + after_ns + 7)
    assert clock.restarts == 0
    assert clock.place(3_000 * MS, 5, 9) == (5, 9)
