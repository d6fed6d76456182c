import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zeus_stream.stand_in_collector import Collector, until
from zeus_stream.protocol.events import Metric

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
