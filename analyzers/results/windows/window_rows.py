"""Rows of measurements: windows, phases, metrics, and what is known to be missing. Pure.

Times are CLOCK_MONOTONIC ns of ``host``.
"""

from typing import ClassVar

from msgspec import Struct

from analyzers.results.table import Computed, Table


class WindowRow(Struct, frozen=True, kw_only=True):
    """One row a closed window and GPU, and one for each CPU and its memory where those are sampled.

    ``of_host(gpu)`` tells them apart.
    """

    TABLE: ClassVar = Table(
        "windows",
        ("session", "kind", "index", "gpu"),
        replaces=False,
        computed=(Computed("began_at", "end_ns", "UTC, by the anchor of the run"),),
    )

    session: str
    """whose it is"""
    run: str
    job: str
    rank: int
    host: str
    kind: str
    """``step``, ``epoch``, ``window`` (named by the script) or ``run``"""
    name: str
    """the script's name for it"""
    index: int
    """its number in the run (steps, epochs) or session (windows)"""
    gpu: str | None
    """UUID; NULL in the one row of a process without GPUs; ``CPU-...`` and ``DRAM-...`` are the host's own,
    and every process on it has a row of them"""
    begin_ns: int
    """on the host's clock"""
    end_ns: int
    duration_s: float
    """seconds"""
    energy_j: float | None
    """joules of the whole GPU; NULL: not measured, for the reason in ``quality``"""
    energy_low_j: float | None
    """hard bounds by the counter; NULL without a counter, and where its sensor sees only a part of the
    time"""
    energy_high_j: float | None
    energy_p2_5_j: float | None
    """the 95 % interval: the truth is less in one case of 40, more in another. How well that holds:
    [measurement](../explanation/measurement.md#what-a-step-used)"""
    energy_p97_5_j: float | None
    phase_coverage: float | None
    """share of the phases of a step that the sensor has looked at in the last 20 s; 1: it sees all; NULL:
    not known (yet)"""
    power_limit_w: float | None
    """watts in force all through; NULL: it changed, or is not known"""
    estimator: str | None
    """``shaped`` (the counter, or power means that see all of the time, shared out by the events),
    ``counter`` (straight lines between its changes) or ``power`` (the last value held)"""
    quality: str
    """``ok``, or what is to be known of it, separated by ``; ``: what is wrong; ``gain 0.953``, the
    calibration that was taken out; a counter that disagrees with the power beside it; ``whole GPU, MIG``:
    its other tenants' energy is in here too; ``shared with 2 other processes``: programs of no run computed
    on it, and their energy is in here too; ``whole module, with its CPU``: a Grace Hopper that gives no
    figure of the GPU alone"""
    shared: bool
    """another run used the GPU at the same time: its energy is included"""


class GapRow(Struct, frozen=True):
    """Data that is known to be missing."""

    TABLE: ClassVar = Table(
        "gaps",
        ("host", "what", "t_ns", "count", "reason"),
        replaces=False,
        computed=(
            Computed("log_id", "reason", "of frames: their log; else NULL", "VARCHAR"),
            Computed("first_offset", "log_id", "of frames: where in the log; else NULL", "BIGINT"),
        ),
    )

    host: str
    """where it was"""
    what: str
    """``events``, ``readings``, ``frames``, ``messages`` or ``windows``"""
    t_ns: int
    """when; for frames, that of the last frame before them"""
    count: int
    """how many"""
    reason: str
    """why"""


class MetricRow(Struct, frozen=True, kw_only=True):
    """A value that a script reported."""

    TABLE: ClassVar = Table("metrics", ("session", "name", "t_ns", "step"), replaces=False)

    session: str
    """whose it is"""
    run: str
    name: str
    """the script's name for it"""
    t_ns: int
    """when, on the host's clock"""
    step: int | None
    """the step that began last, or that the script named"""
    value: float
    """the value"""
    epoch: int | None = None
    """the epoch that began last, or that the script named"""


class PhaseRow(Struct, frozen=True, kw_only=True):
    """One row a phase, epoch, session and GPU, and one of the whole run, replaced while it goes on."""

    TABLE: ClassVar = Table("phases", ("session", "gpu", "epoch", "phase"))

    session: str
    """whose it is"""
    run: str
    job: str
    rank: int
    host: str
    gpu: str
    """UUID"""
    epoch: int | None
    """its number; NULL: the whole run"""
    phase: str
    """the script's name for it; ``other``: the time between phases"""
    times: int
    """how often it began"""
    duration_s: float
    """seconds between its marks, in the refreshes of the counter that count"""
    energy_j: float | None
    """joules between its marks, by least squares over these refreshes; NULL: not measured, for the reason in
    ``quality``"""
    energy_p2_5_j: float | None
    """the 95 % interval"""
    energy_p97_5_j: float | None
    share: float | None
    """of the energy of all phases and what lies between them"""
    quality: str
    """``ok``, or why there is no energy: where the refreshes of the counter always meet the same part of a
    step, nothing tells phases apart that are shorter"""
