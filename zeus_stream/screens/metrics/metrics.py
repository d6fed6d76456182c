"""A `Snapshot` as metric families, independent of the system that receives them. Pure.

    Snapshot of a collector --> families of GPUs and parts of the host
    Snapshot of any service --> families of hosts, lag, gaps and commands
    (jobs and runs: `job_metrics`)

A figure that is not known has no sample. A GPU without a fresh reading has none but its state.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from zeus_stream.protocol.notes import Pod
from zeus_stream.protocol.snapshots import Bucket, GpuNow, Snapshot

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "histogram"]
Names = Literal["none", "upper", "lower"]
"""dcgm-exporter's names: none; with the label ``Hostname``; with ``hostname``, as newer versions write it."""


class MetricSample(Struct, frozen=True):
    """One value of a family."""

    labels: Labels
    value: float
    """Of a histogram: the sum of its values."""
    buckets: tuple[Bucket, ...] = ()
    """Of a histogram: exponent of two, and the values above half of it and at most it; ascending."""

    @property
    def count(self) -> int:
        """Return the number of values of a histogram."""
        return sum(count for _, count in self.buckets)


class Family(Struct, frozen=True, kw_only=True):
    """The samples of one metric."""

    name: str
    """As Prometheus has it; a counter ends in ``_total``."""
    kind: Kind
    help: str
    otel: str | None = None
    """Name of the OpenTelemetry convention, or our own. None: it is an attribute there."""
    unit: str = "1"
    """In UCUM, as OpenTelemetry has it."""
    samples: tuple[MetricSample, ...] = ()


_GPU = (
    ("zeus_stream_gpu_energy_joules_total", "hw.energy", "J", "energy_mj", 1e-3,
     "Energy of the GPU by its counter, since the collector started."),
    ("zeus_stream_gpu_power_watts", "hw.power", "W", "power_mw", 1e-3,
     "Power of the GPU, last reading."),
    ("zeus_stream_gpu_temperature_celsius", "hw.temperature", "Cel", "temperature_c", 1,
     "Temperature of the GPU."),
    ("zeus_stream_gpu_utilization_ratio", "hw.gpu.utilization", "1", "utilization_pct", 1e-2,
     "Share of the time in which the GPU computed, 0 to 1."),
)  # fmt: skip
"""By figure of a GPU: name, name and unit of OpenTelemetry, field of `GpuNow`, its scale, help."""
_LIMITS = (
    ("enforced", "limit_mw"), ("requested", "requested_mw"), ("leased", "leased_mw"), ("found", "found_mw"),
    ("least", "least_mw"), ("most", "most_mw"),
)  # fmt: skip
_DCGM = (
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", "power_mw", 1e-3),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter",
     "Total energy consumption since the collector started (in mJ).", "energy_mj", 1),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", "temperature_c", 1),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", "utilization_pct", 1),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", "clock_mhz", 1),
)  # fmt: skip


def family(
    name: str, help_text: str, samples: Iterable[MetricSample], otel: str | None = None, unit: str = "1",
    kind: Kind | None = None,
) -> Family:  # fmt: skip
    """Return a family. ``kind`` None: a counter if the name ends in ``_total``, else a gauge."""
    kind = kind or ("counter" if name.endswith("_total") else "gauge")
    return Family(name=name, kind=kind, help=help_text, otel=otel, unit=unit, samples=tuple(samples))


def gpu_families(snapshot: Snapshot, dcgm: Names = "none") -> list[Family]:
    """Return the families of GPUs and of parts of hosts. ``dcgm``: dcgm-exporter's names as well."""
    there = [gpu for gpu in snapshot.gpus if gpu.state == "there"]
    limits = (
        MetricSample((*sample.labels, ("state", state)), sample.value)
        for state, name in _LIMITS
        for sample in _samples(there, name, 1e-3)
    )
    infos = (MetricSample((*gpu_labels(gpu), *_info(gpu)), 1) for gpu in snapshot.gpus)
    ups = (MetricSample(gpu_labels(gpu), float(gpu.state == "there")) for gpu in snapshot.gpus)
    parts = (
        MetricSample((("host", part.host), ("part", part.part)), part.energy_mj / 1000)
        for part in snapshot.parts
        if part.energy_mj is not None
    )
    powers = (
        MetricSample((("host", part.host), ("part", part.part)), part.power_mw / 1000)
        for part in snapshot.parts
        if part.power_mw is not None and part.energy_mj is None
    )
    families = [
        family(name, text, _samples(there, field, scale), otel, unit)
        for name, otel, unit, field, scale, text in _GPU
    ]
    families += [
        family("zeus_stream_gpu_power_limit_watts",
               "Power limits of the GPU: in force, requested, held by a lease, found before, least and most.",
               limits, "zeus_stream.gpu.power.limit", "W"),
        family("zeus_stream_gpu_info", "1 for each GPU, with its model, driver and kind of sensor.", infos),
        family("zeus_stream_gpu_up",
               "1 while the GPU gives readings; 0: it is silent or gone, and its figures are left out.",
               ups, "zeus_stream.gpu.up"),
        family("zeus_stream_host_part_energy_joules_total",
               "Energy of a CPU, of its memory, or by a meter that counts, since the collector started.",
               parts, "hw.energy", "J"),
        family("zeus_stream_host_part_power_watts",
               "Power by a meter of the whole host (WALL-) or site (SITE-) that does not count energy.",
               powers, "hw.power", "W"),
    ]  # fmt: skip
    return families + (_dcgm(there, dcgm) if dcgm != "none" else [])


