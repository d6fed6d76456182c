"""Rows of what was measured: windows, metrics, and what is known to be missing. Pure.

Times are CLOCK_MONOTONIC ns of ``host``.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One closed window on one GPU or part of the host, of the tables ``windows``, ``steps``, ``epochs``.

    Key: (session, kind, index, gpu). ``index`` counts steps and epochs over the run and is the
    publisher's number of a named window. A window of a session without GPUs has one row, gpu None.
    """

    session: str
    run: str
    job: str
    rank: int
    host: str
    kind: str
    """``step``, ``epoch``, ``window`` (named) or ``run``."""
    name: str
    index: int
    gpu: str | None
    begin_ns: int
    end_ns: int
    duration_s: float
    energy_j: float | None
    """None: Missing, for the reason in ``quality``."""
    energy_low_j: float | None
    """Hard bounds by the counter: the truth (of this counter) lies within. None: there is no counter, or its
    sensor misses some."""
    energy_high_j: float | None
    energy_p2_5_j: float | None
    """The 95 % interval: in one case of 40 the truth is less, in another more than ``energy_p97_5_j``."""
    energy_p97_5_j: float | None
    phase_coverage: float | None
    """Share of the phases of a step that the sensor has looked at in the last 20 s; 1: it sees all; None: it
    is not known."""
    power_limit_w: float | None
    """In force all through the window; None when it changed within, or is not known."""
    estimator: str | None
    """``shaped`` (the counter, shared out by the events), ``counter`` (straight lines between its changes) or
    ``power`` (zero-order hold)."""
    quality: str
    """``ok``, or what is wrong, words separated by ``; ``."""
    shared: bool
    """Another run used the same GPU at the same time: its energy is in here too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    session: str
    run: str
    name: str
    t_ns: int
    step: int | None
    """The step that the sender names, or else the step that was under way."""
    value: float
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GapRow:
    """Something that is known to be absent from the archive."""

    host: str
    what: str
    """``events``, ``readings``, ``frames``, ``messages``."""
    t_ns: int
    count: int
    reason: str
