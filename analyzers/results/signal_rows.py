"""Rows of signals: prices and carbon intensities that energy is multiplied with when asked. Pure."""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Computed, Table


class SignalRow(Struct, frozen=True, kw_only=True):
    """One value of a price or a carbon intensity. Of one name, those that were imported last count."""

    TABLE: ClassVar = Table(
        "signals",
        ("name", "imported_ns", "begin_ns"),
        computed=(
            Computed("begins_at", "end_ns", "UTC"),
            Computed("ends_at", "begins_at", "UTC; NULL: without an end"),
        ),
    )

    name: str
    """``price`` or ``carbon``"""
    unit: str
    """such as ``EUR/kWh``, or ``gCO2e/kWh``"""
    begin_ns: int
    """from when it holds, UTC, ns since 1970"""
    end_ns: int | None
    """until when; NULL: without an end"""
    value: float | None
    """NULL: the signal was removed"""
    place: str
    """country that it is of; empty: not known"""
    year: int | None
    """in which it was measured; NULL: it is of its own time"""
    source: str
    """where it is from"""
    licence: str
    """under which it was published"""
    imported_ns: int
    """when it was imported, UTC, ns since 1970"""
