"""The interface of a device: NVML, RAPL, AMD, or simulated.

A device blocks: it is called from one thread at a time, not always the same. It never reads the clock for
others: the caller stamps before and after each call. What a device cannot do is asked once (`Description`),
and a value it does not have is `None` in a `Sample`, never 0.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from collectors.control import spell_change
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.fields import Control


class Description(Struct, frozen=True, kw_only=True):
    """The identity and abilities of a device. Read once, when it is opened or comes back."""

    gpu: str
    """UUID (``GPU-...``); ``CPU-...``, ``DRAM-...`` and meters are parts of the host (`of_host`)."""
    index: int
    """Position in PCI bus order, for people and for ``CUDA_VISIBLE_DEVICES`` integers; parts of the host are
    counted apart."""
    name: str
    """Model, e.g. ``Tesla V100-PCIE-16GB``."""
    driver: str
    """Driver version; ``simulated`` for arithmetic."""
    counts_energy: bool
    """Has an energy counter; else energy is integrated from power."""
    min_limit_mw: int | None = None
    """Lowest limit the device accepts, mW. None: the device has no settable power limit."""
    max_limit_mw: int | None = None
    default_limit_mw: int | None = None
    graphics_clocks_mhz: tuple[int, ...] = ()
    """Graphics clocks that can be locked, descending; empty when they cannot."""
    memory_clocks_mhz: tuple[int, ...] = ()
    """Memory clocks that can be locked, descending; empty when they cannot."""
    power_profiles: int = 0
    """Bits of the workload power profiles that it has; 0: none."""
    mig: bool = False
    """MIG is on: energy is that of the whole GPU, shared by its tenants."""
    tenants: tuple[str, ...] = ()
    """UUIDs (``MIG-...``) of its MIG instances."""
    scope: Literal["gpu", "module"] = "gpu"
    """What its figures are of; a module's include the CPU beside the GPU."""
    every_ns: int = 0
    """Time between two reads of a slow device, which has a thread of its own; 0: by its refreshes."""
    error_ppm: int | None = None
    """Half of the 95 % interval of a meter's gain, millionths; None: not known, or no meter."""
    unanswered: tuple[str, ...] = ()
    """What the driver did not answer when it was described, a sentence each."""

    def clocks_mhz(self, control: Control) -> tuple[int, ...]:
        """Return the values at which a clock can be locked, MHz, descending; none for another control."""
        match control:
            case "graphics_clock":
                return self.graphics_clocks_mhz
            case "memory_clock":
                return self.memory_clocks_mhz
            case _:
                return ()

    def has(self, control: Control) -> bool:
        """Tell whether the device names values for a control."""
        match control:
            case "power_limit":
                return self.min_limit_mw is not None
            case "power_profile":
                return self.power_profiles != 0
            case _:
                return bool(self.clocks_mhz(control))


class Sample(NamedTuple):
    """One read, in the device's units; None: it does not say. A tuple: ten times as fast as a dataclass."""

    energy_mj: int | None
    """Counter since the driver loaded, mJ. Equal to the last one means "not refreshed yet"."""
    power_mw: int | None
    limit_mw: int | None
    """The limit in force, any limiter included (NVML field 190)."""
    requested_mw: int | None
    """The limit requested through the driver (NVML field 192)."""
    clock_mhz: int | None = None
    temperature_c: int | None = None
    utilization_pct: int | None = None
    requested_profiles: int | None = None
    """Bits of the workload power profiles that are requested, and of those in force."""
    enforced_profiles: int | None = None


class PowerSample(NamedTuple):
    """A mean of power, as the driver keeps it."""

    t_ns: int
    """When its time ended, CLOCK_MONOTONIC."""
    power_mw: int


class SampleTimes(NamedTuple):
    """The times of which an energy counter and samples of power tell, ns."""

    period_ns: int
    """Of the samples."""
    counter_period_ns: int
    late_ns: int
    """The middle of the time of which a sample is the mean is half a period and this before its instant."""
    counter_late_ns: int
    """A refresh of the counter shows what was drawn until so long before."""


class DeviceMemory(NamedTuple):
    """The memory of a GPU, bytes."""

    used_bytes: int
    total_bytes: int
    of: Mapping[int, int]
    """By pid, of the processes that were listed last; one whose memory is not known is left out."""


class ProcessesSeen(Struct, frozen=True):
    """One look at who computes on a device."""

    pids: tuple[int, ...] | None = None
    """None: they cannot be seen."""
    memory: DeviceMemory | None = None


class Device(Protocol):
    """A device under one collector. Every method may raise a `zeus_stream.errors.DeviceError`."""

    def describe(self) -> Description:
        """Return what the device is. Raises LostError when it is gone."""

    def sample(self) -> Sample:
        """Read counter, power and limits. Raises RetryError for values that cannot be."""

    def read_control(self, control: Control) -> int | None:
        """Return the value requested of the driver now, in the control's unit: what a restore compares.

        None for a clock, as no driver reports its lock, and where there are no power profiles. Raises
        UnsupportedError where there is no power limit.
        """

    def set_control(self, control: Control, value: int) -> None:
        """Request a value, in the control's unit. UNLOCKED lets a clock float, whatever program locked it.

        A clock stays locked until it is unlocked or the driver is loaded again. Raises UnsupportedError
        where the device has no such control, PermissionMissingError, OutOfRangeError for a limit out of the
        range of now, or RefusedError for a clock that the description does not name.
        """

    def processes(self) -> tuple[int, ...] | None:
        """Return pids that compute on the device, or None where they cannot be seen."""

    def close(self) -> None:
        """Let go of the device. Idempotent."""


