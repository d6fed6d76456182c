"""Rows of power limits: trials, decisions, profiles and power budgets. Pure.

Times are CLOCK_MONOTONIC ns of the host; names with ``wall`` are UTC.
"""

from typing import ClassVar, NamedTuple

from msgspec import Struct

from analyzers.results.table import Computed, Table
from zeus_stream.protocol.fields import Searched

CHANGED = "searched again as the workload changed"
"""A reason has these words if steps took more or less than before, and a limit was chosen for them."""


COUNTED = 16
"""Steps that are counted together where it may turn out later that they are of a changed workload."""


class TrialRow(Struct, frozen=True, kw_only=True):
    """A visit of a power limit, measured. A search may visit a limit more than once."""

    TABLE: ClassVar = Table("trials", ("run", "number"))

    run: str
    """``number`` grows over the run; a drift begins a new ``round``"""
    number: int
    round: int
    power_limit_w: float
    """of a clock, its nominal power"""
    clock_mhz: int | None = None
    """at which the graphics clock was locked; NULL: the power limit was searched"""
    steps: int
    """measured"""
    duration_s: float
    """of the slowest rank"""
    energy_j: float
    """of all GPUs of the run, as is the power"""
    average_power_w: float
    cost: float | None
    """joules: ZeusCost, with the selector's eta; NULL: the selector has none"""
    temperature_c: float | None
    """mean of the GPUs, degrees Celsius"""
    began_ns: int
    """on the lowest rank's host"""
    ended_ns: int
    confirms: bool
    """the chosen limit, measured once more, and again after single GPUs were lowered below it"""
    power_profile: str | None = None
    """power profiles in force at its end, as in ``gpus``, of different GPUs with ``/`` between;
    NULL: they have none"""
    best_w: float | None = None
    """the best limit by what was measured until its end; NULL: nothing is known yet, or all limits are
    measured"""
    best_excess_p95_percent: float | None = None
    """by how much that one may cost more than the best, with 95 % confidence"""


class DecisionRow(Struct, frozen=True, kw_only=True):
    """A limit chosen, or why none was."""

    TABLE: ClassVar = Table("decisions", ("run", "number"))

    run: str
    """as in ``trials``"""
    number: int
    round: int
    t_ns: int
    """on the lowest rank's host"""
    selector: str
    """as the settings have it"""
    power_limit_w: float | None
    """NULL: none was chosen. Of a clock: its nominal power"""
    clock_mhz: int | None = None
    """the graphics clock chosen; NULL: a power limit, or none"""
    steps: int
    """of the run until then"""
    default_limit_w: float | None
    """the limit found at the start"""
    default_clock_mhz: int | None = None
    """the highest graphics clock, where clocks alone are searched"""
    energy_per_step_j: float | None
    """at the chosen limit"""
    step_s: float | None
    default_energy_per_step_j: float | None
    """at the limit found, or at the highest one measured below it; where ``reason`` says ``as measured
    before`` and an earlier run or round measured it, as that did, at the level of now"""
    default_step_s: float | None
    applied: bool
    """false: observing; the decision only says what would be saved"""
    reason: str
    """why; what had changed before a later round; until when a limit is kept after the workload has changed
    (``profiling_share``); which ranks have come or gone"""
    trials_run: str | None = None
    """whose trials it was chosen from, or who measured the highest limit that was remembered; NULL: none"""
    trials_round: int | None = None
    excess_percent: float | None = None
    """how much more than at the best limit is expected of what the selector minimizes (with ``slowdown``: how
    far beyond the bound, or below it at a limit left out); NULL: every limit was measured, or none chosen"""
    excess_p95_percent: float | None = None
    """the same with 95 % confidence at most"""
    energy_saved_low_percent: float | None = None
    """95 % intervals of what a step saves and adds against the default, by the belief that chose; NULL: every
    limit was measured"""
    energy_saved_high_percent: float | None = None
    time_added_low_percent: float | None = None
    time_added_high_percent: float | None = None
    changed_step: int | None = None
    """first step of the changed workload that it was chosen for, a multiple of 16: from there on steps count
    for it, also those before ``steps`` at the limit of the decision before; NULL: not changed, or a clock"""


