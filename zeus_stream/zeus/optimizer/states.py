"""States of the search for a power limit, with Zeus's names. Limits are in mW, as in Zeus. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ready:
    """Steps are left until the first limit is measured."""

    next_power_limit: int
    steps: int


@dataclass(frozen=True)
class Warmup:
    """A limit is in force, and its first steps do not count yet. The analyzer counts them."""

    current_power_limit: int
    steps: int


@dataclass(frozen=True)
class Profiling:
    """A limit is in force, and is being measured. The analyzer counts the steps."""

    current_power_limit: int
    steps: int


@dataclass(frozen=True)
class Done:
    """The limit is chosen."""

    optimal_power_limit: int
