"""The processor time that this process and its children have used: what zeus-stream itself costs."""

import os
from pathlib import Path

from zeus_stream.clock import monotonic_ns

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_BEGAN_NS = monotonic_ns()
"""When this process imported the module: about its start."""
MAX_PROCESSES = 100


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


def words() -> str:
    """Return the processor time since the start and its share of a core."""
    used_s = cpu_seconds()
    passed_s = max((monotonic_ns() - _BEGAN_NS) / 1e9, 0.001)
    return f"{used_s:.1f} s, {100 * used_s / passed_s:.1f} % of a core since its start"
