"""Opens the devices that settings name."""

import logging
from pathlib import Path

from collectors.device import Bus, Device
from collectors.devices.rapl import RaplBus
from zeus_stream.errors import DeviceError, LostError, SettingsError

_log = logging.getLogger(__name__)


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


def open_bus(device: str, run: Path, *, cpu: str = "off", host: str = "localhost") -> Bus:
    """Return the bus of the settings ``device`` and ``cpu``. Raises SettingsError.

    Args:
        run: where simulated GPUs live.
        host: names the CPUs, which have no UUID of their own.
    """
    if cpu not in ("auto", "on", "off"):
        raise SettingsError(f"cpu {cpu!r}: could not be understood. Choose auto, on or off.")
    if device == "cpu":
        return RaplBus(host)
    gpus = _open_gpus(device, run)
    if cpu == "off" or (cpu == "auto" and device.startswith("simulated:")):
        return gpus  # joules made of arithmetic and real ones are not to be added up unasked
    return HostBus(gpus, RaplBus(host), wanted=cpu == "on")


def _open_gpus(device: str, run: Path) -> Bus:
    # Imported here: who samples one kind of GPU does without the libraries of the others.
    if device.startswith("simulated:"):
        from collectors.devices.simulated import SimulatedBus  # noqa: PLC0415  (see above)

        return SimulatedBus.parse(device, run)
    if device == "nvml":
        from collectors.devices.nvml_bus import NvmlBus  # noqa: PLC0415  (see above)

        return NvmlBus()
    if device == "amd":
        from collectors.devices.amd import AmdBus  # noqa: PLC0415  (see above)

        return AmdBus()
    raise SettingsError(
        f"device {device!r}: could not be opened: there is no such kind."
        " Choose nvml, amd, cpu, or simulated:MODELxCOUNT such as simulated:v100x4."
    )
