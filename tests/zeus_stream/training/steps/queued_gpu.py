"""A GPU's queue made of arithmetic, in virtual time, and a training loop that feeds it.

The host runs ahead of the GPU until a number of kernels wait; kernels take uneven times; the GPU's clock
drifts against the host's, and its stamps have the resolution of CUDA's. Events have the interface of
`torch.cuda.Event`.
"""

import struct
from collections import deque
from collections.abc import Callable
from random import Random

from msgspec import Struct

from tests.messages import RUN_STARTED
from zeus_stream.protocol.events import Ack, StepBoundary
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.sender import pause_s
from zeus_stream.training.steps.step_boundaries import Boundaries

STARTED = RUN_STARTED
STAMP_NS = 500
"""Resolution of an event's stamp."""


class KernelLoad(Struct, frozen=True):
    """A training loop on a GPU."""

    step_ns: int = 20_000_000
    kernels: int = 200
    """A step."""
    ahead_ns: int = 100_000_000
    """Of work that may wait in the queue."""
    jitter: float = 0.2
    """Standard deviation of a kernel's time, of its mean."""
    drift: float = 50e-6
    """Of the GPU's clock against the host's."""
    loader_ns: int = 200_000
    """Mean time of the host between two steps."""
    launch_ns: int = 5_000
    query_ns: int = 1_500
    latency_ns: int = 8_000
    """From the host to an idle GPU."""
    item_every: int | None = None
    """The script waits for the GPU at the end of every so many steps."""
    capture: range = range(0)
    """Steps that are captured into a graph, and not run."""


class Event:
    """As `torch.cuda.Event(enable_timing=True)` is."""

    def __init__(self, gpu: "QueuedGpu") -> None:
        self._gpu = gpu
        self.done_ns: int | None = None
        """The truth, on the host's clock."""

    def record(self) -> None:
        gpu = self._gpu
        gpu.touch()
        gpu.now_ns += gpu.about(gpu.query_ns)
        self.done_ns = gpu.queue(0)
        gpu.marked[gpu.asked_ns] = self.done_ns

    def query(self) -> bool:
        gpu = self._gpu
        gpu.touch()
        cost_ns = gpu.about(gpu.query_ns)
        gpu.now_ns += cost_ns // 2
        assert self.done_ns is not None, "an event was asked that is not recorded"
        done = self.done_ns <= gpu.now_ns
        gpu.now_ns += cost_ns - cost_ns // 2
        return done

    def synchronize(self) -> None:
        raise AssertionError("steps wait for nothing")

    def elapsed_time(self, end_event: "Event") -> float:
        self._gpu.touch()
        assert self.query()
        assert end_event.query()
        milliseconds = (end_event.stamp_ns - self.stamp_ns) / 1e6
        [single] = struct.unpack("f", struct.pack("f", milliseconds))
        return float(single)

    @property
    def stamp_ns(self) -> int:
        assert self.done_ns is not None
        stamp = round(self.done_ns * (1 + self._gpu.load.drift))
        return stamp - stamp % STAMP_NS


