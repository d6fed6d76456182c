"""Rows of signals: prices and carbon intensities that energy is multiplied with when it is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRow:
    """One value of a signal over a time. Key: (name, imported_ns, begin_ns).

    Times are UTC, ns since 1970. Of one name, the rows that were imported last count.
    """

    name: str
    """``price`` or ``carbon``."""
    unit: str
    """Such as ``EUR/kWh``, or ``gCO2e/kWh``."""
    begin_ns: int
    end_ns: int | None
    """None: without an end."""
    value: float | None
    """None: the signal was removed."""
    place: str
    """Country that the value is of; empty: not known."""
    year: int | None
    """That the value was measured in. None: it is of the time given."""
    source: str
    licence: str
    imported_ns: int
