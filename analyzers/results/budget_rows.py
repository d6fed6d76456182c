"""Rows of power budgets. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """State of a power budget; a later one with the same key replaces it. Key: (budget, set_ns).

    Times are UTC, ns since 1970.
    """

    budget: str
    set_ns: int
    limit_w: float
    """What the limits of its GPUs may add up to."""
    begin_ns: int
    end_ns: int
    gpus: tuple[str, ...]
    """Those it is about."""
    binding: bool
    """It holds, or is on its way there or back."""
    reason: str
    """Why it cannot be kept; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetShareRow:
    """The share of power budgets that a GPU has; a later one with the same gpu replaces it."""

    gpu: str
    budget: str | None
    """The first that has it; None: no more."""
    run: str | None
    most_w: float | None
    """Its limit may be so high; might, if it could be commanded."""
    limit_w: float
    """In force, as last confirmed."""
    reason: str
    """Why it cannot be commanded; empty: it can."""
