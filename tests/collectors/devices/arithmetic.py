"""A device that is all arithmetic, with switches for what may go wrong; and a bus of them."""

from msgspec.structs import replace

from collectors.device import Description, Sample
from tests.messages import DESCRIPTION
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError
from zeus_stream.protocol.fields import UNLOCKED, Control

PERIOD_NS = 20_000_000
POWER_W = 200
FOUND_MW = 300_000


class ArithmeticDevice:
    """Draws POWER_W; its counter refreshes every PERIOD_NS."""

    def __init__(self, index: int) -> None:
        self.gpu = f"GPU-{index:04}"
        self.index = index
        self.requested_mw = FOUND_MW
        self.changes: list[int] = []
        """Every limit that was set by the collector."""
        self.lost = False
        self.mad = False
        """Fails as no driver should."""
        self.clocks_mhz: tuple[int, ...] = (1380, 1365, 135)
        self.memory_clocks_mhz: tuple[int, ...] = (877, 405)
        self.power_profiles = 0
        """Bits of the workload power profiles that it has, and those that are requested."""
        self.requested_profiles = 0
        self.locks: list[int] = []
        """Every graphics clock that was locked by the collector, or UNLOCKED."""
        self.memory_locks: list[int] = []
        """The same of the memory clock."""
        self.set_error: DeviceError | None = None
        self.deaf_sets = 0
        """So many sets are taken, and change nothing."""
        self.pids: tuple[int, ...] | None = ()
        """Processes that compute on it."""
        self.closed = False

    def describe(self) -> Description:
        self._answer()
        return replace(
            DESCRIPTION,
            gpu=self.gpu,
            index=self.index,
            name="Arithmetic",
            driver="1.0",
            graphics_clocks_mhz=self.clocks_mhz,
            memory_clocks_mhz=self.memory_clocks_mhz,
            power_profiles=self.power_profiles,
        )

    def sample(self) -> Sample:
        self._answer()
        refresh = monotonic_ns() // (0 if self.mad else PERIOD_NS)
        energy_mj = refresh * PERIOD_NS * POWER_W // 1_000_000
        limit_mw = self.requested_mw
        profiles = (self.requested_profiles,) * 2 if self.power_profiles else (None, None)
        return Sample(energy_mj, POWER_W * 1000, limit_mw, limit_mw, 1380, 60, 100, *profiles)

    def read_control(self, control: Control) -> int | None:
        self._answer()
        if control == "power_profile":
            return self.requested_profiles
        return self.requested_mw if control == "power_limit" else None

    def set_control(self, control: Control, value: int) -> None:
        self._answer()
        if self.set_error is not None and value != UNLOCKED:
            raise self.set_error
        match control:
            case "power_limit" if self.deaf_sets:
                self.deaf_sets -= 1
            case "power_limit":
                self.requested_mw = value
                self.changes.append(value)
            case "graphics_clock":
                self.locks.append(value)
            case "memory_clock":
                self.memory_locks.append(value)
            case "power_profile":
                self.requested_profiles = value

    def processes(self) -> tuple[int, ...] | None:
        return self.pids

    def close(self) -> None:
        self.closed = True

    def _answer(self) -> None:
        if self.lost:
            raise LostError(
                f"{self.gpu}: could not answer: it is lost. It is taken up again when it returns."
            )


class ArithmeticBus:
    """A host with ``count`` such devices, and a driver that may not be there."""

    def __init__(self, count: int = 2) -> None:
        self.devices = tuple(ArithmeticDevice(index) for index in range(count))
        self.closed = False

    def discover(self) -> tuple[ArithmeticDevice, ...]:
        return self.devices

    def close(self) -> None:
        self.closed = True
