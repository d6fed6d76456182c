"""Memory given back to the system, once a process has grown.

Memory of large messages is not back with the system when they are freed: glibc keeps it. So it is asked for
it now and then.
"""

import ctypes
import os
import resource

import anyio

from zeus_stream.clock import to_next_s

TRIM_S = 5.0
"""Between two returns of freed memory: each looks through all that is free."""
TRIM_BYTES = 32 << 20
"""Growth since the start that is worth it."""


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


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        resident = os.read(statm, 200).split()[1]
    finally:
        os.close(statm)
    return int(resident) * resource.getpagesize()
