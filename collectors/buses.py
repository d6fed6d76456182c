"""Opens the devices that a setting names."""

from pathlib import Path

from collectors.device import Bus
from zeus_stream.errors import SettingsError


def open_bus(device: str, run: Path) -> Bus:
    """Return the bus of a ``device`` setting; ``run`` is where simulated GPUs live. Raises SettingsError."""
    # Imported here: who samples one kind of GPU does without the libraries of the other.
    if device.startswith("simulated:"):
        from collectors.simulated import SimulatedBus  # noqa: PLC0415  (see above)

        return SimulatedBus.parse(device, run)
    if device == "nvml":
        from collectors.nvml import NvmlBus  # noqa: PLC0415  (see above)

        return NvmlBus()
    raise SettingsError(
        f"device {device!r}: could not be opened: there is no such kind."
        " Choose nvml, or simulated:MODELxCOUNT such as simulated:v100x4."
    )
