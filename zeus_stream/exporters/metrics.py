"""A `Snapshot` as metric families, independent of the system that receives them. Pure.

    Snapshot of a collector --> families of GPUs and parts of the host
    Snapshot of an analyzer --> families of jobs, runs and hosts; `Jobs` keeps counters over snapshots

A figure that is not known has no sample. A GPU without a fresh reading has none but its state.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from zeus_stream.protocol.snapshots import GpuNow, PartNow, RunNow, Snapshot

Labels = tuple[tuple[str, str], ...]
Names = Literal["none", "upper", "lower"]
"""dcgm-exporter's names: none; with the label ``Hostname``; with ``hostname``, as newer versions write it."""
MAX_SERIES = 5_000
"""Of jobs, runs and hosts in one answer; further jobs are added up as the job ``other``."""
MAX_JOBS = 500
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The samples of one metric."""

    name: str
    """As Prometheus has it; a counter ends in ``_total``."""
    kind: Literal["counter", "gauge"]
    help: str
    otel: str | None = None
    """Name of the OpenTelemetry convention, or our own. None: it is an attribute there."""
    unit: str = "1"
    """In UCUM, as OpenTelemetry has it."""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """How one figure of a GPU becomes a family."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    otel: str
    unit: str
    field: str
    scale: float


_GPU = (
    _Gpu(
        name="zeus_stream_gpu_energy_joules_total",
        kind="counter",
        help="Energy of the GPU by its counter, since the collector started.",
        otel="hw.energy",
        unit="J",
        field="energy_mj",
        scale=1e-3,
    ),
    _Gpu(
        name="zeus_stream_gpu_power_watts",
        kind="gauge",
        help="Power of the GPU, last reading.",
        otel="hw.power",
        unit="W",
        field="power_mw",
        scale=1e-3,
    ),
    _Gpu(
        name="zeus_stream_gpu_temperature_celsius",
        kind="gauge",
        help="Temperature of the GPU.",
        otel="hw.temperature",
        unit="Cel",
        field="temperature_c",
        scale=1,
    ),
    _Gpu(
        name="zeus_stream_gpu_utilization_ratio",
        kind="gauge",
        help="Share of the time in which the GPU computed, 0 to 1.",
        otel="hw.gpu.utilization",
        unit="1",
        field="utilization_pct",
        scale=1e-2,
    ),
)
_LIMITS = (
    ("enforced", "limit_mw"),
    ("requested", "requested_mw"),
    ("found", "found_mw"),
    ("least", "least_mw"),
    ("most", "most_mw"),
)
_DCGM = (
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", "power_mw", 1e-3),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since the collector started (in mJ).",
        "energy_mj",
        1,
    ),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "temperature_c", 1),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "utilization_pct", 1),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "clock_mhz", 1),
)  # fmt: skip


def gpu_families(snapshot: Snapshot, dcgm: Names = "none") -> list[Family]:
    """Return the families of GPUs and of parts of hosts. ``dcgm``: dcgm-exporter's names as well."""
    there = [gpu for gpu in snapshot.gpus if gpu.state == "there"]
    families = [
        Family(
            name=each.name,
            kind=each.kind,
            help=each.help,
            otel=each.otel,
            unit=each.unit,
            samples=_samples(there, each.field, each.scale),
        )
        for each in _GPU
    ]
    families.append(
        Family(
            name="zeus_stream_gpu_power_limit_watts",
            kind="gauge",
            help="Power limits of the GPU: in force, requested, found before any change, least and most.",
            otel="zeus_stream.gpu.power.limit",
            unit="W",
            samples=tuple(
                Sample((*sample.labels, ("state", state)), sample.value)
                for state, name in _LIMITS
                for sample in _samples(there, name, 1e-3)
            ),
        )
    )
    families += [
        Family(
            name="zeus_stream_gpu_info",
            kind="gauge",
            help="1 for each GPU, with its model, driver and kind of sensor.",
            samples=tuple(
                Sample(
                    (
                        *gpu_labels(gpu),
                        ("model", gpu.model or ""),
                        ("driver", gpu.driver or ""),
                        ("kind", "power" if gpu.energy_mj is None else "counter"),
                    ),
                    1,
                )
                for gpu in snapshot.gpus
            ),
        ),
        Family(
            name="zeus_stream_gpu_up",
            kind="gauge",
            help="1 while the GPU gives readings; 0: it is silent or gone, and its figures are left out.",
            otel="zeus_stream.gpu.up",
            samples=tuple(Sample(gpu_labels(gpu), float(gpu.state == "there")) for gpu in snapshot.gpus),
        ),
        _parts(snapshot.parts),
    ]
    return families + (_dcgm(there, dcgm) if dcgm != "none" else [])


