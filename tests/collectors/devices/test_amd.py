"""AMD GPUs over a stand-in for amdsmi (tests/gpu/amdsmi_stand_in.py). No AMD GPU was ever at hand."""

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.device import DeviceMemory, Sample
from collectors.devices.amd import AmdBus, AmdDevice, objection
from tests.gpu.amdsmi_stand_in import BUSY, INVAL, NO_PERM, NOT_FOUND, NOT_SUPPORTED, AmdGpu, AmdHost
from zeus_stream.errors import (
    DeviceError,
    LostError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    UnsupportedError,
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> AmdHost:
    made = AmdHost(1)
    monkeypatch.setitem(sys.modules, "amdsmi", made.module)
    return made


@pytest.fixture
def gpu(host: AmdHost) -> AmdGpu:
    return host.gpus[0]


@pytest.fixture
def bus(host: AmdHost) -> AmdBus:
    return AmdBus(host.now, host.sleep)


def opened(bus: AmdBus) -> AmdDevice:
    (device,) = bus.discover()
    device.describe()
    return device


# ---- counters are tried before they are trusted --------------------------------------------------------


@given(factor=st.floats(0.001, 1000), power_mw=st.integers(10_000, 1_000_000))
def test_a_counter_is_trusted_exactly_if_it_grows_about_as_the_power_says(
    factor: float, power_mw: int
) -> None:
    grown_mj = round(power_mw * factor)
    why = objection((0, 10**9), (5, 5 + grown_mj), (power_mw,))
    assert (why is None) == (0.5 <= grown_mj / power_mw <= 2.0)


@pytest.mark.parametrize(
    ("energy_mj", "power_mw", "why"),
    [
        ((7, 7, 7), (100_000,), "it stands still"),
        ((0, 150_000, 140_000), (100_000,), "it fell"),
        ((0, 100_000, 200_000), (), "there are no power readings to compare it with"),
        ((0, 1, 2000), (100_000,), "it grew by 2 J where the power readings say 200 J"),
        ((0, 100_000, 200_000), (100_000,), None),
    ],
)
def test_the_objection_says_what_was_seen(
    energy_mj: tuple[int, ...], power_mw: tuple[int, ...], why: str | None
) -> None:
    assert objection((0, 10**9, 2 * 10**9), energy_mj, power_mw) == why


def test_a_sound_counter_counts(bus: AmdBus, host: AmdHost) -> None:
    device = opened(bus)
    assert device.describe().counts_energy
    before = device.sample().energy_mj
    host.sleep(10)
    after = device.sample().energy_mj
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(400_000, abs=1)


@pytest.mark.parametrize("factor", [0.0, 0.01, 100.0])
def test_a_counter_that_is_off_is_said_once_and_left_alone(
    bus: AmdBus, gpu: AmdGpu, host: AmdHost, caplog: pytest.LogCaptureFixture, factor: float
) -> None:
    gpu.counter_factor = factor
    device = opened(bus)
    bus.discover()
    assert not device.describe().counts_energy
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "could not be trusted" in caplog.text
    asked = gpu.calls["amdsmi_get_energy_count"]
    host.sleep(1)
    assert device.sample() == Sample(None, 40_000, 250_000, 250_000, 1700, 35, 0)
    assert gpu.calls["amdsmi_get_energy_count"] == asked


def test_a_gpu_that_returns_is_tried_again_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    host = AmdHost(2)
    monkeypatch.setitem(sys.modules, "amdsmi", host.module)
    bus = AmdBus(host.now, host.sleep)
    first, second = bus.discover()
    first.describe()
    second.describe()
    host.gpus[1].lost = True
    host.gpus[1].counter_factor = 0.0
    host.sleep(1)
    with pytest.raises(LostError):
        first.sample()
    host.gpus[1].lost = False
    tried = host.gpus[0].calls["amdsmi_get_energy_count"]
    assert not first.describe().counts_energy
    assert host.gpus[0].calls["amdsmi_get_energy_count"] == tried
    assert second.describe().counts_energy


# ---- what it can and cannot ----------------------------------------------------------------------------


@pytest.mark.parametrize("average", [True, False])
def test_power_is_that_of_the_moment_or_the_average_whichever_it_has(
    bus: AmdBus, gpu: AmdGpu, *, average: bool
) -> None:
    gpu.average_power = average
    assert opened(bus).sample().power_mw == 40_000


def test_what_it_cannot_say_is_none_and_asked_once(bus: AmdBus, gpu: AmdGpu, host: AmdHost) -> None:
    for call in (
        "amdsmi_get_power_cap_info",
        "amdsmi_get_energy_count",
        "amdsmi_get_power_info",
        "amdsmi_get_temp_metric",
        "amdsmi_get_gpu_process_list",
    ):
        gpu.faults[call] = NOT_SUPPORTED
    gpu.activity = "N/A"
    device = opened(bus)
    assert device.describe().min_limit_mw is None
    for _ in range(3):
        assert device.sample() == Sample(None, None, None, None, 1700, None, None)
        host.sleep(1)
    asked = dict(gpu.calls)
    device.sample()
    assert gpu.calls["amdsmi_get_power_info"] == asked["amdsmi_get_power_info"]
    assert device.processes() is None
    with pytest.raises(UnsupportedError):
        device.set_control("power_limit", 200_000)
    with pytest.raises(UnsupportedError):
        device.read_control("power_limit")


@pytest.mark.parametrize("power_w", [400, 49_999])
def test_a_power_that_cannot_be_is_no_sample(bus: AmdBus, gpu: AmdGpu, power_w: int) -> None:
    device = opened(bus)
    gpu.power_w = power_w
    with pytest.raises(RetryError, match="cannot be"):
        device.sample()
    gpu.power_w = 100
    assert device.sample().power_mw == 100_000


def test_limits_are_in_the_units_of_the_driver_and_seen_at_once(bus: AmdBus, gpu: AmdGpu) -> None:
    device = opened(bus)
    device.sample()
    device.set_control("power_limit", 175_000)
    assert gpu.power_cap_uw == 175_000_000
    assert device.sample().limit_mw == device.read_control("power_limit") == 175_000
    with pytest.raises(RefusedError, match="Choose a limit of 100 W to 250 W"):
        device.set_control("power_limit", 90_000)


def test_a_driver_that_does_not_know_its_lowest_limit_is_not_asked_for_0_w(bus: AmdBus, gpu: AmdGpu) -> None:
    gpu.min_cap_uw = 0
    assert opened(bus).describe().min_limit_mw == 100_000


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (INVAL, UnsupportedError),
        (NOT_SUPPORTED, UnsupportedError),
        (NO_PERM, PermissionMissingError),
        (BUSY, RetryError),
        (NOT_FOUND, LostError),
        (4242, RetryError),
    ],
)
def test_every_error_becomes_what_to_do_about_it(
    bus: AmdBus, gpu: AmdGpu, code: int, kind: type[DeviceError]
) -> None:
    device = opened(bus)
    gpu.faults["amdsmi_set_power_cap"] = code
    with pytest.raises(kind, match=rf"could not set the power limit to 200 W: AMDSMI_STATUS_{code} "):
        device.set_control("power_limit", 200_000)
    assert device.lost == (kind is LostError)


