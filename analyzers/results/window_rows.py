"""Rows of measurements: windows, phases, metrics, and what is known to be missing. Pure.

Times are CLOCK_MONOTONIC ns of ``host``.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.results.table import Computed, Table


class WindowRow(Struct, frozen=True, kw_only=True):
    """One row a closed window and GPU, and one for each sampled CPU and its memory (``of_host(gpu)``)."""

    TABLE: ClassVar = Table(
        "windows",
        ("session", "kind", "index", "gpu"),
        replaces=False,
        computed=(Computed("began_at", "end_ns", "began_wall_ns + begin_ns - began_ns"),),
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
    """UUID; NULL in the one row of a process without GPUs; every process on a host has a row of its
    ``CPU-...`` and ``DRAM-...``"""
    begin_ns: int
    """``began_at``: by the anchor of the run"""
    end_ns: int
    duration_s: float
    """seconds"""
    energy_j: float | None
    """of the whole GPU; NULL: not measured, for the reason in ``quality``"""
    energy_low_j: float | None
    """hard bounds; NULL without a counter, and where its sensor sees only a part of the time"""
    energy_high_j: float | None
    energy_p2_5_j: float | None
    """the 95 % interval; [how well it holds](../explanation/measurement.md#what-a-step-used)"""
    energy_p97_5_j: float | None
    phase_coverage: float | None
    """share of the phases of a step that the sensor saw in the last 20 s; 1: all"""
    power_limit_w: float | None
    """in force all through; NULL: it changed, or is not known"""
    estimator: str | None
    """``shaped`` (the counter, or power means that see all of the time, shared out by the events),
    ``counter`` (straight lines between its changes) or ``power`` (the last value held)"""
    quality: str
    """``ok``, or remarks separated by ``; ``, such as ``gain 0.953``, the calibration that was taken out;
    ``whole GPU, MIG``: with the energy of its other tenants; ``shared with 2 other processes``: with that of
    programs of no run; ``whole module, with its CPU``: a Grace Hopper without a figure of the GPU alone"""
    shared: bool
    """another run used the GPU at the same time: its energy is included"""


class GapRow(Struct, frozen=True):
    """Data that is known to be missing."""

    TABLE: ClassVar = Table(
        "gaps",
        ("host", "what", "t_ns", "count", "reason"),
        replaces=False,
        computed=(
            Computed("log_id", "reason", help="of frames: where they were; else NULL", sql_type="VARCHAR"),
            Computed("first_offset", "log_id", sql_type="BIGINT"),
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
    """as the script gave them; ``t_ns`` is on the host's clock"""
    run: str
    name: str
    t_ns: int
    step: int | None
    """that began last, or that the script named"""
    value: float
    """that the script gave"""
    epoch: int | None = None
    """as ``step``"""


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
    epoch: int | None
    """NULL: the whole run"""
    phase: str
    """the script's name for it; ``other``: the time between phases"""
    times: int
    """how often it began"""
    duration_s: float
    """between its marks, in the refreshes of the counter that count"""
    energy_j: float | None
    """between its marks, by least squares over these refreshes; NULL: not measured, for the reason in
    ``quality``"""
    energy_p2_5_j: float | None
    """the 95 % interval"""
    energy_p97_5_j: float | None
    share: float | None
    """of the energy of all phases and what lies between them"""
    quality: str
    """``ok``, or why there is no energy"""


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Estimator = Literal["counter", "power", "shaped"]
Joules = tuple[float | None, float | None, float | None, float | None, float | None]
"""An energy, its hard bounds and its 95 % interval."""
NO_JOULES: Joules = (None, None, None, None, None)


class NoEnergy(Struct, frozen=True):
    """There is no energy, for this reason."""

    reason: str


class KnownEnergy(Struct, frozen=True, kw_only=True):
    """The energy that a GPU used between two instants."""

    energy_uj: int
    low_uj: int | None
    """Hard bound; None where there is none: power readings, and counters that do not see all."""
    high_uj: int | None
    p2_5_uj: int
    """The truth is less than this in one case of 40, and in as many more than ``p97_5_uj``."""
    p97_5_uj: int
    phase_coverage: float | None
    """See `analyzers.measurement.counter_kind.CounterKnowledge.phase_coverage`."""
    estimator: Estimator
    quality: str
    """``ok``, or what is wrong, separated by ``; ``."""

    @property
    def joules(self) -> Joules:
        low_uj, high_uj = self.low_uj, self.high_uj
        return (
            self.energy_uj / 1e6,
            None if low_uj is None else low_uj / 1e6,
            None if high_uj is None else high_uj / 1e6,
            self.p2_5_uj / 1e6,
            self.p97_5_uj / 1e6,
        )

    @property
    def seen(self) -> bool:
        """There were readings all the while, and more than one refresh."""
        return not any(word in self.quality for word in ("unseen", "readings", "within one refresh"))


class Energies(Struct, frozen=True, kw_only=True):
    """Energies of windows, as columns of shape (n,)."""

    known: npt.NDArray[np.bool_]
    """Where it is not, the energy is `NoEnergy`, ``quality`` is why, and the other columns mean nothing."""
    energy_uj: Ints
    low_uj: Ints | None
    """Hard bounds, as those of `KnownEnergy`."""
    high_uj: Ints | None
    p2_5_uj: Ints
    p97_5_uj: Ints
    phase_coverage: float | None
    estimator: Sequence[Estimator]
    quality: Sequence[str]

    @classmethod
    def missing(cls, reasons: Sequence[str]) -> "Energies":
        """Return energies of which none is known, for these reasons."""
        nothing = np.zeros(len(reasons), np.int64)
        return cls(
            known=nothing != 0,
            energy_uj=nothing,
            low_uj=None,
            high_uj=None,
            p2_5_uj=nothing,
            p97_5_uj=nothing,
            phase_coverage=None,
            estimator=["power"] * len(reasons),
            quality=reasons,
        )

    def each(self) -> list[KnownEnergy | NoEnergy]:
        unbounded = [None] * len(self.quality)
        bounds = (unbounded if bound is None else bound.tolist() for bound in (self.low_uj, self.high_uj))
        columns = self.known.tolist(), self.energy_uj.tolist(), *bounds
        likely = self.p2_5_uj.tolist(), self.p97_5_uj.tolist()
        return [
            KnownEnergy(
                energy_uj=used_uj,
                low_uj=low_uj,
                high_uj=high_uj,
                p2_5_uj=p2_5_uj,
                p97_5_uj=p97_5_uj,
                phase_coverage=self.phase_coverage,
                estimator=estimator,
                quality=quality,
            )
            if known
            else NoEnergy(quality)
            for known, used_uj, low_uj, high_uj, p2_5_uj, p97_5_uj, estimator, quality in zip(
                *columns, *likely, self.estimator, self.quality, strict=True
            )
        ]

    def joules(self) -> list[Floats]:
        """Return the columns of `KnownEnergy.joules`; NaN where the energy is not known."""
        every = (self.energy_uj, self.low_uj, self.high_uj, self.p2_5_uj, self.p97_5_uj)
        return [
            np.full(len(self.known), np.nan) if uj is None else np.where(self.known, uj / 1e6, np.nan)
            for uj in every
        ]
