"""Metrics of energy and power, with Zeus's names. Here one exporter serves them for every run."""

from zeus_stream.zeus.replaced import replaced

_SERVED = (
    "Run `zeus-stream metrics`: it serves the energy and power of every run, GPU and named window to"
    " Prometheus (docs/how-to/metrics.md)."
)
Metric = replaced("Metric", _SERVED)
EnergyHistogram = replaced("EnergyHistogram", _SERVED)
EnergyCumulativeCounter = replaced("EnergyCumulativeCounter", _SERVED)
PowerGauge = replaced("PowerGauge", _SERVED)
