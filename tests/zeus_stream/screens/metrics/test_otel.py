"""Metrics and spans as a real receiver gets them: HTTP, protobuf, names of the conventions."""

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.live.live_runs import StepsByJob
from tests.analyzers import archives
from tests.empty_archive import archive_at
from tests.zeus_stream.screens.metrics.snapshots import GPU, PART, of_analyzer, of_collector
from zeus_stream.screens.metrics.job_metrics import JobMetrics, step_families
from zeus_stream.screens.metrics.metrics import Family, gpu_families, service_families, up_family
from zeus_stream.settings import Settings

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import MetricsData

from zeus_stream.screens.metrics.otel import MAX_SPANS, RUN_ROWS, OtelSender, attributes
from zeus_stream.screens.metrics.step_histograms import StepExporter

CUMULATIVE = 2
EPOCH = "zeus_stream.epoch"


class Receiver(ThreadingHTTPServer):
    """An OpenTelemetry receiver: keeps what comes to each path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.bodies: dict[str, list[bytes]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], float, str]]]:
        """Return by name: attributes, value and unit of each point that came."""
        found: dict[str, list[tuple[dict[str, Any], float, str]]] = {}
        for body in self.bodies.get("/v1/metrics", []):
            request = ExportMetricsServiceRequest.FromString(body)
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                if metric.HasField("exponential_histogram"):
                    continue
                data = metric.sum if metric.HasField("sum") else metric.gauge
                for point in data.data_points:
                    attributes = {each.key: each.value.string_value for each in point.attributes}
                    value = point.as_double if point.HasField("as_double") else point.as_int
                    found.setdefault(metric.name, []).append((attributes, value, metric.unit))
        return found

    def histograms(self) -> dict[str, list[Any]]:
        """Return by name the exponential histograms that came, in their order, with their unit."""
        found: dict[str, list[Any]] = {}
        for body in self.bodies.get("/v1/metrics", []):
            request = ExportMetricsServiceRequest.FromString(body)
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                if metric.HasField("exponential_histogram"):
                    found.setdefault(f"{metric.name} {metric.unit}", []).append(metric.exponential_histogram)
        return found

    def spans(self) -> list[Any]:
        """Return the spans that came."""
        requests = map(ExportTraceServiceRequest.FromString, self.bodies.get("/v1/traces", []))
        return [span for each in requests for span in each.resource_spans[0].scope_spans[0].spans]


class _Take(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as served:
        yield served


def test_metrics_have_the_names_units_and_attributes_of_the_conventions(receiver: Receiver) -> None:
    jobs = JobMetrics(whole=True)
    earlier = [
        *gpu_families(replace(of_collector(), gpus=(replace(GPU, energy_mj=12_000_000),))),
        *service_families(of_collector()),
        *jobs.families(of_analyzer()),
    ]
    jobs.take(of_analyzer().runs)
    families = [
        *gpu_families(of_collector()),
        *service_families(of_collector()),
        *jobs.families(of_analyzer()),
    ]
    now = [earlier]
    with OtelSender(receiver.url, lambda: now[0], every_ms=3_600_000) as otlp:
        otlp.flush()
        assert {value for _, value, _ in receiver.metrics()["hw.energy"]} == {0}, "it begins now"
        receiver.bodies.clear()
        now = [families]
    found = receiver.metrics()
    by_type = {
        attributes["hw.type"]: (attributes, value, unit) for attributes, value, unit in found["hw.energy"]
    }
    attributes, value, unit = by_type["gpu"]
    assert (attributes["hw.id"], attributes["host.name"], unit) == ("GPU-a", "alpha", "J")
    assert value == pytest.approx(345.678)
    assert (attributes["hw.name"], attributes["hw.model"]) == ("alpha GPU 0", GPU.model)
    assert by_type["cpu"][0]["hw.id"] == "CPU-alpha-package-0"
    ((attributes, value, unit),) = found["hw.temperature"]
    assert (attributes["hw.parent"], attributes["hw.type"], value, unit) == (
        "GPU-a",
        "temperature",
        55,
        "Cel",
    )
    ((attributes, value, _),) = found["hw.gpu.utilization"]
    assert (attributes["hw.gpu.task"], value) == ("general", 0.98)
    limits = {
        each["zeus_stream.limit.state"]: value for each, value, _ in found["zeus_stream.gpu.power.limit"]
    }
    assert limits["found"] == 250
    ((attributes, value, unit),) = found["zeus_stream.job.energy"]
    assert (attributes, value, unit) == ({"zeus_stream.job": "asr"}, 1000, "J")


def test_steps_are_histograms_with_the_buckets_of_the_analyzer(receiver: Receiver) -> None:
    """Values of 0.5, 0.75 and 1, thrice 3 and 40 J; the analyzer starts again before the third export."""
    energies = [0.5, 0.75, 1.0, 3.0, 3.0, 3.0, 40.0]
    many, few = StepsByJob(), StepsByJob()
    for energy_j in energies:
        many.add("asr", energy_j, energy_j / 100)
    few.add("asr", 3.0, 0.03)
    now = [many]

    def families() -> list[Family]:
        return [up_family({"analyzer": True}), *step_families(now[0].rows())]

    with OtelSender(receiver.url, families, every_ms=3_600_000) as otlp:
        otlp._meters.force_flush()
        otlp._meters.force_flush()
        now[0] = few
    found = receiver.histograms()
    assert set(found) == {"zeus_stream.step.energy J", "zeus_stream.step.duration s"}
    exports = found["zeus_stream.step.energy J"]
    points = [point for export in exports for point in export.data_points]
    assert [point.count for point in points] == [7, 7, 1]
    assert {export.aggregation_temporality for export in exports} == {CUMULATIVE}
    first, second, restarted = points
    assert (first.sum, first.scale, first.zero_count) == (sum(energies), 0, 0)
    assert not first.HasField("min")
    # The bucket n of scale 0 has what is above 2^n and at most 2^(n+1).
    buckets = {first.positive.offset + at: n for at, n in enumerate(first.positive.bucket_counts) if n}
    assert buckets == dict(Counter(ceil(log2(energy_j)) - 1 for energy_j in energies))
    assert [(each.key, each.value.string_value) for each in first.attributes] == [("zeus_stream.job", "asr")]
    assert first.start_time_unix_nano == second.start_time_unix_nano <= second.time_unix_nano
    assert restarted.start_time_unix_nano == restarted.time_unix_nano > second.time_unix_nano
    assert set(receiver.metrics()) == {"zeus_stream.up"}


def test_what_a_job_used_before_the_first_export_is_in_it(receiver: Receiver) -> None:
    jobs = JobMetrics(whole=True)
    jobs.take(of_analyzer().runs)
    with OtelSender(receiver.url, lambda: jobs.families(of_analyzer()), every_ms=3_600_000):
        pass
    ((_, value, _),) = receiver.metrics()["zeus_stream.job.energy"]
    assert value == 1000


def test_a_receiver_that_is_away_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each export wrote three lines, every 15 s for as long as it was away."""
    exporter = StepExporter("http://127.0.0.1:1", 1, list)
    for _ in range(2):
        exporter.export(MetricsData([]))
    lines = [record.msg for record in caplog.records]
    assert lines
    assert len(lines) == len(set(lines))


