"""The kinds of devices that `test_device` holds to one standard.

A kind is a function that returns a `Bench`: a bus with at least two devices, and hands that do to them
what a test cannot do through the bus. To hold another kind to the standard, add its function to `KINDS`.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pynvml
import pytest

from collectors.device import Bus, Device
from collectors.devices.amd import AmdBus
from collectors.devices.nvml_bus import NvmlBus
from collectors.devices.rapl import RaplBus
from collectors.devices.simulated import SimulatedBus
from collectors.devices.simulated_spec import Spec, parse
from tests.gpu.amdsmi_stand_in import NO_PERM, NOT_SUPPORTED, AmdHost
from tests.gpu.powercap import Powercap
from tests.gpu.stand_in import StandIn
from tests.simulation.scheduled_loads import ScheduledLoads
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.simulated_gpu.shared_memory import LimitChange, Load


class Bench(Protocol):
    """A host of devices under test, the first of which can be lost and found."""

    @property
    def bus(self) -> Bus:
        """Where the devices are."""

    def work(self) -> None:
        """Let a second pass in which every device draws more than at rest."""

    def lose_first(self) -> None:
        """Let the first fall off the bus."""

    def find_first(self) -> None:
        """Let it come back."""

    def forbid(self) -> None:
        """Take the right to change limits and clocks away."""

    def locked_mhz(self, control: Control) -> int:
        """Return at what a clock of the first GPU is locked, or UNLOCKED."""


class SimulatedBench:
    """Two simulated GPUs in arithmetic time: what is to happen is scheduled, the hands turn the clock."""

    def __init__(self, options: str = "") -> None:
        self._now_ns = 10**12
        self._schedules: list[ScheduledLoads] = []
        specs = parse(
            f"simulated:v100{options},fault=lost@100-200,fault=permission@300+v100{options},fault=permission@300"
        )
        self.bus = SimulatedBus(specs, self._surroundings, now=lambda: self._now_ns)

    def _surroundings(self, _gpu: str, spec: Spec) -> ScheduledLoads:
        schedule = ScheduledLoads(first=LimitChange(self._now_ns, spec.model.default_limit_mw))
        self._schedules.append(schedule)
        return schedule

    def work(self) -> None:
        for schedule in self._schedules:
            schedule.pending.append(Load(self._now_ns, self._now_ns + 10**9, "imagenet"))
        self._now_ns += 10**9

    def lose_first(self) -> None:
        self._now_ns = 10**12 + 100 * 10**9

    def find_first(self) -> None:
        self._now_ns = 10**12 + 200 * 10**9

    def forbid(self) -> None:
        self._now_ns = 10**12 + 300 * 10**9

    def locked_mhz(self, control: Control) -> int:
        return self._schedules[0].locked_mhz(control)


class NvmlBench:
    """Two GPUs behind the real nvidia-ml-py, which the hands reach through the stand-in's file."""

    def __init__(self, bus: NvmlBus, host: StandIn) -> None:
        self.bus = bus
        self._host = host

    def work(self) -> None:
        for gpu in self._host.gpus:
            gpu.power_mw = 200_000
            gpu.energy_mj += 200_000

    def lose_first(self) -> None:
        self._host.gpus[0].lost = 1

    def find_first(self) -> None:
        self._host.gpus[0].lost = 0

    def forbid(self) -> None:
        for gpu in self._host.gpus:
            for change in (
                "nvmlDeviceSetPowerManagementLimit",
                "nvmlDeviceSetGpuLockedClocks",
                "nvmlDeviceResetGpuLockedClocks",
                "nvmlDeviceSetMemoryLockedClocks",
                "nvmlDeviceResetMemoryLockedClocks",
            ):
                gpu.fail(change, pynvml.NVML_ERROR_NO_PERMISSION)

    def locked_mhz(self, control: Control) -> int:
        gpu = self._host.gpus[0]
        return int(gpu.locked_memory_mhz if control == "memory_clock" else gpu.locked_mhz)


