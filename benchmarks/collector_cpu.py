"""What a collector costs its host: processor time with 8 simulated GPUs at a 100 ms counter.

python benchmarks/collector_cpu.py
"""

import statistics
import time

from common import cpu_seconds, directory, process, table

SECONDS = 10
RUNS = 3


def main() -> None:
    rows = []
    for device in ("simulated:a40x1", "simulated:a40x8"):
        shares = []
        for _ in range(RUNS):
            with directory() as where, process(where, "collect", "--device", device, ready="publish") as pid:
                time.sleep(3)  # the search for the counter's period is over
                before = cpu_seconds(pid)
                time.sleep(SECONDS)
                shares.append((cpu_seconds(pid) - before) / SECONDS * 100)
        rows.append([device, f"{statistics.median(shares):.1f} %", "5 %" if device.endswith("8") else ""])
    table(
        f"Collector, share of a core (median of {RUNS} runs of {SECONDS} s)",
        ["devices", "measured", "goal"],
        rows,
    )


if __name__ == "__main__":
    main()
