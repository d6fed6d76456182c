"""Rows of runs, GPUs and the commands that they were given. Pure.

Times are CLOCK_MONOTONIC ns of ``host``; names with ``wall`` are UTC.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """State of a run's session; a later one with the same session replaces it."""

    session: str
    run: str
    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    uid: int | None
    gpus: tuple[str, ...]
    boundary: str
    began_ns: int
    ended_ns: int | None
    began_wall_ns: int
    """UTC, ns since 1970, within ``wall_error_ns``."""
    wall_error_ns: int
    ended_how: str | None
    """``ended`` (in order), the exception that ended the script, or the collector's reason."""
    may_command: bool
    command_reason: str
    batch_size: int | None = None
    """Samples of one rank's batch; None: not known."""
    start: int | None = None
    """Of the analyzer under whose settings the run goes; None: the one that stores this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """State of a GPU; a later one with the same gpu replaces it."""

    gpu: str
    host: str
    index: int
    name: str
    driver: str
    counts_energy: bool
    min_limit_w: float | None
    max_limit_w: float | None
    default_limit_w: float | None
    found_limit_w: float | None
    mig: bool
    period_ms: float | None
    """Counter period, as observed (median of recent changes)."""
    counter_kind: str | None
    """``integrating``, ``boxcar`` (sees the last ``sensor_window_ms`` of a period), ``power`` (no counter);
    None: not known yet."""
    sensor_window_ms: float | None
    gone: str | None
    """Why it is not there at present."""
    scope: str = "gpu"
    """What its figures are of: ``gpu``, or ``module``, CPU included."""
    tenants: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """A command and its outcome; the outcome replaces the row without one. Key: command."""

    command: str
    run: str
    gpu: str
    asked_ns: int
    limit_w: float | None
    """Asked for; None: release."""
    outcome: str | None
    """``applied``, ``refused``, None while it is under way."""
    outcome_ns: int | None
    outcome_limit_w: float | None
    reason: str
