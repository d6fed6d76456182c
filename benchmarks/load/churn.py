"""The memory of a host's services while sessions come and go.

    python -m benchmarks.load.churn [--minutes 60] [--sessions 100] [--life 15]

As many sessions as given are open at a time, each for so many seconds, with 10 steps a second. After the
first third, in which what is remembered reaches its bounds, the slope of the memory is fitted: resident
memory of the collector, the analyzer and its store, every two seconds. The exit code is 1 if a slope is
surely above `GOAL`.
"""

import multiprocessing
import socket
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import directory, memory_mb, options, services, table, with_children
from benchmarks.load.session_load import Steps, parts_of, send
from collectors.devices.simulated_spec import parse

GOAL = 0.2
"""MB a minute."""
GPUS = 4
RATE = 10
LOOK_S = 2.0
OPTIONS = ("--select", "none", "--memory-mb", "128")
"""The memory that DuckDB may have is full soon."""
BLOCKS = 10
"""Of the samples: their slopes give the interval."""


def _is_past(end_s: float) -> bool:
    return time.monotonic() > end_s


def come_and_go(where: Path, name: str, sessions: int, life_s: float) -> None:
    """Send generations of sessions until killed."""
    device = f"simulated:v100x{GPUS}"
    gpus = [spec.uuid(index, socket.gethostname()) for index, spec in enumerate(parse(device))]
    generation = 0
    while True:
        made = [Steps(f"{name}-{generation}-{n}", gpus[n % GPUS], RATE) for n in range(sessions)]
        send(where, {each.session: each for each in made}, partial(_is_past, time.monotonic() + life_s))
        generation += 1


def slope(at_min: np.ndarray, mb: np.ndarray) -> tuple[float, float]:
    """Return MB a minute and half of its 95 % interval; errors of one block of time are taken as one."""
    x, y = at_min - at_min.mean(), mb - mb.mean()
    found = float((x * y).sum() / (x * x).sum())
    errors = [
        float((a * b).sum())
        for a, b in zip(np.array_split(x, BLOCKS), np.array_split(y - found * x, BLOCKS), strict=True)
    ]
    return found, 2.26 * float(np.sqrt(np.sum(np.square(errors)))) / float((x * x).sum())


def main() -> int:
    given = options(__doc__, minutes=60.0, sessions=100, life=15.0)
    samples: list[tuple[float, ...]] = []
    with (
        directory() as where,
        services(where, f"simulated:v100x{GPUS}", *OPTIONS) as (host, reader),
    ):
        spawn = multiprocessing.get_context("spawn")
        loads = [
            spawn.Process(target=come_and_go, args=(where, f"p{n}", count, given.life), daemon=True)
            for n, count in enumerate(parts_of(given.sessions))
        ]
        for load in loads:
            load.start()
        begin_s = time.monotonic()
        pids = [host, *with_children(reader)]
        while (passed_s := time.monotonic() - begin_s) < 60 * given.minutes:
            samples.append((passed_s / 60, *map(memory_mb, pids)))
            if len(samples) % 30 == 0:
                print(*(f"{each:.1f}" for each in samples[-1]), file=sys.stderr, flush=True)
            time.sleep(LOOK_S)
        for load in loads:
            load.kill()
            load.join()
    names = ("collector", "analyzer", *(f"its child {n}" for n in range(1, len(pids) - 1)))
    measured = np.array(samples)
    later = measured[measured[:, 0] >= measured[-1, 0] / 3]
    found = [slope(later[:, 0], later[:, n]) for n in range(1, len(names) + 1)]
    table(
        f"{given.sessions} sessions of {given.life:g} s at a time, for {given.minutes:g} minutes",
        ("process", "MB at the end", "MB a minute", "goal"),
        [
            (name, f"{mb:.0f}", f"{mean:+.2f} ± {half:.2f}", f"< {GOAL}")
            for name, mb, (mean, half) in zip(names, measured[-1, 1:], found, strict=True)
        ],
    )
    return int(any(mean - half > GOAL for mean, half in found))


if __name__ == "__main__":
    sys.exit(main())
