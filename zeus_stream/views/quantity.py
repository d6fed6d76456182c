"""Figures for people: a value with its unit, its interval, its age, or the reason why there is none. Pure.

A figure that is not known is ``-``, never 0. A figure that is not 0 is never shown as 0.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor, inf, isfinite, log10
from typing import Literal

from msgspec import Struct

from zeus_stream.errors import SettingsError

Unit = Literal["J", "W", "s", "%", "J/step", "ms", "°C", "MHz", "Hz", "GiB", ""]
ABSENT = "-"
"""Stands for a figure that is not known."""
MOST_PLACES = 6
LEAST_WIDTH = 0.1
"""Percent that differ by a narrower interval are shown to two decimals."""
WH_J = 3600.0
KWH_J = 1000 * WH_J
_ENERGIES = {
    "auto": ((KWH_J, "kWh"), (1e5, "kJ")),
    "J": ((1e9, "GJ"), (1e6, "MJ"), (1e5, "kJ")),
    "Wh": ((1000 * KWH_J, "MWh"), (KWH_J, "kWh"), (WH_J, "Wh"), (0.0, "mWh")),
}
"""By the setting ``energy_unit``: units, each with the energy from which on it is used. Below: J, mJ, µJ."""
_JOULES = {"kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "mWh": WH_J / 1000, "Wh": WH_J, "kWh": KWH_J, "MWh": 1000 * KWH_J}
_energies = _ENERGIES["auto"]
_TIMES = ((119.5, 1.0, "s"), (7200.0, 60.0, "min"), (48 * 3600.0, 3600.0, "h"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def show_energy_in(unit: str) -> None:
    """Set the unit in which this process shows energies to people: ``auto``, ``J`` or ``Wh``.

    Raises:
        SettingsError: it is another one.
    """
    global _energies  # noqa: PLW0603  (as a locale: a preference of the process)
    if unit not in _ENERGIES:
        raise SettingsError(f"energy_unit = {unit!r}: expected {', '.join(_ENERGIES)}.")
    _energies = _ENERGIES[unit]


class Quantity(Struct, frozen=True):
    """A figure for people. ``low`` and ``high`` are its 95 % interval; ``absent``: why there is no value."""

    value: float | None
    unit: Unit
    low: float | None = None
    high: float | None = None
    as_of_ns: int | None = None
    """Wall clock. None: it does not change any more."""
    absent: str = ""

    @property
    def known(self) -> float | None:
        """Return the value if it is a number that can be shown."""
        return self.value if self.value is not None and isfinite(self.value) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the bounds, if both are known."""
        if self.low is None or self.high is None or not (isfinite(self.low) and isfinite(self.high)):
            return None
        return self.low, self.high

    @property
    def covers_zero(self) -> bool:
        """Tell whether the interval has 0 in it: no difference was measured."""
        return self.interval is not None and self.interval[0] <= 0 <= self.interval[1]

    def __str__(self) -> str:
        """Return the value with its unit."""
        return spelled(self.known, self.unit)


def within_half(value: float | None, unit: Unit, half: float | None, scale: float = 1.0) -> Quantity:
    """Return a figure with half of its interval, which is in other units by ``scale``."""
    if half is None or value is None:
        return Quantity(value, unit)
    return Quantity(value, unit, value - scale * half, value + scale * half)


def spelled(value: float | None, unit: Unit) -> str:
    """Return a value in the form of its unit."""
    match unit:
        case "J":
            return joules(value)
        case "W":
            return watts(value)
        case "s":
            return seconds(value)
        case "%":
            return percent(value)
        case _:
            return figure(value, unit)


def bounds(quantity: Quantity) -> str:
    """Return the interval in words. Empty: it is not known, or its ends are the same to all digits shown."""
    if quantity.known is None or (interval := quantity.interval) is None:
        return ""
    low, high = interval
    scale, unit = 1.0, ""
    if quantity.unit == "J":
        scale, unit = energy_scale(quantity.known)
    elif quantity.unit == "s":
        low = max(low, 0.0)
        scale, unit = _time_scale(max(quantity.known, 0.0))
    span = ends(low, high, scale)
    return f"{span} {unit}" if span and unit else span


def ends(low: float, high: float, scale: float = 1.0) -> str:
    """Return the ends of an interval to the digits that its width supports. Empty: they look the same."""
    if not (isfinite(low) and isfinite(high)):
        return ""
    shown = [_supported(end / scale, (high - low) / scale) for end in (low, high)]
    return "" if shown[0] == shown[1] else " to ".join(shown)


def sure_words(quantity: Quantity) -> str:
    """Return the interval, or that it is narrower than the digits shown, or that it is not known."""
    if sure := bounds(quantity):
        return f"95 %: {sure}"
    if quantity.known is not None and quantity.interval is not None:
        return "exact to the digits shown"
    return f"interval not known{f': {quantity.absent}' if quantity.absent else ''}"


def with_bounds(quantity: Quantity) -> str:
    """Return a figure with its interval; without a value, why there is none."""
    if quantity.known is None:
        return quantity.absent or ABSENT
    interval = bounds(quantity)
    return f"{quantity} (95 %: {interval})" if interval else str(quantity)


