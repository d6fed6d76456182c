"""One table of faults at random: what was tried, what was lost, and what was wrong.

    python -m benchmarks.faults.exercises [--only worlds,kills,disks] [--seed 0]

worlds     the whole pipeline in one thread, ``--worlds`` seeds from ``--first-world`` on
           (``soak_worlds.py``); ``--stored``: all archive into DuckDB
kills      ``--kills`` SIGKILLs of collector, analyzer and trainings in turn, ``--between-s`` apart on average
           (``kills.py``), beside the steps of ``--sessions`` more runs (``--rate`` a second each), into a log
           of ``--log-mb``
disks      a disk that becomes read-only or fails under log or archive (``disk_faults.py``; root)

Exit code 1 if anything was lost, stored twice, set above the limit found, left in force, restored too late,
crashed, or ended without a sentence.
"""

import os
import random
import sys
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.faults import kills
from benchmarks.faults.disk_faults import disks
from benchmarks.faults.soak_worlds import simulations
from benchmarks.harness import Found, judged, options
from zeus_stream.settings import Settings


def main() -> int:
    given = options(
        __doc__,
        only="", seed=0, worlds=1000, first_world=0, processes=2, stored=False,
        kills=60, sessions=0, rate=200, between_s=1.5, log_mb=Settings().log_mb,
    )  # fmt: skip
    worlds = range(given.first_world, given.first_world + given.worlds)
    exercises: Mapping[str, Callable[[], Found]] = {
        "worlds": partial(simulations, worlds, given.processes, stored=given.stored),
        "kills": partial(kills.kills, given),
        "disks": partial(disks, random.Random(given.seed)),
    }
    wanted = [name for name in exercises if not given.only or name in given.only.split(",")]
    found = {name: exercises[name]() for name in wanted}
    rows = [(name, what, figure) for name, (figures, _) in found.items() for what, figure in figures]
    wrong = [f"{name}: {sentence}" for name, (_, its) in found.items() for sentence in its]
    return judged(f"Exercises, load {os.getloadavg()[0]:.1f}", ("exercise", "what", "figure"), rows, wrong)


if __name__ == "__main__":
    sys.exit(main())
