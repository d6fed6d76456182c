"""Start the process that owns the archive. Light to import: a service starts it before its own imports."""

import os
import socket
import subprocess
from typing import NamedTuple

from zeus_stream.service_packages import python_child

STORE_PROCESS = "analyzers.archive.process.store_process"
"""Imported by that process alone: DuckDB is a fifth of what an analyzer would import."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""For the store process: it forks, and threads of libraries would not be in its children."""


class StartedStore(NamedTuple):
    """A store process, which waits for the file that it is to open, and ends with this channel."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket


def start_store() -> StartedStore:
    """Start a store process; it imports what it needs in the meantime."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603  (our own module)
            python_child(STORE_PROCESS, str(theirs.fileno())),
            env=os.environ | ONE_THREAD,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt from the keyboard is the analyzer's affair
        )
    return StartedStore(process, ours)
