"""A device that can only be looked at: what ``--observe`` makes of every device."""

from collectors.control import spell_change
from collectors.device import Description, Device, Sample
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.fields import Control


class ReadOnlyDevice:
    """Refuses every change at the lowest layer, whatever the layers above believe."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def describe(self) -> Description:
        return self._device.describe()

    def sample(self) -> Sample:
        return self._device.sample()

    def read_control(self, control: Control) -> int | None:
        return self._device.read_control(control)

    def set_control(self, control: Control, value: int) -> None:
        raise RefusedError(
            f"collector: could not {spell_change(control, value)}: it only observes."
            " Start it without --observe and ZEUS_STREAM_OBSERVE."
        )

    def processes(self) -> tuple[int, ...] | None:
        return self._device.processes()

    def close(self) -> None:
        self._device.close()
