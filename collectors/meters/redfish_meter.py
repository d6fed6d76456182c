"""A figure of Redfish, the interface of baseboard controllers and PDUs (DMTF DSP0266), over HTTPS."""

import base64
import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

from collectors.device import Sample
from collectors.meters.host_meter import JOULES, WATTS, MeterUnit
from zeus_stream.errors import RetryError, SettingsError

LONGEST_S = 10.0
MOST_BYTES = 1_000_000
KILOWATT_HOURS = MeterUnit(3.6e9, counts_energy=True)
FIGURES: tuple[tuple[tuple[str, ...], MeterUnit], ...] = (
    (("EnergyJoules", "Reading"), JOULES),  # EnvironmentMetrics, from 1.2 on
    (("EnergykWh", "Reading"), KILOWATT_HOURS),
    (("PowerWatts", "Reading"), WATTS),
    (("PowerControl", "PowerConsumedWatts"), WATTS),  # Power, which newer schemas replace
)
"""Figures of a resource, best first. A counter of whole kWh is coarse, but misses nothing."""
_SENSORS = {"J": JOULES, "kW.h": KILOWATT_HOURS, "W": WATTS}
"""Units of the resource Sensor."""


class RedfishMeter:
    """One resource of a Redfish service."""

    def __init__(self, address: str) -> None:
        """``address``: URL with user and password. Raises SettingsError."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(
                "meters: could not understand the address of redfish. Write"
                " redfish:https://USER:PASSWORD@HOST/redfish/v1/Chassis/1/EnvironmentMetrics."
            )
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit(parts._replace(netloc=place))
        self._name = f"{place}{parts.path}"
        self._headers = {"Accept": "application/json"}
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(secret).decode('ascii')}"
        self._open = urllib.request.build_opener(_NoRedirects()).open

    def read(self) -> Sample:
        """Read the resource. Raises RetryError."""
        request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310  (http or https, see above)
        try:
            with self._open(request, timeout=LONGEST_S) as answer:
                content = json.loads(answer.read(MOST_BYTES))
        except (OSError, ValueError) as wrong:
            if isinstance(wrong, HTTPError):
                wrong.close()
            raise RetryError(
                f"{self._name}: could not be read: {wrong}. It is read again. A certificate of the site goes"
                " into a file that SSL_CERT_FILE names."
            ) from wrong
        return _reading(content, self._name)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password would go with it."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _reading(content: Any, name: str) -> Sample:
    if isinstance(content, Mapping):
        if (unit := _SENSORS.get(str(content.get("ReadingUnits")))) and _is_number(content.get("Reading")):
            return unit.reading(content["Reading"], name)
        for (group, field), unit in FIGURES:
            found = content.get(group)
            each = [found] if isinstance(found, Mapping) else found if isinstance(found, list) else []
            values: list[Any] = [one.get(field) for one in each if isinstance(one, Mapping)]
            if values and all(map(_is_number, values)):
                return unit.reading(sum(values), name)
    raise RetryError(
        f"{name}: could not be read: it has none of EnergyJoules, EnergykWh, PowerWatts, PowerControl."
        " Name the EnvironmentMetrics of a chassis, or a sensor."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
