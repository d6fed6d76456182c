"""What every device promises a collector, whatever it is made of."""

from collections.abc import Callable, Iterator

import pytest

from collectors.device import Device, memory_of
from tests.conformance.devices import KINDS, Bench, opened
from zeus_stream.errors import LostError, PermissionMissingError, RefusedError, UnsupportedError
from zeus_stream.protocol.fields import UNLOCKED, Control, of_host


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    make: Callable[[pytest.FixtureRequest], Bench] = request.param
    made = make(request)
    yield made
    made.bus.close()


CLOCKS: tuple[Control, ...] = ("graphics_clock", "memory_clock")


def measured_only(device: Device) -> bool:
    """Tell whether a device has no limit that could be set; if so, every call about one has to say it."""
    if device.describe().min_limit_mw is not None:
        return False
    told = device.describe()
    assert told.max_limit_mw is told.default_limit_mw is None
    with pytest.raises(UnsupportedError):
        device.set_control("power_limit", 150_000)
    with pytest.raises(UnsupportedError):
        device.read_control("power_limit")
    return True


def test_a_bus_names_its_gpus_in_order_and_each_by_its_own_uuid(bench: Bench) -> None:
    described = [device.describe() for device in bench.bus.discover()]
    assert [one.index for one in described] == list(range(len(described)))
    assert len({one.gpu for one in described}) == len(described) >= 2
    assert all(one.gpu.startswith("GPU-") or of_host(one.gpu) for one in described)


def test_the_default_limit_lies_within_the_range_that_can_be_set(bench: Bench) -> None:
    for device in bench.bus.discover():
        if measured_only(device):
            continue
        told = device.describe()
        lowest_mw, default_mw, highest_mw = told.min_limit_mw, told.default_limit_mw, told.max_limit_mw
        assert None not in (lowest_mw, default_mw, highest_mw)
        assert 0 < (lowest_mw or 0) <= (default_mw or 0) <= (highest_mw or 0)


def test_looking_again_finds_the_same_devices(bench: Bench) -> None:
    assert bench.bus.discover() == bench.bus.discover()


def test_work_is_seen_by_the_counter_where_there_is_one_and_by_the_power_else(bench: Bench) -> None:
    devices = opened(bench)
    before = [device.sample() for device in devices]
    bench.work()
    after = [device.sample() for device in devices]
    for device, rest, work in zip(devices, before, after, strict=True):
        if device.describe().counts_energy:
            assert rest.energy_mj is not None
            assert work.energy_mj is not None
            assert work.energy_mj > rest.energy_mj
        else:
            assert work.energy_mj is None
            assert rest.power_mw is not None
            assert work.power_mw is not None
            assert work.power_mw > rest.power_mw


def test_power_is_above_zero_and_at_most_one_and_a_half_times_the_highest_limit(bench: Bench) -> None:
    devices = opened(bench)
    bench.work()
    for device in devices:
        power_mw, highest_mw = device.sample().power_mw, device.describe().max_limit_mw
        if measured_only(device) and device.describe().counts_energy:
            continue  # it may say no power
        assert power_mw is not None
        assert highest_mw is not None
        assert 0 < power_mw <= 1.5 * highest_mw


def test_a_limit_that_was_set_can_be_read_back_and_is_nobody_elses(bench: Bench) -> None:
    first, second, *_ = opened(bench)
    if measured_only(first):
        return
    lowest_mw = first.describe().min_limit_mw
    assert lowest_mw is not None
    others_mw = second.read_control("power_limit")
    first.set_control("power_limit", lowest_mw)
    sample = first.sample()
    assert first.read_control("power_limit") == sample.requested_mw == sample.limit_mw == lowest_mw
    assert second.read_control("power_limit") == others_mw


@pytest.mark.parametrize("beyond", ["lowest", "highest"])
def test_a_limit_out_of_range_is_refused_and_changes_nothing(bench: Bench, beyond: str) -> None:
    device = opened(bench)[0]
    if measured_only(device):
        return
    told, before_mw = device.describe(), device.read_control("power_limit")
    assert told.min_limit_mw is not None
    assert told.max_limit_mw is not None
    with pytest.raises(RefusedError, match="100 W to 250 W"):
        device.set_control(
            "power_limit", told.min_limit_mw - 1000 if beyond == "lowest" else told.max_limit_mw + 1000
        )
    assert device.read_control("power_limit") == before_mw


