"""CPUs, with Zeus's names. The collector reads them beside the GPUs."""

from pathlib import Path
from typing import Literal

from zeus_stream.zeus.exception import ZeusBaseError
from zeus_stream.zeus.replaced import replaced

_COLUMNS = (
    "The collector reads CPUs and DRAM beside the GPUs: see the columns `cpu_energy_j` and `dram_energy_j` of"
    " `runs`, `epochs` and `steps` (docs/reference/sql.md)."
)
get_cpus = replaced("get_cpus", _COLUMNS)


class ZeusCPUInitError(ZeusBaseError):
    """CPUs that cannot be read. Nothing raises it here."""


def get_current_cpu_index(pid: int | Literal["current"] = "current") -> int:
    """Return the number of the processor package that a process runs on. Raises OSError: not known."""
    process = "self" if pid == "current" else str(pid)
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    core = int(fields[36])
    topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id")
    return int(topology.read_text(encoding="utf-8"))
