import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collectors.controls.lease_messages import Limits
from collectors.controls.restore import Outcome, Restorer, restore_patiently
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from collectors.controls.watchdog import READY
from collectors.device import Description
from collectors.devices.simulated import SimulatedBus, SimulatedDevice
from tests.collectors.controls.left_record import leave
from tests.collectors.devices.arithmetic import ArithmeticBus, ArithmeticDevice
from tests.waiting import until
from zeus_stream.errors import RetryError, StorageError
from zeus_stream.paths import claim
from zeus_stream.protocol.fields import UNLOCKED

FOUND_MW, OURS_MW, OURS_MHZ = 220_000, 150_000, 1380
RESTORED = "restored to 220 W, as it was found."


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[tuple[SimulatedDevice, ...]]:
    """Two GPUs, as an administrator sees them."""
    bus = SimulatedBus.parse("simulated:v100x2", tmp_path)
    yield bus.discover()
    bus.close()


def left_behind(directory: Path, device: SimulatedDevice, boot: str | None = None) -> None:
    """Leave a limit in force as a killed collector does."""
    device.set_control("power_limit", OURS_MW)
    leave(directory, device.gpu, Limits(FOUND_MW, OURS_MW), boot=boot)


def left_locked(directory: Path, device: SimulatedDevice, boot: str | None = None) -> None:
    """Leave a clock locked as a killed collector does."""
    device.set_control("graphics_clock", OURS_MHZ)
    leave(directory, device.gpu, Limits(UNLOCKED, OURS_MHZ), "graphics_clock", boot)


def read(directory: Path, gpu: str) -> RestoreRecord | None:
    with closing(RestoreRecordFile(directory, gpu)) as file:
        return file.read()


def outcomes(
    tmp_path: Path, device: str = "simulated:v100x2", *, default: bool = False
) -> tuple[Outcome, ...]:
    with closing(SimulatedBus.parse(device, tmp_path)) as bus:
        return Restorer(bus, tmp_path / "restore", by="a test", default=default).restore()


