import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from tests.environment import start
from tests.messages import RUN_STARTED
from tests.waiting import until
from tests.zeus_stream.stand_in_collector import Collector, answer
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.events import Metric
from zeus_stream.training.answers import Missing
from zeus_stream.training.outbox import Outbox
from zeus_stream.training.publisher import Publisher
from zeus_stream.training.sender import GLANCE_S, TICK_S, EventSender

HOLDS_THE_INTERPRETER = """
import ctypes, sys, time, zeus_stream
publisher = zeus_stream.Publisher(gpus=["GPU-0"], batch_size=1)
while publisher._outbox.waiting:  # until its begin is acknowledged
    time.sleep(0.005)
publisher.metric("loss", 1.0)
ctypes.PyDLL(None).usleep(1_500_000)  # a call that holds the GIL, as some imports do
sys.stdin.readline()
publisher.close()
"""


@pytest.mark.sweep
def test_a_script_that_holds_the_interpreter_does_not_blame_the_collector(zeus_dir: Path) -> None:
    with (
        Collector(zeus_dir / "publish") as collector,
        start(zeus_dir, "-c", HOLDS_THE_INTERPRETER, stdin=subprocess.PIPE) as script,
    ):
        until(lambda: collector.seen(Metric))
        _, said = script.communicate("end\n", timeout=120)
    assert [metric.value for metric in collector.seen(Metric)] == [1.0]
    assert said == ""


def test_events_come_together_as_long_as_the_collector_says_but_not_before_a_question(zeus_dir: Path) -> None:
    with Collector(zeus_dir / "publish") as collector, closing(Publisher(gpus=["GPU-0"])) as publisher:
        collector.gather_ms = 500
        collector.answer = lambda ask: answer(ask, "nothing was measured")
        until(lambda: collector.batches)
        before, began_s = collector.batches, time.monotonic()
        for _ in range(40):
            publisher.metric("loss", 1.0)
            time.sleep(0.01)
        most = 2 + (time.monotonic() - began_s) / 0.4
        assert collector.batches - before <= most
        with publisher.window("all") as window:
            pass
        energy = window.energy(timeout_s=60)
    assert isinstance(energy, Missing)
    assert energy.reason.endswith("nothing was measured")
    assert len(collector.seen(Metric)) == 40


STARTED = replace(RUN_STARTED, gpus=("GPU-0",))


class Waits:
    """The lock by which a sender waits, in virtual time; something happens at an instant of it."""

    def __init__(self, at_s: float, happen: Callable[[], None]) -> None:
        self.now_s, self.turns, self._at_s, self._happen = 0.0, 0, at_s, happen

    def acquire(self, *, timeout: float) -> bool:
        before_s, self.now_s, self.turns = self.now_s, self.now_s + timeout, self.turns + 1
        if before_s < self._at_s <= self.now_s:
            self._happen()
        return False


@pytest.mark.parametrize(
    ("gather_s", "looks"),
    [
        pytest.param(0.0, True, id="somebody waits: it looks for events within a tick"),
        pytest.param(0.25, False, id="nobody waits: it wakes when they are due"),
    ],
)
def test_an_event_is_looked_for_while_somebody_waits_for_it(gather_s: float, *, looks: bool) -> None:
    """Also the one after the first: the time since the boot of the host counted as that between them."""
    late_s = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        sender = EventSender(Outbox(STARTED, lambda: "session"), [], lambda *_: None, lambda _: None)
        sender._socket, sender._gather_s = socket, gather_s
        sender._progress_ns = monotonic_ns() + 10**15  # acknowledged, however late this test runs
        for event_s in (0.001, 0.004, 0.007, 0.0095):
            outbox = sender._outbox = Outbox(STARTED, lambda: "session")
            waits = Waits(event_s, partial(outbox.put, (Metric, 1, "loss", 1.0)))
            sender._wake = waits  # type: ignore[assignment]
            sender._stops(1)
            assert outbox.fresh
            late_s.append(waits.now_s - event_s)
            assert looks or waits.turns == 1
    assert (max(late_s) <= 1.5 * GLANCE_S) == looks, late_s


def test_steps_that_last_long_are_looked_for_no_oftener_than_every_tick() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        sender = EventSender(Outbox(STARTED, lambda: "session"), [], lambda *_: None, lambda _: None)
        waits = Waits(-1, lambda: None)
        sender._wake, sender._socket = waits, socket  # type: ignore[assignment]
        sender._progress_ns = monotonic_ns() + 10**15
        sender._between_ns = 1_000_000_000
        for turns in range(100):
            sender._stops(turns)
    assert waits.turns <= 1.1 * waits.now_s / TICK_S
