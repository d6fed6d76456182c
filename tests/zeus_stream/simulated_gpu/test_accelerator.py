import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.devices.simulated import SimulatedBus, SimulatedDevice
from tests.waiting import until
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RefusedError, SettingsError, UnreachableError
from zeus_stream.simulated_gpu.accelerator import LEASE_NS, AcceleratorPace, attach
from zeus_stream.simulated_gpu.workloads import load

MS = 1_000_000
IMAGENET = load()["v100"].workloads["imagenet"]

slowdowns = st.floats(1, 5)


@given(st.integers(1, 10**12), slowdowns, st.lists(st.tuples(st.integers(0, 10**9), slowdowns), max_size=6))
def test_whatever_the_limit_does_the_work_done_until_the_end_is_the_work_asked_for(
    work_ns: int, slowdown: float, changes: list[tuple[int, float]]
) -> None:
    pace, t_ns = AcceleratorPace(0, work_ns, slowdown), 0
    speeds = [(0, slowdown)]
    for wait_ns, changed in changes:
        t_ns += wait_ns
        pace = pace.change(t_ns, changed)
        speeds.append((t_ns, changed))
    end_ns = pace.end_ns
    spans = [
        (begin, min(end, end_ns), speed) for (begin, speed), (end, _) in pairwise([*speeds, (end_ns, 1.0)])
    ]
    done_ns = sum(max(end - begin, 0) / speed for begin, end, speed in spans)
    assert done_ns == pytest.approx(work_ns, rel=1e-9, abs=2)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SimulatedBus]:
    """Two simulated V100s that a collector (this process) runs in ``tmp_path``."""
    bus = SimulatedBus.parse("simulated:v100x2", tmp_path)
    bus.discover()
    yield bus
    bus.close()


