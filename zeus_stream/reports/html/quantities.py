"""Quantities with their units, for people. Pure."""

from collections.abc import Mapping
from math import floor, isfinite, log10
from typing import Any

ABSENT = "-"
"""Stands for a figure that is not known. Never 0."""


def figure(value: float | None, unit: str = "", digits: int = 4) -> str:
    """Format a figure with this many significant digits. Digits before the point are always kept."""
    if value is None or not isfinite(value):
        return ABSENT
    places = max(digits - 1 - floor(log10(abs(value))), 0) if value else 0
    return f"{value:,.{min(places, 6)}f}{' ' if unit else ''}{unit}"


def joules(value: float | None) -> str:
    """Format an energy in J, kJ or kWh."""
    if value is None:
        return ABSENT
    if abs(value) < 100_000:
        return f"{value:,.0f} J" if abs(value) >= 1000 else figure(value, "J")
    return figure(value / 1e3, "kJ") if abs(value) < 3.6e6 else figure(value / 3.6e6, "kWh")


def seconds(value: float | None) -> str:
    """Format a duration."""
    if value is None:
        return ABSENT
    if 0 < abs(value) < 0.1:
        return figure(1000 * value, "ms", 3)
    if value < 120:
        return figure(value, "s", 3)
    if value < 7200:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def level(saving: Mapping[str, Any]) -> str:
    """Return the limit or clock chosen, from a row of the view ``savings``."""
    clock_mhz = saving.get("clock_mhz")
    return f"{saving['power_limit_w']:g} W" if clock_mhz is None else f"{clock_mhz} MHz"


def found_level(saving: Mapping[str, Any]) -> str:
    """Return what the level chosen is compared with."""
    clock_mhz = saving.get("default_clock_mhz")
    if clock_mhz is None:
        return f"{saving['default_limit_w']:g} W, the limit found"
    return f"{clock_mhz} MHz, the highest clock"
