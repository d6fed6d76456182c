"""AMD GPUs made of values, behind the names, structures and errors of amdsmi 7.0.2.

No AMD GPU and no libamd_smi.so was at hand: `AmdHost.module` is put in the place of the package. What its
functions return is written down from the package's own code, units as its documentation says them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

RESOLUTION_UJ = 15.259
INVAL, NOT_SUPPORTED, NO_PERM, BUSY, NOT_FOUND, DRIVER_NOT_LOADED = 1, 2, 10, 30, 31, 34


class AmdSmiLibraryException(Exception):  # noqa: N818  (amdsmi's own name)
    """As amdsmi raises it: with a code, and a text."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def get_error_code(self) -> int:
        return self.code

    def get_error_info(self) -> str:
        return f"AMDSMI_STATUS_{self.code} - Error {self.code}"


@dataclass
class AmdGpu:
    """One GPU. Set what it shall say, read what was set."""

    uuid: str
    bdf: str
    since_ns: int
    name: str = "AMD Instinct MI210"
    power_w: int = 40
    average_power: bool = True
    """Tells its average power, as MI200 and before; otherwise that of the moment, as MI300."""
    counter_factor: float = 1.0
    """Its counter is off by this."""
    energy_uj: float = 1e9
    power_cap_uw: int = 250_000_000
    min_cap_uw: int = 100_000_000
    max_cap_uw: int = 250_000_000
    temperature_c: int = 35
    activity: int | str = 0
    pids: tuple[int, ...] = ()
    lost: bool = False
    faults: dict[str, int] = field(default_factory=dict)
    """By function: the code that it answers."""
    calls: dict[str, int] = field(default_factory=dict)


class AmdHost:
    """A host of such GPUs, in arithmetic time."""

    def __init__(self, count: int = 2) -> None:
        self.now_ns = 10**12
        self.loaded = True
        self.starts = 0
        self._listed: tuple[AmdGpu, ...] | None = None
        self.gpus = tuple(
            AmdGpu(f"{slot:08x}-0000-1000-8000-000000000000", f"0000:{0xC1 - slot:02x}:00.0", self.now_ns)
            for slot in range(count)
        )

    def now(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass: the GPUs draw their power."""
        past_ns = round(seconds * 1e9)
        self.now_ns += past_ns
        for gpu in self.gpus:
            gpu.energy_uj += gpu.power_w * gpu.counter_factor * past_ns / 1000

    @property
    def module(self) -> Any:
        """What ``import amdsmi`` shall give."""
        kinds = SimpleNamespace(GFX="gfx", HOTSPOT="hotspot", CURRENT="current")
        functions = {name: self._of_gpu(name, answer) for name, answer in _ANSWERS.items()}
        return SimpleNamespace(
            AmdSmiLibraryException=AmdSmiLibraryException,
            AmdSmiClkType=kinds,
            AmdSmiTemperatureType=kinds,
            AmdSmiTemperatureMetric=kinds,
            amdsmi_init=self._init,
            amdsmi_shut_down=self._shut_down,
            amdsmi_get_processor_handles=self._handles,
            **functions,
        )

    def _init(self) -> None:
        if not self.loaded:
            raise AmdSmiLibraryException(DRIVER_NOT_LOADED)
        self.starts += 1
        self._listed = tuple(gpu for gpu in self.gpus if not gpu.lost)

    def _shut_down(self) -> None:
        self._listed = None

    def _handles(self) -> list[tuple[int, AmdGpu]]:
        return [(self.starts, gpu) for gpu in self._listed or ()]

    def _of_gpu(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: tuple[int, AmdGpu], *arguments: Any) -> Any:
            start, gpu = handle
            if self._listed is None or start != self.starts:
                raise AmdSmiLibraryException(INVAL)  # a handle of an earlier start
            gpu.calls[name] = gpu.calls.get(name, 0) + 1
            if gpu.lost or gpu not in self._listed:
                raise AmdSmiLibraryException(NOT_FOUND)
            if name in gpu.faults:
                raise AmdSmiLibraryException(gpu.faults[name])
            return answer(gpu, *arguments)

        return call


def _power(gpu: AmdGpu) -> dict[str, int | str]:
    moment, average = ("N/A", gpu.power_w) if gpu.average_power else (gpu.power_w, "N/A")
    return {
        "socket_power": gpu.power_w,
        "current_socket_power": moment,
        "average_socket_power": average,
        "power_limit": gpu.power_cap_uw,
    }


def _set_cap(gpu: AmdGpu, sensor: int, cap_uw: int) -> None:
    if sensor != 0 or not gpu.min_cap_uw <= cap_uw <= gpu.max_cap_uw:
        raise AmdSmiLibraryException(INVAL)
    gpu.power_cap_uw = cap_uw


_ANSWERS: dict[str, Callable[..., Any]] = {
    "amdsmi_get_gpu_device_bdf": lambda gpu: gpu.bdf,
    "amdsmi_get_gpu_device_uuid": lambda gpu: gpu.uuid,
    "amdsmi_get_gpu_asic_info": lambda gpu: {
        "market_name": gpu.name,
        "vendor_name": "Advanced Micro Devices",
    },
    "amdsmi_get_gpu_driver_info": lambda _: {"driver_name": "amdgpu", "driver_version": "6.12.12"},
    "amdsmi_get_energy_count": lambda gpu: {
        "energy_accumulator": int(gpu.energy_uj / RESOLUTION_UJ),
        "counter_resolution": RESOLUTION_UJ,
        "timestamp": 0,
    },
    "amdsmi_get_power_info": _power,
    "amdsmi_get_power_cap_info": lambda gpu: {
        "power_cap": gpu.power_cap_uw,
        "default_power_cap": gpu.max_cap_uw,
        "dpm_cap": 0,
        "min_power_cap": gpu.min_cap_uw,
        "max_power_cap": gpu.max_cap_uw,
    },
    "amdsmi_set_power_cap": _set_cap,
    "amdsmi_get_clock_info": lambda _gpu, _kind: {"clk": 1700, "min_clk": 500, "max_clk": 1700},
    "amdsmi_get_temp_metric": lambda gpu, _sensor, _metric: gpu.temperature_c,
    "amdsmi_get_gpu_activity": lambda gpu: {"gfx_activity": gpu.activity, "umc_activity": "N/A"},
    "amdsmi_get_gpu_process_list": lambda gpu: [
        {"name": "python", "pid": pid, "mem": 1 << 20} for pid in gpu.pids
    ],
    "amdsmi_get_gpu_vram_usage": lambda gpu: {"vram_total": 65_520, "vram_used": 10 + len(gpu.pids)},
}
