"""One table of faults at random: what was tried, what was lost, and what was wrong.

    python -m benchmarks.faults.exercises [--only worlds kills disks] [--seed 0]

worlds     the whole pipeline in one thread, ``--worlds`` seeds from ``--first-world`` on
           (``soak_worlds.py``); ``--stored``: all archive into DuckDB
kills      ``--kills`` SIGKILLs of collector, analyzer and trainings in turn, ``--between-s`` apart on average
           (``kills.py``)
disks      a disk that becomes read-only or fails under log or archive (``disk_faults.py``; root)

Exit code 1 if anything was lost, stored twice, set above the limit found, left in force, restored too late,
crashed, or ended without a sentence.
"""

import os
import random
import sys

from benchmarks.faults.disk_faults import disks
from benchmarks.faults.kills import kills
from benchmarks.faults.soak_worlds import simulations
from benchmarks.harness import Found, judged, options


def main() -> int:
    names = ("worlds", "kills", "disks")
    given = options(
        __doc__, {"only": names}, only=names, seed=0, worlds=1000, first_world=0, stored=False, kills=60,
        between_s=1.5,
    )  # fmt: skip
    found: dict[str, Found] = {}
    if "worlds" in given.only:
        worlds = range(given.first_world, given.first_world + given.worlds)
        found["worlds"] = simulations(worlds, stored=given.stored)
    if "kills" in given.only:
        found["kills"] = kills(given)
    if "disks" in given.only:
        found["disks"] = disks(random.Random(given.seed))
    rows = [(name, what, figure) for name, (figures, _) in found.items() for what, figure in figures]
    wrong = [f"{name}: {sentence}" for name, (_, its) in found.items() for sentence in its]
    return judged(f"Exercises, load {os.getloadavg()[0]:.1f}", ("exercise", "what", "figure"), rows, wrong)


if __name__ == "__main__":
    sys.exit(main())
