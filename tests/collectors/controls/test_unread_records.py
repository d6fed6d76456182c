"""A restore record that cannot be read yet is read once it can be, and what it says is restored."""

from pathlib import Path

import pytest

from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import RestoreRecordFile
from tests.collectors.controls.left_record import leave
from tests.collectors.devices.arithmetic import FOUND_MW, ArithmeticBus
from tests.collectors.test_service import collector
from tests.waiting import eventually
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, DeviceFound

pytestmark = pytest.mark.anyio
OURS_MW = 150_000


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.controls.device_thread.PATIENCE_S", 0.0)
    monkeypatch.setattr("collectors.sampling.schedule.RETURN_NS", 20_000_000)


@pytest.fixture
def bus(zeus_dir: Path) -> ArithmeticBus:
    """A GPU with a limit that a dead collector left."""
    bus = ArithmeticBus(1)
    (device,) = bus.devices
    device.requested_mw = OURS_MW
    leave(zeus_dir / "restore", device.gpu, Limits(FOUND_MW, OURS_MW))
    return bus


async def test_a_limit_whose_record_a_watchdog_holds_in_a_hung_call_returns_once_it_lets_go(
    bus: ArithmeticBus, zeus_dir: Path
) -> None:
    """The watchdog's call failed then, and it left the rest to the collector that it saw."""
    (device,) = bus.devices
    watchdog = RestoreRecordFile(zeus_dir / "restore", device.gpu)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        refused = await client.set("c1", 200)
        assert isinstance(refused, ControlRefused)
        assert "Wait until it has restored what it changed" in refused.reason
        assert device.requested_mw == OURS_MW
        watchdog.close()
        await eventually(lambda: device.requested_mw == FOUND_MW)
        (ended,) = await client.wait_for(ControlLeaseEnded)
        assert (ended.cause, ended.value) == ("restart", FOUND_MW)
        assert (await client.notes(DeviceFound))[-1].found_limit_mw == FOUND_MW
        assert await client.set("c1", 200) == refused, "its outcome is in the log"
        assert isinstance(await client.set("c2", 200), ControlApplied)
    assert device.requested_mw == FOUND_MW


async def test_a_gpu_whose_damaged_record_is_removed_by_hand_is_commanded_again(
    bus: ArithmeticBus, zeus_dir: Path
) -> None:
    records = list((zeus_dir / "restore").glob("*.json*"))
    for record in records:
        record.write_text("{")
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        assert isinstance(await client.set("c1", 120), ControlRefused)
        for record in records:
            record.unlink()
        await client.wait_for(DeviceFound, 2)
        assert isinstance(await client.set("c2", 120), ControlApplied)
