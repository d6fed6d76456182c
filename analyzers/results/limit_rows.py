"""Rows of the search for power limits: trials, decisions and profiles. Pure.

Times are CLOCK_MONOTONIC ns of the host; names with ``wall`` are UTC.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One power limit, measured from its setting to the next. Key: (run, number)."""

    run: str
    number: int
    """Grows over the run."""
    round: int
    """Profiling round: a drift begins a new one."""
    power_limit_w: float
    steps: int
    duration_s: float
    """Of all measured steps: the slowest rank's."""
    energy_j: float
    """Of all GPUs of the run in that time."""
    average_power_w: float
    cost: float | None
    """ZeusCost in joules, with eta of the run's selector; None for selectors without one."""
    temperature_c: float | None
    began_ns: int
    ended_ns: int
    confirms: bool
    """A measurement of the chosen limit again, after the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A limit chosen, or why none was. Key: (run, number)."""

    run: str
    number: int
    round: int
    t_ns: int
    selector: str
    power_limit_w: float | None
    """None: no choice; ``reason`` says why."""
    steps: int
    """Steps of the run until the decision."""
    default_limit_w: float | None
    """The limit found at start, which everything is compared with."""
    energy_per_step_j: float | None
    step_s: float | None
    default_energy_per_step_j: float | None
    """At the limit found, or at the highest measured one below it."""
    default_step_s: float | None
    applied: bool
    """False: observing; the decision only says what would be saved."""
    reason: str
    trials_run: str | None = None
    """Whose trials it was chosen from: the run's own, or an earlier one's; None: there were none."""
    trials_round: int | None = None
    excess_percent: float | None = None
    """Of what the selector minimizes: how much more the limit is expected to take than the best one."""
    excess_p95_percent: float | None = None
    """With 95 % confidence no more than this. None for both: every limit was measured, or none chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimitRow:
    """One GPU's limit at or below its job's, after it was looked for who waits. Key: (run, round, gpu)."""

    run: str
    round: int
    """Profiling round: another one begins with one limit for all again."""
    gpu: str
    t_ns: int
    power_limit_w: float
    job_limit_w: float
    steps: int
    """That it took to find out."""
    energy_percent: float | None
    """Of a step, all GPUs at these limits against all at the job's. None: no GPU was lowered."""
    time_percent: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """The result of a round of profiling at one limit, and whose it is.

    Key: (session, round, power_limit_w).
    """

    session: str
    """Of the run's lowest rank."""
    run: str
    round: int
    job: str
    gpu_model: str
    driver: str
    """Of GPUs with several, all of them."""
    gpus: int
    world_size: int
    batch_size: int | None
    least_limit_w: float | None
    """The limits that all its GPUs may have."""
    highest_limit_w: float | None
    power_limit_w: float
    steps: int
    duration_s: float
    """Of these steps: the slowest rank's."""
    energy_j: float
    """Of all GPUs of the run."""
    measured_run: str
    """Whose trials say so: its own, or of an earlier run that it remembered and found true."""
    measured_round: int
    measured_wall_ns: int
    """UTC, ns since 1970: of the round's last trial."""
    chosen_limit_w: float | None
    """None: the round was cut short, or goes on."""


class AtLimit(NamedTuple):
    """The cost of steps at one power limit, and whose trials measured it."""

    power_limit_w: float
    steps: int
    duration_s: float
    energy_j: float
    run: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRow:
    """The profile that a run started its search from. Key: (session, round)."""

    session: str
    """Of the run's lowest rank."""
    run: str
    round: int
    """Its first."""
    profile_run: str | None = None
    """Whose profile it is; None: none was known."""
    profile_round: int | None = None
    measured_wall_ns: int | None = None
    """UTC, ns since 1970."""
    limits: tuple[AtLimit, ...] = ()
