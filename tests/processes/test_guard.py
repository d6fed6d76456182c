"""Whatever is killed, the power limit that was found returns, and the clock: real processes, SIGKILL."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import RestoreRecordFile
from collectors.controls.watchdog_process import WatchdogProcess
from collectors.log.sqlite import SqliteLog
from collectors.processes import start_ticks
from tests.collectors.controls.left_record import leave
from tests.environment import PATIENCE_S
from tests.gpu.stand_in import StandIn
from tests.processes.setup import (
    FOUND_MW,
    LEASE_MS,
    OTHERS_MW,
    OURS_MEMORY_MHZ,
    OURS_MHZ,
    OURS_MW,
    Host,
    collector,
    restore,
    simulated,
    trainer,
)
from tests.waiting import until
from zeus_stream.clock import boot_id
from zeus_stream.paths import places
from zeus_stream.protocol import codec
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, Notes

AMPERE = 7
"""The architecture from which NVML locks memory clocks."""
CLOCKS_MHZ = (1380, 135)
"""Those that both kinds of GPU have."""


@pytest.fixture(params=["simulated", "nvml"])
def host(request: pytest.FixtureRequest, zeus_dir: Path) -> Iterator[Host]:
    """A GPU made of arithmetic, and one behind the real nvidia-ml-py."""
    if request.param == "simulated":
        with simulated(zeus_dir) as made:
            yield made
        return
    stand_in: StandIn = request.getfixturevalue("stand_in")
    gpu = stand_in.gpus[0]
    gpu.requested_mw = FOUND_MW
    gpu.architecture = AMPERE

    def write_mw(limit_mw: int) -> None:
        gpu.requested_mw = limit_mw

    gpu_uuid = gpu.uuid.decode()
    yield Host(
        "nvml",
        gpu_uuid,
        lambda: int(gpu.requested_mw),
        write_mw,
        lambda control: int(gpu.locked_memory_mhz if control == "memory_clock" else gpu.locked_mhz),
    )


def settled(host: Host, directory: Path, control: Control = "power_limit") -> str | None:
    """Return how a restorer settled the GPU's record, once it holds it no more."""
    file = RestoreRecordFile(directory / "restore", host.gpu)
    record = file.read(control)
    file.close()
    assert record is not None
    return record.settled


def records(directory: Path) -> list[Path]:
    """Return the restore records there are."""
    return [path for path in (directory / "restore").iterdir() if path.suffix != ".lock"]


def logged(directory: Path) -> list[object]:
    """Return the notes in the log of a collector that has stopped."""
    log = SqliteLog(directory / "log.sqlite", "test", boot_id())
    try:
        frames = log.fetch(0, 10**6, 10**9)
    finally:
        log.close()
    notes = (codec.decode(frame.body, Notes).notes for frame in frames if frame.topic.startswith("notes/"))
    return [note for several in notes for note in several]


def returns(host: Host) -> None:
    """Wait until what was found is back. (How soon that is, `benchmarks/faults/restore.py` measures.)"""
    until(host.as_found)


