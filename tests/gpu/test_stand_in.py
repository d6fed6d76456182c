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
