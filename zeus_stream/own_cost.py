"""The cost of zeus-stream itself: processor time with its children, its energy, and its memory."""

import ctypes
import os
import resource
from pathlib import Path

import anyio
from msgspec import Struct

from zeus_stream.clock import anchor, monotonic_ns, to_next_s
from zeus_stream.protocol.notes import OwnUse

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_BEGAN_NS = monotonic_ns()
"""When this process imported the module: about its start."""
MAX_PROCESSES = 100
EVERY_S = 60.0
"""Between two records of a service; there is one more at the end of a run."""
PAUSE_S = 1.0
"""At least so much lies between two records: many runs may end at once."""
M_ARENA_MAX = -8
"""Of glibc's malloc.h."""
_IDLE = slice(3, 5)
_HOST_TIMES = 8
"""Of the first line of /proc/stat: user, nice, system, idle, waits for I/O, interrupts (2), stolen."""


def share_one_heap() -> None:
    """Have the threads share one heap of glibc: with one each, an analyzer grew by 4 MB a minute."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(M_ARENA_MAX, 1)


def cpu_seconds() -> float:
    """Return the processor time of this process, its living children and those that have ended, s."""
    total = 0.0
    waiting = [os.getpid()]
    for _ in range(MAX_PROCESSES):
        if not waiting:
            break
        pid = waiting.pop()
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            continue  # it has ended
        fields = text.rsplit(")", 1)[1].split()
        total += sum(map(int, fields[11:15])) / _TICKS_A_SECOND
        for task in tasks:
            try:
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
            except OSError:
                continue  # the thread has ended, or the kernel does not list children
    return total


def host_cpu_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Return the processor time of everything on this host since its boot, s. None: not known."""
    try:
        name, *times = stat.read_text(encoding="ascii").partition("\n")[0].split()
        ticks = [int(time) for time in times[:_HOST_TIMES]]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(ticks) < _HOST_TIMES:
        return None
    return (sum(ticks) - sum(ticks[_IDLE])) / _TICKS_A_SECOND


class RecordTimes:
    """The times at which a service publishes its use: once a minute, and when a run ends."""

    def __init__(self) -> None:
        self._run_ended = anyio.Event()

    def run_ended(self) -> None:
        """Let the next record be due."""
        self._run_ended.set()

    async def next(self) -> None:
        """Wait until a record is due."""
        with anyio.move_on_after(EVERY_S):
            await self._run_ended.wait()
        self._run_ended = anyio.Event()


class OwnUseMeter:
    """The use of this process between two records."""

    def __init__(self, service: str, host: str) -> None:
        """``service``: its name in the records."""
        self._service, self._host = service, host
        self._last = monotonic_ns(), cpu_seconds(), host_cpu_seconds()

    def record(self, host_energy_mj: int | None, reason: str) -> OwnUse:
        """Return the use since the last record. ``host_energy_mj``: of the host in that time."""
        began_ns, before_s, host_before_s = self._last
        now = anchor()
        self._last = now.monotonic_ns, cpu_seconds(), host_cpu_seconds()
        _, used_s, host_s = self._last
        known = host_before_s is not None and host_s is not None
        return OwnUse(
            t_ns=now.monotonic_ns,
            wall_ns=now.wall_ns,
            took_ns=now.monotonic_ns - began_ns,
            service=self._service,
            host=self._host,
            cpu_ns=round(max(used_s - before_s, 0) * 1e9),
            host_cpu_ns=round(max((host_s or 0) - (host_before_s or 0), 0) * 1e9) if known else None,
            processors=os.cpu_count() or 1,
            host_energy_mj=host_energy_mj,
            reason=reason[:2000],
        )


def words() -> str:
    """Return the processor time since the start and its share of a core."""
    used_s = cpu_seconds()
    passed_s = max((monotonic_ns() - _BEGAN_NS) / 1e9, 0.001)
    return f"{used_s:.1f} s, {100 * used_s / passed_s:.1f} % of a core since its start"


class OwnEnergy(Struct, frozen=True):
    """Estimates of the energy of a service itself, J."""

    low_j: float
    """It has the share of the host's energy that it has of the time of all processors."""
    high_j: float
    """It has the share that it has of the time of processors at work, power at rest included."""

    def __add__(self, other: "OwnEnergy") -> "OwnEnergy":
        return OwnEnergy(self.low_j + other.low_j, self.high_j + other.high_j)

    @property
    def words(self) -> str:
        return f"{self.low_j:.1f} to {self.high_j:.1f} J since its start (an estimate by processor time)"


def own_energy(use: OwnUse, host_j: float | None) -> OwnEnergy | None:
    """Estimate the energy of a service. ``host_j``: of its host's CPUs and memory; None: not known."""
    if host_j is None or not use.host_cpu_ns or not use.took_ns:
        return None
    high_j = host_j * min(use.cpu_ns / use.host_cpu_ns, 1.0)
    return OwnEnergy(min(host_j * use.cpu_ns / (use.processors * use.took_ns), high_j), high_j)


TRIM_S = 5.0
"""Between two returns of freed memory: each looks through all that is free."""
TRIM_BYTES = 32 << 20
"""Growth since the start that is worth it."""


async def return_free_memory() -> None:
    """Give freed memory back to the system, now and then, once this process has grown. Until cancelled.

    Memory of large messages is not back with the system when they are freed: glibc keeps it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return  # not glibc
    most_bytes = memory_bytes() + TRIM_BYTES
    while True:
        await anyio.sleep(to_next_s(TRIM_S))
        if memory_bytes() > most_bytes:
            trim(0)


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        resident = os.read(statm, 200).split()[1]
    finally:
        os.close(statm)
    return int(resident) * resource.getpagesize()
