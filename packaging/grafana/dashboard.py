"""Write the Grafana dashboard: ``python packaging/grafana/dashboard.py``. A test compares it."""

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("zeus-stream.json")
SOURCE = {"type": "prometheus", "uid": "${source}"}
BELOW = (
    'zeus_stream_gpu_power_limit_watts{state="found"} - ignoring (state)'
    ' zeus_stream_gpu_power_limit_watts{state="enforced"}'
)
ROWS: dict[str, list[tuple[str, str, str, str]]] = {
    "Site": [
        ("Power", "watt", "sum(rate(zeus_stream_gpu_energy_joules_total[$__rate_interval]))", "all GPUs"),
        (
            "Energy of the last hour",
            "joule",
            "sum(increase(zeus_stream_gpu_energy_joules_total[1h]))",
            "all GPUs",
        ),
        ("Saved by power limits", "joule", "sum(zeus_stream_job_saved_joules)", "all jobs"),
        ("GPUs that give readings", "short", "sum(zeus_stream_gpu_up)", "GPUs"),
    ],
    "GPUs": [
        (
            "Power",
            "watt",
            "rate(zeus_stream_gpu_energy_joules_total[$__rate_interval])",
            "{{host}} {{gpu}}",
        ),
        (
            "Power limit in force",
            "watt",
            'zeus_stream_gpu_power_limit_watts{state="enforced"}',
            "{{host}} {{gpu}}",
        ),
        ("Temperature", "celsius", "zeus_stream_gpu_temperature_celsius", "{{host}} {{gpu}}"),
        ("Utilization", "percentunit", "zeus_stream_gpu_utilization_ratio", "{{host}} {{gpu}}"),
        (
            "CPUs and memory",
            "watt",
            "rate(zeus_stream_host_part_energy_joules_total[$__rate_interval])",
            "{{host}} {{part}}",
        ),
    ],
    "Jobs": [
        (
            "Power",
            "watt",
            "sum by (training_job) (rate(zeus_stream_job_energy_joules_total[$__rate_interval]))",
            "{{training_job}}",
        ),
        ("Energy of a step", "joule", "zeus_stream_run_step_energy_joules", "{{training_job}} {{run}}"),
        ("Duration of a step", "s", "zeus_stream_run_step_duration_seconds", "{{training_job}} {{run}}"),
        (
            "Waste of closed runs, by cause",
            "joule",
            "sum by (cause) (zeus_stream_waste_joules_total)",
            "{{cause}}",
        ),
    ],
    "Search": [
        ("Runs by phase", "short", "count by (phase) (zeus_stream_run_info)", "{{phase}}"),
        (
            "Limit below the one found",
            "watt",
            BELOW,
            "{{host}} {{gpu}}",
        ),
        (
            "Commands",
            "short",
            "sum by (outcome) (increase(zeus_stream_commands_total[5m]))",
            "{{outcome}}",
        ),
    ],
    "zeus-stream itself": [
        ("Processes that answer", "short", "zeus_stream_up", "{{process}}"),
        ("Hosts connected", "short", "zeus_stream_host_up", "{{host}}"),
        ("Lag", "s", "zeus_stream_lag_seconds", "{{process}}"),
        ("Items missing", "short", "sum by (what) (zeus_stream_gap_items_total)", "{{what}}"),
    ],
}
"""By row: title, unit, expression and legend of each panel."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, charts in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y += 1
        width = 24 // min(len(charts), 4)
        for number, (name, unit, expression, legend) in enumerate(charts):
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "timeseries",
                    "title": name,
                    "datasource": SOURCE,
                    "gridPos": {"x": number % 4 * width, "y": y + number // 4 * 8, "w": width, "h": 8},
                    "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                    "targets": [
                        {"refId": "A", "datasource": SOURCE, "expr": expression, "legendFormat": legend}
                    ],
                }
            )
        y += 8 * ((len(charts) + 3) // 4)
    return {
        "title": "zeus-stream",
        "uid": "zeus-stream",
        "tags": ["energy", "gpu"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "panels": panels,
    }


def expressions() -> list[str]:
    """Return every expression of the dashboard."""
    return [expression for charts in ROWS.values() for _, _, expression, _ in charts]


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