def test_gpus_are_counted_by_pci_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    host = AmdHost(3)
    monkeypatch.setitem(sys.modules, "amdsmi", host.module)
    found = [device.describe() for device in AmdBus(host.now, host.sleep).discover()]
    assert [one.gpu for one in found] == [f"GPU-{gpu.uuid}" for gpu in reversed(host.gpus)]
    assert found[0].driver == "6.12.12"
    assert found[0].name == "AMD Instinct MI210"


def test_processes_are_pids(bus: AmdBus, gpu: AmdGpu) -> None:
    gpu.pids = (11, 12)
    device = opened(bus)
    assert device.processes() == (11, 12)
    assert device.memory() == DeviceMemory(12 << 20, 65_520 << 20, {11: 1 << 20, 12: 1 << 20})
    gpu.faults["amdsmi_get_gpu_vram_usage"] = 2  # not supported
    assert device.memory() is None


# ---- the driver ----------------------------------------------------------------------------------------


def test_a_driver_that_is_not_loaded_is_waited_for(bus: AmdBus, host: AmdHost) -> None:
    host.loaded = False
    with pytest.raises(LostError, match=r"^AMD driver: could not start amdsmi: .* Load the amdgpu driver"):
        bus.discover()
    host.loaded = True
    assert opened(bus).sample().power_mw == 40_000


def test_a_host_without_the_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(LostError, match=r"could not load amdsmi.*the extra `amd`"):
        AmdBus().discover()