class QueuedGpu:
    """A GPU and the host that queues kernels on it."""

    def __init__(self, load: KernelLoad, seed: int, start_ns: int = 10**15) -> None:
        self.load = load
        self.rng = Random(seed)
        self.now_ns = start_ns
        self.query_ns = load.query_ns
        self.asked_ns = 0
        """When the host came to the boundary that is marked."""
        self.marked: dict[int, int] = {}
        """By that: when the GPU did."""
        self.captured = False
        self.touched_in_capture = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """What else happens on the host while Python runs."""
        self._free_ns = start_ns
        self._waiting: deque[int] = deque()
        """When the kernels that wait will be done."""
        self._room = max(1, load.ahead_ns * load.kernels // load.step_ns)

    def about(self, mean_ns: int) -> int:
        return round(mean_ns * self.rng.uniform(0.7, 1.3)) if mean_ns else 0

    def now(self) -> int:
        self.now_ns += 60
        return self.now_ns

    def touch(self) -> None:
        self.touched_in_capture += self.captured

    def queue(self, duration_ns: int) -> int:
        """Put work of a duration into the queue. Returns when it will be done."""
        self._free_ns = max(self._free_ns, self.now_ns + self.about(self.load.latency_ns)) + duration_ns
        return self._free_ns

    def launch(self) -> None:
        """Launch a kernel, once there is room."""
        self.now_ns += self.about(self.load.launch_ns)
        self.meanwhile()
        if self.captured:
            return
        while self._waiting and self._waiting[0] <= self.now_ns:
            self._waiting.popleft()
        if len(self._waiting) >= self._room:
            self.now_ns = self._waiting.popleft() + self.about(self.load.launch_ns)
        mean_ns = self.load.step_ns / self.load.kernels
        duration_ns = mean_ns * max(0.1, self.rng.gauss(1, self.load.jitter))
        self._waiting.append(self.queue(round(duration_ns)))

    def wait(self) -> None:
        """As ``torch.cuda.synchronize()``."""
        self.now_ns = max(self.now_ns, self._free_ns) + self.about(self.load.latency_ns)

    def step(self, index: int) -> None:
        self.captured = index in self.load.capture
        for _ in range(self.load.kernels):
            self.launch()
        if self.load.item_every and index % self.load.item_every == self.load.item_every - 1:
            self.wait()

    # ---- as a queue of `Boundaries`

    def event(self) -> Event:
        return Event(self)

    def capturing(self) -> bool:
        return self.captured


class Nudges:
    """Asked for by the sender, done by the host when it is in Python again."""

    def __init__(self) -> None:
        self.asked = False
        self._call: Callable[[], object] = lambda: None

    def arm(self, call: Callable[[], object]) -> None:
        self._call = call

    def ask(self) -> None:
        self.asked = True

    def disarm(self) -> None:
        self.asked = False

    def do(self) -> None:
        if self.asked:
            self.asked = False
            self._call()


class Placing(Struct, frozen=True):
    """One boundary as it was given out."""

    asked_ns: int
    """When Python came by: what a boundary by dispatch says."""
    began_ns: int | None
    true_ns: int | None
    """When the GPU did; None: it was never marked."""
    given: StepBoundary
    given_ns: int
    """When it was handed to the collector."""


def train(gpu: QueuedGpu, steps: int) -> list[Placing]:
    """Run a loop of steps as `Publisher.steps` does. Returns the boundaries as they reached a collector."""
    outbox = Outbox(STARTED, lambda: "session")
    nudges = Nudges()
    boundaries = Boundaries(gpu.now, _fail, nudges)
    asked: list[tuple[int, int | None]] = []
    placed: list[Placing] = []
    next_ns, turns = gpu.now_ns, 0

    def deliver() -> None:
        while (batch := outbox.batch(gpu.now_ns)) is not None:
            outbox.acknowledge(Ack("session", batch.sequence + len(batch.events)))
            for event in batch.events:
                if isinstance(event, StepBoundary):
                    asked_ns, began_ns = asked[event.index]
                    true_ns = gpu.marked.get(asked_ns)
                    placed.append(Placing(asked_ns, began_ns, true_ns, event, gpu.now_ns))

    def sender() -> None:
        nonlocal next_ns, turns
        if gpu.now_ns >= next_ns:
            next_ns, turns = gpu.now_ns + round(pause_s(turns) * 1e9), turns + 1
            deliver()
        nudges.do()

    def mark() -> int:
        gpu.asked_ns = gpu.now()
        boundaries.mark(gpu.asked_ns)
        return gpu.asked_ns

    gpu.meanwhile = sender
    boundaries.begin(gpu)
    ended_ns: int | None = None
    for index in range(steps):
        gpu.now_ns += gpu.about(gpu.load.loader_ns)
        began_ns = gpu.now() if ended_ns is not None else mark()
        asked.append((ended_ns or began_ns, began_ns))
        outbox.put(boundaries.boundary(index, ended_ns, began_ns))
        gpu.step(index)
        ended_ns = mark()
    assert ended_ns is not None
    asked.append((ended_ns, None))
    outbox.put(boundaries.boundary(steps, ended_ns, None))
    gpu.wait()
    boundaries.close()
    deliver()
    return placed


def _fail(cause: str, sentence: str) -> None:
    raise AssertionError(f"{cause}: {sentence}")