@contextmanager
def trainer(directory: Path, body: str, gpus: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Another process that attaches to ``gpus``, says so on its first line, and then runs ``body``."""
    script = f"""
from pathlib import Path
from zeus_stream.simulated_gpu.accelerator import attach
with attach("imagenet", {gpus!r}, Path({str(directory)!r})) as gpu:
    print("attached", flush=True)
    {body}
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "attached\n"
            yield process
        finally:
            process.kill()


def busy(gpu: SimulatedDevice) -> bool:
    return gpu.sample().clock_mhz != load()["v100"].idle_clock_mhz


def test_without_a_collector_attaching_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(
        UnreachableError, match=r"no collector runs it under .*Start one with a device such as"
    ):
        attach("imagenet", directory=tmp_path)


def test_a_board_that_a_dead_collector_left_is_not_taken_for_a_running_one(
    host: SimulatedBus, tmp_path: Path
) -> None:
    attach("imagenet", directory=tmp_path).close()
    host.close()
    with pytest.raises(UnreachableError):
        attach("imagenet", directory=tmp_path)


@pytest.mark.usefixtures("zeus_dir")
def test_a_collector_and_a_trainer_of_one_setup_meet_without_naming_a_directory() -> None:
    bus = SimulatedBus.parse("simulated:a40")
    (gpu,) = bus.discover()
    with attach("squad") as accelerator:
        assert accelerator.gpus == (gpu.gpu,)
    bus.close()


def test_an_unknown_workload_or_gpu_is_refused_by_name_and_leaves_nothing_taken(
    host: SimulatedBus, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"could not run 'chess'.*cifar100, imagenet"):
        attach("chess", directory=tmp_path)
    with pytest.raises(UnreachableError, match="GPU-none: could not attach"):
        attach("imagenet", ["GPU-none"], tmp_path)
    with attach("imagenet", directory=tmp_path) as accelerator:
        assert set(accelerator.gpus) == {gpu.gpu for gpu in host.discover()}


def test_gpus_are_named_by_their_place_and_ranks_of_a_launcher_take_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = SimulatedBus.parse("simulated:v100x3,seed=5+a40", tmp_path, "north")
    uuids = [gpu.gpu for gpu in bus.discover()]
    assert uuids != sorted(uuids), "else the order shows nothing"
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with attach("imagenet", directory=tmp_path) as accelerator:
        assert accelerator.gpus == tuple(uuids)
    with attach("imagenet", [2, 0], tmp_path) as accelerator:
        assert accelerator.gpus == (uuids[2], uuids[0])
    with pytest.raises(UnreachableError, match="4: could not attach"):
        attach("imagenet", [4], tmp_path)
    for rank, expected in ((0, 0), (3, 3), (5, 1)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with attach("imagenet", directory=tmp_path) as accelerator:
            assert accelerator.gpus == (uuids[expected],)
    bus.close()


def test_work_takes_as_long_as_the_limit_makes_it_and_the_gpu_draws_exactly_that_long(
    host: SimulatedBus, tmp_path: Path
) -> None:
    gpu = host.discover()[0]
    gpu.set_control("power_limit", 100_000)
    with attach("imagenet", [gpu.gpu], tmp_path) as accelerator:
        begin_ns = monotonic_ns()
        accelerator.run(0.05)
        end_ns = monotonic_ns()
    took_ns = round(0.05e9 * IMAGENET.slowdown(100_000))
    assert end_ns - begin_ns >= took_ns
    rest_mj = (end_ns - begin_ns - took_ns) * load()["v100"].idle_mw / 1e9
    work_mj = took_ns * IMAGENET.power_mw(100_000) / 1e9
    assert gpu.energy_mj(begin_ns, end_ns) == pytest.approx(rest_mj + work_mj, rel=1e-6)


def test_the_others_idle_until_a_slower_gpu_is_done(tmp_path: Path) -> None:
    bus = SimulatedBus.parse("simulated:v100+v100,slower=1.5", tmp_path)
    quick, slow = bus.discover()
    with attach("imagenet", directory=tmp_path) as accelerator:
        begin_ns = monotonic_ns()
        accelerator.run(0.03)
        end_ns = monotonic_ns()
    assert end_ns - begin_ns >= 0.045e9
    rest_mw, work_mw = load()["v100"].idle_mw, IMAGENET.power_mw(250_000)
    for gpu, busy_s in ((quick, 0.03), (slow, 0.045)):
        drawn_mj = (work_mw - rest_mw) * busy_s + rest_mw * (end_ns - begin_ns) / 1e9
        assert gpu.energy_mj(begin_ns, end_ns) == pytest.approx(drawn_mj, rel=1e-6)
    bus.close()


@pytest.mark.sweep
def test_a_limit_lowered_in_the_middle_stretches_the_rest_only(host: SimulatedBus, tmp_path: Path) -> None:
    gpu = host.discover()[0]
    with attach("imagenet", [gpu.gpu], tmp_path) as accelerator:
        worker = threading.Thread(target=accelerator.run, args=(2.0,))
        worker.start()
        until(lambda: busy(gpu))
        gpu.set_control("power_limit", 100_000)
        worker.join()
    ended_ns = monotonic_ns()
    gpu.sample()
    load, change = gpu._draw._loads[-1], gpu._draw._limits[-1]
    done_ns = change.since_ns - load.begin_ns
    rest_ns = (2e9 - done_ns) * IMAGENET.slowdown(100_000)
    assert load.until_ns == pytest.approx(change.since_ns + rest_ns, abs=2)
    assert ended_ns >= load.until_ns


def test_a_second_training_process_is_refused_the_gpus_of_the_first(
    host: SimulatedBus, tmp_path: Path
) -> None:
    first, second = (gpu.gpu for gpu in host.discover())
    with trainer(tmp_path, "gpu.run(60)", [first]) as process:
        with pytest.raises(RefusedError, match=f"{first}: could not attach: another training process"):
            attach("imagenet", directory=tmp_path)
        attach("imagenet", [second], tmp_path).close()
        used, free = host.discover()
        assert used.processes() == (process.pid,)
        full, empty = used.memory(), free.memory()
        assert full.of[process.pid] == full.used_bytes - empty.used_bytes > full.total_bytes // 2
        assert empty.of == {}


def test_a_load_in_another_process_is_counted(host: SimulatedBus, tmp_path: Path) -> None:
    gpu = host.discover()[0]
    begin_ns = monotonic_ns()
    with trainer(tmp_path, "[gpu.run(0.002) for _ in range(50)]", [gpu.gpu]) as process:
        assert process.wait(timeout=60) == 0
    end_ns = monotonic_ns()
    rest_mw, work_mw = load()["v100"].idle_mw, IMAGENET.power_mw(250_000)
    expected_mj = (work_mw - rest_mw) * 0.1 + rest_mw * (end_ns - begin_ns) / 1e9
    assert gpu.energy_mj(begin_ns, end_ns) == pytest.approx(expected_mj, rel=1e-6)
    assert gpu.loads_lost == 0
    assert gpu.processes() == ()


def test_the_load_of_a_killed_process_ends_by_itself(host: SimulatedBus, tmp_path: Path) -> None:
    gpu = host.discover()[0]
    with trainer(tmp_path, "gpu.run(60)", [gpu.gpu]) as process:
        until(lambda: busy(gpu))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        killed_ns = monotonic_ns()
    until(lambda: not busy(gpu))
    until(lambda: monotonic_ns() > killed_ns + LEASE_NS + 20 * MS)
    rest_ns = killed_ns + LEASE_NS
    assert gpu.energy_mj(rest_ns, rest_ns + 10 * MS) == pytest.approx(load()["v100"].idle_mw / 100)
    attach("imagenet", [gpu.gpu], tmp_path).close()
