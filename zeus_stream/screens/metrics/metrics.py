"""A `Snapshot` as metric families, independent of the system that receives them. Pure.

    Snapshot of a collector --> families of GPUs and parts of the host
    Snapshot of any service --> families of hosts, lag, gaps and commands
    (jobs and runs: `job_metrics`)

A figure that is not known has no sample. A GPU without a fresh reading has none but its state.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from zeus_stream.protocol.snapshots import GpuNow, PartNow, Snapshot

Labels = tuple[tuple[str, str], ...]
Names = Literal["none", "upper", "lower"]
"""dcgm-exporter's names: none; with the label ``Hostname``; with ``hostname``, as newer versions write it."""


class Sample(Struct, frozen=True):
    """One value of a family."""

    labels: Labels
    value: float
    suffix: str = ""
    """Of the name: ``_bucket``, ``_sum``, ``_count`` of a histogram."""


class Family(Struct, frozen=True, kw_only=True):
    """The samples of one metric."""

    name: str
    """As Prometheus has it; a counter ends in ``_total``."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    otel: str | None = None
    """Name of the OpenTelemetry convention, or our own. None: it is an attribute there."""
    unit: str = "1"
    """In UCUM, as OpenTelemetry has it."""
    samples: tuple[Sample, ...] = ()


class _Gpu(Struct, frozen=True, kw_only=True):
    """One figure of a GPU, and the family that it becomes."""

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
