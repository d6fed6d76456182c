"""The live state of a site or of a host: one question, and one answer from memory.

any client --query----> analyzer     AskNow -> Snapshot of the site
any client --control--> collector    AskNow -> Snapshot of its own GPUs

A figure that is not known is None, never 0.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import Count, Gpu, Gpus, Milliwatts, Name, Text, WallNs
from zeus_stream.protocol.notes import Pod, Processes

MAX_GPU_ROWS = 2_000
"""GPUs in one snapshot; `Totals` covers all."""
MAX_RUN_ROWS = 500
MAX_TRIAL_ROWS = 40
"""Limits of one run."""
MAX_STRETCH_ROWS = 66
"""Of the steps of one run, by decision."""
MAX_GAP_ROWS = 100

MAX_JOB_ROWS = 500
MAX_BUCKETS = 80
State = Literal["there", "silent", "gone"]
"""``silent``: no reading came for a while. ``gone``: the collector says that the device is not there."""
Phase = Literal["waiting", "measuring", "chosen", "recalled", "observing", "within a budget"]
"""Of the search for a power limit. ``recalled``: chosen by what an earlier run measured. ``observing``: the
run sets no limit, for the reason that is given. ``within a budget``: chosen below what it would choose."""
Figure = Annotated[float, Meta(ge=-1e18, le=1e18)]
Degrees = Annotated[int, Meta(ge=-300, le=3_000)]
Percent = Annotated[int, Meta(ge=0, le=1_000)]
SESSIONS_BEGUN = "sessions begun"
"""A counter of a collector: training processes that have published since it started."""
Clock = Annotated[int, Meta(ge=0, le=100_000)]


class AskNow(Struct, frozen=True):
    """Ask for the live state: of the whole site, or of one host."""

    host: Name | None = None


class GpuNow(Struct, frozen=True, kw_only=True):
    """The latest reading of one GPU."""

    gpu: Gpu
    host: Name
    index: Count | None
    """In PCI bus order. None, as the model: its description was not received."""
    model: Name | None
    driver: Name | None
    energy_mj: Count | None
    """Of its counter, since the service first saw it; what came after a reset is added. None: no counter."""
    power_mw: Milliwatts | None
    limit_mw: Milliwatts | None
    """In force."""
    requested_mw: Milliwatts | None
    found_mw: Milliwatts | None
    """The limit before any change of ours."""
    leased_mw: Milliwatts | None = None
    """The limit that a lease of an analyzer holds. None: none does. Only a collector says so."""
    least_mw: Milliwatts | None
    most_mw: Milliwatts | None
    clock_mhz: Clock | None
    temperature_c: Degrees | None
    utilization_pct: Percent | None
    age_ms: Count | None
    """Since its last reading. None: there was none since the service started."""
    run: Name | None
    """The run that uses it; of several, the one that began last."""
    state: State
    why: Text = ""
    """Why it is gone."""
    step_j: Figure | None = None
    """Mean energy of the last closed steps (at most 40) of its run on this GPU."""
    pod: Pod | None = None
    """Of its run. Only a collector says so."""
    others: Count = 0
    """Processes of no run that compute on it."""
    memory_bytes: Count | None = None
    """In use, as of the look of `use_age_ms` ago: a collector notes it when the processes are others."""
    memory_total_bytes: Count | None = None
    processes: Processes | None = None
    """That compute on it. None: they cannot be seen."""
    processes_left_out: Count = 0
    use_age_ms: Count | None = None
    """Since that look at memory and processes."""


class PartNow(Struct, frozen=True, kw_only=True):
    """The latest reading of a part of a host: a CPU (``CPU-...``), its memory (``DRAM-...``), or a meter."""

    part: Gpu
    host: Name
    energy_mj: Count | None
    power_mw: Milliwatts | None
    age_ms: Count | None


class TrialNow(Struct, frozen=True, kw_only=True):
    """One power limit or clock that a run has measured, or measures."""

    limit_mw: Milliwatts
    steps: Count
    step_j: Figure | None
    step_ms: Figure | None
    confirms: bool = False
    """Measured again after the choice."""
    clock_mhz: Count | None = None
    """The clock whose nominal power the limit is. None: it is a power limit."""


class StretchNow(Struct, frozen=True, kw_only=True):
    """Steps at the limit of one decision, as in the column ``stretches`` of the view ``savings``."""

    first_step: Count
    changed: bool
    limit_mw: Milliwatts
    clock_mhz: Count | None
    steps: Count
    saved_j: Figure
    saved_percent: Figure | None
    saved_low_percent: Figure | None
    saved_high_percent: Figure | None
    measured_by: Text


class SearchNow(Struct, frozen=True, kw_only=True):
    """The search for the power limit or the clock of one run. None: it does not apply, or is not known."""

    phase: Phase
    limit_mw: Milliwatts | None = None
    """That is measured, or that is chosen; the nominal power of a clock."""
    clock_mhz: Count | None = None
    """The clock whose power that is. None: a power limit is searched."""
    found_mw: Milliwatts | None = None
    """The limit that everything is compared with."""
    trial: Count | None = None
    """Number of the limit that is measured, from 1."""
    trials_planned: Count | None = None
    """None: the search decides as it goes on."""
    steps_done: Count | None = None
    """At the limit that is measured."""
    steps_wanted: Count | None = None
    best_mw: Milliwatts | None = None
    """The best limit so far."""
    best_excess_p95_percent: Figure | None = None
    """By how much it may cost more than the best, with 95 % confidence."""
    saved_j: Figure | None = None
    """Against the limit found, by all steps at the limit chosen. None: no limit was set."""
    saved_percent: Figure | None = None
    """Energy of a step at the limit chosen, against the limit found."""
    saved_low_percent: Figure | None = None
    """Bounds of the 95 % interval. None: too few steps were measured."""
    saved_high_percent: Figure | None = None
    time_added_percent: Figure | None = None
    reason: Text = ""
    """Why it was chosen, or why no limit is set."""
    trials: Annotated[tuple[TrialNow, ...], Meta(max_length=MAX_TRIAL_ROWS)] = ()
    time_added_low_percent: Figure | None = None
    time_added_high_percent: Figure | None = None
    stretches: Annotated[tuple[StretchNow, ...], Meta(max_length=MAX_STRETCH_ROWS)] = ()
    """Of ``saved_j``. Empty: nothing is saved."""


class ForecastNow(Struct, frozen=True, kw_only=True):
    """The latest forecast of a whole run, with 95 % intervals. None: not known (yet)."""

    epochs: Count | None
    """Of the whole run. None: its script says steps only."""
    steps: Count
    energy_j: Figure | None
    """Of all GPUs of the run, from its begin to its end."""
    energy_low_j: Figure | None
    energy_high_j: Figure | None
    left_s: Figure | None
    """From now to its end."""
    left_low_s: Figure | None
    left_high_s: Figure | None


class RunNow(Struct, frozen=True, kw_only=True):
    """A run that is open, or has ended a short time ago."""

    run: Name
    job: Name
    ranks: Count
    """That are there."""
    hosts: Annotated[tuple[Name, ...], Meta(max_length=256)]
    gpus: Gpus
    began_wall_ns: WallNs | None = None
    ended_wall_ns: WallNs | None = None
    """None: it is open."""
    epoch: Count | None = None
    """Under way or last, from 0."""
    step: Count | None = None
    step_j: Figure | None = None
    """Mean energy of the last closed steps (at most 40), all GPUs of the run."""
    step_ms: Figure | None = None
    """Mean duration of the same steps: the slowest rank's."""
    watts: Figure | None = None
    """Of its GPUs together, now."""
    energy_j: Figure | None = None
    """Of its GPUs together, since it began. None: ``energy_absent`` says why, or a GPU has no counter."""
    search: SearchNow | None = None
    forecast: ForecastNow | None = None
    """None: its script does not say how long it is to be, or its first epoch has not ended."""
    pods: Annotated[tuple[Pod, ...], Meta(max_length=256)] = ()
    pipeline: Name | None = None
    """How far the plan of its clocks is, as in the table ``pipelines``. None: it is no pipeline."""
    energy_absent: Text = ""
    """Why a run that has ended has no energy."""