def test_a_meter_of_the_whole_host_is_no_cpu() -> None:
    """The sum over the type cpu had the wall in it."""
    parts = [replace(PART, part=f"{kind}-alpha-0") for kind in ("CPU", "DRAM", "WALL", "SITE")]
    families = gpu_families(replace(of_collector(), parts=tuple(parts)))
    (energy,) = (each for each in families if each.name == "zeus_stream_host_part_energy_joules_total")
    types = [attributes(energy, sample)["hw.type"] for sample in energy.samples]
    assert types == ["cpu", "memory", "enclosure", "site"]


def test_the_names_are_those_of_the_installed_conventions() -> None:
    conventions = pytest.importorskip(
        "opentelemetry.semconv._incubating.metrics.hw_metrics",
        reason="semantic conventions are not installed",
    )
    known = {value for name, value in vars(conventions).items() if name.startswith("HW_")}
    used = {family.otel for family in gpu_families(of_collector()) if family.otel}
    assert {name for name in used if name.startswith("hw.")} <= known


def test_the_spans_of_a_run_in_the_archive_are_its_epochs_and_named_windows(
    receiver: Receiver, tmp_path: Path
) -> None:
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), Settings())
    archives.fill(archive)
    with archive.reading() as reader:
        query = RUN_ROWS.format(run=f"'{archives.RUN.run}'", limit=MAX_SPANS)
        rows = [row for batch in reader.batches(query, MAX_SPANS)[1] for row in batch.to_pylist()]
    archive.close()
    with OtelSender(receiver.url, list, every_ms=3_600_000) as otlp:
        assert otlp.send_run(rows) == 1 + 4 + 4
        assert otlp.send_run([{**rows[0], "end_ns": None}]) == otlp.send_run([]) == 0
    spans = receiver.spans()
    second, begin_ns = archives.SECOND, archives.RUN.began_wall_ns - 10 * archives.SECOND
    found = {
        (
            span.name,
            (span.start_time_unix_nano - begin_ns) / second,
            (span.end_time_unix_nano - begin_ns) / second,
        )
        for span in spans
    }
    epochs = {("epoch", 10.0 + 10 * number, 20.0 + 10 * number) for number in range(4)}
    windows = {("validation", 18.0 + 10 * number, 20.0 + 10 * number) for number in range(4)}
    assert found == {("run", 10.0, 50.0)} | epochs | windows
    (root,) = [span for span in spans if span.name == "run"]
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    joules = [each.value.double_value for each in root.attributes if each.key == "zeus_stream.energy"]
    assert joules == [12_000]
    numbers = [each.value.int_value for span in spans for each in span.attributes if each.key == EPOCH]
    assert sorted(numbers) == [0, 1, 2, 3]
