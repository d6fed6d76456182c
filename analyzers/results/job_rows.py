"""Rows of recurring jobs and their simulation. Pure. Times are UTC."""

from typing import ClassVar, Literal

from msgspec import Struct

from analyzers.results.table import Computed, Table

Ended = Literal["running", "converged", "stopped", "exhausted", "lost"]
"""How a try ended. ``converged``: it reached the target. ``stopped``: by a verdict. ``exhausted``: the
maximum number of epochs was not enough. ``lost``: it was killed or fell silent."""


class JobRow(Struct, frozen=True, kw_only=True):
    """The purpose of a job that recurs. [Jobs that recur](../how-to/recurring-jobs.md) says more."""

    TABLE: ClassVar = Table("jobs", ("job", "version"))

    job: str
    """its name"""
    version: int
    """a new version starts the job again: only tries of the latest version count"""
    batch_sizes: tuple[int, ...]
    """that may be tried; the default is used where nothing is known"""
    default_batch_size: int
    metric: str
    """that is to reach ``target``"""
    target: float
    lower_is_better: bool
    """the metric is to fall"""
    max_epochs: int
    """of a try"""
    eta: float
    """of the cost: 1 is energy only"""
    beta: float
    """bound on a try, as a multiple of the least cost"""
    cost_window: int
    """how many of the latest tries of a size count; 0: all"""


class TryRow(Struct, frozen=True, kw_only=True):
    """One training of a job with one batch size."""

    TABLE: ClassVar = Table(
        "tries",
        ("job", "number"),
        computed=(
            Computed("began_at", "ended_wall_ns", "began_wall_ns"),
            Computed("ended_at", "began_at", "ended_wall_ns"),
        ),
    )

    job: str
    """``number`` grows over the job, whatever its version"""
    number: int
    version: int
    recurrence: int
    """one wish to have the model trained, by one or more tries"""
    run: str
    """of the process that asked first, and which of its tries: asked again, it gets the same size"""
    session: str
    attempt: int
    setup: str
    """model and number of the run's GPUs"""
    batch_size: int
    """what it trains with, who chose that, and why"""
    policy: str
    reason: str
    stop_cost_j: float | None
    """it ends before an epoch that would take its cost above this; NULL: no bound"""
    began_wall_ns: int
    """NULL: it runs"""
    ended_wall_ns: int | None
    epochs: int
    """whole and measured epochs; on all GPUs, NULL if one is missing; of the slowest
    rank"""
    energy_j: float | None
    duration_s: float
    cost_j: float | None
    """eta x energy + (1 - eta) x highest limit of the GPUs x time"""
    epoch_cost_j: float | None
    """of the latest epoch under one power limit"""
    metrics: tuple[float, ...]
    """list: the metric after each epoch"""
    ended: Ended
    """``running``, ``converged``, ``stopped``, ``exhausted`` or ``lost``, and why"""
    ended_why: str


class SimulationRow(Struct, frozen=True, kw_only=True):
    """A game that ``zeus-stream simulate`` played ([Simulated jobs](../how-to/simulate-jobs.md)).

    Trainings that ran are not in here.
    """

    TABLE: ClassVar = Table("simulations", ("game",))

    game: str
    """all that it depends on, in words; the columns have each: ``gpu`` is the model of the traces"""
    world: str
    gpu: str
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
    """of a recurrence at the default batch size and the highest limit, on average"""
    default_time_s: float
    default_cost_j: float


class SimulatedTryRow(Struct, frozen=True, kw_only=True):
    """A try of a simulated game, stored when the game is over."""

    TABLE: ClassVar = Table("simulated_tries", ("game", "number"))

    game: str
    """``number`` counts in the order in which they ended, recurrences from 0"""
    number: int
    recurrence: int
    batch_size: int
    """what it trained with"""
    epochs: int
    """their number, and what they took in all"""
    energy_j: float
    time_s: float
    cost_j: float
    ended: str
    """``converged``, ``stopped`` or ``exhausted``"""
    optimum_j: float
    """the least mean cost that a recurrence could have at that time"""
