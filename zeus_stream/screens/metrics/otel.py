"""Metrics and spans for OpenTelemetry, over OTLP/HTTP. The only door to `opentelemetry` (extra ``otel``).

    Scrape --> families --> observable instruments --every 15 s--> OTLP
    closed runs --> rows of the archive --> spans of runs, epochs and named windows --> OTLP

Metrics have the names of the semantic conventions for hardware where there is one.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Metric, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context

from zeus_stream.clock import anchor
from zeus_stream.screens.metrics.job_metrics import catalogue
from zeus_stream.screens.metrics.metrics import Family, Labels, MetricSample
from zeus_stream.screens.metrics.step_histograms import StepExporter, StepHistograms

EVERY_MS = 15_000
TIMEOUT_S = 5
MAX_SPANS = 5_000
"""Of one run: epochs and named windows; steps never are spans."""
Attributes = Mapping[str, str]
_log = logging.getLogger(__name__)
_NAMES = {
    "host": "host.name",
    "gpu_uuid": "hw.id",
    "gpu": "zeus_stream.gpu.index",
    "state": "zeus_stream.limit.state",
    "training_job": "zeus_stream.job",
}
_PARTS = {"CPU": "cpu", "DRAM": "memory", "WALL": "enclosure", "SITE": "site"}
"""Types by the first word of a part. The conventions have none for a site."""
_GPU_METRICS = {"hw.energy", "hw.power", "hw.gpu.utilization", "zeus_stream.gpu.power.limit"}
GPU_INFO = "zeus_stream_gpu_info"
VENDORS = ("NVIDIA", "AMD")
"""First words of models that name who makes them."""
NO_MODELS: Mapping[str, str] = MappingProxyType({})
RUN_ROWS = (
    "SELECT 'run' AS kind, run AS name, min(began_wall_ns) AS begin_ns,"
    " max(began_wall_ns + ended_ns - began_ns) AS end_ns, any_value(job) AS job,"
    " NULL AS number, (SELECT energy_j FROM run_energy WHERE run = {run}) AS energy_j"
    " FROM sessions WHERE run = {run} AND world_size > 0 GROUP BY run"
    " UNION ALL SELECT 'epoch', 'epoch', epoch_ns(began_at),"
    " epoch_ns(began_at) + (duration_s * 1e9)::BIGINT, job, epoch, energy_j FROM epochs WHERE run = {run}"
    " UNION ALL SELECT 'window', name, epoch_ns(began_at), epoch_ns(began_at) + (duration_s * 1e9)::BIGINT,"
    " job, NULL, energy_j FROM named WHERE run = {run}"
    " ORDER BY kind = 'run' DESC, begin_ns LIMIT {limit}"
)
"""SQL for the spans of one run."""


class OtelSender:
    """Sends metrics and spans to one receiver until it is closed."""

    def __init__(
        self, url: str, families: Callable[[], Sequence[Family]], *, every_ms: int = EVERY_MS
    ) -> None:
        """``url``: of the receiver, such as ``http://127.0.0.1:4318``. ``families``: returns the metrics."""
        base = url.rstrip("/")
        resource = Resource.create({"service.name": "zeus-stream"})
        self._histograms = StepHistograms(_named)
        metrics = StepExporter(f"{base}/v1/metrics", TIMEOUT_S, self._steps)
        reader = PeriodicExportingMetricReader(metrics, export_interval_millis=every_ms)
        self._meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=TIMEOUT_S))
        )
        self._tracer = self._tracers.get_tracer("zeus-stream")
        self._families = families
        self._now: dict[str, list[tuple[Family, MetricSample]]] = {}
        self._counted: list[Family] = []
        self._models: dict[str, str] = {}
        """By UUID."""
        self._firsts: dict[tuple[str, Labels], float] = {}
        """Values of counters when they were seen first: a series begins with this exporter, at 0."""
        self._instruments()

    def __enter__(self) -> Self:
        return self

    def flush(self) -> None:
        """Send metrics now."""
        self._meters.force_flush()

    def __exit__(self, *_: object) -> None:
        """Send what is left, and stop."""
        self._meters.shutdown()
        self._tracers.shutdown()

    def _instruments(self) -> None:
        """Make an instrument for each family; the first of an export asks the services."""
        meter = self._meters.get_meter("zeus-stream")
        made: set[str] = set()
        for family in catalogue():
            if family.otel is None or family.otel in made or family.kind == "histogram":
                continue
            first = not made
            made.add(family.otel)
            make = (
                meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
            )
            make(family.otel, [self._observe(family.otel, refresh=first)], family.unit, family.help)

    def _observe(self, name: str, *, refresh: bool) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if refresh:
                self._refresh()
            return [
                Observation(sample.value, attributes(family, sample, self._models))
                for family, sample in self._now.get(name, ())
            ]

        return observe

    def _steps(self) -> list[Metric]:
        """Return the histograms of steps. It follows `_refresh` in each export."""
        return self._histograms.metrics(self._counted, anchor().wall_ns)

    def _refresh(self) -> None:
        self._now = {}
        families = self._families()
        self._counted = [family for family in families if family.kind == "histogram"]
        infos = [dict(s.labels) for family in families if family.name == GPU_INFO for s in family.samples]
        self._models = {info["gpu_uuid"]: info["model"] for info in infos if info["model"]}
        began = bool(self._firsts)
        for family in families:
            if family.otel is not None:
                self._now.setdefault(family.otel, []).extend(
                    (family, self._counted_here(family.otel, sample, began=began))
                    if family.kind == "counter"
                    else (family, sample)
                    for sample in family.samples
                )

    def _counted_here(self, name: str, sample: MetricSample, *, began: bool) -> MetricSample:
        """Return what a counter has counted since the series began. One of a service may be older than it."""
        key, labels = (name, sample.labels), dict(sample.labels)
        if key not in self._firsts:
            older = "host" in labels or ("process" in labels and not began)
            self._firsts[key] = sample.value if older else 0.0
        elif sample.value < self._firsts[key]:
            self._firsts[key] = 0.0  # its service began again
        return replace(sample, value=sample.value - self._firsts[key])

    def send_run(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """Send the spans of one closed run: rows of `RUN_ROWS`, the run first. Return their number."""
        if not rows or rows[0]["kind"] != "run" or rows[0]["end_ns"] is None:
            return 0
        run = rows[0]
        root = self._tracer.start_span(
            "run",
            start_time=run["begin_ns"],
            attributes={**_energy(run), "zeus_stream.run": run["name"]},
        )
        context = set_span_in_context(root)
        sent = 1
        for row in rows[1:]:
            if row["begin_ns"] is not None and row["end_ns"] is not None:
                span = self._tracer.start_span(
                    row["name"], context, start_time=row["begin_ns"], attributes=_energy(row)
                )
                span.end(row["end_ns"])
                sent += 1
        root.end(run["end_ns"])
        return sent


def _energy(row: Mapping[str, Any]) -> dict[str, str | float]:
    known: dict[str, str | float] = {"zeus_stream.job": row["job"], "zeus_stream.kind": row["kind"]}
    if row["number"] is not None:
        known["zeus_stream.epoch"] = row["number"]
    if row["energy_j"] is not None:
        known["zeus_stream.energy"] = row["energy_j"]
    return known


def _named(labels: Labels) -> dict[str, str]:
    return {_NAMES.get(name, f"zeus_stream.{name}"): value for name, value in labels}


def attributes(family: Family, sample: MetricSample, models: Mapping[str, str] = NO_MODELS) -> dict[str, str]:
    """Return the labels of a sample by the names of the conventions. ``models``: of GPUs, by UUID."""
    given = dict(sample.labels)
    named = _named(sample.labels)
    if "part" in given:
        named["hw.id"] = named.pop("zeus_stream.part")
        named["hw.type"] = _PARTS[given["part"].partition("-")[0]]
    elif family.otel == "hw.temperature":
        named["hw.parent"] = given["gpu_uuid"]
        named["hw.id"] = f"{given['gpu_uuid']}/temperature"
        named["hw.type"] = "temperature"
    elif family.otel in _GPU_METRICS:
        named["hw.type"] = "gpu"
        if family.otel == "hw.gpu.utilization":
            named["hw.gpu.task"] = "general"
    if (model := models.get(given.get("gpu_uuid", ""))) is not None:
        named["hw.name"] = f"{given['host']} GPU {given['gpu']}"
        named["hw.model"] = model
        if (vendor := model.partition(" ")[0]) in VENDORS:
            named["hw.vendor"] = vendor
    return named
