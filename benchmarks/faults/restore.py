"""Measure the time until the power limit and clock found are back, by kind of kill: slowest and median.

    python -m benchmarks.faults.restore [--trials 20] [--seed 0]

Measured from the kill (for a silent analyzer: from its last word, which is a lease of 1.5 s before its
limit may end; for a start and for `zeus-stream restore`: from the start of that process) until the
simulated driver requests the limit found again and its clock is unlocked. What does not return within 10 s
ends the run. The exit code is 1 if a goal is missed.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import options, table
from tests.directories import short_directory
from tests.processes.setup import Collector, Host, collector, restore, simulated, trainer
from tests.waiting import until

GOAL_S = 2.0
TITLE = "Until the limit found is back and the clock is unlocked"
LEASE_MS = 1500
WRITES = 500
Trial = Callable[[Host, Path, random.Random], float]


def seconds_until(condition: Callable[[], bool]) -> float:
    """Return how long it takes until a condition holds. Raises TimeoutError after 10 s."""
    begin = time.monotonic()
    until(condition, 10)
    return time.monotonic() - begin


def back(host: Host) -> float:
    return seconds_until(host.as_found)


def while_held(end: Callable[[Collector, "subprocess.Popen[str]"], None]) -> Trial:
    """Return a trial that ends something while a limit and both clocks are set."""

    def trial(host: Host, where: Path, rng: random.Random) -> float:
        with collector(host, where) as running, trainer(host, where) as training:
            running.hold()
            time.sleep(rng.uniform(0, 0.1))
            end(running, training)
            return back(host)

    return trial


def silence(host: Host, where: Path, _: random.Random) -> float:
    with collector(host, where) as running, trainer(host, where):
        running.hold(lease_ms=LEASE_MS)
        return back(host)


def after_both_were_killed(again: Callable[[Host, Path], None]) -> Trial:
    """Return a trial of what restores once collector and watchdog are gone, timed from its own start."""

    def trial(host: Host, where: Path, _: random.Random) -> float:
        with collector(host, where) as running, trainer(host, where):
            running.hold()
            running.kill_with_guard()
        begin = time.monotonic()
        again(host, where)
        return time.monotonic() - begin

    return trial


def start_again(host: Host, where: Path) -> None:
    with collector(host, where):
        back(host)


def by_hand(host: Host, where: Path) -> None:
    restore(host, where)
    back(host)


TRIALS: dict[str, Trial] = {
    "SIGKILL of the collector": while_held(lambda running, _: running.process.kill()),
    "SIGTERM of the collector": while_held(lambda running, _: running.process.terminate()),
    f"silence of the analyzer (a lease of {LEASE_MS} ms)": silence,
    "SIGKILL of the training process": while_held(lambda _, training: training.kill()),
    "SIGKILL of collector and watchdog, next start": after_both_were_killed(start_again),
    "SIGKILL of collector and watchdog, `zeus-stream restore`": after_both_were_killed(by_hand),
}


def tried(trial: Trial, times: int, rng: random.Random) -> list[float]:
    """Return the seconds of a kind of end, tried some times in a setup of its own."""
    seconds = []
    for _ in range(times):
        with short_directory() as where, simulated(where) as host:
            seconds.append(trial(host, where, rng))
    return seconds


def main() -> int:
    """Print the table; return 1 if a goal is missed."""
    arguments = options(__doc__, trials=20, seed=0)
    rng = random.Random(arguments.seed)
    rows = []
    for name, trial in TRIALS.items():
        seconds = tried(trial, arguments.trials, rng)
        met = "met" if max(seconds) <= GOAL_S else "MISSED"
        rows.append((name, len(seconds), f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", met))
    table(TITLE, ("after", "trials", "median, s", "slowest, s", f"goal {GOAL_S:g} s"), rows)
    return int(any(row[-1] == "MISSED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
