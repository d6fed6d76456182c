"""Measure a collector's processor time with simulated GPUs, in use and unused.

python -m benchmarks.cost.collector_cpu [RUNS]

A collector reads a GPU closely while a session uses it, and for 30 s after; then about once a second. No
session is there: the first figure is from those 30 s, the second from after them.
"""

import statistics
import sys
import time

from benchmarks.harness import cpu_seconds, directory, process, table

SECONDS = 10
SEARCHED_S = 3
"""The search for the counter's period is over."""
UNUSED_S = 34
"""GPUs that no session has used are read seldom."""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows = []
    for device in ("simulated:a40x1", "simulated:a40x8", "simulated:v100x8"):
        shares: dict[int, list[float]] = {SEARCHED_S: [], UNUSED_S: []}
        for _ in range(runs):
            with directory() as where, process(where, "collect", "--device", device, ready="publish") as pid:
                begin = time.monotonic()
                for after_s, found in shares.items():
                    time.sleep(max(0, begin + after_s - time.monotonic()))
                    before = cpu_seconds(pid)
                    time.sleep(SECONDS)
                    found.append((cpu_seconds(pid) - before) / SECONDS * 100)
        rows.append([device, *(f"{statistics.median(found):.1f} %" for found in shares.values())])
    table(
        f"Collector, share of a core (median of {runs} runs of {SECONDS} s)",
        ["devices", "read closely", "unused"],
        rows,
    )


if __name__ == "__main__":
    main()
