"""Measure the search for a power limit on a busy host, beside an idle one: its time, and how right it is.

    python -m benchmarks.noise.busy [--trials 20] [--load 10] [--gpus 4] [--step-ms 25] [--nice -5] [--idle 3]

Each trial has a collector, an analyzer and one training on all simulated V100s (counter of 20 ms), in its own
directory; a busy one has ``--load`` processes beside it that take all processor time they get. Measured: the
time from the first step to the decision, and how much dearer the chosen limit is than the best: energy and
busy time of the GPUs by their model, and beside them the time that a step of this host waited, which is the
same at every limit. A trial without a decision within `PATIENCE_S` counts as missed. Exit code 1 unless
every busy trial decides within twice the idle median and within 0.5 % of the best cost.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec import Struct

from benchmarks.harness import directory, options, script, services, spread, sql, table, wait_for
from zeus_stream.settings import Settings
from zeus_stream.simulated_gpu.workloads import load

GOAL_TIMES, GOAL_PERCENT = 2.0, 0.5
PATIENCE_S = 300.0
WORKLOAD = load()["v100"].workloads["imagenet"]
TRAINING = """
import sys, zeus_stream
from zeus_stream import simulated
accelerator = simulated.attach("imagenet")
for _ in zeus_stream.steps(iter(int, 1)):
    accelerator.run(float(sys.argv[1]))
"""
STRESS = "while True:\n    pass"
DECIDED = """
SELECT power_limit_w, reason, step_s,
    (decisions.t_ns - (SELECT min(t_ns) FROM events WHERE kind = 'step_boundary')) / 1e9
FROM decisions WHERE applied AND power_limit_w IS NOT NULL ORDER BY decisions.number LIMIT 1
"""
LATE = "SELECT max(outcome_ns - asked_ns) / 1e9 FROM commands WHERE outcome = 'applied'"


class Trial(Struct, frozen=True):
    """One search."""

    decided_s: float | None
    """From the first step; None: it did not decide."""
    excess_percent: float | None
    """Cost of the chosen limit over the least."""
    late_s: float
    """The slowest limit, from when it was asked for, in frame time, until it was in force."""


def cost(limit_mw: int, eta: float = 0.5) -> float:
    """Return eta x energy + (1 - eta) x highest limit x time of a unit of work."""
    return WORKLOAD.slowdown(limit_mw) * (
        eta * WORKLOAD.power_mw(limit_mw) + (1 - eta) * WORKLOAD.top_limit_mw
    )


def excess_percent(limit_mw: int, step_s: float, work_s: float, eta: float = 0.5) -> float:
    """Return by how much a limit costs more than the best of those that a search chooses from.

    Args:
        limit_mw: that was chosen.
        step_s: time of a step at this limit, as it was measured.
        work_s: time of a step's work at the highest limit. What ``step_s`` has beyond it is waited for the
            host, at every limit, and counted without the energy that an idle GPU takes: at its least.
        eta: weight of energy.
    """
    stride_mw = round(Settings().stride_w * 1000)
    limits_mw = range(WORKLOAD.top_limit_mw, load()["v100"].min_limit_mw - 1, -stride_mw)
    waits = max(0.0, step_s / work_s - WORKLOAD.slowdown(limit_mw)) * (1 - eta) * WORKLOAD.top_limit_mw
    return 100 * ((cost(limit_mw) + waits) / (min(map(cost, limits_mw)) + waits) - 1)


@contextmanager
def stress(count: int) -> Iterator[None]:
    """Run processes that take all processor time they get."""
    with ExitStack() as held:
        for _ in range(count):
            running = held.enter_context(subprocess.Popen([sys.executable, "-c", STRESS]))
            held.callback(running.kill)
        yield


def trial(gpus: int, step_ms: float, busy: int, nice: int) -> Trial:
    """Run one search, beside so many busy processes."""
    environ = {"ZEUS_STREAM_NICE": str(nice)}
    with directory() as where, services(where, f"simulated:v100x{gpus}", environ=environ), stress(busy):
        found: list[tuple[object, ...]] = []

        def decided() -> bool:
            time.sleep(1.0)
            found[:] = sql(where, DECIDED)
            return bool(found)

        with script(where, TRAINING, str(step_ms / 1000), ZEUS_STREAM_GPUS="all"):
            try:
                wait_for(decided, PATIENCE_S)
            except TimeoutError:
                return Trial(None, None, _late_s(where))
        limit_w, reason, *times = found[0]
        step_s, decided_s = (float(str(each)) for each in times)
        excess = excess_percent(round(float(str(limit_w)) * 1000), step_s, step_ms / 1000)
        print(
            f"{'busy' if busy else 'idle'}: {limit_w} W after {decided_s:.1f} s, {excess:.2f} % dearer than"
            f" the best, a step took {1000 * step_s:.1f} ms: {reason}",
            file=sys.stderr,
        )
        return Trial(decided_s, excess, _late_s(where))


def _late_s(where: object) -> float:
    [(late_s,)] = sql(where, LATE)  # type: ignore[arg-type]
    return float(str(late_s or 0.0))


def row(name: str, trials: list[Trial]) -> list[object]:
    times = [each.decided_s for each in trials if each.decided_s is not None]
    excess = [each.excess_percent for each in trials if each.excess_percent is not None]
    late_s = max((each.late_s for each in trials), default=0.0)
    if not times:
        return [name, f"0 of {len(trials)}", "-", "-", f"{late_s:.1f} s"]
    return [
        name,
        f"{len(times)} of {len(trials)}",
        spread(times, "s"),
        f"{statistics.median(excess):.2f}, {max(excess):.2f} %",
        f"{late_s:.1f} s",
    ]


def main() -> int:
    chosen = options(__doc__, trials=20, idle=3, load=10, gpus=4, step_ms=25.0, nice=0)
    load_before = os.getloadavg()[0]
    idle = [trial(chosen.gpus, chosen.step_ms, 0, 0) for _ in range(chosen.idle)]
    busy = [trial(chosen.gpus, chosen.step_ms, chosen.load, chosen.nice) for _ in range(chosen.trials)]
    table(
        f"A search with {chosen.gpus} GPUs and steps of {chosen.step_ms:g} ms; load of the machine before"
        f" {load_before:.1f}, {chosen.load} busy processes beside the busy trials, niceness {chosen.nice}",
        "host | decided | after: median (range) | dearer than the best: median, worst | slowest limit",
        [row("idle", idle), row("busy", busy)],
    )
    times = [each.decided_s for each in idle if each.decided_s is not None]
    if not times:
        return 1
    most_s = GOAL_TIMES * statistics.median(times)
    good = [
        each.decided_s is not None
        and each.decided_s <= most_s
        and (each.excess_percent or 0.0) <= GOAL_PERCENT
        for each in busy
    ]
    print(f"\n{sum(good)} of {len(good)} busy trials within {most_s:.1f} s and {GOAL_PERCENT} %")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