def test_every_gpu_is_restored_once_and_its_record_tells_the_next_collector(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    for gpu in gpus:
        left_behind(tmp_path / "restore", gpu)
    assert sorted(outcome.says for outcome in outcomes(tmp_path)) == sorted(
        f"{gpu.gpu}: {RESTORED}" for gpu in gpus
    )
    assert [gpu.read_control("power_limit") for gpu in gpus] == [FOUND_MW, FOUND_MW]
    record = read(tmp_path / "restore", gpus[0].gpu)
    assert record is not None
    assert record.settled == f"a test: {gpus[0].gpu}: {RESTORED}"
    assert not record.limits.changed
    assert outcomes(tmp_path) == ()


def test_a_limit_that_was_restored_beside_a_full_disk_is_not_said_to_be_left(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    left_behind(tmp_path / "restore", gpus[0])
    (tmp_path / "restore" / f"{gpus[0].gpu}.new").mkdir()  # the record cannot be written
    said: list[str] = []
    assert patiently(tmp_path, "simulated:v100x2", said)
    (says,) = said
    assert says.startswith(f"{gpus[0].gpu}: {RESTORED} But {tmp_path}/restore/{gpus[0].gpu}.json: could not")
    assert gpus[0].read_control("power_limit") == FOUND_MW


def test_a_clock_is_unlocked_beside_the_limit_and_a_broken_record_of_one_keeps_not_the_other(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    records = tmp_path / "restore"
    left_behind(records, gpus[0])
    left_locked(records, gpus[0])
    left_locked(records, gpus[1])
    for name in (f"{gpus[1].gpu}.json", f"{gpus[1].gpu}.json.copy"):
        (records / name).write_text("{", encoding="ascii")
    done = {outcome.says for outcome in outcomes(tmp_path) if not outcome.left}
    unlocked = "restored to an unlocked graphics clock, as it was found."
    assert done == {
        f"{gpus[0].gpu}: {RESTORED}",
        f"{gpus[0].gpu}: {unlocked}",
        f"{gpus[1].gpu}: {unlocked}",
    }
    assert [gpu.locked_mhz("graphics_clock") for gpu in gpus] == [UNLOCKED, UNLOCKED]
    assert [outcome.left for outcome in outcomes(tmp_path)] == [True]


def test_without_a_record_to_believe_the_default_is_proposed_and_set_once_it_is_wanted(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    left_behind(tmp_path / "restore", gpus[0])
    for path in (tmp_path / "restore").glob("*.json*"):
        path.write_text(path.read_text().replace(str(FOUND_MW), str(OURS_MW)))
    (outcome,) = outcomes(tmp_path)
    assert outcome.left
    assert "150 W is in force" in outcome.says
    assert "default, 250 W" in outcome.says
    assert "zeus-stream restore --default" in outcome.says
    assert gpus[0].read_control("power_limit") == OURS_MW
    (outcome,) = outcomes(tmp_path, default=True)
    assert (outcome.says, outcome.left) == (
        f"{gpus[0].gpu}: set to 250 W, the driver's default: its record is damaged.",
        False,
    )
    assert gpus[0].read_control("power_limit") == 250_000
    assert outcomes(tmp_path) == ()
    (tmp_path / "restore" / "GPU-gone.json").write_text("damaged")
    (outcome,) = outcomes(tmp_path, default=True)
    assert outcome.says.startswith("GPU-gone: its restore record is damaged, and no such GPU is there."), (
        outcome
    )
    assert outcome.left


def test_a_record_of_an_earlier_boot_changes_nothing(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    left_behind(tmp_path / "restore", gpus[0], boot="an earlier one")
    left_locked(tmp_path / "restore", gpus[0], boot="an earlier one")
    for outcome in outcomes(tmp_path):
        assert not outcome.left
        assert "restarted" in outcome.says
    assert (gpus[0].read_control("power_limit"), gpus[0].locked_mhz("graphics_clock")) == (OURS_MW, OURS_MHZ)
    assert outcomes(tmp_path) == ()


def test_a_gpu_that_is_gone_and_a_record_that_makes_no_sense_do_not_keep_the_others(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    records = tmp_path / "restore"
    left_behind(records, gpus[0])
    left_behind(records, gpus[1])
    (records / "GPU-broken.json").write_text("{", encoding="ascii")
    done = outcomes(tmp_path, "simulated:v100x1")
    assert {outcome.says for outcome in done if not outcome.left} == {f"{gpus[0].gpu}: {RESTORED}"}
    left = " ".join(outcome.says for outcome in done if outcome.left)
    assert "GPU-broken: its restore record is damaged" in left
    assert f"{gpus[1].gpu}: could not be restored to 220 W: no such GPU is there" in left
    assert read(records, gpus[1].gpu) is not None


class BusyBus(ArithmeticBus):
    """The first two times, its GPU does not answer in time."""

    looks = 0

    def discover(self) -> tuple[ArithmeticDevice, ...]:
        self.looks += 1
        (device,) = self.devices
        device.set_error = (
            RetryError(f"{device.gpu}: Timeout. It is tried again.") if self.looks < 3 else None
        )
        return self.devices


def test_a_device_that_does_not_answer_yet_is_asked_again_and_said_once(tmp_path: Path) -> None:
    bus = BusyBus(1)
    (device,) = bus.devices
    device.requested_mw = OURS_MW
    leave(tmp_path / "restore", device.gpu, Limits(FOUND_MW, OURS_MW))
    said: list[str] = []
    lock = tmp_path / "collector.lock"
    assert restore_patiently(lambda: bus, tmp_path / "restore", lock, "a test", said.append)
    assert said == [f"{device.gpu}: Timeout. It is tried again.", f"{device.gpu}: {RESTORED}"]
    assert (device.requested_mw, bus.looks) == (FOUND_MW, 3)


class HangingDevice(ArithmeticDevice):
    """A device whose driver does not return, as long as it is not let."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.returns = threading.Event()

    def describe(self) -> Description:
        assert self.returns.wait(60)
        return super().describe()


def test_a_device_whose_driver_hangs_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.controls.restore.HANG_NS", 100_000_000)
    bus = ArithmeticBus(0)
    hanging, other = bus.devices = HangingDevice(0), ArithmeticDevice(1)
    for device in bus.devices:
        device.requested_mw = OURS_MW
        leave(tmp_path, device.gpu, Limits(FOUND_MW, OURS_MW))
    restorer = Restorer(bus, tmp_path, by="a test")
    left, done = restorer.restore()
    assert done == Outcome(f"{other.gpu}: {RESTORED}", left=False)
    assert left.left
    assert "a call to a driver does not return" in left.says
    assert (hanging.requested_mw, other.requested_mw) == (OURS_MW, FOUND_MW)
    hanging.returns.set()
    (outcome,) = until(lambda: [each for each in restorer.restore() if not each.left])
    assert outcome == Outcome(f"{hanging.gpu}: {RESTORED}", left=False)
    assert hanging.requested_mw == FOUND_MW


@pytest.mark.parametrize("deaf_sets", [1, 2])
def test_a_restore_that_the_device_took_and_does_not_follow_is_tried_again(
    tmp_path: Path, deaf_sets: int
) -> None:
    """What is requested then is still ours, and no other program's. The first time nothing is said."""
    bus = ArithmeticBus(1)
    (device,) = bus.devices
    device.requested_mw, device.deaf_sets = OURS_MW, deaf_sets
    leave(tmp_path / "restore", device.gpu, Limits(FOUND_MW, OURS_MW))
    said: list[str] = []
    lock = tmp_path / "collector.lock"
    assert restore_patiently(lambda: bus, tmp_path / "restore", lock, "a test", said.append)
    again = "could not restore 220 W: the device took it, and requests 150 W still. It is tried again."
    assert said == [again, f"{device.gpu}: {RESTORED}"][2 - deaf_sets :]
    assert device.requested_mw == FOUND_MW


@pytest.mark.sweep
def test_a_guard_leaves_the_rest_to_a_collector_that_has_come_meanwhile(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    left_behind(tmp_path / "restore", gpus[0])
    mine = RestoreRecordFile(tmp_path / "restore", gpus[0].gpu)
    said: list[str] = []
    with claim(tmp_path / "collector.lock", "collector"):
        assert patiently(tmp_path, "simulated:v100x1", said)
    assert "another process guards this device" in said[0]
    assert f"process {os.getpid()}, a new collector" in said[1]
    assert gpus[0].read_control("power_limit") == OURS_MW
    assert mine.read() is not None
    mine.close()


def patiently(tmp_path: Path, device: str, said: list[str]) -> bool:
    return restore_patiently(
        lambda: SimulatedBus.parse(device, tmp_path),
        tmp_path / "restore",
        tmp_path / "collector.lock",
        "a test",
        said.append,
    )


def test_a_guard_that_cannot_restore_gives_up_in_time_and_names_the_cure(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.controls.restore.PATIENCE_S", 0.2)
    left_behind(tmp_path / "restore", gpus[0])
    said: list[str] = []
    assert not patiently(tmp_path, "simulated:v100x1,fault=permission", said)
    assert "Insufficient Permissions" in said[0]
    assert "`zeus-stream restore`" in said[-1]
    record = read(tmp_path / "restore", gpus[0].gpu)
    assert record is not None
    assert record.limits == Limits(FOUND_MW, OURS_MW)


def test_without_records_nothing_is_opened(tmp_path: Path) -> None:
    def fail() -> SimulatedBus:
        raise AssertionError("opened")

    assert restore_patiently(fail, tmp_path / "restore", tmp_path / "collector.lock", "a test", print)


def test_records_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "restore").write_text("", encoding="ascii")
    with pytest.raises(StorageError, match="could not be listed"):
        outcomes(tmp_path)


def test_a_guard_to_whom_nobody_listens_tries_again_all_the_same(
    tmp_path: Path, gpus: tuple[SimulatedDevice, ...]
) -> None:
    left_behind(tmp_path / "restore", gpus[0])
    device = "simulated:v100x1,fault=timeout@0-0.3"
    module = "collectors.controls.watchdog"
    guard = subprocess.Popen(
        [sys.executable, "-m", module, device, str(tmp_path), str(tmp_path / "restore")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    assert guard.stderr is not None
    guard.stderr.close()
    assert guard.stdout.read() == READY
    guard.stdout.close()
    assert gpus[0].read_control("power_limit") == OURS_MW
    guard.stdin.close()
    assert guard.wait(60) == 0
    assert gpus[0].read_control("power_limit") == FOUND_MW
