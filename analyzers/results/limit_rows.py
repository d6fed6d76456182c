"""Rows of power limits: trials, decisions, profiles and power budgets. Pure.

Times are CLOCK_MONOTONIC ns of the host; names with ``wall`` are UTC.
"""

from typing import ClassVar, NamedTuple

from msgspec import Struct

from analyzers.results.table import Computed, Table
from zeus_stream.protocol.fields import Control


class TrialRow(Struct, frozen=True, kw_only=True):
    """A visit of a power limit, measured."""

    TABLE: ClassVar = Table("trials", ("run", "number"))

    run: str
    """whose it is"""
    number: int
    """grows over the run"""
    round: int
    """a drift begins a new round"""
    power_limit_w: float
    """watts; a search may visit a limit more than once, each visit is a row. Of a clock: its nominal power"""
    clock_mhz: int | None = None
    """MHz at which the graphics clock was locked; NULL: the power limit was searched"""
    steps: int
    """number of steps measured"""
    duration_s: float
    """seconds of these steps, of the slowest rank"""
    energy_j: float
    """joules of these steps, all GPUs of the run"""
    average_power_w: float
    """watts, all GPUs of the run"""
    cost: float | None
    """joules: ZeusCost, with the selector's eta; NULL: the selector has none"""
    temperature_c: float | None
    """mean of the GPUs, degrees Celsius"""
    began_ns: int
    """on the clock of the lowest rank's host"""
    ended_ns: int
    confirms: bool
    """the chosen limit, measured once more, and again after single GPUs were lowered below it"""


class DecisionRow(Struct, frozen=True, kw_only=True):
    """A limit chosen, or why none was."""

    TABLE: ClassVar = Table("decisions", ("run", "number"))

    run: str
    """whose it is"""
    number: int
    """grows over the run"""
    round: int
    """of profiling"""
    t_ns: int
    """when, on the clock of the lowest rank's host"""
    selector: str
    """who chose, as the settings have it"""
    power_limit_w: float | None
    """watts; NULL: none was chosen. Of a clock: its nominal power"""
    clock_mhz: int | None = None
    """MHz: the graphics clock chosen; NULL: a power limit, or none"""
    steps: int
    """of the run until then"""
    default_limit_w: float | None
    """watts: the limit found at the start"""
    default_clock_mhz: int | None = None
    """MHz: the highest graphics clock, where a clock is searched"""
    energy_per_step_j: float | None
    """at the chosen limit"""
    step_s: float | None
    default_energy_per_step_j: float | None
    """at the limit found, or at the highest one measured below it; where ``reason`` says ``as remembered``
    and an earlier run or round measured it, as that did, at the level of now"""
    default_step_s: float | None
    applied: bool
    """false: observing; the decision only says what would be saved"""
    reason: str
    """why. It also says whether the curve was as remembered, and of a later round what had changed; a row
    that repeats a limit says that it is kept although the workload has changed, and until when
    (``profiling_share``); a row without limit, that a round began with other ranks: one has died or joined,
    or some never came"""
    trials_run: str | None = None
    """whose trials it was chosen from, or, where it was remembered, who measured the highest limit; NULL:
    there were none"""
    trials_round: int | None = None
    excess_percent: float | None = None
    """how much more of what the selector minimizes (with ``slowdown``: how far beyond the bound, or how far
    below it at a limit left out) is expected at the chosen limit than at the best one; NULL where every
    limit was measured, or none chosen"""
    excess_p95_percent: float | None = None
    """the same with 95 % confidence at most"""
    energy_saved_low_percent: float | None = None
    """95 % interval of what a step saves at the chosen limit against the default, by the belief that chose;
    NULL: every limit was measured, or it was chosen beside another control"""
    energy_saved_high_percent: float | None = None
    time_added_low_percent: float | None = None
    """95 % interval of the time that it adds"""
    time_added_high_percent: float | None = None


class GpuLimitRow(Struct, frozen=True, kw_only=True):
    """Limits of single GPUs at or below that of their job (``per_gpu``), after a test which of them wait.

    Another round begins with one limit for all again.
    """

    TABLE: ClassVar = Table("gpu_limits", ("run", "round", "gpu"))

    run: str
    """whose it is"""
    round: int
    """of profiling"""
    gpu: str
    """UUID"""
    t_ns: int
    """when, on the clock of the lowest rank's host"""
    power_limit_w: float
    """watts, of this GPU"""
    job_limit_w: float
    """watts, of the job; one GPU at least has it"""
    steps: int
    """of the run, that it took to find out"""
    energy_percent: float | None
    """of a step of the job, with these limits against all GPUs at the job's, as measured in turn; NULL: no
    GPU was lowered"""
    time_percent: float | None
    reason: str
    """why it is that"""


class ProfileRow(Struct, frozen=True, kw_only=True):
    """The knowledge that each round of profiling had of a limit at its end, from its own run or another.

    ``profiles`` has the rounds that count.
    """

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
    control: Control = "power_limit"
    """``power_limit``, or ``graphics_clock``: then every limit is the nominal power of a clock"""
    power_limit_w: float
    """watts"""
    steps: int
    """number of steps measured"""
    duration_s: float
    """of these steps: the slowest rank's time"""
    energy_j: float
    """of these steps: all GPUs of the run"""
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
    """The profile with which the search of a run began.

    One row per run, or more if the search began again after ranks were lost. A replay uses the same profile.
    """

    TABLE: ClassVar = Table("recalls", ("session", "round"))

    session: str
    """of the run's lowest rank"""
    run: str
    """whose it is"""
    round: int
    """its first round of profiling"""
    profile_run: str | None = None
    """whose profile it was, and when that was measured; NULL: none was known"""
    profile_round: int | None = None
    measured_wall_ns: int | None = None
    limits: tuple[AtLimit, ...] = ()
    """list of the measurements: ``power_limit_w``, ``steps``, ``duration_s``, ``energy_j``, and ``run``,
    ``round`` that measured it"""


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
