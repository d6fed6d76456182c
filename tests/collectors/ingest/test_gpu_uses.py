"""The memory of GPUs and the processes on them, from the driver to the screen."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from collectors.device import DeviceMemory, ProcessesSeen
from collectors.devices.nvml_bus import NvmlBus
from collectors.ingest import gpu_processes
from collectors.ingest.gpu_processes import AGAIN_NS, GpuUses
from collectors.processes import program_of, user_of
from tests.collectors.test_service import PATIENCE_S, collector
from tests.gpu.stand_in import StandIn
from tests.messages import DESCRIPTION
from tests.zeus_stream.live.test_latest import row
from zeus_stream.live.latest import Latest
from zeus_stream.protocol.notes import GpuInUse
from zeus_stream.protocol.readings import Readings
from zeus_stream.protocol.snapshots import AskNow, Snapshot
from zeus_stream.screens.terminal.once import print_once

GIB = 1 << 30
GPU = DESCRIPTION.gpu


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A process of no run, and its script."""
    script = tmp_path / "serve.py"
    script.write_text("import time; time.sleep(600)", encoding="utf-8")
    words = f"{sys.executable} {script} --token s3cret & echo $!"
    parent = subprocess.Popen(["/bin/sh", "-c", words], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait()
    parent.stdout.close()
    yield pid, script
    os.kill(pid, 9)


@pytest.mark.anyio
async def test_memory_and_processes_of_a_gpu_reach_the_screen_without_the_arguments(
    nvml_bus: NvmlBus,
    stand_in: StandIn,
    zeus_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    serving: tuple[int, Path],
) -> None:
    monkeypatch.setattr(gpu_processes, "LOOK_S", 0.1)
    other, script = serving
    stand_in.gpus[0].set_processes(other, os.getpid(), used_bytes=12 * GIB)
    async with collector(nvml_bus, zeus_dir) as client:
        await client.start_run(gpus=("index:0",))
        with anyio.fail_after(PATIENCE_S):
            while not any(each.run for use in await client.notes(GpuInUse) for each in use.processes or ()):
                await anyio.sleep(0.01)
        snapshot, _ = await client.request(AskNow())
    assert isinstance(snapshot, Snapshot)
    out = io.StringIO()
    print_once(snapshot, out)
    shown = out.getvalue()
    [line] = [line for line in shown.splitlines() if f" {other} " in line]
    assert "12.0/16" in shown
    assert "1,380" in shown
    user, program = user_of(os.getpid()), Path(sys.executable).name
    assert line.split() == ["0", str(other), user, "12", "-", program, str(script)]
    assert "s3cret" not in shown
    assert "s3cret" not in repr(snapshot)
    [gpu, _] = snapshot.gpus
    seen = {each.pid: each for each in gpu.processes or ()}
    assert (seen[other].memory_bytes, seen[other].run) == (12 * GIB, None)
    assert (seen[os.getpid()].memory_bytes, seen[os.getpid()].run) == (None, "r")
    assert seen[os.getpid()].user == user_of(os.getpid())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("/usr/bin/python3.11", "-u", "train.py", "--key", "s3cret"), "python3.11 train.py"),
        (("python", "-m", "torch.distributed.run", "s3cret"), "python -m torch.distributed.run"),
        (("python", "-c", "key = 's3cret'"), "python"),
        (("python", "-W", "s3cret", "train.py"), "python"),
        (("/bin/bash", "-s", "s3cret"), "bash"),
        (("bash", "/jobs/run.sh", "s3cret"), "bash /jobs/run.sh"),
        (("env", "KEY=s3cret", "python"), "env"),
        (("server", "s3cret"), "server"),
        (("ray::Worker s3cret",), "ray::Worker"),
        (("\x1b[2J\xe9vil",), "?[2J??vil"),
    ],
)
def test_of_a_command_only_program_and_script_are_shown(
    tmp_path: Path, words: tuple[str, ...], shown: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes("\0".join((*words, "")).encode())
    assert program_of(7, tmp_path) == shown


def test_a_process_that_the_kernel_hides_has_no_program(tmp_path: Path) -> None:
    assert (program_of(7, tmp_path), user_of(7, tmp_path)) == ("", None)


def looked(uses: GpuUses, *pids: int, used_bytes: int = GIB, now_ns: int = 0) -> list[GpuInUse]:
    memory = DeviceMemory(used_bytes, 16 * GIB, dict.fromkeys(pids, used_bytes))
    return uses.judge({GPU: ProcessesSeen(pids, memory)}, (), now_ns)


def test_a_gpu_at_rest_is_asked_once_and_again_when_a_process_of_it_has_ended() -> None:
    latest = Latest()
    uses = GpuUses(latest)
    devices = (DESCRIPTION, replace(DESCRIPTION, gpu="CPU-0"))
    assert uses.wanted(devices) == (GPU,)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            looked(uses, process.pid)
            assert uses.wanted(devices) == ()
        finally:
            process.kill()
        process.wait()
        assert uses.wanted(devices) == (GPU,)
    looked(uses)
    assert uses.wanted(devices) == ()
    latest.take_readings("h", 1, Readings((GPU,), row(1)), 1)  # 98 % of the time in use
    assert uses.wanted(devices) == (GPU,)


def test_a_use_is_said_when_it_has_changed_and_seldom_again() -> None:
    uses = GpuUses(Latest())
    pid = os.getpid()
    assert [use.memory_bytes for use in looked(uses, pid)] == [GIB]
    assert looked(uses, pid, used_bytes=GIB + GIB // 2) == []
    assert [use.memory_bytes for use in looked(uses, pid, used_bytes=2 * GIB)] == [2 * GIB]
    assert [use.processes for use in looked(uses, used_bytes=2 * GIB)] == [()]
    again = uses.judge({}, (), AGAIN_NS)
    assert [(use.t_ns, use.memory_bytes) for use in again] == [(AGAIN_NS, 2 * GIB)]


def test_of_many_processes_those_with_the_most_memory_are_named() -> None:
    pids = tuple(range(10**9, 10**9 + 20))
    memory = DeviceMemory(GIB, GIB, {pid: pid for pid in pids})
    [use] = GpuUses(Latest()).judge({GPU: ProcessesSeen(pids, memory)}, (), 0)
    assert ([each.pid for each in use.processes or ()], use.left_out) == (list(pids[:3:-1]), 4)