def gpu_labels(gpu: GpuNow) -> Labels:
    """Return the labels that every series of a GPU has."""
    index = "" if gpu.index is None else str(gpu.index)
    return (("host", gpu.host), ("gpu", index), ("gpu_uuid", gpu.gpu))


def _samples(gpus: Iterable[GpuNow], name: str, scale: float) -> tuple[Sample, ...]:
    values = ((gpu, getattr(gpu, name)) for gpu in gpus)
    return tuple(Sample(gpu_labels(gpu), value * scale) for gpu, value in values if value is not None)


def _parts(parts: Iterable[PartNow]) -> Family:
    return Family(
        name="zeus_stream_host_part_energy_joules_total",
        kind="counter",
        help="Energy of a CPU or of its memory, since the collector started. It is not the whole host.",
        otel="hw.energy",
        unit="J",
        samples=tuple(
            Sample((("host", part.host), ("part", part.part)), part.energy_mj / 1000)
            for part in parts
            if part.energy_mj is not None
        ),
    )


def _dcgm(gpus: Iterable[GpuNow], names: Names) -> list[Family]:
    """Return the families that dashboards of dcgm-exporter ask for."""
    host = "Hostname" if names == "upper" else "hostname"
    gpus = list(gpus)

    def labels(gpu: GpuNow) -> Labels:
        index = "" if gpu.index is None else str(gpu.index)
        model = gpu.model or ""
        return (
            ("gpu", index),
            ("UUID", gpu.gpu),
            ("pci_bus_id", ""),
            ("device", f"nvidia{index}"),
            ("modelName", model),
            (host, gpu.host),
        )

    return [
        Family(
            name=name,
            kind="counter" if kind == "counter" else "gauge",
            help=text,
            samples=tuple(
                Sample(labels(gpu), value * scale)
                for gpu in gpus
                if (value := getattr(gpu, field_name)) is not None
            ),
        )
        for name, kind, text, field_name, scale in _DCGM
    ]


# ---- the part of the analyzer


