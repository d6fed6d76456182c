"""Programs of ours in the setup of a test: their environment, their start, and their status."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.patience import PATIENT
from zeus_stream.errors import UnreachableError
from zeus_stream.paths import places
from zeus_stream.transport.client import status

ROOT = Path(__file__).parents[1]
PATIENCE_S = 240.0
ZEUS_STREAM = ("-m", "zeus_stream")
"""The arguments of Python that begin a command of ours."""
NO_VARIABLES: Mapping[str, str] = {}
Stream = int | IO[str] | IO[bytes] | None


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return this process's environment without settings of ours, for a setup. ``more``: beside them."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ZEUS_STREAM_")}
    path = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
    return {**clean, **PATIENT, "ZEUS_STREAM_DIR": str(directory), "PYTHONPATH": path, **more}


def start(
    directory: Path,
    *arguments: object,
    python: str = sys.executable,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = subprocess.PIPE,
    env: Mapping[str, str] = NO_VARIABLES,
) -> "subprocess.Popen[str]":
    """Start ``python ARGUMENTS`` in a setup. ``env``: variables beside those of the setup."""
    return subprocess.Popen(
        [python, *map(str, arguments)],
        env=environment(directory, **env), stdin=stdin, stdout=stdout, stderr=stderr, text=True,
    )  # fmt: skip


def run(
    directory: Path,
    *arguments: object,
    cwd: Path | None = None,
    given: str = "",
    env: Mapping[str, str] = NO_VARIABLES,
) -> "subprocess.CompletedProcess[str]":
    """Run ``python ARGUMENTS`` in a setup to its end. ``given``: its input; ``env``: more variables."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(directory, **env), cwd=cwd, input=given, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@contextmanager
def running(
    directory: Path,
    *arguments: object,
    stdin: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.PIPE,
    env: Mapping[str, str] = NO_VARIABLES,
) -> Iterator["subprocess.Popen[str]"]:
    """Run ``python ARGUMENTS`` in a setup until the end of the block, and end it in order."""
    process = start(directory, *arguments, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=env)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()


def rows(directory: Path, process: str, timeout_s: float = 1) -> dict[tuple[str, str], str]:
    """Return the status of a collector or an analyzer; nothing while it does not answer."""
    try:
        found = status(places({"ZEUS_STREAM_DIR": str(directory)}), process, timeout_s).rows
    except UnreachableError:
        return {}
    return {(section, name): value for section, name, value in found}


def free_port() -> int:
    """Return a port that is free, with the two after it, below those that connections are given."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        try:
            for needed in range(port, port + 3):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", needed))
        except OSError:
            continue
        return port
