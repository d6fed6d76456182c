"""Write the Grafana dashboard: ``python packaging/grafana/dashboard.py``. A test compares it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).with_name("zeus-stream.json")
SOURCE = {"type": "prometheus", "uid": "${source}"}
GPU = '{host=~"$host"}'
JOB = '{training_job=~"$job"}'
RUN = '{host=~"(.*,)?($host)(,.*)?", training_job=~"$job", run=~"$run"}'
ENFORCED = 'zeus_stream_gpu_power_limit_watts{state="enforced", host=~"$host"}'
FOUND = 'zeus_stream_gpu_power_limit_watts{state="found", host=~"$host"}'
JOULES = f"zeus_stream_gpu_energy_joules_total{GPU}"
EACH = "{{host}} {{gpu}}"
WIDTH, HEIGHT, LOW = 24, 8, 4


class Chart(NamedTuple):
    """One panel. A table has a column an expression, by the name of its legend."""

    title: str
    unit: str
    expressions: Sequence[str]
    legend: str
    description: str
    kind: str = "timeseries"
    width: int = 6
    thresholds: Sequence[tuple[float | None, str]] = ()
    """From which value on, and the colour; the first value is None."""


BAD_FROM_1 = ((None, "green"), (1, "red"))
ROWS: Mapping[str, Sequence[Chart]] = {
    "Site": (
        Chart("Power", "watt", [f"sum(rate({JOULES}[$__rate_interval]))"], "all GPUs",
              "By the energy counters, so it is the mean and not a sample.", "stat"),
        Chart("Energy of the last hour", "joule", [f"sum(increase({JOULES}[1h]))"], "all GPUs",
              "Of all GPUs, with and without runs.", "stat"),
        Chart("Saved by power limits", "joule", [f"sum(zeus_stream_job_saved_joules{JOB})"], "all jobs",
              "Against the limits found, since the exporter started. It may be negative.", "stat",
              thresholds=((None, "red"), (0, "green"))),
        Chart("GPUs without readings", "short", [f"count(zeus_stream_gpu_up{GPU} == 0) or vector(0)"], "GPUs",
              "Silent or gone: their figures are left out of all others.", "stat", thresholds=BAD_FROM_1),
    ),
    "GPUs": (
        Chart("Power", "watt", [f"rate({JOULES}[$__rate_interval])"], EACH,
              "Of each GPU, by its counter.", width=12),
        Chart("Power over the limit in force", "percentunit",
              [f"zeus_stream_gpu_power_watts{GPU} / ignoring (state) {ENFORCED}"], EACH,
              "How many GPUs are how near to their limit: a dark band near 1 is bound by power.",
              "heatmap", 12),
        Chart("Limit below the one found", "watt", [f"{FOUND} - ignoring (state) {ENFORCED}"], EACH,
              "0: the limit is as it was found.", width=8),
        Chart("Temperature", "celsius", [f"zeus_stream_gpu_temperature_celsius{GPU}"], EACH,
              "From 85 degrees on, most GPUs slow down.", width=8,
              thresholds=((None, "green"), (75, "yellow"), (85, "red"))),
        Chart("Utilization", "percentunit", [f"zeus_stream_gpu_utilization_ratio{GPU}"], EACH,
              "Share of the time in which a kernel ran; it says nothing of how well.", width=8),
        Chart("CPUs, memory and meters", "watt",
              [f"rate(zeus_stream_host_part_energy_joules_total{GPU}[$__rate_interval])",
               f"zeus_stream_host_part_power_watts{GPU}"],
              "{{host}} {{part}}",
              "Where RAPL is read; WALL and SITE are meters of the whole host and site.", width=24),
    ),
    "Runs": (
        Chart("Runs", "short",
              [f"zeus_stream_run_info{RUN}", f"100 * zeus_stream_run_saved_ratio{RUN}",
               f"zeus_stream_run_step_energy_joules{RUN}", f"zeus_stream_run_step_duration_seconds{RUN}"],
              "open|saved, %|J a step|s a step",
              "Open runs, the phase of their search, and what the limit chosen saves of a step.", "table",
              24),
        Chart("Power by job", "watt",
              [f"sum by (training_job) (rate(zeus_stream_job_energy_joules_total{JOB}[$__rate_interval]))"],
              "{{training_job}}", "Of the GPUs of its runs.", width=8),
        Chart("Energy of a step", "joule", [f"zeus_stream_run_step_energy_joules{RUN}"],
              "{{training_job}} {{run}}", "Mean of the last 40 steps, all GPUs of the run.", width=8),
        Chart("Duration of a step", "s", [f"zeus_stream_run_step_duration_seconds{RUN}"],
              "{{training_job}} {{run}}", "Mean of the same steps.", width=8),
        Chart("Waste of closed runs, by cause", "joule",
              [f"sum by (cause) (zeus_stream_waste_joules_total{JOB})"], "{{cause}}",
              "Energy that no useful step took. The page /waste says what regains it.", width=12),
        Chart("Runs by phase", "short", [f"count by (phase) (zeus_stream_run_info{RUN})"], "{{phase}}",
              "Where their searches for a power limit are.", width=12),
    ),
    "zeus-stream itself": (
        Chart("Processes that do not answer", "short", ["count(zeus_stream_up == 0) or vector(0)"],
              "processes",
              "Collectors and analyzers that did not answer this scrape.", "stat", thresholds=BAD_FROM_1),
        Chart("Lag", "s", ["max(zeus_stream_lag_seconds)"], "analyzer",
              "Age of the oldest data not interpreted.", "stat", thresholds=((None, "green"), (2,
              "yellow"), (10, "red"))),
        Chart("Items missing", "short",
              [f"sum by (what) (max by (host, what) (zeus_stream_gap_items_total{GPU}))"], "{{what}}",
              "Known gaps. `zeus-stream top`, key g, has the cures."),
        Chart("Commands", "short",
              ['sum by (outcome) (increase(zeus_stream_commands_total{process="collector"}[5m]))'],
              "{{outcome}}", "To GPUs, in 5 minutes."),
    ),
}  # fmt: skip
VARIABLES = (
    ("host", "label_values(zeus_stream_gpu_up, host)"),
    ("job", "label_values(zeus_stream_run_info, training_job)"),
    ("run", 'label_values(zeus_stream_run_info{training_job=~"$job"}, run)'),
)


def _panel(number: int, chart: Chart, x: int, y: int) -> dict[str, Any]:
    steps = [{"value": value, "color": colour} for value, colour in chart.thresholds]
    defaults: dict[str, Any] = {"unit": chart.unit}
    if steps:
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    table = chart.kind == "table"
    names = chart.legend.split("|") if table else [chart.legend] * len(chart.expressions)
    panel: dict[str, Any] = {
        "id": number,
        "type": chart.kind,
        "title": chart.title,
        "description": chart.description,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": chart.width, "h": LOW if chart.kind == "stat" else HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": letter, "datasource": SOURCE, "expr": expression, "legendFormat": name}
            | ({"format": "table", "instant": True} if table else {})
            for letter, expression, name in zip("ABCDEF", chart.expressions, names, strict=False)
        ],
    }
    if chart.kind == "heatmap":
        panel["options"] = {"calculate": True, "color": {"scheme": "Blues"}}
    if table:
        renamed = {f"Value #{letter}": name for letter, name in zip("ABCDEF", names, strict=False)}
        hidden = dict.fromkeys(("Time", "__name__", "instance", "job", "Value #A"), True)
        panel["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": renamed}},
        ]
    return panel


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, charts in ROWS.items():
        head = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": head})
        x, y, height = 0, y + 1, 0
        for chart in charts:
            if x + chart.width > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(_panel(len(panels) + 1, chart, x, y))
            x, height = x + chart.width, max(height, panels[-1]["gridPos"]["h"])
        y += height
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    chosen = [
        {"name": name, "type": "query", "query": query, "datasource": SOURCE, "refresh": 2, "multi": True,
         "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        for name, query in VARIABLES
    ]  # fmt: skip
    return {
        "title": "zeus-stream",
        "uid": "zeus-stream",
        "tags": ["energy", "gpu"],
        "schemaVersion": 39,
        "refresh": "30s",
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *chosen]},
        "panels": panels,
    }


def expressions() -> list[str]:
    """Return every expression of the dashboard."""
    return [each for charts in ROWS.values() for chart in charts for each in chart.expressions]


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