class AmdBench:
    """Two GPUs behind a stand-in for amdsmi. The bus has the second of the host first."""

    def __init__(self, host: AmdHost) -> None:
        self.bus = AmdBus(host.now, host.sleep)
        self._host = host

    def work(self) -> None:
        for gpu in self._host.gpus:
            gpu.power_w = 200
        self._host.sleep(1)

    def lose_first(self) -> None:
        self._host.gpus[1].lost = True
        self._host.sleep(1)

    def find_first(self) -> None:
        self._host.gpus[1].lost = False

    def locked_mhz(self, _control: Control) -> int:
        return UNLOCKED

    def forbid(self) -> None:
        for gpu in self._host.gpus:
            gpu.faults["amdsmi_set_power_cap"] = NO_PERM


class RaplBench:
    """A package and its memory, made of files."""

    def __init__(self, directory: Path) -> None:
        self._powercap = Powercap(directory)
        self._package = self._powercap.package(0)
        self._memory = self._powercap.memory(0)
        self.bus = RaplBus("host", directory, self._powercap.now)

    def work(self) -> None:
        self._powercap.draw(200, 1)

    def lose_first(self) -> None:
        shutil.move(self._package / "energy_uj", self._package / "was_energy_uj")
        self._powercap.draw(0, 1)

    def find_first(self) -> None:
        shutil.move(self._package / "was_energy_uj", self._package / "energy_uj")

    def locked_mhz(self, _control: Control) -> int:
        return UNLOCKED

    def forbid(self) -> None:
        """Nobody may change a CPU's limit: there is no right to take away."""


def simulated(_request: pytest.FixtureRequest) -> Bench:
    return SimulatedBench()


def simulated_power_only(_request: pytest.FixtureRequest) -> Bench:
    return SimulatedBench(",power_only=1")


def nvml(request: pytest.FixtureRequest) -> Bench:
    return NvmlBench(request.getfixturevalue("nvml_bus"), request.getfixturevalue("stand_in"))


def nvml_ampere(request: pytest.FixtureRequest) -> Bench:
    """GPUs whose memory clock can be locked."""
    host: StandIn = request.getfixturevalue("stand_in")
    for gpu in host.gpus:
        gpu.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
    return nvml(request)


def nvml_power_only(request: pytest.FixtureRequest) -> Bench:
    """GPUs before Volta: no counter, and no fields but the older calls."""
    host: StandIn = request.getfixturevalue("stand_in")
    for gpu in host.gpus:
        gpu.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_NOT_SUPPORTED)
        gpu.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    return nvml(request)


def _amd(request: pytest.FixtureRequest, host: AmdHost) -> Bench:
    request.getfixturevalue("monkeypatch").setitem(sys.modules, "amdsmi", host.module)
    return AmdBench(host)


def amd(request: pytest.FixtureRequest) -> Bench:
    return _amd(request, AmdHost())


def amd_power_only(request: pytest.FixtureRequest) -> Bench:
    """GPUs of which one has no counter, and one a counter that cannot be trusted."""
    host = AmdHost()
    host.gpus[0].counter_factor = 1000
    host.gpus[1].faults["amdsmi_get_energy_count"] = NOT_SUPPORTED
    return _amd(request, host)


def rapl(request: pytest.FixtureRequest) -> Bench:
    return RaplBench(request.getfixturevalue("tmp_path"))


KINDS: tuple[Callable[[pytest.FixtureRequest], Bench], ...] = (
    simulated,
    simulated_power_only,
    nvml,
    nvml_ampere,
    nvml_power_only,
    amd,
    amd_power_only,
    rapl,
)


def opened(bench: Bench) -> tuple[Device, ...]:
    """Return the bench's devices, each described once, as a collector does."""
    devices = bench.bus.discover()
    for device in devices:
        device.describe()
    return devices
