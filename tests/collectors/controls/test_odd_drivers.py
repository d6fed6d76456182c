"""A collector over drivers that take another limit than was asked, change their range, or do nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from collectors.controls.lease_messages import Limits
from collectors.controls.value_changes import PutBack, put_back
from collectors.devices.nvml_bus import NvmlBus
from tests.collectors.controls.left_record import leave
from tests.collectors.devices.arithmetic import ArithmeticBus, ArithmeticDevice
from tests.collectors.test_service import Client, collector
from tests.gpu.stand_in import Gpu, StandIn
from tests.waiting import eventually
from zeus_stream.errors import DeviceError, LostError, PermissionMissingError, RetryError, UnsupportedError
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import ControlApplied, ControlLeaseEnded, ControlRefused, DeviceFound

pytestmark = pytest.mark.anyio
FOUND_MW = 220_000
W = 1000


@pytest.fixture
def gpu(stand_in: StandIn) -> Gpu:
    """The first GPU, with a limit that an administrator chose."""
    stand_in.gpus[0].requested_mw = FOUND_MW
    return stand_in.gpus[0]


@pytest.fixture
async def client(gpu: Gpu, nvml_bus: NvmlBus, zeus_dir: Path) -> AsyncIterator[Client]:
    """An analyzer with a run on that GPU."""
    async with collector(nvml_bus, zeus_dir) as analyzer:
        await analyzer.start_run(gpus=(gpu.uuid.decode(),))
        yield analyzer


async def ended_lease(client: Client, gpu: Gpu) -> ControlLeaseEnded:
    """Give the limit back, and return the note of the lease's end."""
    released = await client.release("c9", gpu.uuid.decode())
    assert isinstance(released, ControlApplied)
    (ended,) = await client.wait_for(ControlLeaseEnded)
    assert ended.value == released.value == gpu.requested_mw
    return ended


@pytest.mark.parametrize(
    ("round_mw", "clamp_mw", "asked_w", "taken_mw"),
    [
        pytest.param(10 * W, 0, 147, 150 * W, id="rounds"),
        pytest.param(0, 200 * W, 150, 200 * W, id="clamps"),
    ],
)
async def test_what_a_driver_made_of_our_limit_is_ours_and_what_was_found_returns(
    client: Client, gpu: Gpu, zeus_dir: Path, round_mw: int, clamp_mw: int, asked_w: int, taken_mw: int
) -> None:
    gpu.round_mw, gpu.clamp_mw = round_mw, clamp_mw
    applied = await client.set("c1", asked_w, gpu=gpu.uuid.decode())
    assert (applied.value, gpu.requested_mw) == (taken_mw, taken_mw)
    assert f'"confirmed_mw": {taken_mw}' in (zeus_dir / "restore" / f"{gpu.uuid.decode()}.json").read_text()
    assert (await ended_lease(client, gpu)).cause == "released"
    assert gpu.requested_mw == FOUND_MW


async def test_a_limit_that_was_rounded_up_above_what_was_found_is_given_back_at_once(
    client: Client, gpu: Gpu
) -> None:
    gpu.round_mw = 12 * W
    refused = await client.set("c1", 217, gpu=gpu.uuid.decode())
    assert isinstance(refused, ControlRefused)
    assert (refused.cause, "took 228 W for 217 W" in refused.reason) == ("range", True)
    (ended,) = await client.wait_for(ControlLeaseEnded)
    assert "restored was 228 W, the nearest to 220 W" in ended.reason, "the driver makes it of 220 W too"
    assert ended.value == gpu.requested_mw == 228 * W


async def test_where_the_limit_found_is_not_allowed_any_more_the_nearest_is_restored(
    client: Client, gpu: Gpu
) -> None:
    await client.set("c1", 150, gpu=gpu.uuid.decode())
    gpu.max_limit_mw = 200 * W
    ended = await ended_lease(client, gpu)
    assert gpu.requested_mw == 200 * W
    assert "200 W, the nearest to 220 W" in ended.reason


async def test_a_limit_that_the_driver_moved_into_a_smaller_range_is_still_ours(
    client: Client, gpu: Gpu
) -> None:
    await client.set("c1", 150, gpu=gpu.uuid.decode())
    gpu.min_limit_mw = 180 * W
    gpu.requested_mw = 180 * W
    (ended,) = await client.wait_for(ControlLeaseEnded)
    assert (ended.cause, ended.value, gpu.requested_mw) == ("device", FOUND_MW, FOUND_MW)
    assert "the driver" in ended.reason


async def test_a_set_that_does_nothing_is_called_so_and_leaves_no_record(
    client: Client, gpu: Gpu, zeus_dir: Path
) -> None:
    gpu.ignored_sets = 1000
    refused = await client.set("c1", 150, gpu=gpu.uuid.decode())
    assert isinstance(refused, ControlRefused)
    assert refused.cause == "ignored"
    assert "the driver accepted the power limit and did not change it" in refused.reason
    await eventually(lambda: not list((zeus_dir / "restore").glob("*.json")))
    assert await client.notes(ControlLeaseEnded) == []
    assert gpu.requested_mw == FOUND_MW


