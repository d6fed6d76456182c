"""A snapshot with everything in it, for tests of screens and for their pictures."""

from math import sin
from typing import Any

from msgspec.structs import replace

from zeus_stream.protocol.notes import GpuProcess
from zeus_stream.protocol.snapshots import (
    ForecastNow,
    GapNow,
    GpuNow,
    HostNow,
    RunNow,
    SearchNow,
    Snapshot,
    Totals,
    TrialNow,
)
from zeus_stream.screens.terminal.history import History

NOW_NS = 1_800_000_000 * 10**9


PROCESS = GpuProcess(pid=4711, user="anna", command="python train.py", memory_bytes=12 << 30, run="asr-9a73")


def a_gpu(number: int = 0, host: str = "node1", **more: Any) -> GpuNow:
    plain: dict[str, Any] = {
        "gpu": f"GPU-{host}-{number}", "host": host, "index": number, "model": "Tesla V100-PCIE-16GB",
        "driver": "550.54", "energy_mj": 123_456_789, "power_mw": 162_000 + 7_000 * number,
        "limit_mw": 175_000, "requested_mw": 175_000, "found_mw": 250_000, "least_mw": 100_000,
        "most_mw": 250_000, "clock_mhz": 1380, "temperature_c": 55 + number, "utilization_pct": 98,
        "age_ms": 40, "run": None, "state": "there",
    }  # fmt: skip
    return GpuNow(**(plain | more))


def a_search(**more: Any) -> SearchNow:
    trials = tuple(
        TrialNow(limit_mw=limit_mw, steps=40, step_j=step_j, step_ms=step_ms)
        for limit_mw, step_j, step_ms in (
            (250_000, 325.0, 1175.0),
            (225_000, 301.0, 1180.0),
            (200_000, 280.0, 1204.0),
        )
    )
    plain: dict[str, Any] = {
        "phase": "measuring", "limit_mw": 175_000, "found_mw": 250_000, "trial": 4, "trials_planned": 7,
        "steps_done": 31, "steps_wanted": 40, "best_mw": 200_000, "saved_j": None,
        "saved_percent": None, "saved_low_percent": None, "saved_high_percent": None,
        "time_added_percent": None, "reason": "", "trials": trials,
    }  # fmt: skip
    return SearchNow(**(plain | more))


FORECAST = ForecastNow(
    epochs=3, steps=9_000, energy_j=2_790_000.0, energy_low_j=2_760_000.0, energy_high_j=2_820_000.0,
    left_s=9_400.0, left_low_s=9_300.0, left_high_s=9_500.0,
)  # fmt: skip


def a_run(run: str = "c01d33b7", **more: Any) -> RunNow:
    plain: dict[str, Any] = {
        "run": run, "job": "llama-sft", "ranks": 2, "hosts": ("node2",),
        "gpus": ("GPU-node2-0", "GPU-node2-1"), "began_wall_ns": NOW_NS - 1_500 * 10**9,
        "ended_wall_ns": None, "epoch": 0, "step": 1203, "step_j": 310.0, "step_ms": 1204.0, "watts": 331.0,
        "energy_j": 372_000.0, "search": a_search(), "forecast": FORECAST,
    }  # fmt: skip
    return RunNow(**(plain | more))


def _site() -> Snapshot:
    hosts = tuple(HostNow(host=name, state="connected", trouble="") for name in ("node1", "node2"))
    chosen = a_search(
        phase="chosen",
        saved_j=412_000.0,
        saved_percent=17.4,
        time_added_percent=1.2,
        trial=None,
        steps_done=None,
        steps_wanted=None,
        limit_mw=175_000,
        best_mw=175_000,
        reason="its energy is least, and no other limit is more than 1 % better",
        trials=(
            TrialNow(limit_mw=250_000, steps=40, step_j=5.52, step_ms=27.8),
            TrialNow(limit_mw=200_000, steps=40, step_j=4.81, step_ms=27.9),
            TrialNow(limit_mw=175_000, steps=40, step_j=4.56, step_ms=28.1),
            TrialNow(limit_mw=150_000, steps=40, step_j=4.71, step_ms=32.0),
        ),
    )
    asr = a_run(
        "asr-9a73", job="asr", hosts=("node1",), gpus=("GPU-node1-0", "GPU-node1-1"), epoch=12, step=18_402,
        step_j=9.12, step_ms=28.1, watts=331.0, energy_j=2_300_000.0, search=chosen,
    )  # fmt: skip
    gpus = (
        a_gpu(0, run="asr-9a73", step_j=4.57),
        a_gpu(1, run="asr-9a73", step_j=4.55),
        a_gpu(2, limit_mw=250_000, power_mw=54_000, utilization_pct=0, temperature_c=34),
        a_gpu(3, state="silent", age_ms=3100),
        a_gpu(0, "node2", run="c01d33b7", step_j=155.0, limit_mw=175_000),
        a_gpu(1, "node2", run="c01d33b7", step_j=156.0, limit_mw=175_000),
        a_gpu(2, "node2", state="gone", why="fell off the bus (Xid 79)"),
    )
    totals = Totals(
        hosts=2, hosts_connected=2, gpus=7, gpus_there=5, runs=2, power_mw=716_000, hour_mj=2_577_000_000,
        hour_s=3600, saved_j=412_000.0, saved_percent=17.4, gaps=3,
    )  # fmt: skip
    gaps = (
        GapNow(
            host="node2",
            what="readings",
            count=3,
            reason="GPU-node2-2: no reading for 4.1 s: the driver hung, or the collector was stopped",
        ),
    )
    base = Snapshot(
        process="analyzer", version="0.1.0", wall_ns=NOW_NS, hosts=hosts, archive_id="archive", lag_ms=90
    )
    return replace(base, totals=totals, gpus=gpus, runs=(a_run(), asr), gaps=gaps)


SNAPSHOT = _site()


def history_of(snapshot: Snapshot, seconds: int = 300) -> History:
    """Return minutes of power that goes up and down, up to a snapshot."""
    history = History()
    for second in range(-seconds, 1):
        gpus = tuple(_at(gpu, second, place) for place, gpu in enumerate(snapshot.gpus))
        runs = tuple(
            replace(run, watts=None if run.watts is None else run.watts * _wave(second, place))
            for place, run in enumerate(snapshot.runs)
        )
        history.remember(replace(snapshot, wall_ns=snapshot.wall_ns + second * 10**9, gpus=gpus, runs=runs))
    return history


def _at(gpu: GpuNow, second: int, place: int) -> GpuNow:
    power_mw = None if gpu.power_mw is None else round(gpu.power_mw * _wave(second, place))
    return replace(gpu, power_mw=power_mw)


def _wave(second: int, place: int) -> float:
    return 0.9 + 0.1 * sin(second / 7 + place) - (0.6 if (second + 17 * place) % 97 < 4 else 0.0)
