"""The kinds of devices that `test_device` holds to one standard.

A kind is a function that returns a `Bench`: a bus with at least two GPUs, and hands that do to the GPUs
what a test cannot do through the bus. To hold another kind to the standard, add its function to `KINDS`.
"""

from collections.abc import Callable
from typing import Protocol

import pynvml
import pytest

from collectors.device import Bus, Device
from collectors.nvml import NvmlBus
from collectors.simulated import Schedule, SimulatedBus
from collectors.simulated_spec import Spec, parse
from tests.gpu.stand_in import StandIn
from zeus_stream.board import LimitChange, Load


class Bench(Protocol):
    """A host of GPUs under test, the first of which can be lost and found."""

    @property
    def bus(self) -> Bus:
        """Where the GPUs are."""

    def work(self) -> None:
        """Let a second pass in which every GPU draws more than at rest."""

    def lose_first(self) -> None:
        """Let the first GPU fall off the bus."""

    def find_first(self) -> None:
        """Let it come back."""

    def forbid(self) -> None:
        """Take the right to change limits and clocks away."""

    def locked_mhz(self) -> int:
        """Tell at what the first GPU's clock is locked; 0: it is not."""


class SimulatedBench:
    """Two simulated GPUs in arithmetic time: what is to happen is scheduled, the hands turn the clock."""

    def __init__(self, options: str = "") -> None:
        self._now_ns = 10**12
        self._schedules: list[Schedule] = []
        specs = parse(
            f"simulated:v100{options},fault=lost@100-200,fault=permission@300+v100{options},fault=permission@300"
        )
        self.bus = SimulatedBus(specs, self._surroundings, now=lambda: self._now_ns)

    def _surroundings(self, _gpu: str, spec: Spec) -> Schedule:
        schedule = Schedule(LimitChange(self._now_ns, spec.model.default_limit_mw))
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

    def locked_mhz(self) -> int:
        return self._schedules[0].locked_mhz()


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
            ):
                gpu.fail(change, pynvml.NVML_ERROR_NO_PERMISSION)

    def locked_mhz(self) -> int:
        return int(self._host.gpus[0].locked_mhz)


def simulated(_request: pytest.FixtureRequest) -> Bench:
    return SimulatedBench()


def simulated_power_only(_request: pytest.FixtureRequest) -> Bench:
    return SimulatedBench(",power_only=1")


def nvml(request: pytest.FixtureRequest) -> Bench:
    return NvmlBench(request.getfixturevalue("nvml_bus"), request.getfixturevalue("stand_in"))


def nvml_power_only(request: pytest.FixtureRequest) -> Bench:
    """GPUs before Volta: no counter, and no fields but the older calls."""
    host: StandIn = request.getfixturevalue("stand_in")
    for gpu in host.gpus:
        gpu.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_NOT_SUPPORTED)
        gpu.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    return nvml(request)


KINDS: tuple[Callable[[pytest.FixtureRequest], Bench], ...] = (
    simulated,
    simulated_power_only,
    nvml,
    nvml_power_only,
)


def opened(bench: Bench) -> tuple[Device, ...]:
    """Return the bench's devices, each described once, as a collector does."""
    devices = bench.bus.discover()
    for device in devices:
        device.describe()
    return devices
