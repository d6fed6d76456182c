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
    """list of those that may be tried"""
    default_batch_size: int
    """the one of them that is used where nothing is known"""
    metric: str
    """the metric that is to reach ``target``"""
    target: float
    """its value"""
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
            Computed("began_at", "ended_wall_ns", "UTC"),
            Computed("ended_at", "began_at", "UTC"),
        ),
    )

    job: str
    """whose it is"""
    number: int
    """grows over the job, whatever its version"""
    version: int
    """of the job"""
    recurrence: int
    """one wish to have the model trained; it takes as many tries as it takes"""
    run: str
    """of the process that asked first"""
    session: str
    attempt: int
    """its first try or a later one: a process that asks again for it gets the same batch size"""
    setup: str
    """model and number of the run's GPUs"""
    batch_size: int
    """what it trains with"""
    policy: str
    """who chose that"""
    reason: str
    """why"""
    stop_cost_j: float | None
    """joules: it ends before an epoch that would take its cost above this; NULL: no bound"""
    began_wall_ns: int
    """ns since 1970, UTC"""
    ended_wall_ns: int | None
    """ns since 1970, UTC; NULL: it runs"""
    epochs: int
    """number of whole and measured epochs"""
    energy_j: float | None
    """joules of these epochs, all GPUs of the run; NULL if that of one is missing"""
    duration_s: float
    """seconds of these epochs, of the slowest rank"""
    cost_j: float | None
    """joules: eta x energy + (1 - eta) x highest limit of the GPUs x time; NULL: not known"""
    epoch_cost_j: float | None
    """of the latest epoch under one power limit"""
    metrics: tuple[float, ...]
    """list: the metric after each epoch"""
    ended: Ended
    """``running``, ``converged``, ``stopped``, ``exhausted`` or ``lost``"""
    ended_why: str
    """why"""


class SimulationRow(Struct, frozen=True, kw_only=True):
    """A game that ``zeus-stream simulate`` played ([Simulated jobs](../how-to/simulate-jobs.md)).

    Trainings that ran are not in here.
    """

    TABLE: ClassVar = Table("simulations", ("game",))

    game: str
    """the key: all that it depends on, in words"""
    world: str
    """where it was played"""
    gpu: str
    """the model that the traces were recorded on"""
    workload: str
    """what was trained"""
    player: str
    """who played"""
    seed: int
    """of all draws"""
    eta: float
    """its options"""
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
    """whose it is"""
    number: int
    """counts in the order in which they ended"""
    recurrence: int
    """from 0"""
    batch_size: int
    """what it trained with"""
    epochs: int
    """number of epochs"""
    energy_j: float
    """of all its epochs"""
    time_s: float
    cost_j: float
    ended: str
    """``converged``, ``stopped`` or ``exhausted``"""
    optimum_j: float
    """the least mean cost that a recurrence could have at that time"""
