"""Rows of pipelines: what they run, what their instructions take, and the plans of clocks. Pure."""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Table


class PipelineRow(Struct, frozen=True, kw_only=True):
    """A run that is a pipeline, and how far the plan of its clocks is."""

    TABLE: ClassVar = Table("pipelines", ("run",))

    run: str
    """of this state, on the host of stage 0"""
    t_ns: int
    schedule: str
    """as the script names it"""
    stages: int
    micro_batches: int
    replicas: int
    state: str
    """``waiting``, ``profiling``, ``offering``, ``starting``, ``following`` or ``over``."""
    iterations_profiled: int
    """until now, all clocks"""
    iteration_s: float | None
    """at the highest clocks; NULL: not measured"""
    reason: str
    """why it ended, or why its profile is measured again; empty otherwise"""
    profile_run: str | None = None
    """whose profile it started from; NULL: none was known, or it was different"""


class InstructionRow(Struct, frozen=True, kw_only=True):
    """Time and energy of one kind of instruction of a stage at one clock."""

    TABLE: ClassVar = Table("instructions", ("run", "stage", "kind", "chunk", "clock_mhz"))

    run: str
    """stages and chunks count from 0; the graphics clock"""
    stage: int
    kind: str
    chunk: int
    clock_mhz: int
    samples: int
    """instructions measured"""
    time_s: float
    """of one, with 95 % intervals"""
    time_low_s: float
    time_high_s: float
    energy_j: float
    energy_low_j: float
    energy_high_j: float
    job: str = ""
    """whose later runs start from it"""
    gpu_model: str = ""
    waiting_w: float = 0.0
    """of the stage while it waits for another"""
    measured_wall_ns: int = 0
    """when it was measured"""


class InstructionSpanRow(Struct, frozen=True, kw_only=True):
    """An instruction of one iteration as it ran: before the plans, and under each of them, of one replica."""

    TABLE: ClassVar = Table("instruction_spans", ("run", "plan", "stage", "position"))

    run: str
    """as in ``plans``; plan 0: the highest clock everywhere"""
    plan: int
    iteration: int
    stage: int
    """from 0, as is its place in the order of its stage"""
    position: int
    kind: str
    micro_batch: int
    chunk: int
    clock_mhz: int
    """of the graphics clock, by the plan"""
    begin_s: float
    """after the iteration began, and how long it took"""
    duration_s: float


class PlanPointRow(Struct, frozen=True, kw_only=True):
    """A point of the frontier of a run's pipeline."""

    TABLE: ClassVar = Table("plan_points", ("run", "slowdown"))

    run: str
    """duration that was asked for, relative to that at the highest clocks"""
    slowdown: float
    time_s: float
    """of an iteration, on all GPUs of one replica, by the profile"""
    energy_j: float
    bound_j: float
    """no clocks need less, by the profile"""
    unplanned_s: float
    """of an iteration at the highest clocks"""
    unplanned_j: float


class PlanRow(Struct, frozen=True, kw_only=True):
    """A plan that collectors were given."""

    TABLE: ClassVar = Table("plans", ("run", "number"))

    run: str
    """``number`` grows over the run; when it was offered, on the host of stage 0"""
    number: int
    t_ns: int
    slowdown: float
    """as in ``plan_points``; of an iteration, by the profile"""
    promised_s: float
    promised_j: float
    unplanned_s: float
    unplanned_j: float
    first_iteration: int | None
    """from which on clocks follow it; NULL: not known yet"""
    measured_s: float | None
    """mean duration of iterations under it; NULL: too few ran"""
    iterations: int = 0
    """that the measured saving was taken from"""
    saved: float | None = None
    """shares by which iterations take less energy on all GPUs, and longer, than at the highest clock, both
    measured, with 95 % intervals; NULL: not measured yet"""
    saved_low: float | None = None
    saved_high: float | None = None
    longer: float | None = None
    longer_low: float | None = None
    longer_high: float | None = None
    state: str
    """``offered``, ``followed``, ``replaced`` or ``ended``, and why; empty: it is as wanted"""
    reason: str
