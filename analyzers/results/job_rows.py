"""Rows of recurring jobs and their simulation. Pure. Times are UTC."""

from dataclasses import dataclass
from typing import Literal

Ended = Literal["running", "converged", "stopped", "exhausted", "lost"]
"""How a try ended. ``converged``: it reached the target. ``stopped``: by a verdict. ``exhausted``: the
maximum number of epochs was not enough. ``lost``: it was killed or fell silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """The purpose of a job that recurs; a later one with the same job and version replaces it."""

    job: str
    version: int
    """Grows when what a try is to reach changes, or the job is forgotten: tries of others do not count."""
    batch_sizes: tuple[int, ...]
    default_batch_size: int
    metric: str
    target: float
    lower_is_better: bool
    max_epochs: int
    eta: float
    beta: float
    cost_window: int
    """Only so many of the latest costs of a size count; 0: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryRow:
    """One training of a job with one batch size; a later one with the same job and number replaces it."""

    job: str
    number: int
    """Grows over the job, whatever its version."""
    version: int
    recurrence: int
    run: str
    session: str
    """That asked first, and its ``attempt``: who asks again for these gets the same batch size."""
    attempt: int
    setup: str
    """GPU model and number of GPUs."""
    batch_size: int
    policy: str
    reason: str
    """Why this size was chosen."""
    stop_cost_j: float | None
    """It ends before an epoch that would take its cost above this."""
    began_wall_ns: int
    """UTC, ns since 1970."""
    ended_wall_ns: int | None
    epochs: int
    """Whole and measured."""
    energy_j: float | None
    """Of them, all GPUs of the run; None: of one it is missing."""
    duration_s: float
    """Of them, the slowest rank's."""
    cost_j: float | None
    """eta x energy + (1 - eta) x the highest limit of the GPUs x time."""
    epoch_cost_j: float | None
    """Of the latest one under one power limit."""
    metrics: tuple[float, ...]
    ended: Ended
    ended_why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRow:
    """One simulated game of a recurring job. Key: game; stored with its tries when it is over."""

    game: str
    """All that it depends on, in words."""
    world: str
    gpu: str
    """Model, of the traces."""
    workload: str
    player: str
    seed: int
    eta: float
    beta: float
    cost_window: int
    drift: str
    overlap: float
    recurrences: int
    default_energy_j: float
    """Of a recurrence at the default batch size and the highest limit, on average; also those below."""
    default_time_s: float
    default_cost_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTryRow:
    """One try of a simulated game. Key: (game, number)."""

    game: str
    number: int
    """In the order in which they ended."""
    recurrence: int
    batch_size: int
    epochs: int
    energy_j: float
    time_s: float
    cost_j: float
    ended: str
    optimum_j: float
    """Least mean cost that a recurrence could have at that time."""
