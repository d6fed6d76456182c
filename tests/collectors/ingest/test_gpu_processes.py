"""Whose processes compute on the GPUs of a run, and where the run's own do."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.ingest import gpu_processes
from tests.collectors.devices.arithmetic import ArithmeticBus
from tests.collectors.test_service import GPU, collector, started
from zeus_stream.protocol.notes import GpuShared, Lost, RunAdmitted

pytestmark = pytest.mark.anyio


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come 100 times as often."""
    monkeypatch.setattr(gpu_processes, "LOOK_S", 0.1)


@pytest.fixture
def other_process() -> Iterator[int]:
    """A process that is no session's, nor a descendant of one."""
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait()
    parent.stdout.close()
    yield pid
    os.kill(pid, 9)


@pytest.mark.usefixtures("soon")
async def test_a_process_of_no_run_on_the_gpu_of_one_is_said_and_so_is_its_end(
    zeus_dir: Path, other_process: int
) -> None:
    bus = ArithmeticBus(1)
    async with collector(bus, zeus_dir, devices=1) as client:
        [device] = bus.discover()
        device.pids = (os.getpid(), other_process)
        await client.start_run()
        (found,) = await client.wait_for(GpuShared)
        device.pids = (os.getpid(),)
        found, gone = await client.wait_for(GpuShared, 2)
    assert (found.gpu, found.processes, gone.processes) == (GPU, 1, 0)
    assert found.since_ns <= found.t_ns <= gone.t_ns


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("asked", "on", "said"),
    [
        pytest.param(
            "index:0", (1,), "its process computes on GPU 1, and GPU 0 was", id="CUDA counts otherwise"
        ),
        pytest.param("index:all", (1,), "its process computes on GPU 1, and GPU 0, 1 was", id="one of all"),
    ],
)
async def test_a_run_that_computes_elsewhere_than_where_it_is_measured_is_named_once(
    zeus_dir: Path, asked: str, on: tuple[int, ...], said: str
) -> None:
    bus = ArithmeticBus(2)
    async with collector(bus, zeus_dir) as client:
        for device in bus.discover():
            device.pids = (os.getpid(),) if device.index in on else ()
        await client.start_run(gpus=(asked,))
        [lost] = await client.wait_for(Lost)
    assert lost.reason.startswith(f"run r: {said}")


async def test_gpus_that_are_named_and_not_there_are_missing_data(zeus_dir: Path) -> None:
    async with collector(ArithmeticBus(1), zeus_dir, devices=1) as client:
        await client.say("s", 0, started(gpus=("index:7", "abc", GPU)))
        [lost] = await client.wait_for(Lost)
        await client.wait_for(RunAdmitted)
    assert (lost.what, lost.count, lost.reason) == (
        "devices",
        2,
        "run r: not found on this host: index:7, abc.",
    )
