"""The kinds of devices, and the bus that a setting names.

A kind is one entry here, or one entry point of the group ``zeus_stream.devices`` in any installed
distribution: its name is the kind's, its object a `DeviceKind`. Only the kind that is named is imported.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from collectors.device import Bus, Device
from collectors.devices.rapl import RaplBus
from collectors.devices.set_command import SetCommandBus, parse_command
from zeus_stream import plugins
from zeus_stream.errors import DeviceError, LostError, SettingsError

GROUP = "zeus_stream.devices"
"""Entry points of it are kinds of devices."""
UNNAMED = "localhost"
_log = logging.getLogger(__name__)


class DeviceKind(Struct, frozen=True):
    """One kind of devices, as a registry entry."""

    spelling: str
    """How a setting names it, such as ``simulated:MODELxCOUNT``."""
    help: str
    open: Callable[[str, Path, str], Bus]
    """Takes the setting, the directory of sockets, the host's name. May raise SettingsError."""
    extra: str = ""
    """Extra of the package that brings its library."""


def _open_nvml(_device: str, _run: Path, _host: str) -> Bus:
    from collectors.devices.nvml_bus import NvmlBus  # noqa: PLC0415  (one kind needs no other's library)

    return NvmlBus()


def _open_amd(_device: str, _run: Path, _host: str) -> Bus:
    from collectors.devices.amd import AmdBus  # noqa: PLC0415  (see above)

    return AmdBus()


def _open_simulated(device: str, run: Path, host: str) -> Bus:
    from collectors.devices.simulated import SimulatedBus  # noqa: PLC0415  (see above)

    return SimulatedBus.parse(device, run, None if host == UNNAMED else host)


def _open_recorded(device: str, _run: Path, _host: str) -> Bus:
    from collectors.devices.recorded import RecordedBus  # noqa: PLC0415  (see above)

    return RecordedBus(Path(device.partition(":")[2]))


def _open_cpu(_device: str, _run: Path, host: str) -> Bus:
    return RaplBus(host)


BUILT_IN: dict[str, DeviceKind] = {
    "nvml": DeviceKind("nvml", "NVIDIA GPUs, by the driver's NVML", _open_nvml),
    "amd": DeviceKind("amd", "AMD GPUs, by amdsmi", _open_amd, extra="amd"),
    "cpu": DeviceKind("cpu", "CPUs and their memory, by RAPL", _open_cpu),
    "simulated": DeviceKind(
        "simulated:MODELxCOUNT", "GPUs made of arithmetic, such as simulated:v100x4", _open_simulated
    ),
    "recorded": DeviceKind("recorded:DIR", "what zeus-stream record DIR wrote, played again", _open_recorded),
}
"""The kinds that this package brings."""


def names() -> tuple[str, ...]:
    """Return how settings name the kinds there are; those of other distributions last, in order."""
    others = [name for name in plugins.names(GROUP) if name not in BUILT_IN]
    return (*(kind.spelling for kind in BUILT_IN.values()), *others)


def find(name: str) -> DeviceKind:
    """Return the kind of a name. Raises SettingsError: there is none, or it could not be loaded."""
    if (built_in := BUILT_IN.get(name)) is not None:
        return built_in
    kind = plugins.load(GROUP, name, DeviceKind, "device", "docs/how-to/add-a-device.md")
    if kind is not None:
        return kind
    raise SettingsError(
        f"device {name!r}: could not be opened: there is no such kind."
        f" Choose {', '.join(names())} (such as simulated:v100x4)."
    )


class HostBus:
    """The GPUs of a host, and its CPUs beside them, of which none is no trouble."""

    def __init__(self, gpus: Bus, cpus: Bus, *, wanted: bool) -> None:
        """``wanted``: it is worth a sentence that there are no CPUs to be read."""
        self._gpus, self._cpus, self._wanted = gpus, cpus, wanted
        self._said: str | None = None

    def discover(self) -> tuple[Device, ...]:
        """Return the GPUs, then the CPUs. Raises what looking for GPUs raises."""
        gpus = self._gpus.discover()
        try:
            return (*gpus, *self._cpus.discover())
        except DeviceError as wrong:
            if str(wrong) != self._said and (self._wanted or not isinstance(wrong, LostError)):
                _log.warning("%s", wrong)
            self._said = str(wrong)
            return gpus

    def close(self) -> None:
        self._gpus.close()
        self._cpus.close()


def open_bus(device: str, run: Path, *, cpu: str = "off", host: str = UNNAMED, set_command: str = "") -> Bus:
    """Return the bus of the settings ``device``, ``cpu`` and ``set_command``. Raises SettingsError.

    ``run``: where simulated GPUs live. ``host`` names what has no UUID: CPUs and simulated GPUs.
    """
    if cpu not in ("auto", "on", "off"):
        raise SettingsError(f"cpu {cpu!r}: could not be understood. Choose auto, on or off.")
    name = device.partition(":")[0]
    gpus = find(name).open(device, run, host)
    if set_command:
        gpus = SetCommandBus(gpus, parse_command(set_command), run)
    if name == "cpu" or cpu == "off" or (cpu == "auto" and name == "simulated"):
        return gpus  # simulated joules and real ones are not to be added up unasked
    return HostBus(gpus, RaplBus(host), wanted=cpu == "on")
