"""Measure the distance of a step's boundary from the end of the step on the GPU, and its cost.

python -m benchmarks.windows.boundary [--steps 1500] [--seeds 8]

In virtual time, on a queue made of arithmetic (`queued_gpu` of the tests), through the publisher's own code:
so the errors are exact. A step is 200 kernels of 0.1 ms, uneven by 20 %; the host runs 100 ms ahead; the
GPU's clock drifts by 50 ppm. The peer is a synchronization at each boundary, as Zeus does it. The cost of
our calls is measured in real time, with events that cost nothing: what the driver takes for its own comes on
top.
"""

import statistics
import time

from msgspec.structs import replace

from benchmarks.harness import options, table
from tests.zeus_stream.training.steps.queued_gpu import KernelLoad, Nudges, QueuedGpu, train
from zeus_stream.training.steps.step_boundaries import Boundaries

LOADS = {"never waits": KernelLoad(), "waits every 40 steps": KernelLoad(item_every=40)}


def quantiles_us(errors_ns: list[int]) -> list[str]:
    errors = sorted(error / 1000 for error in errors_ns)
    return [f"{errors[min(len(errors) - 1, int(part * len(errors)))]:.0f} us" for part in (0.5, 0.95, 1)]


def placed(load: KernelLoad, steps: int, seeds: int) -> tuple[list[int], list[int], list[int], int]:
    """Return errors of our boundaries and of those by dispatch, delays until they are known (ns), and how
    many truths were outside of their bounds.
    """
    ours, dispatch, delays, outside = [], [], [], 0
    for seed in range(seeds):
        for boundary in train(QueuedGpu(load, seed), steps)[1:]:
            given = boundary.given
            assert boundary.true_ns is not None
            assert given.ended_ns is not None
            assert given.uncertainty_ns is not None
            error = abs(given.ended_ns - boundary.true_ns)
            ours.append(error)
            dispatch.append(abs(boundary.asked_ns - boundary.true_ns))
            delays.append(boundary.given_ns - boundary.true_ns)
            outside += error > given.uncertainty_ns
    return ours, dispatch, delays, outside


def synchronized(load: KernelLoad, steps: int) -> tuple[list[int], float]:
    """Return errors with a synchronization at each boundary (ns), and the time it adds to a step (s)."""
    errors, free, held = [], QueuedGpu(load, 0), QueuedGpu(load, 0)
    for index in range(steps):
        for gpu in (free, held):
            gpu.now_ns += gpu.about(load.loader_ns)
            gpu.step(index)
        true_ns = held.queue(0)
        held.wait()
        errors.append(held.now_ns - true_ns)
    free.wait()
    return errors, (held.now_ns - free.now_ns) / steps / 1e9


class Free:
    """A queue whose events cost nothing and complete five boundaries later, and its events."""

    def __init__(self) -> None:
        self.recorded = 0

    def event(self) -> "FreeEvent":
        return FreeEvent(self)

    def capturing(self) -> bool:
        return False


class FreeEvent:
    def __init__(self, queue: Free) -> None:
        self._queue = queue
        self._number = 0

    def record(self) -> None:
        self._queue.recorded += 1
        self._number = self._queue.recorded

    def query(self) -> bool:
        return self._queue.recorded - self._number >= 5

    def elapsed_time(self, end_event: "FreeEvent") -> float:
        return 20.0 * (end_event._number - self._number)  # noqa: SLF001  (its own kind)


def cost_us(steps: int) -> float:
    """Return the median time of ours at a boundary, with warm caches."""
    boundaries = Boundaries(time.monotonic_ns, lambda *_: None, Nudges())
    boundaries.begin(Free())
    costs = []
    for index in range(steps):
        begin_ns = time.perf_counter_ns()
        boundaries.mark(index)
        boundaries.boundary(index, index, index)
        costs.append((time.perf_counter_ns() - begin_ns) / 1000)
    return statistics.median(costs)


def main() -> None:
    given = options(__doc__, steps=1500, seeds=8)
    rows, goals = [], {"never waits": "300 us", "waits every 40 steps": "20 us"}
    for name, load in LOADS.items():
        ours, dispatch, delays, outside = placed(load, given.steps, given.seeds)
        rows.append([name, "zeus-stream", *quantiles_us(ours), goals[name], "0"])
        rows.append([name, "dispatch", *quantiles_us(dispatch), "", "0"])
        errors, stall_s = synchronized(load, given.steps)
        rows.append([name, "synchronization", *quantiles_us(errors), "", f"{stall_s * 1e6:.0f} us"])
        known = quantiles_us(delays)
        print(
            f"{name}: {outside} of {len(ours)} outside of their bounds; known {known[0]} after the step's end"
        )
    errors, stall_s = synchronized(replace(LOADS["never waits"], loader_ns=5_000_000), given.steps)
    rows.append(
        ["never waits, 5 ms loader", "synchronization", *quantiles_us(errors), "", f"{stall_s * 1e6:.0f} us"]
    )
    table("Error of a step's end", "script | how | median | p95 | max | goal | stall a step", rows)
    print(f"\nOurs at a boundary, beside the driver's calls: {cost_us(20_000):.1f} us (goal 10 us)")


if __name__ == "__main__":
    main()
