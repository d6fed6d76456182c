"""No process outlives the test run that started it, and a test run in the background is one in front."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[1]
LEAVES_ONE = """
import subprocess, sys
from pathlib import Path

def test_that_never_ends():
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    left = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    Path("pid").write_text(f"{left.pid}\\n")
    left.wait()
"""
INTERRUPTS = """
import os, signal, subprocess, sys
import pytest

def test_a_signal():
    script = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
"""


def command(test: Path) -> list[str]:
    plugin = ("-p", "tests.leftovers", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", "-q", *plugin, "--rootdir", str(test.parent), str(test)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_what_a_test_run_leaves_behind_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    test = tmp_path / "test_left.py"
    test.write_text(LEAVES_ONE)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command(test), cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as run:
        pid = tmp_path / "pid"
        until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        run.send_signal(number)
    until(lambda: not Path(f"/proc/{int(pid.read_text())}").exists())


def test_a_test_run_in_the_background_starts_processes_that_ctrl_c_ends(tmp_path: Path) -> None:
    test = tmp_path / "test_signal.py"
    test.write_text(INTERRUPTS)
    # As `nohup make test &` does.
    ignoring = ["env", "--ignore-signal=INT", "--ignore-signal=QUIT", "--ignore-signal=HUP", *command(test)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(ignoring, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
