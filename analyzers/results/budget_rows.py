"""Rows of power budgets. Pure."""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Computed, Table


class BudgetRow(Struct, frozen=True, kw_only=True):
    """A power budget."""

    TABLE: ClassVar = Table(
        "budgets",
        ("budget", "set_ns"),
        computed=(
            Computed("set_at", "set_ns", "UTC"),
            Computed("began_at", "begin_ns", "UTC"),
            Computed("ended_at", "end_ns", "UTC"),
        ),
    )

    budget: str
    """its name"""
    set_ns: int
    """when it was set: ns since 1970, UTC"""
    limit_w: float
    """watts that the limits of its GPUs may add up to"""
    begin_ns: int
    """when it begins: ns since 1970, UTC"""
    end_ns: int
    """when it ends; an end in 2099 is none"""
    gpus: tuple[str, ...]
    """list of UUIDs that it is about"""
    binding: bool
    """it holds, or is on its ramp"""
    reason: str
    """why it cannot be kept; empty: it can"""


class BudgetShareRow(Struct, frozen=True, kw_only=True):
    """The share of power budgets that each GPU has now."""

    TABLE: ClassVar = Table("budget_shares", ("gpu",))

    gpu: str
    """UUID"""
    budget: str | None
    """the first budget that has it; NULL: none any more"""
    run: str | None
    """the run on it"""
    most_w: float | None
    """watts: its limit may be so high. Where ``reason`` says that it cannot be commanded, its share if it
    could"""
    limit_w: float
    """watts: its limit, as last confirmed"""
    reason: str
    """why it cannot be commanded; empty: it can"""
