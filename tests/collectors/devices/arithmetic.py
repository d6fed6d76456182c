"""A device that is all arithmetic, with switches for what may go wrong; and a bus of them."""

from collectors.device import Description, Sample
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError

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
        self.locks: list[int] = []
        """Every clock that was locked by the collector; 0: it was unlocked."""
        self.set_error: DeviceError | None = None
        self.deaf_sets = 0
        """So many sets are taken, and change nothing."""
        self.closed = False

    def describe(self) -> Description:
        self._answer()
        return Description(
            self.gpu,
            self.index,
            "Arithmetic",
            "1.0",
            counts_energy=True,
            min_limit_mw=100_000,
            max_limit_mw=400_000,
            default_limit_mw=400_000,
            clocks_mhz=self.clocks_mhz,
        )

    def sample(self) -> Sample:
        self._answer()
        refresh = monotonic_ns() // (0 if self.mad else PERIOD_NS)
        energy_mj = refresh * PERIOD_NS * POWER_W // 1_000_000
        return Sample(energy_mj, POWER_W * 1000, self.requested_mw, self.requested_mw, 1380, 60, 100)

    def requested_limit_mw(self) -> int:
        self._answer()
        return self.requested_mw

    def set_limit(self, limit_mw: int) -> None:
        self._answer()
        if self.set_error is not None:
            raise self.set_error
        if self.deaf_sets:
            self.deaf_sets -= 1
            return
        self.requested_mw = limit_mw
        self.changes.append(limit_mw)

    def lock_clock(self, clock_mhz: int) -> None:
        self._answer()
        if self.set_error is not None:
            raise self.set_error
        self.locks.append(clock_mhz)

    def unlock_clock(self) -> None:
        self._answer()
        self.locks.append(0)

    def processes(self) -> tuple[int, ...] | None:
        return ()

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