async def test_a_set_of_a_lost_gpu_says_so_and_one_after_its_return_is_applied(
    client: Client, gpu: Gpu
) -> None:
    gpu.lost = 1
    refused = await client.set("c1", 150, gpu=gpu.uuid.decode())
    assert isinstance(refused, ControlRefused)
    assert refused.cause == "lost"
    gpu.lost = 0
    await client.wait_for(DeviceFound, 2)
    applied = await client.set("c2", 150, gpu=gpu.uuid.decode())
    assert (applied.value, gpu.requested_mw) == (150 * W, 150 * W)


@pytest.mark.parametrize("requested_w", [150, 143, 190])
async def test_a_collector_killed_between_a_set_and_its_record_leaves_no_limit_behind(
    gpu: Gpu, nvml_bus: NvmlBus, zeus_dir: Path, requested_w: int
) -> None:
    """Asked were 147 W: rounded up, rounded down, clamped."""
    leave(zeus_dir / "restore", gpu.uuid.decode(), Limits(FOUND_MW, None, 147 * W))
    gpu.requested_mw = requested_w * W
    async with collector(nvml_bus, zeus_dir) as client:
        (ended,) = await client.wait_for(ControlLeaseEnded)
    assert (ended.cause, ended.value, gpu.requested_mw) == ("restart", FOUND_MW, FOUND_MW)


async def test_where_the_limit_found_is_there_and_is_not_allowed_any_more_a_restore_sets_the_nearest(
    gpu: Gpu, nvml_bus: NvmlBus, zeus_dir: Path
) -> None:
    leave(zeus_dir / "restore", gpu.uuid.decode(), Limits(FOUND_MW, None, 150 * W))
    gpu.max_limit_mw = 200 * W
    async with collector(nvml_bus, zeus_dir) as client:
        (ended,) = await client.wait_for(ControlLeaseEnded)
    assert (ended.cause, ended.value, gpu.requested_mw) == ("restart", 200 * W, 200 * W)


class LateDevice(ArithmeticDevice):
    """A device that takes a limit when it is let to, and reports the one of before until then."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.late = False
        self.fails: type[DeviceError] | None = None
        self.waiting: list[int] = []

    def set_control(self, control: Control, value: int) -> None:
        if not self.late or control != "power_limit":
            super().set_control(control, value)
            return
        self.waiting.append(value)
        if self.fails is not None:
            raise self.fails(f"{self.gpu}: could not answer.")

    def take(self) -> None:
        """Take what was set."""
        self.late = False
        for value in self.waiting:
            super().set_control("power_limit", value)


@pytest.mark.parametrize(
    ("asked_w", "fails"),
    [
        pytest.param(150, None, id="another"),
        pytest.param(199, None, id="one that a driver might round"),
        pytest.param(150, RetryError, id="after a timeout"),
        pytest.param(150, LostError, id="of a GPU that was lost for a moment"),
    ],
)
async def test_a_limit_that_the_driver_takes_after_it_was_read_back_is_still_ours(
    zeus_dir: Path, asked_w: int, fails: type[DeviceError] | None
) -> None:
    device = LateDevice(0)
    bus = ArithmeticBus(0)
    bus.devices = (device,)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        await client.set("c1", 200)
        device.late, device.fails = True, fails
        outcome = await client.set("c2", asked_w)
        assert isinstance(outcome, ControlRefused) if fails else outcome.value == 200 * W, "as read back"
        device.take()
        (ended,) = await client.wait_for(ControlLeaseEnded)
        assert (ended.cause, ended.value) == ("device", 300 * W)
        assert device.requested_mw == 300 * W


@pytest.mark.parametrize("fails", [RetryError, LostError])
async def test_a_first_limit_whose_set_failed_and_which_the_driver_takes_later_is_restored(
    zeus_dir: Path, fails: type[DeviceError]
) -> None:
    device = LateDevice(0)
    bus = ArithmeticBus(0)
    bus.devices = (device,)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        device.late, device.fails = True, fails
        assert isinstance(await client.set("c1", 150), ControlRefused)
        device.take()
        await eventually(lambda: device.requested_mw == 300 * W)
        await eventually(lambda: not list((zeus_dir / "restore").glob("*.json")))


async def test_a_driver_that_cannot_set_a_limit_leaves_no_record(zeus_dir: Path) -> None:
    device = LateDevice(0)
    device.late, device.fails = True, UnsupportedError
    bus = ArithmeticBus(0)
    bus.devices = (device,)
    async with collector(bus, zeus_dir, 1) as client:
        await client.start_run()
        assert isinstance(await client.set("c1", 150), ControlRefused)
        await eventually(lambda: not list((zeus_dir / "restore").glob("*.json")))


def test_a_restore_sets_what_was_found_behind_a_limit_that_the_driver_has_not_taken() -> None:
    device = LateDevice(0)
    device.late = True
    device.set_control("power_limit", 150 * W)
    assert put_back(device, Limits(300 * W, None, 150 * W)) == PutBack(300 * W, other_program=False)
    device.take()
    assert device.requested_mw == 300 * W


@pytest.mark.parametrize("denied", [PermissionMissingError, UnsupportedError])
def test_a_restore_that_finds_nothing_of_ours_needs_no_right_to_set(denied: type[DeviceError]) -> None:
    device = LateDevice(0)
    device.late, device.fails = True, denied
    assert put_back(device, Limits(300 * W, None, 150 * W)) == PutBack(300 * W, other_program=False)
