"""GPUs made of a file, behind the real nvidia-ml-py: the control of nvml_stand_in.c.

`build` compiles the library, `StandIn` is the file it answers from. In this process, `load` it
before pynvml asks for libnvidia-ml.so.1: the dynamic linker then answers with the library that
already bears the name. Other programs (measuring tools among them) run unmodified over it with
the environment that `StandIn.environment` returns.
"""

import ctypes
import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterable
from ctypes import c_char, c_uint32, c_uint64
from pathlib import Path

from zeus_stream.clock import monotonic_ns

GPUS = 16
_FAULTS = 8
_TEXT = 80
_SOURCE = Path(__file__).with_name("nvml_stand_in.c")


def compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc")


def build(directory: Path) -> Path:
    """Compile the library into `directory` and return its path."""
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, f"-Wl,-soname,{library.name}", "-o", library, _SOURCE], check=True)
    return library


def load(library: Path) -> None:
    """Make `library` what this process gets when it asks for libnvidia-ml.so.1."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class _Faulty(ctypes.Structure):
    """Something whose calls can be told to fail."""

    def fail(self, call: str, code: int) -> None:
        """Let `call` (``nvmlDeviceGetPowerUsage``, or ``field 83``) answer the NVML error `code`."""
        for slot in self.faults:
            if slot.code == 0 or slot.call == call.encode():
                slot.call, slot.code = call.encode(), code
                return
        raise ValueError(f"{_FAULTS} calls fail already")

    def heal(self) -> None:
        """Let every call work again."""
        for slot in self.faults:
            slot.code = 0


class _Fault(ctypes.Structure):
    _fields_ = [("call", c_char * _TEXT), ("code", c_uint32)]


class Gpu(_Faulty):
    """One GPU, field by field as in nvml_stand_in.c. Set what it shall say, read what was set."""

    _fields_ = [
        ("uuid", c_char * _TEXT),
        ("name", c_char * _TEXT),
        ("faults", _Fault * _FAULTS),
        ("present", c_uint32),
        ("lost", c_uint32),
        ("latency_us", c_uint32),
        ("architecture", c_uint32),
        ("mig", c_uint32),
        ("persistence", c_uint32),
        ("power_mw", c_uint32),
        ("min_limit_mw", c_uint32),
        ("max_limit_mw", c_uint32),
        ("default_limit_mw", c_uint32),
        ("requested_mw", c_uint32),
        ("ceiling_mw", c_uint32),
        ("clock_mhz", c_uint32),
        ("locked_mhz", c_uint32),
        ("memory_clock_mhz", c_uint32),
        ("temperature_c", c_uint32),
        ("utilization_pct", c_uint32),
        ("clock_count", c_uint32),
        ("clocks_mhz", c_uint32 * 32),
        ("pid_count", c_uint32),
        ("pids", c_uint32 * 8),
        ("energy_mj", c_uint64),
        ("since_ns", c_uint64),
        ("period_ns", c_uint64),
        ("memory_bytes", c_uint64),
        ("calls", c_uint64),
        ("module_power_mw", c_uint32),
        ("tenant_count", c_uint32),
        ("tenants", (c_char * _TEXT) * 7),
        ("played_ns", c_uint64),
        ("locked_memory_mhz", c_uint64),
        ("round_mw", c_uint32),
        ("clamp_mw", c_uint32),
        ("ignored_sets", c_uint32),
        ("profiles", c_uint32),
        ("requested_profiles", c_uint32),
        ("used_bytes", c_uint64),
        ("process_bytes", c_uint64 * 8),
        ("round_mhz", c_uint32),
        ("heeds_locks", c_uint32),
        ("follows_ns", c_uint64),
        ("locked_ns", c_uint64),
        ("samples_us", c_uint64),
    ]

    def set_clocks(self, *clocks_mhz: int) -> None:
        self.clocks_mhz[: len(clocks_mhz)] = clocks_mhz
        self.clock_count = len(clocks_mhz)

    def set_tenants(self, *uuids: str) -> None:
        """Turn MIG on, with these instances."""
        for place, uuid in enumerate(uuids):
            self.tenants[place].value = uuid.encode()
        self.mig, self.tenant_count = 1, len(uuids)

    def set_processes(self, *pids: int, used_bytes: int = 0) -> None:
        """``used_bytes``: of the first; the memory of the others is not known."""
        self.pids[: len(pids)] = pids
        self.pid_count = len(pids)
        self.used_bytes = self.process_bytes[0] = used_bytes

    def run(self, power_mw: int, period_ns: int) -> None:
        """Draw `power_mw` from now on: the counter adds it up and shows it every `period_ns`."""
        self.period_ns = 0  # the counter stands while its parts change
        self.power_mw, self.since_ns = power_mw, monotonic_ns()
        self.period_ns = period_ns


class _Control(_Faulty):
    _fields_ = [
        ("bytes", c_uint32),
        ("driver", c_char * _TEXT),
        ("faults", _Fault * _FAULTS),
        ("gpus", Gpu * GPUS),
    ]


class StandIn:
    """A host with `count` V100s at rest, in a new file at `path`."""

    def __init__(self, path: Path, count: int = 1) -> None:
        self.path = path
        size = ctypes.sizeof(_Control)
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._control = _Control.from_buffer(mmap.mmap(file.fileno(), size))
        self._control.bytes = size
        self._control.driver = b"550.54.15"
        self.gpus: tuple[Gpu, ...] = tuple(self._control.gpus[slot] for slot in range(count))
        for slot, gpu in enumerate(self.gpus):
            _put_v100(gpu, slot)

    def fail(self, call: str, code: int) -> None:
        """Let a call that is about no GPU (``nvmlInit``) answer the NVML error `code`."""
        self._control.fail(call, code)

    def heal(self) -> None:
        self._control.heal()

    def record(self, slot: int, shows: Iterable[tuple[int, int, int]]) -> None:
        """Lay down what a GPU shows once it is played: (ns since its start, energy_mj, power_mw), in order.

        Programs that start NVML afterwards see it from `Gpu.played_ns` on, all of them the same.
        """
        lines = b"".join(struct.pack("=3Q", *line) for line in shows)
        self.path.with_name(f"{self.path.name}.{slot}").write_bytes(lines)

    def environment(self, library: Path) -> dict[str, str]:
        """Return what a program's environment needs for it to see these GPUs."""
        return {"LD_LIBRARY_PATH": str(library.parent), "NVML_STAND_IN": str(self.path)}


def _put_v100(gpu: Gpu, slot: int) -> None:
    gpu.uuid = f"GPU-{slot:08x}-0000-4000-8000-000000000000".encode()
    gpu.name = b"Tesla V100-PCIE-16GB"
    gpu.present = 1
    gpu.architecture = 5
    gpu.power_mw = 40_000
    gpu.min_limit_mw = 100_000
    gpu.max_limit_mw = gpu.default_limit_mw = gpu.requested_mw = 250_000
    gpu.clock_mhz, gpu.heeds_locks = 1380, 1
    gpu.memory_clock_mhz = 877
    gpu.temperature_c = 35
    gpu.energy_mj = 1_000_000
    gpu.memory_bytes = 16 << 30
    gpu.set_clocks(1380, 1372, 135)
