"""The door to torch, with a module that has torch's names, and with torch where it is."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.zeus_stream.stand_in_collector import Collector
from zeus_stream.protocol.events import EpochEnded, RunStarted, StepBoundary
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.steps import torch_events


class Cuda:
    """A GPU that is ``behind_ns`` behind the host, in real time. Its clock began yesterday."""

    def __init__(self, behind_ns: int) -> None:
        self.behind_ns = behind_ns
        self.initialized = True
        self.capturing = False
        self.touched_in_capture = 0
        self.recorded_ns: list[int] = []
        self.Event = self._event

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def _event(self, *, enable_timing: bool, blocking: bool) -> "CudaEvent":
        assert enable_timing
        assert blocking
        return CudaEvent(self)


class CudaEvent:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.done_ns = 0

    def record(self) -> None:
        self._cuda.touched_in_capture += self._cuda.capturing
        self._cuda.recorded_ns.append(time.monotonic_ns())
        self.done_ns = self._cuda.recorded_ns[-1] + self._cuda.behind_ns

    def query(self) -> bool:
        self._cuda.touched_in_capture += self._cuda.capturing
        return time.monotonic_ns() >= self.done_ns

    def elapsed_time(self, end_event: "CudaEvent") -> float:
        return (end_event.done_ns - self.done_ns) / 1e6


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda(behind_ns=40_000_000)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    return made


def work(seconds: float) -> None:
    """Be busy in Python, as a training loop is."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def test_steps_are_placed_where_the_device_ended_them(collector: Collector, cuda: Cuda) -> None:
    with Publisher(run="r") as pub:
        for _ in pub.epochs(1):
            for _ in pub.steps(range(30)):
                work(0.01)
        work(0.06)
    assert collector.seen(RunStarted)[0].boundary == "device"
    boundaries = collector.seen(StepBoundary)
    assert [boundary.index for boundary in boundaries] == list(range(31))
    assert {boundary.placed for boundary in boundaries} == {"device"}
    for boundary, recorded_ns in zip(boundaries, cuda.recorded_ns, strict=True):
        at_ns = boundary.began_ns if boundary.ended_ns is None else boundary.ended_ns
        assert at_ns is not None
        assert boundary.uncertainty_ns is not None
        assert abs(at_ns - recorded_ns - cuda.behind_ns) <= boundary.uncertainty_ns
    kinds = [type(event) for event in collector.events]
    assert kinds.index(EpochEnded) > max(n for n, kind in enumerate(kinds) if kind is StepBoundary)
    assert pub.statistics().unplaced == 0


def test_a_script_that_asks_for_energy_waits_for_the_device_only_so_long(
    collector: Collector, cuda: Cuda
) -> None:
    cuda.behind_ns = 10**12
    with Publisher() as pub:
        for _ in pub.steps(range(3)):
            pass
        with pub.window("w") as window:
            pass
        begin_s = time.monotonic()
        assert not window.energy(timeout_s=0.2)
        assert time.monotonic() - begin_s < 30
    assert [boundary.placed for boundary in collector.seen(StepBoundary)] == ["dispatch"] * 4
    assert pub.statistics().unplaced == 4


def test_while_a_graph_is_captured_nothing_is_recorded_or_asked(collector: Collector, cuda: Cuda) -> None:
    with Publisher() as pub:
        for step in pub.steps(range(30)):
            cuda.capturing = 10 <= step < 20
            work(0.005)
        work(0.06)
    assert cuda.touched_in_capture == 0
    placed = [boundary.placed for boundary in collector.seen(StepBoundary)]
    assert placed == ["device"] * 11 + ["dispatch"] * 10 + ["device"] * 10
    stamps = [
        t_ns
        for boundary in collector.seen(StepBoundary)
        for t_ns in (boundary.ended_ns, boundary.began_ns)
        if t_ns is not None
    ]
    assert stamps == sorted(stamps)


def test_begin_step_and_end_step_are_placed_too(collector: Collector, cuda: Cuda) -> None:
    cuda.behind_ns = 1_000
    with Publisher() as pub:
        for _ in range(2):
            with pub.step():
                work(0.002)
        work(0.002)
    steps = [(0, False, True), (1, True, False), (1, False, True), (2, True, False)]
    assert collector.boundaries() == steps
    assert {boundary.placed for boundary in collector.seen(StepBoundary)} == {"device"}


@pytest.mark.parametrize("off", ["dispatch", "Dispatch"])
def test_it_can_be_switched_off(
    collector: Collector, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    monkeypatch.setenv("ZEUS_STREAM_BOUNDARY", off)
    with Publisher() as pub:
        for _ in pub.steps(range(3)):
            pass
    assert {boundary.placed for boundary in collector.seen(StepBoundary)} == {"dispatch"}
    assert collector.seen(RunStarted)[0].boundary == "dispatch"
    assert cuda.recorded_ns == []


def test_a_torch_without_cuda_under_way_or_without_events_is_left_alone(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch_events.queue() is not None
    cuda.initialized = False
    assert torch_events.queue() is None
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    )
    assert torch_events.queue() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_events.queue() is None
    assert "torch" not in sys.modules


REAL = """
import sys, torch
from zeus_stream.training.steps import torch_events as door
for name in ("record", "query", "elapsed_time"):
    assert callable(getattr(torch.cuda.Event, name)), name
assert not torch.cuda.is_initialized()
assert door.queue() is None
assert not torch.cuda.is_initialized(), "asking initialized CUDA"
queue = door.CudaQueue(torch.cuda)
if not torch.cuda.is_available():
    sys.exit("no GPU")
torch.cuda.init()
queue = door.queue()
assert not queue.capturing()
one, two = queue.event(), queue.event()
one.record(); two.record()
torch.cuda.synchronize()
assert one.query() and two.query() and one.elapsed_time(two) >= 0
"""


def test_the_real_torch_has_these_names() -> None:
    """In a process of its own: importing torch costs seconds and does not come undone."""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip("torch is not installed here")
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) in [(0, ""), (1, "no GPU")], done.stderr
