"""Processes of this host as the kernel shows them: whose they are, and when they end."""

import errno
import os
import re
from itertools import dropwhile
from pathlib import Path
from pwd import getpwuid

import anyio

from zeus_stream.errors import printable
from zeus_stream.protocol.fields import MOST_WORDS

PROC = Path("/proc")
MPS_SERVER = "nvidia-cuda-mps"
"""Name of CUDA's multi-process server, as the kernel cuts it off."""
MAX_DEPTH = 64
"""Ancestors looked at."""
FULL_S = 1.0
MOST_PROGRAM, MOST_USER = 200, 32
"""Characters."""
INTERPRETERS = re.compile(r"(python|pypy|(ba|da|z)?sh|perl|ruby|julia|Rscript|node)[0-9.]*")
PLAIN_FLAG = re.compile(r"-[uBEIOPsSbqvx]+")
"""Of Python, without a value behind it."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's pid namespace (PROC_PID_INIT_INO, linux/proc_ns.h)."""


def sees_all_processes() -> bool:
    """Tell whether this process is in no container that hides others: then "none" means none."""
    return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Return when a process started, clock ticks since boot: another of its pid differs. None: unseen."""
    fields = _stat(pid, proc)
    return None if fields is None else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped by a signal (SIGSTOP) or a debugger."""
    fields = _stat(pid)
    return fields is not None and fields[0] in "Tt"


def uptime_ticks() -> int:
    """Return the time since the boot, in the clock ticks of `start_ticks`."""
    seconds = Path("/proc/uptime").read_text(encoding="ascii").split()[0]
    return int(float(seconds) * os.sysconf("SC_CLK_TCK"))


def is_peer(pid: int, uid: int | None, connected_ticks: int, proc: Path = PROC) -> bool | None:
    """Tell whether a process may be the one that made a connection; None: it cannot be seen.

    A later process of the same pid has another user, or started after ``connected_ticks`` (`uptime_ticks`).
    """
    started = start_ticks(pid, proc)
    try:
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    if started is None or not uids:
        return None
    return str(uid) in uids and started <= connected_ticks


def descends(pid: int, ancestor: int) -> bool:
    """Return True if ``pid`` is ``ancestor`` or one of its descendants, as far as can be seen."""
    for _ in range(MAX_DEPTH):
        if pid == ancestor:
            return True
        fields = _stat(pid)
        if fields is None:
            return False
        pid = int(fields[1])
    return False


def serves(pid: int, uid: int | None, proc: Path = PROC) -> bool:
    """Tell whether a process is the MPS server of a user: it computes on a GPU for all programs of theirs."""
    try:
        name = (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return False
    return name.startswith(MPS_SERVER) and owner(pid, proc) == uid


def owner(pid: int, proc: Path = PROC) -> int | None:
    """Return the user of a process; None: it cannot be seen."""
    try:
        return (proc / str(pid)).stat().st_uid
    except OSError:
        return None


def cgroup(pid: int, proc: Path = PROC) -> str | None:
    """Return the cgroup of a process, as from the root of the host; None: it cannot be seen."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    path = paths.get("") or paths.get("name=systemd") or next(iter(paths.values()), None)
    # In a cgroup namespace of its own the reader sees other branches through "..".
    return None if path is None else re.sub(r"^(/\.\.)+", "", path)[:MOST_WORDS] or "/"


def user_of(pid: int, proc: Path = PROC) -> str | None:
    """Return the name of the user of a process; None: it cannot be seen."""
    if (uid := owner(pid, proc)) is None:
        return None
    try:
        return printable(getpwuid(uid).pw_name)[:MOST_USER] or str(uid)
    except KeyError:
        return str(uid)


def program_of(pid: int, proc: Path = PROC) -> str:
    """Return the program of a process, and the script or module that it runs. Empty: it cannot be seen.

    No other argument: one may hold a secret. So the word behind the program is only taken where the program
    is one of `INTERPRETERS`, which run what it names.
    """
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode("ascii", "replace").split("\0")
        program = (words[0].split() or [(proc / str(pid) / "comm").read_text(errors="replace")])[0]
    except OSError:
        return ""
    program = program.rpartition("/")[2].strip()
    rest = words[1:] if INTERPRETERS.fullmatch(program) else []
    if program.startswith(("python", "pypy")):
        rest = list(dropwhile(PLAIN_FLAG.fullmatch, rest))
    shown = rest[:2] if rest[:1] == ["-m"] else [word for word in rest[:1] if not word.startswith("-")]
    return "".join(letter if letter.isascii() else "?" for letter in printable(" ".join([program, *shown])))[
        :MOST_PROGRAM
    ]


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


def _stat(pid: int, proc: Path = PROC) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat behind the name (which may contain anything), state first."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
