"""Rows of pipelines: what they run, what their instructions take, and the plans of clocks. Pure."""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Table


class PipelineRow(Struct, frozen=True, kw_only=True):
    """A run that is a pipeline, and how far the plan of its clocks is."""

    TABLE: ClassVar = Table("pipelines", ("run",))

    run: str
    """whose it is"""
    t_ns: int
    """Of this state; CLOCK_MONOTONIC of the host of stage 0."""
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
    """At the highest clocks; None: not measured."""
    reason: str
    """why it ended, or why its profile is measured again; empty otherwise"""
    profile_run: str | None = None
    """whose profile it started from; NULL: none was known, or it was different"""


class InstructionRow(Struct, frozen=True, kw_only=True):
    """Time and energy of one kind of instruction of a stage at one clock, with 95 % intervals."""

    TABLE: ClassVar = Table("instructions", ("run", "stage", "kind", "chunk", "clock_mhz"))

    run: str
    """whose it is"""
    stage: int
    """from 0"""
    kind: str
    chunk: int
    clock_mhz: int
    """MHz of the graphics clock"""
    samples: int
    """instructions measured"""
    time_s: float
    """seconds of one, with the 95 % interval"""
    time_low_s: float
    time_high_s: float
    energy_j: float
    """joules of one, with the 95 % interval"""
    energy_low_j: float
    energy_high_j: float
    job: str = ""
    """whose later runs start from it; empty: an older archive"""
    gpu_model: str = ""
    waiting_w: float = 0.0
    """watts of the stage while it waits for another"""
    measured_wall_ns: int = 0
    """UTC, ns since 1970"""


class InstructionSpanRow(Struct, frozen=True, kw_only=True):
    """An instruction of one iteration as it ran: before the plans, and under each of them, of one replica."""

    TABLE: ClassVar = Table("instruction_spans", ("run", "plan", "stage", "position"))

    run: str
    """whose it is"""
    plan: int
    """number of the plan, as in ``plans``; 0: the highest clock everywhere"""
    iteration: int
    stage: int
    """from 0"""
    position: int
    """in the order of its stage, from 0"""
    kind: str
    micro_batch: int
    chunk: int
    clock_mhz: int
    """MHz of the graphics clock, by the plan"""
    begin_s: float
    """seconds after the iteration began"""
    duration_s: float
    """seconds"""


class PlanPointRow(Struct, frozen=True, kw_only=True):
    """A point of the frontier of a run's pipeline."""

    TABLE: ClassVar = Table("plan_points", ("run", "slowdown"))

    run: str
    """whose it is"""
    slowdown: float
    """duration that was asked for, relative to that at the highest clocks."""
    time_s: float
    """seconds of an iteration, by the profile"""
    energy_j: float
    """joules of an iteration, all GPUs of one replica"""
    bound_j: float
    """No clocks need less, by the profile."""
    unplanned_s: float
    """seconds and joules of an iteration at the highest clocks"""
    unplanned_j: float


class PlanRow(Struct, frozen=True, kw_only=True):
    """A plan that collectors were given."""

    TABLE: ClassVar = Table("plans", ("run", "number"))

    run: str
    """whose it is"""
    number: int
    """grows over the run"""
    t_ns: int
    """when it was offered, on the clock of the host of stage 0"""
    slowdown: float
    """duration that was asked for, relative to that at the highest clocks"""
    promised_s: float
    """seconds and joules of an iteration, by the profile"""
    promised_j: float
    unplanned_s: float
    unplanned_j: float
    first_iteration: int | None
    """From which on clocks follow it; None: not known yet."""
    measured_s: float | None
    """Mean duration of iterations under it; None: too few ran."""
    iterations: int = 0
    """that the measured saving was taken from"""
    saved: float | None = None
    """share of an iteration's energy, all GPUs, that it took less than at the highest clock, both measured,
    with the 95 % interval; NULL: not measured yet"""
    saved_low: float | None = None
    saved_high: float | None = None
    longer: float | None = None
    """share by which iterations took longer, in the same way"""
    longer_low: float | None = None
    longer_high: float | None = None
    state: str
    """``offered``, ``followed``, ``replaced`` or ``ended``"""
    reason: str
    """why it was chosen or, of one that ended, why that was; empty: it is as wanted"""