def with_half(quantity: Quantity) -> str:
    """Return a difference with its sign and half its interval, to the digits that the interval supports."""
    if quantity.known is None or quantity.interval is None or quantity.interval[0] >= quantity.interval[1]:
        text = str(quantity)
        return f"+{text}" if (quantity.known or 0) > 0 and text[0].isdigit() else text
    half = (quantity.interval[1] - quantity.interval[0]) / 2
    width = max(2 * half, LEAST_WIDTH) if quantity.unit == "%" else 2 * half
    value, sure = _supported(quantity.known, width), _supported(half, width)
    if quantity.unit == "%" and half < LEAST_WIDTH / 20:
        sure = "under 0.01"
    elif sure == "0":
        sure = f"under {10.0**-MOST_PLACES:.{MOST_PLACES}f}"
    sign = "+" if quantity.known > 0 and value != "0" else ""
    return f"{sign}{value} ± {sure} {quantity.unit}"


def figure(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Return a figure with this many significant digits. Digits before the point are always kept."""
    if value is None or not isfinite(value):
        return ABSENT
    after = f"{' ' if unit else ''}{unit}"
    places = max(digits - 1 - floor(log10(abs(value))), 0) if value else 0
    if places > MOST_PLACES and abs(value) < 0.5 * 10.0**-MOST_PLACES:
        return f"under {10.0**-MOST_PLACES:.{MOST_PLACES}f}{after}"
    return f"{value:,.{min(places, MOST_PLACES)}f}{after}"


def joules(value: float | None) -> str:
    """Return an energy in its natural unit, or in that of `show_energy_in`."""
    if value is None or not isfinite(value):
        return ABSENT
    scale, unit = energy_scale(value)
    return f"{value:,.0f} J" if unit == "J" and abs(value) >= 1000 else figure(value / scale, unit)


def energy_scale(value: float) -> tuple[float, str]:
    """Return the joules of the unit of an energy, and its name."""
    unit = next((unit for least, unit in _energies if abs(value) >= least), None)
    if unit is not None:
        return _JOULES[unit], unit
    scale, prefix = _small(abs(value))
    return scale, f"{prefix}J"


def _small(size: float) -> tuple[float, str]:
    """Return the factor and the prefix of a small value."""
    return next(((f, p) for f, p in _SMALL if size >= 0.9995 * f), (1.0, "") if not size else _SMALL[-1])


def watts(value: float | None) -> str:
    """Return a power or a power limit."""
    if value is None or not isfinite(value):
        return ABSENT
    return f"{value:,.0f} W" if abs(value) >= 10 or not value else figure(value, "W", 2)


def seconds(value: float | None, digits: int = 3) -> str:
    """Return a duration in its natural unit. One below 0 cannot be, and is not known."""
    if value is None or not isfinite(value) or value < 0:
        return ABSENT
    scale, unit = _time_scale(value)
    return figure(value / scale, unit, digits) if scale <= 1 else f"{value / scale:.1f} {unit}"


def _time_scale(value: float) -> tuple[float, str]:
    if value < 0.1:
        scale, prefix = _small(value)
        return scale, f"{prefix}s"
    return next(((scale, unit) for most, scale, unit in _TIMES if value < most), (86400.0, "d"))


def counted(count: int, what: str, many: str = "") -> str:
    """Return a number of things: ``many`` is the plural, if it is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def percent(value: float | None, form: str = ".1f") -> str:
    """Return a share in percent."""
    if value is None or not isfinite(value):
        return ABSENT
    if not value:
        return "0 %"
    if abs(value) < 0.05:
        return "under 0.1 %" if value > 0 else "above -0.1 %"
    return f"{value:{form}} %"


def in_one_unit(values: Sequence[float | None], unit: Unit) -> list[str]:
    """Return energies or durations of one column: one unit, and the decimals that the largest supports."""
    known = [value for value in values if value is not None and isfinite(value)]
    most = max(map(abs, known), default=0.0)
    scale, name = energy_scale(most) if unit == "J" else _time_scale(most)
    digits = 4 if unit == "J" else 3
    places = min(max(digits - 1 - floor(log10(most / scale)), 0), MOST_PLACES) if most else 0

    def spell(value: float | None) -> str:
        if value is None or not isfinite(value) or (unit == "s" and value < 0):
            return ABSENT
        shown = f"{value / scale:,.{places}f}"
        if not value:
            return f"0 {name}"
        return f"{shown} {name}" if shown.strip("-0.,") else f"under {10.0**-places:g} {name}"

    return [spell(value) for value in values]


def half_of(quantity: Quantity) -> float | None:
    """Return half of the interval of a figure. None: it has none."""
    return None if quantity.interval is None else (quantity.interval[1] - quantity.interval[0]) / 2


def opposite(quantity: Quantity) -> Quantity:
    """Return a figure with the other sign: what is saved as a change."""
    value, low, high = (
        None if each is None else 0.0 - each for each in (quantity.value, quantity.high, quantity.low)
    )
    return Quantity(value, quantity.unit, low, high, quantity.as_of_ns, quantity.absent)


def whole(quantity: Quantity) -> str:
    """Return a figure without decimals and without its unit."""
    return ABSENT if quantity.known is None else f"{quantity.known:,.0f}"


def thousandth(value: int | None) -> float | None:
    """Return what a device counts in mW or mJ, in W or J; or ms in s."""
    return None if value is None else value / 1000


def three_digits(quantity: Quantity) -> str:
    """Return a figure with three significant digits and without its unit, for a narrow column."""
    return figure(quantity.known, digits=3)


def _supported(value: float, width: float) -> str:
    """Return a figure with as many decimals as the width of its interval supports: two digits of it."""
    places = 1 - floor(log10(width)) if 0 < width < inf else 1
    shown = f"{value:,.{min(max(places, 0), MOST_PLACES)}f}"
    return shown if shown.strip("-0.,") else "0"


def utc(wall_ns: int) -> str:
    """Return an instant to the second, in UTC."""
    return f"{datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S}"
