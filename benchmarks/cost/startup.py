"""Time of short commands of the command line, from start to exit: ``python -m benchmarks.cost.startup``.

Wall time depends on the load of the machine, so the CPU time of the command stands beside it.
``--root`` names another checkout to compare with.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import ROOT, directory, environment, options, spread, table

COMMANDS = (("--version",), ("--help",), ("sql", "--archive", "{archive}", "select 1"))
MAKE = ("analyze", "--archive", "{archive}")
"""Started and stopped once: it creates the archive."""


def main() -> None:
    given = options(__doc__, root=ROOT, times=10)
    rows = []
    with directory() as where:
        environ = environment(where, PYTHONPATH=str(given.root))
        archive = str(where / "energy.duckdb")
        create(archive, environ, where)
        for words in COMMANDS:
            command = [word.format(archive=archive) for word in words]
            walls, cpus = zip(*(run(command, environ, where) for _ in range(given.times)), strict=True)
            rows.append([f"`{' '.join(words)}`", spread(walls, "s", 2), spread(cpus, "s", 2)])
    table("Short commands, from start to exit", "command | wall time | processor time", rows)


def create(archive: str, environ: dict[str, str], where: Path) -> None:
    """Create an archive: start an analyzer until it says that it is ready."""
    make = [sys.executable, "-m", "zeus_stream", *(word.format(archive=archive) for word in MAKE)]
    with subprocess.Popen(make, env=environ, cwd=where, stderr=subprocess.PIPE) as analyzer:
        assert analyzer.stderr is not None
        analyzer.stderr.readline()
        analyzer.terminate()


def run(command: list[str], environ: dict[str, str], where: Path) -> tuple[float, float]:
    """Return the wall time and the CPU time of a command, s."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    full = [sys.executable, "-m", "zeus_stream", *command]
    subprocess.run(full, env=environ, cwd=where, check=True, stdout=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
