"""Quantities with their units, for people. Pure."""

from math import floor, isfinite, log10

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
    if value < 120:
        return figure(value, "s", 3)
    if value < 7200:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"
