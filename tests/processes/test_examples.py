"""Each example is interrupted once: it ends soon, and leaves no service running."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import ROOT, environment
from tests.waiting import until
from zeus_stream.paths import holder

ENDS_S = 60.0
"""Longest time that an interrupted example may take on a busy machine."""


@pytest.mark.parametrize(
    ("example", "number"),
    [
        (("recurring.py", "--recurrences", "200"), signal.SIGINT),
        (("demo.py", "--device", "simulated:a40x1"), signal.SIGTERM),
        (("train_digits.py", "--epochs", "1000", "--work-ms", "10"), signal.SIGTERM),
        (("pipeline.py", "--iterations", "100000"), signal.SIGINT),
    ],
    ids=["recurring", "demo", "train_digits", "pipeline"],
)
def test_an_interrupted_example_ends_and_leaves_nothing_running(
    zeus_dir: Path, tmp_path: Path, example: tuple[str, ...], number: signal.Signals
) -> None:
    pytest.importorskip("sklearn", reason="the examples need the extra `demo`")
    device = "simulated:a100x4" if example[0] == "pipeline.py" else "simulated:v100x1"
    wrapped = ("-m", "zeus_stream", "run", "--device", device, "--", sys.executable)
    script = (str(ROOT / "examples" / example[0]), *example[1:])
    command = (
        sys.executable,
        *(wrapped if example[0] in {"train_digits.py", "pipeline.py"} else ()),
        *script,
    )
    with (tmp_path / "output").open("w+b") as output:
        running = subprocess.Popen(
            command,
            env=environment(zeus_dir, ZEUS_STREAM_FLUSH_S="3", TMPDIR=str(zeus_dir)),
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            analyzer = until(lambda: _analyzer(zeus_dir))
            running.send_signal(number)
            running.wait(ENDS_S)
        finally:
            running.kill()
            running.wait()
        output.seek(0)
        text = output.read().decode()
    assert running.returncode in {0, 1, 130, 128 + number, -number}, text
    assert "Traceback" not in text or text.count("KeyboardInterrupt")
    until(lambda: not Path(f"/proc/{analyzer}").exists())


def _analyzer(zeus_dir: Path) -> int | None:
    """Return the pid of the example's analyzer; the demo has a setup of its own below."""
    locks = (zeus_dir / "analyzer.lock", *zeus_dir.glob("*/analyzer.lock"))
    return next((pid for lock in locks if (pid := holder(lock))), None)
