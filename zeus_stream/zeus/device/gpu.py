"""`get_gpus`: what the collector knows of the GPUs, with Zeus's method names.

Nothing here touches a GPU. Limits and clocks are set by the collector, under a lease that gives them back.
"""

from typing import Any

from zeus_stream.quoting import quoted
from zeus_stream.transport.client import connect as connect_analyzer
from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.replaced import replaced
from zeus_stream.zeus.services import MonitoredGpus, connect

_LAST = """
SELECT last(power_mw ORDER BY t_hi_ns) AS power_mw, last(limit_mw ORDER BY t_hi_ns) AS limit_mw,
    last(energy_mj ORDER BY t_hi_ns) AS energy_mj, last(temperature_c ORDER BY t_hi_ns) AS temperature_c
FROM readings WHERE gpu = {gpu}
"""
_ABOUT = "SELECT name, counts_energy, min_limit_w, max_limit_w FROM gpus WHERE gpu = {gpu}"
_SETS = replaced(
    "GPUs.set",
    "The collector sets limits and clocks under a lease, and gives back what it found: `zeus-stream run"
    " --select energy`, or `GlobalPowerLimitOptimizer` (docs/how-to/measure-a-script.md).",
)


class ZeusGPUInitError(ZeusBaseError):
    """No GPU can be read."""


class GPUs:
    """The GPUs of this process, in the order in which CUDA counts them, in Zeus's mW, mJ and degrees C."""

    def __init__(self, gpus: MonitoredGpus) -> None:
        self._gpus = gpus

    def __repr__(self) -> str:
        return f"<GPUs {list(self._gpus.indices)}>"

    def __len__(self) -> int:
        return len(self._gpus.uuids)

    def get_name(self, gpu_index: int) -> str:
        """Return the model of a GPU."""
        return str(self._ask(_ABOUT, gpu_index)["name"])

    def get_power_management_limit_constraints(self, gpu_index: int) -> tuple[int, int]:
        """Return the lowest and the highest power limit that the device accepts, mW."""
        about = self._ask(_ABOUT, gpu_index)
        return round(1000 * about["min_limit_w"]), round(1000 * about["max_limit_w"])

    def get_power_management_limit(self, gpu_index: int) -> int:
        """Return the power limit in force, mW."""
        return self._last(gpu_index, "limit_mw")

    def get_instant_power_usage(self, gpu_index: int) -> int:
        """Return the power at the last reading, mW."""
        return self._last(gpu_index, "power_mw")

    get_average_power_usage = get_instant_power_usage

    def supports_get_total_energy_consumption(self, gpu_index: int) -> bool:
        """Return whether a GPU has an energy counter."""
        return bool(self._ask(_ABOUT, gpu_index)["counts_energy"])

    def get_total_energy_consumption(self, gpu_index: int) -> int:
        """Return the energy counter at the last reading, mJ."""
        return self._last(gpu_index, "energy_mj")

    def get_gpu_temperature(self, gpu_index: int) -> int:
        """Return the temperature at the last reading, degrees C."""
        return self._last(gpu_index, "temperature_c")

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("set_", "reset_")):
            return _SETS
        raise AttributeError(f"GPUs: could not find {name!r}: docs/coming-from/zeus.md lists what there is")

    def _last(self, gpu_index: int, column: str) -> int:
        value = self._ask(_LAST, gpu_index)[column]
        if value is None:
            raise ZeusGPUInitError(
                f"GPU {gpu_index}: could not read {column}: the device does not report it."
            )
        return int(value)

    def _ask(self, query: str, gpu_index: int) -> dict[str, Any]:
        if gpu_index not in self._gpus.uuids:
            raise ZeusGPUInitError(
                f"GPU {gpu_index}: is not among {list(self._gpus.uuids)}. See `zeus-stream doctor`."
            )
        rows = connect_analyzer().sql(query.format(gpu=quoted(self._gpus.uuids[gpu_index]))).to_pylist()
        found: dict[str, Any] = rows[0]
        return found


def get_gpus(ensure_homogeneous: bool = False) -> GPUs:
    """Return the GPUs of this process. Services are started if none run.

    Args:
        ensure_homogeneous: all GPUs have to be of one model.

    Raises:
        ZeusGPUInitError: no GPU can be read, or their models differ.
    """
    found = GPUs(connect(None))
    if not len(found):
        raise ZeusGPUInitError("get_gpus: could not find a GPU: none is measured. See `zeus-stream doctor`.")
    names = {found.get_name(index) for index in range(len(found))}
    if ensure_homogeneous and len(names) > 1:
        raise ZeusGPUInitError(
            f"get_gpus: could not use GPUs of several models: {sorted(names)}. Name GPUs of one."
        )
    return found