@pytest.mark.parametrize("seed", range(2))
def test_a_collector_killed_at_any_moment_leaves_no_limit_behind(
    host: Host, zeus_dir: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()

        def change() -> None:
            while running.ask(rng.randrange(110_000, 210_000, 5_000)) and running.lock(
                rng.choice(CLOCKS_MHZ)
            ):
                pass

        analyzer = threading.Thread(target=change)
        analyzer.start()
        time.sleep(rng.uniform(0, 0.2))
        running.kill()
        analyzer.join()
        returns(host)
    assert host.as_found()
    assert "restored to 220 W" in (settled(host, zeus_dir) or "")
    assert "restored to an unlocked graphics clock" in (settled(host, zeus_dir, "graphics_clock") or "")


def test_the_power_profile_that_was_found_returns_after_a_kill(zeus_dir: Path, stand_in: StandIn) -> None:
    gpu = stand_in.gpus[0]
    gpu.profiles, gpu.requested_profiles = 0b11, 0b01
    host = Host("nvml", gpu.uuid.decode(), lambda: int(gpu.requested_mw), lambda _: None, lambda _: UNLOCKED)
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        until(lambda: isinstance(running.lock(0b10, LEASE_MS, "power_profile"), ControlApplied))
        assert gpu.requested_profiles == 0b10
        running.kill()
        until(lambda: gpu.requested_profiles == 0b01)


def test_a_collector_that_is_told_to_stop_restores_and_its_guard_goes(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        guard = running.guard
        running.process.terminate()
        returns(host)
        _, err = running.process.communicate(timeout=60)
    assert running.process.returncode == 0
    assert "watchdog:" not in err
    assert guard is not None
    assert start_ticks(guard) is None
    assert not records(zeus_dir)


def test_the_signals_that_end_a_group_do_not_end_the_guard(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        guard = running.guard
        assert guard is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(guard, number)
        assert os.getsid(guard) == guard
        assert running.process.stderr is not None
        running.process.stderr.close()  # who read what the collector says is dead too
        running.process.stderr = None
        running.kill()
        returns(host)
        until(lambda: start_ticks(guard) is None)
    assert settled(host, zeus_dir)


def test_without_its_guard_a_killed_collector_is_made_good_by_the_next(host: Host, zeus_dir: Path) -> None:
    with trainer(host, zeus_dir):
        with collector(host, zeus_dir) as first:
            first.hold()
            first.kill_with_guard()
        assert host.in_force() == (OURS_MW, OURS_MHZ, OURS_MEMORY_MHZ)
        with collector(host, zeus_dir) as second:
            returns(host)
            assert "found 220 W" in second.rows()["power limit"]
            assert second.rows()["graphics clock"] == "not locked by us"
            assert second.rows()["memory clock"] == "not locked by us"
    ended = [n for n in logged(zeus_dir) if isinstance(n, ControlLeaseEnded) and n.control != "power_limit"]
    assert {(note.control, note.cause, note.value) for note in ended} == {
        ("graphics_clock", "restart", UNLOCKED),
        ("memory_clock", "restart", UNLOCKED),
    }


def test_without_its_guard_a_killed_collector_is_made_good_by_hand(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        refused = restore(host, zeus_dir)
        assert refused.returncode == 1
        assert str(running.pid) in refused.stderr
        running.kill_with_guard()
    looked = restore(host, zeus_dir, "--dry-run")
    assert (looked.returncode, host.read_mw()) == (1, OURS_MW)
    assert looked.stdout == (
        f"{host.gpu}: would be restored from 1380 MHz to an unlocked graphics clock.\n"
        f"{host.gpu}: would be restored from 150 W to 220 W.\n"
        f"{host.gpu}: would be restored from 877 MHz to an unlocked memory clock.\n"
    )
    observed = restore(host, zeus_dir, "--observe")
    assert (observed.returncode, observed.stdout, host.read_mw()) == (1, looked.stdout, OURS_MW)
    done = restore(host, zeus_dir)
    assert (done.returncode, host.as_found()) == (0, True)
    assert done.stdout == (
        f"{host.gpu}: restored to an unlocked graphics clock, as it was found.\n"
        f"{host.gpu}: restored to 220 W, as it was found.\n"
        f"{host.gpu}: restored to an unlocked memory clock, as it was found.\n"
    )
    again = restore(host, zeus_dir)
    assert (again.returncode, again.stdout) == (0, "Nothing was left in force.\n")


@pytest.mark.sweep
def test_what_was_restored_is_said_though_the_driver_of_another_gpu_hangs(
    zeus_dir: Path, stand_in: StandIn
) -> None:
    hanging, gpu = stand_in.gpus[:2]
    host = Host("nvml", gpu.uuid.decode(), lambda: int(gpu.requested_mw), lambda _: None, lambda _: UNLOCKED)
    gpu.requested_mw = OURS_MW
    leave(zeus_dir / "restore", host.gpu, Limits(FOUND_MW, OURS_MW))
    hanging.latency_us = 6_000_000  # longer than the restorer and the end of NVML wait
    done = restore(host, zeus_dir)
    assert done.stdout == f"{host.gpu}: restored to 220 W, as it was found.\n", done.stderr
    assert gpu.requested_mw == FOUND_MW


def test_what_somebody_else_set_before_the_guard_came_stays_and_is_logged(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        guard = running.guard
        assert guard is not None
        os.kill(guard, signal.SIGSTOP)
        running.kill()
        host.write_mw(OTHERS_MW)
        os.kill(guard, signal.SIGCONT)
        until(lambda: start_ticks(guard) is None)
    assert host.in_force() == (OTHERS_MW, UNLOCKED, UNLOCKED)
    assert "somebody else set 180 W" in (settled(host, zeus_dir) or "")
    with collector(host, zeus_dir) as second:
        assert "180 W, found 180 W" in second.rows()["power limit"]
        until(lambda: not records(zeus_dir))
    (ended,) = (
        note
        for note in logged(zeus_dir)
        if isinstance(note, ControlLeaseEnded) and note.control == "power_limit"
    )
    assert (ended.cause, ended.value) == ("restart", OTHERS_MW)
    assert "the watchdog of a collector that died" in ended.reason
    assert "somebody else set 180 W" in ended.reason


def test_a_silent_analyzer_loses_its_limit(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()

        def lapsed() -> bool:
            running.lapse()
            return host.as_found()

        until(lapsed)


def test_a_killed_training_process_takes_its_limit_with_it(host: Host, zeus_dir: Path) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir) as training:
        running.hold()
        training.kill()
        returns(host)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guard_that_died_or_is_stopped_is_replaced_by_another_that_restores(
    host: Host, zeus_dir: Path, end: signal.Signals
) -> None:
    with collector(host, zeus_dir) as running, trainer(host, zeus_dir):
        running.hold()
        first = running.guard
        assert first is not None
        os.kill(first, end)
        until(lambda: running.guard not in (None, first))
        assert start_ticks(first) is None
        running.kill()
        returns(host)


def test_a_guard_whose_collector_died_before_it_was_ready_says_nothing(zeus_dir: Path) -> None:
    command = [sys.executable, "-m", "collectors.controls.watchdog", "simulated:v100x1"]
    pipe, end = os.pipe()
    os.close(pipe)
    guard = subprocess.run(
        [*command, str(zeus_dir), str(zeus_dir / "restore")],
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(end)
    assert (guard.returncode, guard.stderr) == (0, b"")


@pytest.mark.anyio
async def test_a_guard_that_dies_long_after_it_was_started_is_replaced_at_once(
    zeus_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.controls.watchdog_process.EVERY_NS", 0)  # any time is long
    watchdog = WatchdogProcess("simulated:v100x1", places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
    await watchdog.start()
    first = watchdog.pid
    assert first is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watchdog.keep)
        os.kill(first, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S):
            while watchdog.pid in (None, first) or watchdog.trouble:
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    await watchdog.close()


def test_while_no_guard_can_be_started_nothing_is_changed(zeus_dir: Path) -> None:
    python = zeus_dir / "python"
    python.symlink_to(sys.executable)
    with (
        simulated(zeus_dir) as host,
        collector(host, zeus_dir, python=str(python)) as running,
        trainer(host, zeus_dir),
    ):
        running.hold()
        guard = running.guard
        assert guard is not None
        python.unlink()
        os.kill(guard, signal.SIGKILL)
        until(lambda: "could not be started: No such file or directory" in running.rows()["watchdog"])
        refused = running.ask(OTHERS_MW)
        assert isinstance(refused, ControlRefused)
        assert refused.cause == "storage"
        assert "Until another one is ready" in refused.reason
        locked = running.lock(135)
        assert isinstance(locked, ControlRefused)
        assert locked.cause == "storage"
        assert host.in_force() == (OURS_MW, OURS_MHZ, OURS_MEMORY_MHZ)
        python.symlink_to(sys.executable)
        until(lambda: isinstance(running.ask(OTHERS_MW), ControlApplied))


def test_an_observing_collector_needs_no_guard(zeus_dir: Path) -> None:
    with simulated(zeus_dir) as host, collector(host, zeus_dir, "--observe") as running:
        assert running.guard is None
        assert running.rows()["watchdog"] == "none is needed"


def files_of(pid: int) -> dict[str, str]:
    """Return the open files of a process by descriptor."""
    files = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            files[link.name] = str(link.readlink())
    return files


def careless_child() -> "subprocess.Popen[bytes]":
    """Start a process that is given every file that may be inherited."""
    return subprocess.Popen(["sleep", "60"], close_fds=False)


@pytest.mark.anyio
async def test_a_child_of_the_collector_does_not_keep_the_guard_waiting(zeus_dir: Path) -> None:
    watchdog = WatchdogProcess("simulated:v100x1", places({"ZEUS_STREAM_DIR": str(zeus_dir)}))
    await watchdog.start()
    guard = watchdog.pid
    assert watchdog.trouble is None
    assert guard is not None
    child = careless_child()
    try:
        until(lambda: len(files_of(guard)) == 3)  # it turns its stdout away as soon as it has said "ready"
        until(lambda: files_of(guard)["1"] == "/dev/null")
        files = files_of(guard)
        assert files.keys() == {"0", "1", "2"}
        assert files["0"] in files_of(os.getpid()).values()
        assert files["0"] not in files_of(child.pid).values()
        await watchdog.close()
        assert start_ticks(guard) is None
    finally:
        child.kill()
        child.wait()
