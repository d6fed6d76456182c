"""Series under which each alert rule fires, and no other: what promtool plays through Prometheus's engine."""

from collections.abc import Mapping
from typing import Any

GPU = 'host="a", gpu="0", gpu_uuid="GPU-1"'
RUNS = 'zeus_stream_run_info{run="r", training_job="j", host="b", phase="chosen"}'
REQUESTED = f'zeus_stream_gpu_power_limit_watts{{{GPU}, state="requested"}}'
LEASED = f'zeus_stream_gpu_power_limit_watts{{{GPU}, state="leased"}}'
FOUND = f'zeus_stream_gpu_power_limit_watts{{{GPU}, state="found"}}'
GAPS = 'zeus_stream_gap_items_total{process="analyzer", host="a", what="readings"}'
TROUBLE = 'zeus_stream_host_trouble{process="collector", host="a"}'
FIRED: Mapping[str, tuple[Mapping[str, str], str]] = {
    "ZeusStreamSilent": ({'zeus_stream_up{process="analyzer", instance="i"}': "1 0x300"}, "10m"),
    "ZeusStreamHostSilent": (
        {
            'zeus_stream_host_up{process="analyzer", host="a"}': "1 0x300",
            TROUBLE.replace("collector", "analyzer"): "0 1x300",
        },
        "10m",
    ),
    "ZeusStreamHostTrouble": (
        {TROUBLE: "1x300", 'zeus_stream_host_up{process="collector", host="a"}': "1x300"},
        "10m",
    ),
    "ZeusStreamGpuSilent": ({f"zeus_stream_gpu_up{{{GPU}}}": "1 0x300"}, "10m"),
    "ZeusStreamLag": ({'zeus_stream_lag_seconds{process="analyzer"}': "0 30x300"}, "10m"),
    "ZeusStreamGaps": ({GAPS: "_x3 9x300", GAPS.replace("analyzer", "collector"): "0x3 9x300"}, "10m"),
    "ZeusStreamLimitLeftInForce": ({REQUESTED: "175x300", FOUND: "250x300", RUNS: "1x300"}, "30m"),
    "ZeusStreamIdleGpu": (
        {
            f"zeus_stream_gpu_energy_joules_total{{{GPU}}}": "0+9000x300",
            f"zeus_stream_gpu_utilization_ratio{{{GPU}}}": "0x300",
        },
        "4h",
    ),
}
"""By alert: its series, one value a minute, and when it has fired."""
QUIET: Mapping[str, str] = {
    'zeus_stream_up{process="analyzer", instance="i"}': "1x300",
    f"zeus_stream_gpu_up{{{GPU}}}": "1x300",
    'zeus_stream_lag_seconds{process="analyzer"}': "0x300",
    REQUESTED: "175x300",
    LEASED: "175x300",
    FOUND: "250x300",
    GAPS: "9x300",
    TROUBLE: "0x300",
    RUNS: "1x300",
    f"zeus_stream_gpu_energy_joules_total{{{GPU}}}": "0+9000x300",
    f"zeus_stream_gpu_utilization_ratio{{{GPU}}}": "1x300",
}
"""A training at its limit: nothing fires."""


def promtool_tests(rules: str) -> dict[str, Any]:
    """Return the tests as promtool reads them, for the rules of a file."""

    def played(series: Mapping[str, str], at: str) -> dict[str, Any]:
        count = 'count by (alertname) (ALERTS{alertstate="firing"})'
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": count, "eval_time": at, "exp_samples": []}],
        }

    tests = [played(QUIET, "4h")]
    for alert, (series, at) in FIRED.items():
        tests.append(played(series, at))
        samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
        tests[-1]["promql_expr_test"][0]["exp_samples"] = samples
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}
