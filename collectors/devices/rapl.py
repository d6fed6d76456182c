"""CPUs and their memory through RAPL, as powercap shows it. The only file that reads /sys/class/powercap.

A zone is a directory: ``intel-rapl:0`` is a package, ``intel-rapl:0:1`` a part of it (AMD's CPUs bear the
same name). Packages and memory are devices of their own; cores are part of their package, and ``psys`` is the
whole board, packages included, so neither is one.

The counter moves every millisecond and starts over at ``max_energy_range_uj``, after minutes under full
load. A device reads it every REFRESH_NS, says the same value in between, as a GPU's counter does, and adds
up what it grew by. Where the growth is not certain (`growth_uj`), nothing is added: the device is lost, and
comes back with a counter that starts over.
"""

import re
from collections.abc import Callable
from pathlib import Path

from collectors.control import spell_change
from collectors.device import Description, Sample
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import DeviceError, LostError, PermissionMissingError, RetryError, UnsupportedError
from zeus_stream.protocol.fields import Control

POWERCAP = Path("/sys/class/powercap")
REFRESH_NS = 50_000_000
MOST_W = 1_000
"""No package draws more, nor its memory. TDP is no such bound: turbo exceeds it, and memory has none."""
SLACK_NS = 100_000_000
"""The counter may be so far behind, and catch up between two reads."""
_ZONE = re.compile(r"intel-rapl:(\d+)(?::(\d+))?")
_RETURNS = "It is taken up again when it returns."


def growth_uj(last_uj: int, now_uj: int, elapsed_ns: int, range_uj: int) -> int | None:
    """Return what a counter that starts over at ``range_uj`` grew by, or None where that is not certain.

    It is certain as long as the counter cannot have gone all the way round at MOST_W in ``elapsed_ns``. A
    fall that would take more than MOST_W to be a wrap is a counter that was set back (a suspended host).
    """
    most_uj = MOST_W * (elapsed_ns + SLACK_NS) // 1000
    grown_uj = now_uj - last_uj if now_uj >= last_uj else now_uj - last_uj + range_uj
    return grown_uj if grown_uj <= most_uj < range_uj else None


class RaplDevice:
    """One zone (a `collectors.device.Device`). Made by `RaplBus.discover` only. For one thread at a time."""

    def __init__(self, zone: Path, gpu: str, name: str, index: int, now: Callable[[], int]) -> None:
        self.gpu = gpu
        self._zone, self._name, self._index, self._now = zone, name, index, now
        self._there = True
        self._range_uj = 0
        self._last: tuple[int, int] | None = None
        """When the last read began, ns, and what it gave, uJ."""
        self._energy_uj = 0

    def found(self) -> None:
        """Note that it is there."""
        self._there = True

    def missing(self) -> None:
        """Note that the bus does not have it any more."""
        self._there = False

    def describe(self) -> Description:
        """Return the device's identity. Its counter starts over."""
        self.check()
        self._range_uj, self._last = self._read("max_energy_range_uj"), None
        return Description(
            gpu=self.gpu,
            index=self._index,
            name=self._name,
            driver="powercap",
            counts_energy=True,
        )

    def sample(self) -> Sample:
        """Return the counter as of at most REFRESH_NS ago. Raises LostError where it has to start over."""
        before_ns = self._now()
        if self._last is None or before_ns - self._last[0] >= REFRESH_NS:
            self._refresh(before_ns)
        elif not self._there:
            self._read("energy_uj")
        return Sample(self._energy_uj // 1000, None, None, None)

    def check(self) -> None:
        """Raise the DeviceError that a read would."""
        self._read("energy_uj")

    def read_control(self, control: Control) -> int | None:
        """Raise UnsupportedError for the power limit; return None for a clock."""
        self.check()
        if control == "power_limit":
            raise self._unsupported("read its power limit")
        return None

    def set_control(self, control: Control, value: int) -> None:
        """Raise UnsupportedError."""
        self.check()
        raise self._unsupported(spell_change(control, value))

    def processes(self) -> tuple[int, ...] | None:
        """Return None: every process of the host computes on it."""
        self.check()
        return None

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _refresh(self, before_ns: int) -> None:
        now_uj = self._read("energy_uj")
        last, self._last = self._last, (before_ns, now_uj)
        if last is None:
            self._energy_uj = now_uj
            return
        elapsed_ns = self._now() - last[0]
        grown_uj = growth_uj(last[1], now_uj, elapsed_ns, self._range_uj)
        if grown_uj is None:
            self._last = None
            raise LostError(
                f"{self.gpu}: could not count on: {elapsed_ns / 1e9:.1f} s after the last read its counter"
                " may have started over. It is counted from zero."
            )
        self._energy_uj += grown_uj

    def _read(self, name: str) -> int:
        if not self._there:
            raise LostError(f"{self.gpu}: could not be read: it is lost. {_RETURNS}")
        file = self._zone / name
        try:
            return int(file.read_text(encoding="ascii"))
        except PermissionError as wrong:
            raise PermissionMissingError(
                f"{self.gpu}: could not be read: {file} is for root only, as in every Linux since 5.10."
                " Run the collector as root, or add the rule of docs/explanation/measurement.md."
            ) from wrong
        except FileNotFoundError as wrong:
            raise LostError(f"{self.gpu}: could not be read: {file} is gone. {_RETURNS}") from wrong
        except (OSError, ValueError) as wrong:
            raise RetryError(
                f"{self.gpu}: could not be read: {file}: {wrong}. It is asked again at the next turn."
            ) from wrong

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.gpu}: could not {what}: CPUs are only measured. Go on without it.")


