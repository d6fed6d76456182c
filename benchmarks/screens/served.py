"""The page of a setup, served by a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import environment


@contextmanager
def served(where: Path, *arguments: str) -> Iterator[str]:
    """Serve the page of a setup; give its address, with the token."""
    command = [sys.executable, "-m", "zeus_stream", "web", "--listen", "127.0.0.1:0", *arguments]
    server = subprocess.Popen(command, env=environment(where), stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        yield next(line for line in server.stderr if "token=" in line).split()[-1]
    finally:
        server.terminate()
        server.wait(20)