@dataclass(slots=True)
class Jobs:
    """Counters of jobs over many snapshots. A run that has left the snapshot keeps what it had."""

    energy_j: dict[str, float] = field(default_factory=dict)
    saved_j: dict[str, float] = field(default_factory=dict)
    waste_j: dict[tuple[str, str], float] = field(default_factory=dict)
    folded: int = 0
    """Runs whose job is counted as ``other``."""
    _runs: dict[str, tuple[float, float]] = field(default_factory=dict)
    _closed: dict[str, None] = field(default_factory=dict)

    def take(self, runs: Iterable[RunNow]) -> list[RunNow]:
        """Add what runs have used since the last snapshot. Return the runs that have ended since."""
        ended = []
        for run in runs:
            job = self._job(run.job)
            energy_j, saved_j = self._runs.get(run.run, (0.0, 0.0))
            if run.energy_j is not None:
                self.energy_j[job] = self.energy_j.get(job, 0.0) + max(0.0, run.energy_j - energy_j)
                energy_j = max(energy_j, run.energy_j)
            if run.search is not None and run.search.saved_j is not None:
                self.saved_j[job] = self.saved_j.get(job, 0.0) + run.search.saved_j - saved_j
                saved_j = run.search.saved_j
            self._runs.pop(run.run, None)
            self._runs[run.run] = energy_j, saved_j
            if run.ended_wall_ns is not None and run.run not in self._closed:
                self._closed[run.run] = None
                ended.append(run)
        while len(self._runs) > MAX_SERIES:
            del self._runs[next(iter(self._runs))]
        while len(self._closed) > MAX_SERIES:
            del self._closed[next(iter(self._closed))]
        return ended

    def add_waste(self, job: str, causes: Mapping[str, float]) -> None:
        """Add the parts of a closed run that are waste, joules by cause."""
        for cause, joules in causes.items():
            key = self._job(job), cause
            self.waste_j[key] = self.waste_j.get(key, 0.0) + joules

    def _job(self, job: str) -> str:
        if job in self.energy_j or len(self.energy_j) < MAX_JOBS:
            self.energy_j.setdefault(job, 0.0)
            return job
        self.folded += 1
        return OTHER

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Return the families of jobs, of the open runs and of the services."""
        opened = [run for run in snapshot.runs if run.ended_wall_ns is None]
        return [
            Family(
                name="zeus_stream_job_energy_joules_total",
                kind="counter",
                help="Energy of the GPUs of a job's runs, since this exporter started.",
                otel="zeus_stream.job.energy",
                unit="J",
                samples=_by("job", self.energy_j),
            ),
            Family(
                name="zeus_stream_job_saved_joules",
                kind="gauge",
                help="Energy saved by chosen power limits, against the limits found; it may be negative.",
                otel="zeus_stream.job.saved",
                unit="J",
                samples=_by("job", self.saved_j),
            ),
            Family(
                name="zeus_stream_waste_joules_total",
                kind="counter",
                help="Energy of closed runs outside of steps, by cause: the view waste.",
                otel="zeus_stream.waste.energy",
                unit="J",
                samples=tuple(
                    Sample((("job", job), ("cause", cause)), joules)
                    for (job, cause), joules in sorted(self.waste_j.items())
                ),
            ),
            *_run_families(opened[:MAX_SERIES]),
            Family(
                name="zeus_stream_folded_runs_total",
                kind="counter",
                help="Times that a run was counted as the job other, because too many jobs are known.",
                otel="zeus_stream.folded_runs",
                samples=(Sample((), self.folded),),
            ),
        ]


def _run_families(runs: list[RunNow]) -> list[Family]:
    def labels(run: RunNow) -> Labels:
        return (("job", run.job), ("run", run.run), ("host", ",".join(run.hosts)))

    return [
        Family(
            name="zeus_stream_run_info",
            kind="gauge",
            help="1 for each open run, with the phase of its search.",
            samples=tuple(
                Sample((*labels(run), ("phase", run.search.phase if run.search else "")), 1) for run in runs
            ),
        ),
        Family(
            name="zeus_stream_run_step_energy_joules",
            kind="gauge",
            help="Mean energy of the last steps of an open run (at most 40), all its GPUs.",
            samples=tuple(Sample(labels(run), run.step_j) for run in runs if run.step_j is not None),
        ),
        Family(
            name="zeus_stream_run_step_duration_seconds",
            kind="gauge",
            help="Mean duration of the same steps.",
            samples=tuple(Sample(labels(run), run.step_ms / 1000) for run in runs if run.step_ms is not None),
        ),
    ]


def service_families(snapshot: Snapshot) -> list[Family]:
    """Return what a service says of itself: hosts, lag, gaps and commands."""
    process = ("process", snapshot.process)
    commands = [
        (name.removeprefix("commands "), count)
        for name, count in snapshot.counters
        if name.startswith("commands ")
    ]
    lag = () if snapshot.lag_ms is None else (Sample((process,), snapshot.lag_ms / 1000),)
    return [
        Family(
            name="zeus_stream_host_up",
            kind="gauge",
            help="1 while the collector of a host is connected.",
            otel="zeus_stream.host.up",
            samples=tuple(
                Sample((process, ("host", host.host)), float(host.state == "connected"))
                for host in snapshot.hosts
            ),
        ),
        Family(
            name="zeus_stream_lag_seconds",
            kind="gauge",
            help="How long the oldest data waits that is not interpreted.",
            otel="zeus_stream.lag",
            unit="s",
            samples=lag,
        ),
        Family(
            name="zeus_stream_gap_items_total",
            kind="counter",
            help="Items that are known to be missing, since the service started.",
            otel="zeus_stream.gap.items",
            samples=tuple(
                Sample((process, ("host", gap.host), ("what", gap.what)), gap.count) for gap in snapshot.gaps
            ),
        ),
        Family(
            name="zeus_stream_commands_total",
            kind="counter",
            help="Commands to GPUs, by outcome.",
            otel="zeus_stream.commands",
            samples=tuple(Sample((process, ("outcome", outcome)), count) for outcome, count in commands),
        ),
    ]


def up_family(answers: Mapping[str, bool]) -> Family:
    """Return whether each process that was asked has answered."""
    return Family(
        name="zeus_stream_up",
        kind="gauge",
        help="1 if the process answered when it was asked for this scrape.",
        otel="zeus_stream.up",
        samples=tuple(Sample((("process", name),), float(up)) for name, up in answers.items()),
    )


def _by(label: str, values: Mapping[str, float]) -> tuple[Sample, ...]:
    return tuple(Sample(((label, name),), value) for name, value in sorted(values.items()))
