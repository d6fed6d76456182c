"""The meters of a host as devices beside its GPUs and CPUs, each read seldom, by a thread of its own."""

from collections.abc import Callable, Sequence

from collectors.control import spell_change
from collectors.device import Bus, Description, Device
from collectors.meters.host_meter import WATTS, MeterSetting, MeterUnit, ReadMeter, parse_meter
from collectors.meters.program_meters import command_meter, cray_meter, file_meter, ipmi_meter, snmp_meter
from collectors.meters.redfish_meter import RedfishMeter
from zeus_stream.errors import SettingsError, UnsupportedError
from zeus_stream.protocol.fields import Control

KINDS: dict[str, Callable[[str, MeterUnit], ReadMeter]] = {
    "redfish": lambda address, _: RedfishMeter(address).read,
    "ipmi": ipmi_meter,
    "snmp": snmp_meter,
    "cray": cray_meter,
    "file": file_meter,
    "command": command_meter,
}
"""Kinds of meters: each takes its address, and the unit of its figure."""


class MeterDevice:
    """A meter as a device that cannot be set (a `collectors.device.Device`)."""

    def __init__(self, setting: MeterSetting, host: str, index: int) -> None:
        """Raises SettingsError for a kind or an address that is none; nothing is read."""
        if (open_kind := KINDS.get(setting.kind)) is None:
            raise SettingsError(
                f"meters: could not open {setting.kind!r}: there is no such kind. Choose {', '.join(KINDS)}."
            )
        self.name = setting.name
        self.sample = open_kind(setting.address, setting.unit or WATTS)
        self._setting, self._index = setting, index
        self._gpu = f"{setting.prefix}{host[:50]}-{setting.name}"

    def describe(self) -> Description:
        """Return its identity. It is read for that. Raises DeviceError."""
        return Description(
            gpu=self._gpu,
            index=self._index,
            name=f"{self._setting.name}, by {self._setting.kind}",
            driver=self._setting.kind,
            counts_energy=self.sample().energy_mj is not None,
            every_ns=round(self._setting.every_s * 1e9),
            error_ppm=None if self._setting.error is None else round(self._setting.error * 1e6),
        )

    def read_control(self, control: Control) -> int | None:
        """Raise UnsupportedError for the power limit; return None for a clock."""
        if control == "power_limit":
            raise UnsupportedError(
                f"{self._gpu}: could not read a power limit: it is a meter. Go on without."
            )
        return None

    def set_control(self, control: Control, value: int) -> None:
        """Raise UnsupportedError."""
        raise UnsupportedError(f"{self._gpu}: could not {spell_change(control, value)}: it is a meter.")

    def processes(self) -> tuple[int, ...] | None:
        """Return None: all that the host does is in it."""
        return None

    def close(self) -> None:
        """Do nothing: nothing stays open."""


class MeteredBus:
    """A bus with the meters of its host (a `collectors.device.Bus`)."""

    def __init__(self, bus: Bus, meters: Sequence[str], host: str) -> None:
        """``meters``: the setting. Raises SettingsError."""
        self._bus, self._meters = bus, open_meters(meters, host)

    def discover(self) -> tuple[Device, ...]:
        """Return the devices of the bus, then the meters, which are not read for that.

        Raises what the bus raises.
        """
        return (*self._bus.discover(), *self._meters)

    def close(self) -> None:
        self._bus.close()


def open_meters(meters: Sequence[str], host: str) -> tuple[MeterDevice, ...]:
    """Return the meters of the setting ``meters``; none is read. Raises SettingsError."""
    settings = [parse_meter(text) for text in meters]
    if len({each.name for each in settings}) < len(settings):
        raise SettingsError("meters: could not tell two meters of one name apart. Name each differently.")
    return tuple(MeterDevice(each, host, index) for index, each in enumerate(settings))
