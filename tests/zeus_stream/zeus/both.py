"""One script for Zeus and for our classes of the same names, on a stand-in NVML: prints what each found.

python both.py PACKAGE FILE PROFILE
"""

import bisect
import dataclasses
import importlib
import json
import mmap
import sys
import time
from itertools import pairwise
from pathlib import Path

from tests.gpu.stand_in import _Control

STEP_S = 0.06
POWER_W = {250: 230.0, 200: 200.0, 150: 130.0, 100: 90.0}
SLOWDOWN = {250: 1.0, 200: 1.0, 150: 1.3, 100: 2.4}
"""By power limit, W. The least energy is at 150 W by 15 %, the least cost with eta 0.5 at 200 W by 9 %."""
STEPS = 900
"""Of the search, at most."""
PERIOD_NS = 100_000_000
"""Of the counters."""
HIGH_S, LOW_S, HIGH_W, LOW_W = 0.37, 0.29, 200.0, 40.0
LOADS, WINDOWS = 200, 10
FIRST_S = 1.0
SEARCHED, PLAYED = 0, 1
"""The GPU whose limit is searched for, and the GPU that plays a load."""


def edges() -> list[tuple[float, float]]:
    """Return (s, W): when the load of the played GPU changes, and to what."""
    found, t_s = [(0.0, LOW_W)], FIRST_S
    for _ in range(LOADS):
        found += [(t_s, HIGH_W), (t_s + HIGH_S, LOW_W)]
        t_s += HIGH_S + LOW_S
    return [*found, (t_s + 60.0, LOW_W)]


def energy_j(t_s: float) -> float:
    """Return the true energy of the played GPU since its start."""
    return sum(
        (min(t_s, end) - begin) * watts for (begin, watts), (end, _) in pairwise(edges()) if t_s > begin
    )


def shows() -> list[tuple[int, int, int]]:
    """Return what the played GPU shows: a counter of 100 ms."""
    begins = [t for t, _ in edges()]
    lines = []
    for number in range(int(edges()[-1][0] * 1e9) // PERIOD_NS):
        t_s = number * PERIOD_NS / 1e9
        watts = edges()[bisect.bisect(begins, t_s) - 1][1]
        lines.append((number * PERIOD_NS, 1_000_000 + round(1000 * energy_j(t_s)), round(1000 * watts)))
    return lines


def main(package: str, file: str, profile: str) -> None:
    monitors = importlib.import_module(f"{package}.monitor")
    optimizers = importlib.import_module(f"{package}.optimizer.power_limit")
    with Path(file).open("r+b") as opened:
        control = _Control.from_buffer(mmap.mmap(opened.fileno(), 0))
    gpu = control.gpus[SEARCHED]

    log = f"{profile}.csv"
    begin_ns = control.gpus[PLAYED].played_ns = time.monotonic_ns()
    gpu.run(gpu.power_mw, PERIOD_NS)
    windows = monitors.ZeusMonitor(gpu_indices=[PLAYED], log_file=log)
    searching = monitors.ZeusMonitor(gpu_indices=[SEARCHED])

    def now_s() -> float:
        return (time.monotonic_ns() - begin_ns) / 1e9

    errors_j, measured = [], None
    first = 1 + int(now_s() / (HIGH_S + LOW_S))
    for number in range(first, first + WINDOWS):
        time.sleep(max(0.0, FIRST_S + number * (HIGH_S + LOW_S) - now_s()))
        windows.begin_window(f"w{number}", sync_execution=False)
        from_s = now_s()
        time.sleep(HIGH_S)
        measured = windows.end_window(f"w{number}", sync_execution=False)
        true_j = energy_j(now_s()) - energy_j(from_s)
        errors_j.append(abs(measured.total_energy - true_j))
    assert measured is not None

    path = Path(profile)
    optimizer = optimizers.GlobalPowerLimitOptimizer(
        searching, optimizers.Energy(), warmup_steps=3, profile_steps=12, pl_step=50, profile_path=path
    )
    energy_mj, since_ns, drawn_mw = gpu.energy_mj, time.monotonic_ns(), gpu.power_mw
    for _ in range(STEPS):
        if path.exists():
            break
        optimizer.on_step_begin()
        limit_w = round(gpu.requested_mw / 1000)
        energy_mj += drawn_mw * (time.monotonic_ns() - since_ns) // 10**9
        gpu.period_ns = 0
        gpu.energy_mj, since_ns, drawn_mw = energy_mj, time.monotonic_ns(), round(1000 * POWER_W[limit_w])
        gpu.run(drawn_mw, 1_000_000)
        time.sleep(STEP_S * SLOWDOWN[limit_w])
    chosen_w = round(gpu.requested_mw / 1000)
    optimizer.on_epoch_end()
    saved = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    measurements = [optimizers.PowerLimitMeasurement(**each) for each in saved]
    content = {
        "fields": [field.name for field in dataclasses.fields(measured)],
        "columns": Path(log).read_text(encoding="utf-8").splitlines()[0],
        "mean_error_j": sum(errors_j) / len(errors_j),
        "chosen": [chosen_w, optimizers.ZeusCost(0.5).select(measurements)],
        "profile": sorted(saved[0]),
        "limits": [each["power_limit"] for each in saved],
    }
    print(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