def test_without_permission_a_set_tells_the_cure_and_reading_goes_on(bench: Bench) -> None:
    device = opened(bench)[0]
    if measured_only(device):
        return
    before_mw = device.read_control("power_limit")
    bench.forbid()
    with pytest.raises(
        PermissionMissingError, match=r"^GPU-.* could not set the power limit to 150 W.*Run the"
    ):
        device.set_control("power_limit", 150_000)
    assert device.sample().requested_mw == before_mw


@pytest.mark.parametrize("control", CLOCKS)
def test_without_permission_a_clock_is_neither_locked_nor_unlocked(bench: Bench, control: Control) -> None:
    device = opened(bench)[0]
    clocks_mhz = device.describe().clocks_mhz(control)
    if not clocks_mhz:
        pytest.skip("it has no clocks that could be locked")
    device.set_control(control, clocks_mhz[0])
    bench.forbid()
    with pytest.raises(PermissionMissingError, match=r"could not lock the \w+ clock.*Run the"):
        device.set_control(control, clocks_mhz[-1])
    with pytest.raises(PermissionMissingError, match=r"could not unlock the \w+ clock.*Run the"):
        device.set_control(control, UNLOCKED)
    assert bench.locked_mhz(control) == clocks_mhz[0]


def test_a_lost_gpu_ends_alone_and_can_be_taken_up_when_it_is_back(bench: Bench) -> None:
    first, *others = opened(bench)
    gpu, clocks_mhz = first.describe().gpu, first.describe().graphics_clocks_mhz
    bench.lose_first()
    for ask in (first.describe, first.sample, lambda: first.read_control("power_limit"), first.processes):
        with pytest.raises(LostError):
            ask()
    with pytest.raises(LostError):
        first.set_control("power_limit", 150_000)
    if clocks_mhz:
        with pytest.raises(LostError):
            first.set_control("graphics_clock", UNLOCKED)
    assert gpu not in {device.describe().gpu for device in bench.bus.discover()}
    for device in others:
        assert said_something(device)
    bench.find_first()
    assert gpu in {device.describe().gpu for device in bench.bus.discover()}
    assert first.describe().gpu == gpu
    assert said_something(first)


def said_something(device: Device) -> bool:
    sample = device.sample()
    return sample.power_mw is not None or sample.energy_mj is not None


@pytest.mark.parametrize("control", CLOCKS)
def test_a_clock_can_be_locked_exactly_where_the_device_names_clocks(bench: Bench, control: Control) -> None:
    device = opened(bench)[0]
    clocks_mhz = device.describe().clocks_mhz(control)
    assert list(clocks_mhz) == sorted(clocks_mhz, reverse=True)
    if clocks_mhz:
        device.set_control(control, UNLOCKED)  # floats already: no error
        for clock_mhz in (clocks_mhz[-1], clocks_mhz[0]):
            device.set_control(control, clock_mhz)
            assert bench.locked_mhz(control) == clock_mhz
        assert all(bench.locked_mhz(other) == UNLOCKED for other in CLOCKS if other != control)
        assert device.read_control(control) is None
        with pytest.raises(RefusedError, match=f"of {clocks_mhz[-1]} to {clocks_mhz[0]} MHz"):
            device.set_control(control, clocks_mhz[0] + 1)
        assert bench.locked_mhz(control) == clocks_mhz[0]
        device.set_control(control, UNLOCKED)
        assert bench.locked_mhz(control) == UNLOCKED
    else:
        with pytest.raises(UnsupportedError):
            device.set_control(control, 1000)
        with pytest.raises(UnsupportedError):
            device.set_control(control, UNLOCKED)


def test_processes_are_pids_or_unknown(bench: Bench) -> None:
    for device in opened(bench):
        assert all(pid > 0 for pid in device.processes() or ())
        if (memory := memory_of(device)) is not None:
            assert 0 <= memory.used_bytes <= memory.total_bytes
            assert all(0 <= each <= memory.total_bytes for each in memory.of.values())


def test_a_closed_bus_has_lost_its_devices_and_can_be_opened_again(bench: Bench) -> None:
    devices = opened(bench)
    gpus = {device.describe().gpu for device in devices}
    for device in devices:
        device.close()
        device.close()
    bench.bus.close()
    bench.bus.close()
    with pytest.raises(LostError):
        devices[0].sample()
    assert {device.describe().gpu for device in bench.bus.discover()} == gpus
    assert all(map(said_something, bench.bus.discover()))
