import threading
from itertools import pairwise
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zeus_stream.training.steps.queued_gpu import KernelLoad, Nudges, Placing, QueuedGpu, train
from tests.zeus_stream.training.steps.stepped_gpu import SteppedGpu
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.training.steps.step_boundaries import (
    HOLD_NS,
    MAX_PENDING,
    NARROWING_NS,
    Boundaries,
    Boundary,
)

MS = 1_000_000

loads = st.builds(
    KernelLoad,
    step_ns=st.integers(2, 300).map(lambda ms: ms * MS),
    kernels=st.integers(1, 60),
    ahead_ns=st.integers(0, 100).map(lambda ms: ms * MS),
    jitter=st.sampled_from([0.0, 0.2]),
    drift=st.floats(-200e-6, 200e-6),
    loader_ns=st.sampled_from([0, 200_000, 30 * MS]),
    item_every=st.none() | st.integers(1, 50),
    capture=st.tuples(st.integers(0, 60), st.integers(0, 5)).map(lambda at: range(at[0], sum(at))),
)


def stamps(placing: Placing) -> list[int]:
    return [t for t in (placing.given.ended_ns, placing.given.began_ns) if t is not None]


@settings(max_examples=60, deadline=None)
@given(loads, st.integers(0, 2**32), st.integers(1, 150))
def test_the_true_instant_is_within_the_uncertainty_and_nothing_is_lost_or_out_of_order(
    load: KernelLoad, seed: int, steps: int
) -> None:
    gpu = QueuedGpu(load, seed)
    placed = train(gpu, steps)
    assert [placing.given.index for placing in placed] == list(range(steps + 1))
    times = [t for placing in placed for t in stamps(placing)]
    assert times == sorted(times)
    assert gpu.touched_in_capture == 0
    for placing in placed:
        given_ = placing.given
        if given_.uncertainty_ns is None:
            assert given_.placed == "dispatch"
            continue
        assert given_.placed == "device"
        assert placing.true_ns is not None
        if given_.ended_ns is not None:
            assert abs(given_.ended_ns - placing.true_ns) <= given_.uncertainty_ns
        if given_.began_ns is not None and placing.began_ns is not None:
            true_ns = max(placing.true_ns, placing.began_ns)
            assert abs(given_.began_ns - true_ns) <= given_.uncertainty_ns
    unmarked = sum(placing.given.placed == "dispatch" for placing in placed)
    assert unmarked <= len(load.capture) + 1


def errors_ns(placed: list[Placing]) -> list[int]:
    return [abs(p.given.ended_ns - p.true_ns) for p in placed if p.given.ended_ns and p.true_ns]


def test_without_any_synchronization_a_host_100_ms_ahead_places_to_a_third_of_a_millisecond() -> None:
    errors = errors_ns(train(QueuedGpu(KernelLoad(), 1), 600))
    assert len(errors) == 600
    assert median(errors) < 150_000
    assert max(errors) <= 300_000


def test_a_script_that_waits_now_and_then_is_placed_to_20_us() -> None:
    errors = errors_ns(train(QueuedGpu(KernelLoad(item_every=40), 1), 600))
    assert median(errors[40:]) <= 20_000


# ---- by hand


