"""Confine a forked child: what it may write, how much memory it may take, how long it may run.

The kernel holds all limits, so they hold whatever code the child runs, DuckDB's included:

    death     with its parent (PR_SET_PDEATHSIG)
    time      SIGALRM ends it; nothing handles that signal
    memory    RLIMIT_AS, from what the parent had mapped at the fork
    files     descriptors of the parent's files become read-only, others are closed;
              Landlock, where the kernel has it, lets it write in one directory only
"""

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_LANDLOCK_PATH_BENEATH = 1
_CHANGES_BY_VERSION = (
    # EXECUTE, WRITE_FILE; REMOVE_* and MAKE_* of every kind.
    (1, 1 << 0 | 1 << 1 | sum(1 << bit for bit in range(4, 13))),
    (2, 1 << 13),  # REFER: rename or link into another directory
    (3, 1 << 14),  # TRUNCATE
)
"""Version of Landlock's interface, and the rights over files that it knows since (linux/landlock.h)."""


class ProcessLimits(Struct, frozen=True):
    """The limits of a child process."""

    seconds: float
    memory_bytes: int
    """Beyond what its parent had mapped."""
    disk_bytes: int
    """Of one file."""


def confine(
    parent: int, limits: ProcessLimits, *, read: Collection[Path], keep: Collection[int], write: Path
) -> None:
    """Confine this process, for good. Call it in the child, right after the fork.

    Args:
        parent: pid of the process that forked.
        limits: time counts from now.
        read: files that stay open, for reading only.
        keep: descriptors that stay as they are.
        write: the directory below which files may be made.

    Raises OSError: something could not be confined; the child must end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _must(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, max(limits.seconds, 0.001))
    _reopen(read, keep)
    _limit(libc, limits, write)


def confine_worker(limits: ProcessLimits, *, write: Path) -> None:
    """Confine this process, started for queries, in memory and files. Raises OSError: it must end."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit(ctypes.CDLL(None, use_errno=True), limits, write)


def _limit(libc: ctypes.CDLL, limits: ProcessLimits, write: Path) -> None:
    _write_only_in(libc, write)
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.disk_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reopen(read: Collection[Path], keep: Collection[int]) -> None:
    """Open descriptors of these files again, read-only, under their numbers; close others."""
    wanted = {(status.st_dev, status.st_ino): path for path in read if (status := _status(path))}
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number <= 2 or number in keep:
            continue
        try:
            status = os.fstat(number)
        except OSError:
            continue  # it was the listing's own
        if path := wanted.get((status.st_dev, status.st_ino)):
            again = os.open(path, os.O_RDONLY)
            os.dup2(again, number)
            os.close(again)
        else:
            os.close(number)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _write_only_in(libc: ctypes.CDLL, directory: Path) -> None:
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return  # a kernel before 5.13, or without Landlock: the other limits hold
    changes = sum(rights for since, rights in _CHANGES_BY_VERSION if version >= since)
    attributes = struct.pack("<Q", changes)
    rules = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    _must(rules)
    opened = os.open(directory, os.O_PATH)
    _must(libc.syscall(_LANDLOCK_ADD, rules, _LANDLOCK_PATH_BENEATH, struct.pack("<Qi", changes, opened), 0))
    _must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must(libc.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(opened)
    os.close(rules)


def _must(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
