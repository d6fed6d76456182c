"""Measure the time until a clock that follows a plan is unlocked, by kind of end: slowest and median.

    python -m benchmarks.faults.clock_plans [--trials 10] [--seed 0]

Real processes, a simulated GPU. In each trial the script runs up to an instruction whose clock is low. Then
it is killed, or its collector, or the analyzer falls silent (a lease of 1.5 s), or the script runs another
instruction than the plan has. Measured from there until the simulated driver has no lock. What does not
return within 10 s ends the run.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from benchmarks.harness import directory, table
from tests.processes.setup import Collector, Host, collector, simulated, until
from tests.processes.test_clock_plan import ORDER, PLAN, Stage, follow_first_instruction, locked, stage
from zeus_stream.protocol.fields import UNLOCKED
from zeus_stream.protocol.notes import ControlApplied

GOAL_S = 2.0
LEASE_MS = 1500
End = Callable[[Host, Collector, Stage], float]


def unlocked(host: Host) -> float:
    return until(locked(host, UNLOCKED), 10)


def kill_script(host: Host, _: Collector, script: Stage) -> float:
    script.process.kill()
    return unlocked(host)


def kill_collector(host: Host, running: Collector, _: Stage) -> float:
    running.process.kill()
    return unlocked(host)


def silent_analyzer(host: Host, running: Collector, _: Stage) -> float:
    short = replace(PLAN, lease_ms=LEASE_MS, first_iteration=None)
    assert isinstance(running.plan(short), ControlApplied)
    return unlocked(host)


def wrong_instruction(host: Host, _: Collector, script: Stage) -> float:
    script.run(*ORDER[3])
    return unlocked(host)


ENDS: dict[str, End] = {
    "script killed": kill_script,
    "collector killed": kill_collector,
    "analyzer silent (lease of 1.5 s)": silent_analyzer,
    "instruction that is not in the plan": wrong_instruction,
}


def trial(end: End, rng: random.Random, where: Path) -> float:
    """Return the seconds from an end of the plan until the clock is unlocked."""
    with simulated(where) as host, collector(host, where) as running, stage(host, where) as script:
        follow_first_instruction(host, running, script)
        time.sleep(rng.uniform(0, 0.1))
        return end(host, running, script)


def main() -> None:
    """Print the table; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    rows, met = [], True
    for name, end in ENDS.items():
        seconds = []
        for _ in range(asked.trials):
            with directory() as where:
                seconds.append(trial(end, rng, where))
        met = met and max(seconds) <= GOAL_S
        rows.append((name, asked.trials, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", GOAL_S))
    table("Clocks unlocked", ("after", "trials", "median, s", "slowest, s", "goal, s"), rows)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