def _info(gpu: GpuNow) -> Labels:
    kind = "power" if gpu.energy_mj is None else "counter"
    return (("model", gpu.model or ""), ("driver", gpu.driver or ""), ("kind", kind))


def gpu_labels(gpu: GpuNow) -> Labels:
    """Return the labels that every series of a GPU has; if a run in a pod has it, those of the pod."""
    index = "" if gpu.index is None else str(gpu.index)
    return (("host", gpu.host), ("gpu", index), ("gpu_uuid", gpu.gpu), *pod_labels(filter(None, [gpu.pod])))


def pod_labels(pods: Iterable[Pod]) -> Labels:
    """Return the labels by which Kubernetes knows pods; none: there is no pod."""
    named = [(pod.namespace, pod.name, pod.container) for pod in pods]
    columns = zip(("namespace", "pod", "container"), zip(*named, strict=True), strict=False)
    return tuple((label, ",".join(dict.fromkeys(names))) for label, names in columns)


def _samples(gpus: Iterable[GpuNow], name: str, scale: float) -> tuple[MetricSample, ...]:
    values = ((gpu, getattr(gpu, name)) for gpu in gpus)
    return tuple(MetricSample(gpu_labels(gpu), value * scale) for gpu, value in values if value is not None)


def _dcgm(gpus: Iterable[GpuNow], names: Names) -> list[Family]:
    """Return the families that dashboards of dcgm-exporter ask for."""
    host = "Hostname" if names == "upper" else "hostname"
    gpus = list(gpus)

    def labels(gpu: GpuNow) -> Labels:
        index = "" if gpu.index is None else str(gpu.index)
        place = (("gpu", index), ("UUID", gpu.gpu), ("pci_bus_id", ""), ("device", f"nvidia{index}"))
        pod = pod_labels(filter(None, [gpu.pod]))
        return (*place, ("modelName", gpu.model or ""), (host, gpu.host), *pod)

    def samples(name: str, scale: float) -> Iterable[MetricSample]:
        values = ((gpu, getattr(gpu, name)) for gpu in gpus)
        return (MetricSample(labels(gpu), value * scale) for gpu, value in values if value is not None)

    return [
        family(name, text, samples(field, scale), kind="counter" if kind == "counter" else "gauge")
        for name, kind, text, field, scale in _DCGM
    ]


def service_families(snapshot: Snapshot) -> list[Family]:
    """Return what a service says of itself: hosts, lag, gaps and commands."""
    process = ("process", snapshot.process)
    commands = [
        (name.removeprefix("commands "), count)
        for name, count in snapshot.counters
        if name.startswith("commands ")
    ]
    lag = () if snapshot.lag_ms is None else (MetricSample((process,), snapshot.lag_ms / 1000),)
    hosts = (
        MetricSample((process, ("host", each.host)), float(each.state == "connected"))
        for each in snapshot.hosts
    )
    troubles = (
        MetricSample((process, ("host", each.host)), float(bool(each.trouble))) for each in snapshot.hosts
    )
    gaps = (
        MetricSample((process, ("host", gap.host), ("what", gap.what)), gap.count) for gap in snapshot.gaps
    )
    outcomes = (MetricSample((process, ("outcome", outcome)), count) for outcome, count in commands)
    return [
        family("zeus_stream_host_up", "1 while the collector of a host is connected.", hosts,
               "zeus_stream.host.up"),
        family("zeus_stream_host_trouble", "1 while a host has a trouble that `zeus-stream status` names.",
               troubles, "zeus_stream.host.trouble"),
        family("zeus_stream_lag_seconds", "How long the oldest data waits that is not interpreted.", lag,
               "zeus_stream.lag", "s"),
        family("zeus_stream_gap_items_total",
               "Items that are known to be missing, since the service started.", gaps,
               "zeus_stream.gap.items"),
        family("zeus_stream_commands_total", "Commands to GPUs, by outcome.", outcomes,
               "zeus_stream.commands"),
    ]  # fmt: skip


def up_family(answers: Mapping[str, bool]) -> Family:
    """Return whether each process that was asked has answered."""
    samples = (MetricSample((("process", name),), float(up)) for name, up in answers.items())
    text = "1 if the process answered when it was asked for this scrape."
    return family("zeus_stream_up", text, samples, "zeus_stream.up")