class RaplBus:
    """The packages of a host and their memory (a `collectors.device.Bus`)."""

    def __init__(self, host: str, root: Path = POWERCAP, now: Callable[[], int] = monotonic_ns) -> None:
        """``host`` names them; ``root`` holds the zones."""
        self._host, self._root, self._now = host[:50], root, now
        self._devices: dict[str, RaplDevice] = {}

    def discover(self) -> tuple[RaplDevice, ...]:
        """Return each package before its memory. Raises LostError or PermissionMissingError for none."""
        zones = self._zones()
        if not zones:
            raise LostError(
                f"{self._root}: could not find a CPU's energy counter: there is none. Load intel_rapl_msr, or"
                " (in a container or virtual machine) let it see the host's /sys; or set --cpu off."
            )
        for device in self._devices.values():
            device.missing()
        readable: list[RaplDevice] = []
        wrong: DeviceError | None = None
        for index, (zone, gpu, name) in enumerate(zones):
            device = self._devices.setdefault(gpu, RaplDevice(zone, gpu, name, index, self._now))
            device.found()
            try:
                device.check()
                readable.append(device)
            except DeviceError as error:
                wrong = error
        if wrong is not None and not readable:
            raise wrong
        return tuple(readable)

    def close(self) -> None:
        """Let go of the devices, which are lost until the next look. Idempotent."""
        for device in self._devices.values():
            device.missing()

    def _zones(self) -> list[tuple[Path, str, str]]:
        """Return directory, UUID and name of each device, in order."""
        names: dict[tuple[int, int], tuple[Path, str]] = {}
        for zone in self._root.glob("intel-rapl:*"):
            try:
                name = (zone / "name").read_text(encoding="ascii").strip()
            except OSError:
                continue  # it goes away just now
            if numbers := _ZONE.fullmatch(zone.name):
                names[int(numbers[1]), -1 if numbers[2] is None else int(numbers[2])] = zone, name
        zones = []
        for (package, _), (zone, name) in sorted(names.items()):
            _, within = names.get((package, -1), (zone, ""))
            if not within.startswith("package-"):
                continue  # the whole board
            number = within.removeprefix("package-")
            if name == within:
                zones.append((zone, f"CPU-{self._host}-{within}", f"CPU package {number}"))
            elif name == "dram":
                zones.append((zone, f"DRAM-{self._host}-{within}", f"memory of CPU package {number}"))
        return zones
