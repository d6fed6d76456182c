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
            Computed("begins_at", "end_ns"),
            Computed("ends_at", "begins_at"),
        ),
    )

    name: str
    """``price`` or ``carbon``"""
    unit: str
    """such as ``EUR/kWh``, or ``gCO2e/kWh``"""
    begin_ns: int
    """it holds in between, UTC, ns since 1970; NULL: without an end"""
    end_ns: int | None
    value: float | None
    """NULL: the signal was removed"""
    place: str
    """its country; empty: not known"""
    year: int | None
    """in which it was measured; NULL: it is of its own time"""
    source: str
    """where it is from, and the licence under which it was published"""
    licence: str
    imported_ns: int
    """when it was imported, UTC, ns since 1970"""