@runtime_checkable
class WithMemory(Protocol):
    """A device that says how full its memory is."""

    def memory(self) -> DeviceMemory | None:
        """Return its memory. None: it does not say."""


def memory_of(device: Device) -> DeviceMemory | None:
    """Return the memory of a device; None: it has none, or does not say."""
    return device.memory() if isinstance(device, WithMemory) else None


@runtime_checkable
class WithSleep(Protocol):
    """A device that may be suspended, and that each call wakes."""

    def asleep(self) -> bool:
        """Tell whether it is suspended now, without a call to it."""


def sleeps(device: Device) -> bool:
    """Tell whether a device is suspended: who reads it wakes it."""
    return isinstance(device, WithSleep) and device.asleep()


@runtime_checkable
class WithClock(Protocol):
    """A device that says its clock more often than with its samples."""

    def clock_mhz(self) -> int | None:
        """Return the graphics clock now, MHz. None: it does not say."""


def clock_of(device: Device) -> int | None:
    """Return the graphics clock of a device, MHz, as new as it says it. None: it does not say."""
    return device.clock_mhz() if isinstance(device, WithClock) else device.sample().clock_mhz


@runtime_checkable
class WithPowerSamples(Protocol):
    """A device whose driver keeps samples of its power."""

    def power_samples(self, since_ns: int) -> tuple[PowerSample, ...]:
        """Return the samples since an instant, as far as they are kept, oldest first; none: it keeps none."""


def power_samples_of(device: Device, since_ns: int) -> tuple[PowerSample, ...]:
    """Return the samples of its power that the driver of a device keeps since an instant, oldest first."""
    return device.power_samples(since_ns) if isinstance(device, WithPowerSamples) else ()


def watts(milliwatts: int) -> str:
    """Return a power for a sentence: ``250 W``."""
    return f"{milliwatts / 1000:g} W"


class OutOfRangeError(RefusedError):
    """A power limit that a device does not take now."""

    def __init__(self, gpu: str, limit_mw: int, lowest_mw: int, highest_mw: int) -> None:
        """Spell the range in mW."""
        super().__init__(
            f"{gpu}: could not set the power limit to {watts(limit_mw)}: it is out of range."
            f" Choose a limit of {watts(lowest_mw)} to {watts(highest_mw)}."
        )
        self.nearest_mw = min(max(limit_mw, lowest_mw), highest_mw)


def check_limit(gpu: str, limit_mw: int, lowest_mw: int, highest_mw: int) -> None:
    """Raise OutOfRangeError for a power limit, mW, that a device does not take."""
    if not lowest_mw <= limit_mw <= highest_mw:
        raise OutOfRangeError(gpu, limit_mw, lowest_mw, highest_mw)


def check_clock(gpu: str, control: Control, clock_mhz: int, clocks_mhz: Sequence[int]) -> None:
    """Raise RefusedError for a clock, MHz, that is not one of a device's, which descend."""
    if clock_mhz not in clocks_mhz:
        raise RefusedError(
            f"{gpu}: could not {spell_change(control, clock_mhz)}: it is out of range."
            f" Choose one of its {len(clocks_mhz)} clocks of {clocks_mhz[-1]} to {clocks_mhz[0]} MHz."
        )


class Bus(Protocol):
    """Finds and opens the devices of a host. Also the seam for a driver that is not loaded yet."""

    def discover(self) -> tuple[Device, ...]:
        """Return every device there is now, in PCI order. Raises LostError while there is no driver."""

    def close(self) -> None:
        """Let go of the driver. Idempotent."""


class DeviceOver:
    """A device that another one answers for. Kinds of it answer some questions otherwise."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def describe(self) -> Description:
        return self._device.describe()

    def sample(self) -> Sample:
        return self._device.sample()

    def read_control(self, control: Control) -> int | None:
        return self._device.read_control(control)

    def set_control(self, control: Control, value: int) -> None:
        self._device.set_control(control, value)

    def processes(self) -> tuple[int, ...] | None:
        return self._device.processes()

    def memory(self) -> DeviceMemory | None:
        return memory_of(self._device)

    def asleep(self) -> bool:
        return sleeps(self._device)

    def clock_mhz(self) -> int | None:
        return clock_of(self._device)

    def power_samples(self, since_ns: int) -> tuple[PowerSample, ...]:
        return power_samples_of(self._device, since_ns)

    def close(self) -> None:
        self._device.close()


class ReadOnlyDevice(DeviceOver):
    """Refuses every change at the lowest layer, whatever the layers above believe."""

    def set_control(self, control: Control, value: int) -> None:
        raise RefusedError(
            f"collector: could not {spell_change(control, value)}: it only observes."
            " Start it without --observe and ZEUS_STREAM_OBSERVE."
        )
