"""Rows of pipelines: what they run, what their instructions take, and the plans of clocks. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A run that is a pipeline, and how far the plan of its clocks is. Key: (run)."""

    run: str
    t_ns: int
    """Of this state; CLOCK_MONOTONIC of the host of stage 0."""
    schedule: str
    stages: int
    micro_batches: int
    replicas: int
    state: str
    """``waiting``, ``profiling``, ``offering``, ``starting``, ``following`` or ``over``."""
    iterations_profiled: int
    iteration_s: float | None
    """At the highest clocks; None: not measured."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRow:
    """Time and energy of one kind of instruction of a stage at one clock, with 95 % intervals.

    Key: (run, stage, kind, chunk, clock_mhz).
    """

    run: str
    stage: int
    kind: str
    chunk: int
    clock_mhz: int
    samples: int
    time_s: float
    time_low_s: float
    time_high_s: float
    energy_j: float
    energy_low_j: float
    energy_high_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPointRow:
    """A point of the frontier of a run's pipeline. Key: (run, slowdown)."""

    run: str
    slowdown: float
    """Duration that was asked for, relative to that at the highest clocks."""
    time_s: float
    energy_j: float
    bound_j: float
    """No clocks need less, by the profile."""
    unplanned_s: float
    unplanned_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan that collectors were given. Key: (run, number)."""

    run: str
    number: int
    t_ns: int
    slowdown: float
    promised_s: float
    promised_j: float
    unplanned_s: float
    unplanned_j: float
    first_iteration: int | None
    """From which on clocks follow it; None: not known yet."""
    measured_s: float | None
    """Mean duration of iterations under it; None: too few ran."""
    state: str
    reason: str
