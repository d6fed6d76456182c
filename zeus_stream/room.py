"""What others may take of a process that listens: descriptors and memory.

ZeroMQ bounds neither how many connect nor how many parts a message has, and ends the process when it
has no descriptor left. So both are looked at, often: past a bound all connections are cut. Who means
well is back within a second, with what was not acknowledged.
"""

import os
import resource
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import anyio

from zeus_stream.sockets import Channel

LOOK_S = 0.02
"""Between two looks; in that time some 1,000 connections or 40 MB can come in."""
PAUSE_S = 1.0
"""Between two cuts."""
MAX_GROWTH_BYTES = 512 << 20
"""Beyond the memory in use at the start."""


async def keep(channels: Sequence[Channel], say: Callable[[str], None]) -> None:
    """Cut the connections of these listeners whenever they take too much, and say why. Until cancelled."""
    most_files = _all_files() // 2
    with Path("/proc/self/statm").open("rb", buffering=0) as statm:  # noqa: ASYNC230  (it is in memory)
        most_bytes = _memory_bytes(statm) + MAX_GROWTH_BYTES
        while True:
            await anyio.sleep(LOOK_S)
            if (reason := _trouble(most_files, _memory_bytes(statm), most_bytes)) is not None:
                for channel in channels:
                    await channel.cut()
                say(f"{reason}: all connections were cut")
                await anyio.sleep(PAUSE_S)


def _all_files() -> int:
    """Let this process open as many files as it may, and return how many that is."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _trouble(most_files: int, used_bytes: int, most_bytes: int) -> str | None:
    free = os.eventfd(0)  # the kernel gives the lowest free number: about how many are open
    os.close(free)
    if free > most_files:
        return f"over {most_files} files were open, half of all that may be"
    if used_bytes > most_bytes:
        return f"over {most_bytes >> 20} MiB of memory were in use"
    return None


def _memory_bytes(statm: FileIO) -> int:
    return int(os.pread(statm.fileno(), 100, 0).split()[1]) * resource.getpagesize()
