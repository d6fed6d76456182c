"""Measure the time until the power limit and clock found are back, by kind of kill: slowest and median.

    python -m benchmarks.faults.restore [--trials 20] [--seed 0]

Measured from the kill (for a silent analyzer: from its last word, which is a lease of 1.5 s before its
limit may end; for a start and for `zeus-stream restore`: from the start of that process) until the
simulated driver requests the limit found again and its clock is unlocked. What does not return within 10 s
ends the run.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.harness import directory, table
from collectors.controls.lease_messages import Limits
from collectors.controls.restore_record import RestoreRecord, RestoreRecordFile
from tests.processes.setup import OURS_MHZ, Collector, Host, collector, restore, simulated, trainer, until
from zeus_stream.protocol.fields import UNLOCKED

GOAL_S = 2.0
LEASE_MS = 1500
WRITES = 500
Trial = Callable[[Host, Path, random.Random], float]


def back(host: Host) -> float:
    return until(host.as_found, 10)


def kill(host: Host, where: Path, rng: random.Random) -> float:
    with collector(host, where) as running, trainer(host, where):
        running.hold()
        time.sleep(rng.uniform(0, 0.1))
        running.process.kill()
        return back(host)


def terminate(host: Host, where: Path, rng: random.Random) -> float:
    with collector(host, where) as running, trainer(host, where):
        running.hold()
        time.sleep(rng.uniform(0, 0.1))
        running.process.terminate()
        return back(host)


def silence(host: Host, where: Path, _: random.Random) -> float:
    with collector(host, where) as running, trainer(host, where):
        running.hold(lease_ms=LEASE_MS)
        return back(host)


def kill_training(host: Host, where: Path, rng: random.Random) -> float:
    with collector(host, where) as running, trainer(host, where) as training:
        running.hold()
        time.sleep(rng.uniform(0, 0.1))
        training.kill()
        return back(host)


def kill_both(host: Host, where: Path) -> None:
    with collector(host, where) as running, trainer(host, where):
        running.hold()
        running.kill_with_guard()


def start_again(host: Host, where: Path, _: random.Random) -> float:
    kill_both(host, where)
    begin = time.monotonic()
    with collector(host, where):
        back(host)
        return time.monotonic() - begin


def by_hand(host: Host, where: Path, _: random.Random) -> float:
    kill_both(host, where)
    begin = time.monotonic()
    restore(host, where)
    back(host)
    return time.monotonic() - begin


TRIALS: dict[str, Trial] = {
    "SIGKILL of the collector": kill,
    "SIGTERM of the collector": terminate,
    f"silence of the analyzer (a lease of {LEASE_MS} ms)": silence,
    "SIGKILL of the training process": kill_training,
    "SIGKILL of collector and guard, next start": start_again,
    "SIGKILL of collector and guard, `zeus-stream restore`": by_hand,
}


def weight(running: Collector) -> str:
    """Return what memory a waiting guard takes: all of it, and its share of what others use too."""
    assert running.guard is not None
    lines = Path(f"/proc/{running.guard}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return f"resident {kb['Rss'] / 1000:.1f} MB, of which its own {kb['Private_Dirty'] / 1000:.1f} MB"


def writes_ms(host: Host, where: Path) -> list[float]:
    """Return how long writing a record takes: every change, of a limit or a clock, waits for two."""
    times_ms = []
    with closing(RestoreRecordFile(where / "records", host.gpu)) as file:
        for number in range(WRITES):
            begin_ns = time.perf_counter_ns()
            limits = Limits(UNLOCKED, OURS_MHZ, OURS_MHZ + number)
            file.write(
                RestoreRecord(
                    gpu=host.gpu, limits=limits, boot_id="boot", time="time", control="graphics_clock"
                )
            )
            times_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    rows = []
    for name, trial in TRIALS.items():
        times_s = []
        for _ in range(arguments.trials):
            with directory() as where, simulated(where) as host:
                times_s.append(trial(host, where, rng))
        median_s, slowest_s = statistics.median(times_s), max(times_s)
        met = "met" if slowest_s <= GOAL_S else "MISSED"
        rows.append((name, len(times_s), f"{median_s:.2f}", f"{slowest_s:.2f}", met))
    with directory() as where, simulated(where) as host, collector(host, where) as running:
        weighs = weight(running)
        writes = statistics.quantiles(writes_ms(host, where), n=100)
    table(
        "Until the limit found is back and the clock is unlocked",
        ("after", "trials", "median, s", "slowest, s", f"goal {GOAL_S:g} s"),
        rows,
    )
    print(f"\nA waiting guard: {weighs}.")
    print(f"A record forced to disk, two a change: median {writes[49]:.2f} ms, p99 {writes[98]:.2f} ms.")


if __name__ == "__main__":
    main()
