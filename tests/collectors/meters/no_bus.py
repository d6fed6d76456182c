"""A host without GPUs."""

from collectors.device import Device


class NoBus:
    """Finds nothing (a `collectors.device.Bus`)."""

    def discover(self) -> tuple[Device, ...]:
        return ()

    def close(self) -> None:
        pass
