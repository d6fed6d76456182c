"""Every example that needs no framework is interrupted once: it ends soon, and leaves no service running."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.pipeline import ROOT, environment
from tests.waiting import until
from zeus_stream.paths import holder

ENDS_S = 60.0
"""Longest time that an interrupted example may take on a busy machine."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize(
    "example",
    [
        ("recurring.py", "--recurrences", "200"),
        ("demo.py", "--device", "simulated:a40x1"),
        ("train_digits.py", "--epochs", "1000", "--work-ms", "10"),
    ],
    ids=lambda example: example[0],
)
def test_an_interrupted_example_ends_and_leaves_nothing_running(
    zeus_dir: Path, tmp_path: Path, example: tuple[str, ...], number: signal.Signals
) -> None:
    pytest.importorskip("sklearn", reason="the examples need the extra `demo`")
    wrapped = ("-m", "zeus_stream", "run", "--device", "simulated:v100x1", "--", sys.executable)
    script = (str(ROOT / "examples" / example[0]), *example[1:])
    command = (sys.executable, *(wrapped if example[0] == "train_digits.py" else ()), *script)
    with (tmp_path / "output").open("w+b") as output:
        running = subprocess.Popen(
            command,
            env=environment(zeus_dir, ZEUS_STREAM_FLUSH_S="3"),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            until(lambda: _runs(zeus_dir) or running.poll() is not None)
            running.send_signal(number)
            running.wait(ENDS_S)
        finally:
            running.kill()
            running.wait()
        output.seek(0)
        text = output.read().decode()
    assert running.returncode in {0, 1, 128 + number, -number}, text
    assert "Traceback" not in text or text.count("KeyboardInterrupt")
    until(lambda: not _runs(zeus_dir))


def _runs(zeus_dir: Path) -> bool:
    return holder(zeus_dir / "analyzer.lock") is not None
