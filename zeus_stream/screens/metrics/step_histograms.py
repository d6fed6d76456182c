"""Histograms of steps as OpenTelemetry has them: exponential, with the analyzer's powers of two as buckets.

The SDK makes histograms of single values only. These are counted in the analyzer already, so they join what
the SDK exports. A bucket above half of, and at most, two to the power n is the bucket n - 1 of scale 0.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)

from zeus_stream.screens.metrics.metrics import Family, Labels, MetricSample

Named = Callable[[Labels], Mapping[str, str]]


class StepHistograms:
    """The points of histograms. Each counts since its first export, or its last reset."""

    def __init__(self, named: Named) -> None:
        """Begin. ``named`` returns labels by the names of the conventions."""
        self._named = named
        self._since: dict[tuple[str, Labels], tuple[int, int]] = {}
        """Time of the first value, and the count of the last export."""

    def metrics(self, families: Iterable[Family], now_ns: int) -> list[Metric]:
        """Return the families that are histograms; ``now_ns`` since 1970."""
        made = []
        for family in families:
            if family.kind != "histogram" or family.otel is None:
                continue
            points = [self._point(family, sample, now_ns) for sample in family.samples]
            if points:
                data = ExponentialHistogram(points, AggregationTemporality.CUMULATIVE)
                made.append(Metric(family.otel, family.help, family.unit, data))
        return made

    def _point(self, family: Family, sample: MetricSample, now_ns: int) -> ExponentialHistogramDataPoint:
        key = (family.name, sample.labels)
        since_ns, before = self._since.get(key, (now_ns, 0))
        if sample.count < before:
            since_ns = now_ns  # the analyzer has started again
        self._since[key] = since_ns, sample.count
        counts = dict(sample.buckets)
        first, last = min(counts), max(counts)
        buckets = [counts.get(exponent, 0) for exponent in range(first, last + 1)]
        unknown: Any = None  # of the least and the largest value
        return ExponentialHistogramDataPoint(
            attributes=dict(self._named(sample.labels)),
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            count=sample.count,
            sum=sample.value,
            scale=0,
            zero_count=0,
            positive=Buckets(first - 1, buckets),
            negative=Buckets(0, []),
            flags=0,
            min=unknown,
            max=unknown,
        )


class EachTroubleOnce(logging.Filter):
    """Lets each kind of line of a logger through once, until `said` is emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        new = record.msg not in self.said
        self.said.add(record.msg)
        return new


class StepExporter(OTLPMetricExporter):
    """An exporter that adds histograms to each export of the SDK, and says once why its receiver fails."""

    def __init__(self, endpoint: str, timeout_s: int, histograms: Callable[[], list[Metric]]) -> None:
        """Begin. ``histograms`` returns those of now."""
        super().__init__(endpoint=endpoint, timeout=timeout_s)
        self._histograms = histograms
        self._troubles = EachTroubleOnce()
        logging.getLogger(OTLPMetricExporter.__module__).addFilter(self._troubles)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export what the SDK has with the histograms beside it."""
        result = super().export(with_histograms(metrics_data, self._histograms()), timeout_millis, **kwargs)
        if result is MetricExportResult.SUCCESS:
            self._troubles.said.clear()
        return result


def with_histograms(data: MetricsData, histograms: list[Metric]) -> MetricsData:
    """Return an export with more metrics in its first scope."""
    if not histograms or not data.resource_metrics or not data.resource_metrics[0].scope_metrics:
        return data
    first, *others = data.resource_metrics
    scope, *scopes = first.scope_metrics
    more = ScopeMetrics(scope.scope, [*scope.metrics, *histograms], scope.schema_url)
    return MetricsData([ResourceMetrics(first.resource, [more, *scopes], first.schema_url), *others])
