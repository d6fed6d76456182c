"""The interface of a meter, and the setting that names one. Pure.

NAME=KIND[:ADDRESS] [UNIT] [ERROR%] [SECONDSs]

wall=ipmi 3%
wall=redfish:https://reader:secret@bmc7/redfish/v1/Chassis/1/EnvironmentMetrics 1%
wall-b=snmp:pdu4 1.3.6.1.4.1.318.1.1.26.4.3.1.5.1 10W
site=file:/run/site.kwh kWh 60s
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from collectors.device import Sample
from zeus_stream.errors import RetryError, SettingsError
from zeus_stream.protocol.fields import SITE, WALL

EVERY_S, LEAST_S, MOST_S = 5.0, 0.1, 60.0
"""Seconds between two reads: unless the setting names another, at least and at most. Energy by second is
added up from readings at most 65 s apart."""
MOST_MW = 100_000_000
_UNITS_MJ = {"J": 1e3, "kJ": 1e6, "mJ": 1.0, "uJ": 1e-3, "Wh": 3.6e6, "kWh": 3.6e9}
_UNITS_MW = {"W": 1e3, "kW": 1e6, "mW": 1.0, "uW": 1e-3}
_SETTING = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]{0,19})=(?P<source>\S.*)")
_UNIT = re.compile(rf"(?P<factor>\d+(?:\.\d+)?)?(?P<unit>{'|'.join([*_UNITS_MJ, *_UNITS_MW])})")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


ReadMeter: TypeAlias = Callable[[], Sample]
"""Reads the energy counter of a meter, or its power. It blocks for some seconds at most, and may raise a
`zeus_stream.errors.DeviceError`."""


class MeterUnit(Struct, frozen=True):
    """The unit in which a meter gives its figure."""

    factor: float
    """Millijoules or milliwatts."""
    counts_energy: bool

    def reading(self, value: float, meter: str) -> Sample:
        """Return a figure as a reading. Raises RetryError for one that cannot be."""
        scaled = round(value * self.factor)
        if scaled < 0 or (not self.counts_energy and scaled > MOST_MW):
            raise RetryError(
                f"{meter}: could not be read: {value:g} is no figure of a meter. Check the unit in `meters`."
            )
        energy_mj, power_mw = (scaled, None) if self.counts_energy else (None, scaled)
        return Sample(energy_mj, power_mw, None, None)


WATTS = MeterUnit(_UNITS_MW["W"], counts_energy=False)
JOULES = MeterUnit(_UNITS_MJ["J"], counts_energy=True)


class MeterSetting(Struct, frozen=True, kw_only=True):
    """One meter, as the setting ``meters`` names it."""

    name: str
    kind: str
    address: str
    unit: MeterUnit | None
    """None: that of the kind."""
    error: float | None
    """Half of the 95 % interval of its gain, as a share; None: not known."""
    every_s: float

    @property
    def prefix(self) -> str:
        """Return the beginning of its UUID: a name that begins with ``site`` is of the whole site."""
        return SITE if self.name.startswith("site") else WALL


def parse_meter(text: str) -> MeterSetting:
    """Return a meter of the setting. Raises SettingsError."""
    found = _SETTING.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"meters: could not understand {text!r}. Write NAME=KIND:ADDRESS, such as wall=ipmi 3%."
        )
    words = found["source"].split()
    unit, error, every_s = None, None, EVERY_S
    while len(words) > 1:
        word = words[-1]
        if (given := _UNIT.fullmatch(word)) is not None:
            factors = _UNITS_MJ if given["unit"] in _UNITS_MJ else _UNITS_MW
            unit = MeterUnit(float(given["factor"] or 1) * factors[given["unit"]], factors is _UNITS_MJ)
        elif re.fullmatch(r"\d+(\.\d+)?%", word):
            error = float(word[:-1]) / 100
        elif re.fullmatch(r"\d+(\.\d+)?s", word):
            every_s = float(word[:-1])
        else:
            break
        words.pop()
    if not LEAST_S <= every_s <= MOST_S:
        raise SettingsError(
            f"meters: could not read {found['name']} every {every_s:g} s. Choose {LEAST_S:g} to {MOST_S:g} s."
        )
    kind, _, address = " ".join(words).partition(":")
    return MeterSetting(
        name=found["name"], kind=kind, address=address, unit=unit, error=error, every_s=every_s
    )


def first_number(text: str, meter: str) -> float:
    """Return the first number of a text. Raises RetryError: there is none."""
    found = _NUMBER.search(text)
    if found is None:
        raise RetryError(
            f"{meter}: could not be read: {text.strip()[:80]!r} has no number. Check its address."
        )
    return float(found[0])
