"""Processes of this host as the kernel shows them: whose they are, and when they end."""

import errno
import os
from pathlib import Path

import anyio

MAX_DEPTH = 64
"""Ancestors looked at."""
FULL_S = 1.0
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's pid namespace (PROC_PID_INIT_INO, linux/proc_ns.h)."""


def sees_all_processes() -> bool:
    """Tell whether this process is in no container that hides others: then "none" means none."""
    return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE


def start_ticks(pid: int) -> int | None:
    """Return when a process started (clock ticks since boot), which tells it from a later one of its pid.

    None: there is no such process, or it cannot be seen.
    """
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def descends(pid: int, ancestor: int) -> bool:
    """Whether ``pid`` is ``ancestor`` or one of its descendants, as far as can be seen."""
    for _ in range(MAX_DEPTH):
        if pid == ancestor:
            return True
        fields = _stat(pid)
        if fields is None:
            return False
        pid = int(fields[1])
    return False


async def ended(pid: int, started_ticks: int | None) -> None:
    """Wait until a process has ended. Returns at once when its pid is another's by now."""
    try:
        descriptor = await _open(pid)
    except ProcessLookupError:
        return
    try:
        # Looked at after the descriptor was opened: from here on it is this process, whatever comes.
        if started_ticks is None or start_ticks(pid) == started_ticks:
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def _open(pid: int) -> int:
    while True:
        try:
            return os.pidfd_open(pid)
        except OSError as wrong:
            if wrong.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        await anyio.sleep(FULL_S)  # others may have opened all the files there may be, and may close some


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat behind the name (which may contain anything), state first."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
