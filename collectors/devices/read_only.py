"""A device that can only be looked at: what ``--observe`` makes of every device."""

from collectors.device import Description, Device, Sample
from zeus_stream.errors import RefusedError


class ObservedDevice:
    """Refuses every change at the lowest layer, whatever the layers above believe."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def describe(self) -> Description:
        return self._device.describe()

    def sample(self) -> Sample:
        return self._device.sample()

    def requested_limit_mw(self) -> int:
        return self._device.requested_limit_mw()

    def set_limit(self, limit_mw: int) -> None:
        raise _refusal(f"set the power limit to {limit_mw / 1000:g} W")

    def lock_clock(self, clock_mhz: int) -> None:
        raise _refusal(f"lock the clock at {clock_mhz} MHz")

    def unlock_clock(self) -> None:
        raise _refusal("unlock the clock")

    def processes(self) -> tuple[int, ...] | None:
        return self._device.processes()

    def close(self) -> None:
        self._device.close()


def _refusal(what: str) -> RefusedError:
    return RefusedError(
        f"collector: could not {what}: it only observes. Start it without --observe and ZEUS_STREAM_OBSERVE."
    )
