"""Time of short commands of the command line, from start to exit: ``python -m benchmarks.cost.startup``.

Wall time depends on the load of the machine, so the CPU time of the command stands beside it.
``--root`` names another checkout to compare with.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, directory, table

COMMANDS = (("--version",), ("--help",), ("sql", "--archive", "{archive}", "select 1"))
MAKE = ("analyze", "--archive", "{archive}")
"""Started and stopped once: it creates the archive."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the startup of the command line.")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    rows = []
    with directory() as where:
        environment = {**os.environ, "PYTHONPATH": str(options.root), "ZEUS_STREAM_DIR": str(where)}
        archive = str(where / "energy.duckdb")
        create(archive, environment, where)
        for words in COMMANDS:
            command = [word.format(archive=archive) for word in words]
            walls, cpus = zip(*(run(command, environment, where) for _ in range(options.times)), strict=True)
            rows.append([f"`{' '.join(words)}`", spread(walls), spread(cpus)])
    table("Short commands, from start to exit", ["command", "wall time", "processor time"], rows)


def spread(seconds: Sequence[float]) -> str:
    """Return the median with least and most."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def create(archive: str, environment: dict[str, str], where: Path) -> None:
    """Create an archive: start an analyzer until it says that it is ready."""
    make = [sys.executable, "-m", "zeus_stream", *(word.format(archive=archive) for word in MAKE)]
    with subprocess.Popen(make, env=environment, cwd=where, stderr=subprocess.PIPE) as analyzer:
        assert analyzer.stderr is not None
        analyzer.stderr.readline()
        analyzer.terminate()


def run(command: list[str], environment: dict[str, str], where: Path) -> tuple[float, float]:
    """Return the wall time and the CPU time of a command, s."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    full = [sys.executable, "-m", "zeus_stream", *command]
    subprocess.run(full, env=environment, cwd=where, check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
