"""Rows of signals: prices and carbon intensities that energy is multiplied with, loads to be drawn. Pure."""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Computed, Table


class SignalRow(Struct, frozen=True, kw_only=True):
    """One value of a price, a carbon intensity or a load. Of one name, those imported last count."""

    TABLE: ClassVar = Table(
        "signals",
        ("name", "imported_ns", "begin_ns"),
        computed=(
            Computed("begins_at", "end_ns", "begin_ns"),
            Computed("ends_at", "begins_at", "end_ns"),
        ),
    )

    name: str
    """``price``, ``carbon``, or ``load``: what a site is to draw"""
    unit: str
    """such as ``EUR/kWh``, ``gCO2e/kWh``, or ``W``"""
    begin_ns: int
    """it holds in between, all UTC; NULL: without an end"""
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
    """when it was imported, UTC"""
