"""The stand-in has to be trusted before anything that is tested over it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.stand_in import StandIn
from zeus_stream.clock import monotonic_ns

_READ = """
import json, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 125000)
before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
[field] = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])
print(json.dumps({
    "uuid": pynvml.nvmlDeviceGetUUID(gpu),
    "memory": pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "before_mj": before_mj,
    "after_mj": field.value.ullVal,
}))
"""


_WATCH = """
import json, pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps([pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu), pynvml.nvmlDeviceGetPowerUsage(gpu)]))
"""


def test_a_recording_shows_the_same_to_every_program_at_the_same_time(
    stand_in: StandIn, nvml_library: Path
) -> None:
    shows = [(0, 1000, 60_000), (10**9, 2000, 70_000), (10**15, 3000, 80_000)]
    stand_in.record(0, shows)
    stand_in.gpus[0].played_ns = monotonic_ns()
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", _WATCH],
            env=os.environ | stand_in.environment(nvml_library),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    stand_in.gpus[0].played_ns = monotonic_ns() - 2 * 10**9
    said = [json.loads(program.communicate("now\n", timeout=60)[0]) for program in programs]
    assert said == [[2000, 70_000]] * 2
    stand_in.gpus[0].played_ns = 0
    assert stand_in.gpus[0].power_mw == 40_000, "what it is without its recording is untouched"


def test_another_program_with_the_real_nvidia_ml_py_sees_the_gpus_and_is_seen(
    stand_in: StandIn, nvml_library: Path
) -> None:
    period_ns = 1_000_000
    gpu = stand_in.gpus[1]
    gpu.run(power_mw=200_000, period_ns=period_ns)
    environment = os.environ | stand_in.environment(nvml_library)
    done = subprocess.run(
        [sys.executable, "-c", _READ], env=environment, check=True, capture_output=True, text=True
    )
    now_ns = monotonic_ns()
    seen = json.loads(done.stdout)
    assert seen["uuid"].encode() == gpu.uuid
    assert seen["memory"] == 16 << 30
    assert gpu.requested_mw == 125_000
    first_mj = 1_000_000
    highest_mj = first_mj + 200_000 * (now_ns - gpu.since_ns) / 1e9
    assert first_mj < seen["before_mj"] <= seen["after_mj"] <= highest_mj
    assert (seen["after_mj"] - first_mj) % 200 == 0, "the counter moves by whole periods: 200 mJ each"
