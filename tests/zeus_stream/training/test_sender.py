import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.zeus_stream.stand_in_collector import Collector, answer, until
from zeus_stream.protocol.events import Metric
from zeus_stream.training.answers import Missing
from zeus_stream.training.publisher import Publisher

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
    environment = {**os.environ, "ZEUS_STREAM_DIR": str(zeus_dir), "ZEUS_STREAM_FLUSH_S": "60"}
    with (
        Collector(zeus_dir / "publish") as collector,
        subprocess.Popen(
            [sys.executable, "-c", HOLDS_THE_INTERPRETER],
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as script,
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
