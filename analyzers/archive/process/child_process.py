"""Start a process of ours. Light to import: a service starts its store before its own imports."""

import os
import socket
import subprocess
from typing import NamedTuple

from zeus_stream.service_packages import python_child

STORE_PROCESS = "analyzers.archive.process.store_process"
"""Imported by that process alone: DuckDB is a fifth of what an analyzer would import."""


class ChildProcess(NamedTuple):
    """A process, which ends when the other end of its channel does."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket


def start_child(module: str, **environment: str) -> ChildProcess:
    """Start a module of ours; its argument is the descriptor of its channel."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603  (our own module)
            python_child(module, str(theirs.fileno())),
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # an interrupt from the keyboard is the service's affair
        )
    return ChildProcess(process, ours)


def start_store() -> ChildProcess:
    """Start a process that will own an archive: another one, since it forks and may have no threads."""
    return start_child(STORE_PROCESS, ARROW_DEFAULT_MEMORY_POOL="system")
