"""Limits on what other hosts take of a listening process, descriptors and memory; and memory given back.

Other hosts may connect without a key, and ZeroMQ bounds neither how many do nor how many parts a message has.
So both are looked at, often while connections are young: past a bound all connections with other hosts are
cut. Well-behaved clients reconnect within a second, with what was not acknowledged. Connections of this host
need no watch: `listener` accepts them one by one.

Memory of large messages is not back with the system when they are freed: glibc keeps it. So it is asked for
it now and then.
"""

import ctypes
import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable

import anyio
from anyio.to_thread import run_sync

from zeus_stream.clock import monotonic_ns, to_next_s
from zeus_stream.transport.listening.connection_limits import raise_file_limit
from zeus_stream.transport.listening.listener import Listener
from zeus_stream.transport.listening.tcp_listener import TcpListener

LOOK_S = 0.05
"""Between two looks; in that time some 2,500 connections or 100 MB can come in."""
WATCH_S = 2.5
"""Between two looks at whether any connection is there that could bring much."""
REST_S = 5.0
"""Between two looks while no connection is there that could bring much."""
FILES_PER_S = 100_000
"""More than can come in: a process that may open few files looks before so many could have used them up."""
NO_FILES = {errno.EMFILE, errno.ENFILE}
PAUSE_S = 1.0
"""Between two cuts."""
MAX_GROWTH_BYTES = 512 << 20
"""Beyond the memory in use at the start."""
TRIM_S = 5.0
"""Between two returns of freed memory: each looks through all that is free."""
TRIM_BYTES = 32 << 20
"""Growth since the start that is worth it."""


async def keep(
    listeners: Iterable[Listener], say: Callable[[str], None], own_bytes: Callable[[], int] = lambda: 0
) -> None:
    """Cut the connections with other hosts whenever they take too much, and say why. Until cancelled.

    ``own_bytes`` returns what this process needs by now for its own state beyond its memory at the start.
    """
    ports = [listener.tcp for listener in listeners if listener.tcp is not None]
    if not ports:
        return
    most_files = raise_file_limit() // 2
    look_s = min(LOOK_S, most_files / FILES_PER_S)
    begin_bytes = memory_bytes() + MAX_GROWTH_BYTES
    while True:
        most_bytes = begin_bytes + own_bytes()
        if any(port.busy(monotonic_ns()) for port in ports):
            await _watch(look_s, most_files, most_bytes)
        else:
            await _rest(ports)
        if (reason := _trouble(most_files, most_bytes)) is not None:
            for port in ports:
                await port.cut()
            say(f"{reason}: all connections with other hosts were cut")
            await anyio.sleep(PAUSE_S)


async def _watch(look_s: float, most_files: int, most_bytes: int) -> None:
    """Look closely for a while, or until there is trouble, in a thread: to wake the event loop takes more."""
    until_ns, over = monotonic_ns() + round(WATCH_S * 1e9), threading.Event()

    def look() -> None:
        while not over.is_set() and monotonic_ns() < until_ns:
            time.sleep(to_next_s(look_s))
            if _trouble(most_files, most_bytes) is not None:
                return

    try:
        await run_sync(look, abandon_on_cancel=True)
    finally:
        over.set()


async def _rest(ports: Iterable[TcpListener]) -> None:
    """Wait for the next connection, at most REST_S."""

    async def wait(port: TcpListener) -> None:
        await port.accepted()
        tasks.cancel_scope.cancel()

    with anyio.move_on_after(to_next_s(REST_S)):
        async with anyio.create_task_group() as tasks:
            for port in ports:
                tasks.start_soon(wait, port)


async def give_back() -> None:
    """Give freed memory back to the system, now and then, once this process has grown. Until cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return  # not glibc
    most_bytes = memory_bytes() + TRIM_BYTES
    while True:
        await anyio.sleep(to_next_s(TRIM_S))
        if memory_bytes() > most_bytes:
            trim(0)


def _trouble(most_files: int, most_bytes: int) -> str | None:
    try:
        free = os.eventfd(0)  # the kernel gives the lowest free number: about the number of open files
    except OSError as wrong:
        if wrong.errno not in NO_FILES:
            raise
        free = most_files + 1
    else:
        os.close(free)
    if free > most_files:
        return f"over {most_files} files were open, half of all that may be"
    if memory_bytes() > most_bytes:
        return f"over {most_bytes >> 20} MiB of memory were in use"
    return None


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        resident = os.read(statm, 200).split()[1]
    finally:
        os.close(statm)
    return int(resident) * resource.getpagesize()