class Hand:
    """A device whose steps end when a test says so, and the host's clock."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.said: list[str] = []
        self.nudges = Nudges()
        self.boundaries = Boundaries(
            lambda: self.now_ns, lambda _, sentence: self.said.append(sentence), self.nudges
        )
        self.gpu = SteppedGpu(lambda: self.now_ns)
        self.boundaries.begin(self.gpu)

    def step(self, index: int, ms: int = 10) -> Boundary:
        """Let time pass, and mark the end of a step."""
        self.now_ns += ms * MS
        self.boundaries.mark(self.now_ns)
        return self.boundaries.boundary(index, self.now_ns, self.now_ns)

    def given(self, boundary: Boundary) -> StepBoundary | None:
        entry = boundary.settle(self.now_ns)
        if entry is None:
            return None
        assert entry[0] is StepBoundary
        return StepBoundary(*entry[1:])


def test_a_boundary_that_the_device_does_not_reach_in_time_is_given_out_by_dispatch_and_counted() -> None:
    hand = Hand()
    boundary = hand.step(0)
    came_by_ns = hand.now_ns
    hand.now_ns += HOLD_NS - 1
    assert hand.given(boundary) is None
    hand.now_ns += 1
    assert hand.given(boundary) == StepBoundary(0, came_by_ns, came_by_ns)
    assert hand.boundaries.unplaced == 1


def test_long_steps_are_waited_for_longer() -> None:
    hand = Hand()
    hand.step(0)
    boundary = hand.step(1, ms=10_000)
    hand.now_ns += 19_999 * MS
    assert hand.given(boundary) is None
    hand.now_ns += MS
    assert hand.given(boundary) is not None


def test_of_too_many_pending_marks_the_oldest_is_given_out() -> None:
    hand = Hand()
    boundaries = [hand.step(index, ms=0) for index in range(MAX_PENDING + 2)]
    given_ = [hand.given(boundary) for boundary in boundaries]
    assert [found.placed for found in given_ if found] == ["dispatch", "dispatch"]
    assert given_[2:] == [None] * MAX_PENDING
    hand.gpu.reach(MAX_PENDING + 2)
    hand.boundaries.look()
    assert hand.boundaries.unplaced == 2
    hand.now_ns += NARROWING_NS
    assert [hand.given(boundary).placed for boundary in boundaries[2:]] == ["device"] * MAX_PENDING  # type: ignore[union-attr]


def test_what_comes_by_dispatch_after_what_was_placed_is_not_before_it() -> None:
    hand = Hand()
    placed, after = hand.step(0), hand.step(1)
    hand.now_ns += 500 * MS
    hand.gpu.reach(1)
    hand.boundaries.look()
    hand.boundaries.close()
    first, second = hand.given(placed), hand.given(after)
    assert first is not None
    assert second is not None
    assert (first.placed, second.placed) == ("device", "dispatch")
    assert second.ended_ns == second.began_ns == first.began_ns


def test_a_device_that_fails_is_told_of_once_and_boundaries_go_on_by_dispatch() -> None:
    hand = Hand()
    before = hand.step(0)
    hand.gpu.is_lost = True
    after = [hand.step(1), hand.step(2)]
    hand.boundaries.begin(hand.gpu)
    after.append(hand.step(3))
    given_ = [hand.given(boundary) for boundary in (before, *after)]
    assert [found and found.placed for found in given_] == ["dispatch"] * 4
    [said] = hand.said
    assert said == (
        "could not ask the device where steps end: CUDA error: device lost. From here on they end where"
        " Python dispatched them. Set ZEUS_STREAM_BOUNDARY=dispatch to have it so from the start."
    )


def test_events_are_used_again() -> None:
    hand = Hand()
    for index in range(100):
        hand.gpu.reach(len(hand.gpu.marks) - hand.gpu.reached)
        hand.step(index)
    assert len(set(hand.gpu.marks)) <= 3


def test_nobody_looks_in_another_thread() -> None:
    hand = Hand()
    boundary = hand.step(0)
    hand.gpu.reach(1)
    thread = threading.Thread(target=hand.boundaries.look)
    thread.start()
    thread.join()
    hand.now_ns += NARROWING_NS
    assert hand.given(boundary) is None
    assert hand.nudges.asked
    hand.nudges.do()
    hand.now_ns += NARROWING_NS
    assert (found := hand.given(boundary)) is not None
    assert found.placed == "device"


# ---- outputs that know whether they are ready


class Array:
    def __init__(self) -> None:
        self.ready = False

    def is_ready(self) -> bool:
        return self.ready


def test_an_output_is_ready_between_two_looks() -> None:
    hand = Hand()
    hand.boundaries.begin(None)
    arrays = [Array() for _ in range(3)]
    boundaries, came_by = [], []
    for index, array in enumerate(arrays):
        hand.boundaries.ends_with(array)
        boundaries.append(hand.step(index))
        came_by.append(hand.now_ns)
    arrays[0].ready = arrays[1].ready = True
    hand.now_ns += 30 * MS
    unmarked = hand.step(3)
    arrays[2].ready = True
    hand.boundaries.look()
    given_ = [hand.given(boundary) for boundary in (*boundaries, unmarked)]
    for found, (low_ns, high_ns) in zip(
        given_[:3],
        [(came_by[2], came_by[2] + 40 * MS), (came_by[2], came_by[2] + 40 * MS), (came_by[2] + 40 * MS,) * 2],
        strict=True,
    ):
        assert found is not None
        assert found.placed == "ready"
        assert found.ended_ns is not None
        assert found.uncertainty_ns is not None
        assert found.ended_ns - found.uncertainty_ns <= low_ns
        assert high_ns <= found.ended_ns + found.uncertainty_ns
    assert given_[3] == StepBoundary(3, hand.now_ns, hand.now_ns)
    ends = [found.ended_ns for found in given_ if found and found.ended_ns]
    assert all(one <= next_ for one, next_ in pairwise(ends))


def test_an_output_that_is_gone_is_told_of() -> None:
    class Donated:
        def is_ready(self) -> bool:
            raise RuntimeError("Array has been deleted with shape=float32[].")

    hand = Hand()
    hand.boundaries.begin(None)
    hand.boundaries.ends_with(Donated())
    boundary = hand.step(0)
    hand.step(1)
    assert (found := hand.given(boundary)) is not None
    assert found.placed == "dispatch"
    assert len(hand.said) == 1
