"""The meters of a host as devices beside its GPUs and CPUs, each read seldom, by a thread of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from collectors.control import spell_change
from collectors.device import Bus, Description, Device, Sample
from collectors.meters.command_meter import command_meter, ipmi_meter, snmp_meter
from collectors.meters.file_meter import FileMeter, cray_meter
from collectors.meters.host_meter import WATTS, HostMeter, MeterSetting, MeterUnit, parse_meter
from collectors.meters.redfish_meter import RedfishMeter
from zeus_stream.errors import SettingsError, UnsupportedError
from zeus_stream.protocol.fields import Control

KINDS: dict[str, Callable[[str, MeterUnit], HostMeter]] = {
    "redfish": lambda address, _: RedfishMeter(address),
    "ipmi": ipmi_meter,
    "snmp": snmp_meter,
    "cray": lambda _address, _unit: cray_meter(),
    "file": lambda address, unit: FileMeter(Path(address), unit),
    "command": command_meter,
}
"""Kinds of meters: each takes its address, and the unit of its figure."""


class MeterDevice:
    """A meter as a device that cannot be set (a `collectors.device.Device`)."""

    def __init__(self, setting: MeterSetting, meter: HostMeter, host: str, index: int) -> None:
        self.name = setting.name
        self._setting, self._meter, self._index = setting, meter, index
        self._gpu = f"{setting.prefix}{host[:50]}-{setting.name}"

    def describe(self) -> Description:
        """Return its identity. It is read for that. Raises DeviceError."""
        return Description(
            gpu=self._gpu,
            index=self._index,
            name=f"{self._setting.name}, by {self._setting.kind}",
            driver=self._setting.kind,
            counts_energy=self._meter.read().energy_mj is not None,
            min_limit_mw=None,
            max_limit_mw=None,
            default_limit_mw=None,
            every_ns=round(self._setting.every_s * 1e9),
            error_ppm=None if self._setting.error is None else round(self._setting.error * 1e6),
        )

    def sample(self) -> Sample:
        """Read it. Raises DeviceError."""
        found = self._meter.read()
        return Sample(found.energy_mj, found.power_mw, None, None)

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
    return tuple(MeterDevice(each, _open(each), host, index) for index, each in enumerate(settings))


def _open(setting: MeterSetting) -> HostMeter:
    if (open_kind := KINDS.get(setting.kind)) is None:
        raise SettingsError(
            f"meters: could not open {setting.kind!r}: there is no such kind. Choose {', '.join(KINDS)}."
        )
    return open_kind(setting.address, setting.unit or WATTS)