Bucket = tuple[Annotated[int, Meta(ge=-60, le=100)], Count]
"""An exponent, and the number of values above half of, and at most, two to its power."""


class JobSteps(Struct, frozen=True, kw_only=True):
    """The steps of a job that were measured since the service started."""

    job: Name
    joules: Annotated[tuple[Bucket, ...], Meta(max_length=MAX_BUCKETS)]
    """Energies of steps, all GPUs of the run."""
    sum_j: Figure
    seconds: Annotated[tuple[Bucket, ...], Meta(max_length=MAX_BUCKETS)]
    """Durations, of the slowest rank."""
    sum_s: Figure


class HostNow(Struct, frozen=True, kw_only=True):
    """One host, as the service knows its collector."""

    host: Name
    state: Literal["connected", "silent"]
    trouble: Text
    """Why its collector cannot be followed; empty: it can."""


class GapNow(Struct, frozen=True, kw_only=True):
    """Data of one kind that is known to be missing since the service started."""

    host: Name
    what: Name
    count: Count
    reason: Text
    """Of the latest."""


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over all GPUs and runs, also those that the snapshot leaves out."""

    hosts: Count = 0
    hosts_connected: Count = 0
    gpus: Count = 0
    gpus_there: Count = 0
    runs: Count = 0
    """That are open."""
    power_mw: Count | None = None
    """Of the GPUs that are there."""
    hour_mj: Count | None = None
    """Energy of the last hour; of less, if the service has not seen one: ``hour_s``."""
    hour_s: Count = 0
    saved_j: Figure | None = None
    """Of the open runs, and of those that ended since the service started."""
    saved_percent: Figure | None = None
    """Of what their steps would have taken at the limits found."""
    gaps: Count = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """The state of a site (by an analyzer) or of a host (by a collector) at one instant."""

    process: Literal["analyzer", "collector"]
    version: Name
    wall_ns: WallNs
    archive_id: Name | None = None
    lag_ms: Count | None = None
    """How long the oldest frame waits that is not interpreted. None: nothing is interpreted here."""
    totals: Totals = Totals()
    hosts: Annotated[tuple[HostNow, ...], Meta(max_length=MAX_GPU_ROWS)] = ()
    gaps: Annotated[tuple[GapNow, ...], Meta(max_length=MAX_GAP_ROWS)] = ()
    gpus: Annotated[tuple[GpuNow, ...], Meta(max_length=MAX_GPU_ROWS)] = ()
    parts: Annotated[tuple[PartNow, ...], Meta(max_length=MAX_GPU_ROWS)] = ()
    runs: Annotated[tuple[RunNow, ...], Meta(max_length=MAX_RUN_ROWS)] = ()
    gpus_left_out: Count = 0
    """Past the bound; `AskNow` with a host gives a part."""
    runs_left_out: Count = 0
    jobs: Annotated[tuple[JobSteps, ...], Meta(max_length=MAX_JOB_ROWS)] = ()
    counters: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=200)] = ()
    """Of the service itself."""
