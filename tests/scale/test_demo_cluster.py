"""The example of a site: it runs to its end within its time, and leaves nothing when it is interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.cluster import start
from tests.environment import ROOT
from tests.scale.conftest import missing, missing_lake
from tests.waiting import until

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(bool(missing() or missing_lake()), reason=f"{missing() or missing_lake()}"),
]

LIMIT_S = 900.0


def _start(tmp_path: Path) -> "subprocess.Popen[bytes]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ZEUS_STREAM_")}
    with (tmp_path / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "cluster.py"), "2"],
            env={**clean, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}, cwd=tmp_path,
            stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip


def _of_session(session: int) -> list[str]:
    """Return the commands of the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(stat.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_the_example_of_a_site_has_each_step_and_each_reading_once(tmp_path: Path) -> None:
    example = _start(tmp_path)
    try:
        assert example.wait(LIMIT_S) == 0, (tmp_path / "said").read_text()
    finally:
        example.kill()
    said = (tmp_path / "said").read_text()
    assert said.count("true   true") == 3, said
    until(lambda: not _of_session(example.pid))


@pytest.mark.parametrize(
    ("begun", "interrupt"),
    [
        pytest.param("collect", lambda pid: os.killpg(pid, signal.SIGINT), id="as a terminal does"),
        pytest.param("archive", lambda pid: os.kill(pid, signal.SIGTERM), id="alone, by its end"),
    ],
)
def test_an_interrupted_example_of_a_site_leaves_no_process(
    tmp_path: Path, begun: str, interrupt: Callable[[int], None]
) -> None:
    example = _start(tmp_path)
    try:
        until(lambda: example.poll() is not None or any(begun in each for each in _of_session(example.pid)))
        assert example.poll() is None, (tmp_path / "said").read_text()
        interrupt(example.pid)
        example.wait(LIMIT_S)
    finally:
        example.kill()
    until(lambda: not _of_session(example.pid))


def test_a_process_that_begins_as_an_interrupt_comes_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), ExitStack() as running:
        start(running, "-c", "import time; time.sleep(1000)")
    assert begun[0].returncode == -signal.SIGTERM