class GpuLimitRow(Struct, frozen=True, kw_only=True):
    """Limits of single GPUs at or below that of their job (``per_gpu``), after a test which of them wait.

    Another round begins with one limit for all again.
    """

    TABLE: ClassVar = Table("gpu_limits", ("run", "round", "gpu"))

    run: str
    """as in ``decisions``"""
    round: int
    gpu: str
    t_ns: int
    power_limit_w: float
    """of this GPU"""
    job_limit_w: float
    """of the job; one GPU at least has it"""
    steps: int
    """of the run, that it took to find out"""
    energy_percent: float | None
    """of a step of the job, with these limits against all GPUs at the job's, as measured in turn; NULL: no
    GPU was lowered"""
    time_percent: float | None
    reason: str
    """why it is that"""


class ProfileRow(Struct, frozen=True, kw_only=True):
    """The knowledge that a round had of a limit at its end; ``profiles`` has the rounds that count."""

    TABLE: ClassVar = Table("profiled", ("session", "round", "power_limit_w"))

    session: str
    """of the run's lowest rank"""
    run: str
    round: int
    job: str
    """as in ``profiles``"""
    gpu_model: str
    driver: str
    gpus: int
    world_size: int
    batch_size: int | None
    least_limit_w: float | None
    highest_limit_w: float | None
    control: Searched = "power_limit"
    power_limit_w: float
    """as in ``trials``"""
    steps: int
    duration_s: float
    energy_j: float
    measured_run: str
    """as in ``profiles``"""
    measured_round: int
    measured_wall_ns: int
    chosen_limit_w: float | None


class AtLimit(NamedTuple):
    """The cost of steps at one power limit, and whose trials measured it."""

    power_limit_w: float
    steps: int
    duration_s: float
    energy_j: float
    run: str
    round: int


class RecallRow(Struct, frozen=True, kw_only=True):
    """The profile with which the search of a run began, again after ranks were lost. A replay uses it too."""

    TABLE: ClassVar = Table("recalls", ("session", "round"))

    session: str
    """of the run's lowest rank; its first round"""
    run: str
    round: int
    profile_run: str | None = None
    """whose profile it was, and when that was measured; NULL: none was known"""
    profile_round: int | None = None
    measured_wall_ns: int | None = None
    limits: tuple[AtLimit, ...] = ()
    """its measurements, with the ``run`` and ``round`` of each"""


class BudgetRow(Struct, frozen=True, kw_only=True):
    """A power budget."""

    TABLE: ClassVar = Table(
        "budgets",
        ("budget", "set_ns"),
        computed=(
            Computed("set_at", "set_ns", "set_ns"),
            Computed("began_at", "begin_ns", "begin_ns"),
            Computed("ended_at", "end_ns", "end_ns"),
        ),
    )

    budget: str
    """its name"""
    set_ns: int
    """when it was set, both UTC"""
    limit_w: float
    """what the limits of its GPUs may add up to; over shards, those of all shards"""
    begin_ns: int
    """when it begins"""
    end_ns: int
    """when it ends; an end in 2099 is none"""
    gpus: tuple[str, ...]
    """that it is about; over shards, those of the shard whose row this is"""
    binding: bool
    """it holds, or is on its ramp"""
    reason: str
    """why it cannot be kept; empty: it can"""


class BudgetTargetRow(Struct, frozen=True, kw_only=True):
    """The target of a power budget that follows a load signal, every 10 s."""

    TABLE: ClassVar = Table(
        "budget_targets",
        ("budget", "target_ns"),
        replaces=False,
        computed=(Computed("target_at", "target_ns", "target_ns"),),
    )

    budget: str
    """its name"""
    target_ns: int
    """since when, both UTC"""
    target_w: float
    """what its GPUs are to draw together: the signal, within the ramp"""
    most_w: float
    """what the limits of its GPUs may add up to, so that they draw that"""


class BudgetShareRow(Struct, frozen=True, kw_only=True):
    """The share of power budgets that each GPU has now."""

    TABLE: ClassVar = Table("budget_shares", ("gpu",))

    gpu: str
    """the GPU"""
    budget: str | None
    """the first that has it; NULL: none any more"""
    run: str | None
    """on it"""
    most_w: float | None
    """its limit may be so high, or could be if it could be commanded"""
    limit_w: float
    """its limit, as last confirmed"""
    reason: str
    """why it cannot be commanded; empty: it can"""
