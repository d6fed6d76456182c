"""Hold a steady load on one analyzer through the whole path, with every guarantee on.

    python -m benchmarks.load [--rate 300000] [--seconds 60]
    python -m benchmarks.load --sessions 100 [--seconds 20]

A real collector logs, besides its own GPU's, the readings of 10,000 GPUs as they would come in, or with
``--sessions`` the readings and 200 steps a second of so many runs. A real analyzer follows, archives and
interprets. A training on the collector's own GPU has its power limit searched for, so leases are held all the
while. The status is asked for five times a second: how far the analyzer is behind, and how long the answer
takes.

The exit code is 1 if anything is lost, a lease lapses, or a goal is missed.
"""

import argparse
import os
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import (
    judged,
    memory_mb,
    options,
    process,
    script,
    sentences,
    sql,
    used,
    wait_for,
)
from benchmarks.load.loaded_collector import (
    AFTER_S,
    GPUS_PER_HOST,
    HOSTS,
    RATE,
    ROWS,
    Load,
    loaded_collector,
    readings_of_hosts,
    steps_of_sessions,
)
from tests.directories import short_directory
from zeus_stream.errors import ZeusStreamError
from zeus_stream.paths import Places
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import ControlLeaseEnded, Notes
from zeus_stream.transport.client import status

GOAL_LAG_S, GOAL_STATUS_MS = 2.0, 250.0
LOOK_S = 0.2
PATIENCE_S = 600.0
"""Until all is stored: on a busy host the collector, which has the load to log, falls behind first."""
HELD = """
import zeus_stream
from zeus_stream import simulated
accelerator = simulated.attach("imagenet")
for _ in zeus_stream.steps(range(10**9)):
    accelerator.run(0.05)
"""
READINGS = "SELECT count(*) FROM readings WHERE gpu LIKE 'GPU-load-%'"
STEPS = "SELECT count(*) FROM windows WHERE kind = 'step' AND run LIKE 'load-%'"


class Seen(NamedTuple):
    """A status."""

    lag_s: float
    took_ms: float
    memory_mb: float


def look(where: Path, seconds: float, analyzer: int) -> tuple[list[Seen], int]:
    """Ask for the status again and again. Return what it says, and the number without an answer."""
    seen, silent = list[Seen](), 0
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        try:
            rows = status(Places(where, where), "analyzer", 5.0).rows
        except ZeusStreamError:
            silent += 1
        else:
            took_ms = 1000 * (time.monotonic() - began)
            lag_s = next(float(value.split()[0]) for _, name, value in rows if name == "behind by")
            seen.append(Seen(lag_s, took_ms, memory_mb(analyzer)))
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began)))
    return seen, silent


def leases_ended(where: Path) -> Counter[str]:
    """Return how many leases have ended, by cause."""
    with closing(sqlite3.connect(f"file:{where / 'log.sqlite'}?mode=ro", uri=True)) as database:
        bodies = database.execute("SELECT body FROM frames WHERE topic LIKE 'notes/%'").fetchall()
    notes = [note for (body,) in bodies for note in codec.decode(body, Notes).notes]
    return Counter(note.cause for note in notes if isinstance(note, ControlLeaseEnded))


def wanted_load(given: argparse.Namespace) -> tuple[str, Load, int, str]:
    """Return the words for a load, the load, its items, and the query that counts those that are stored."""
    if given.sessions:
        load = partial(steps_of_sessions, given.sessions, given.seconds)
        items = given.sessions * (round(RATE * given.seconds) - 1)
        return f"{given.sessions} sessions x {RATE} steps/s", load, items, STEPS
    frames = round(given.rate * given.seconds / ROWS)
    words = f"{given.rate:,.0f} readings/s of {HOSTS * GPUS_PER_HOST:,} GPUs"
    return words, partial(readings_of_hosts, given.rate, frames), frames * ROWS, READINGS


def measure(where: Path, given: argparse.Namespace) -> int:
    """Hold the load once. Return 1 if a goal is missed."""
    what, load, items, count = wanted_load(given)
    seconds = given.seconds + (AFTER_S if given.sessions else 0)
    with (
        loaded_collector(where, load),
        process(where, "analyze", ready="query") as analyzer,
        script(where, HELD),
    ):
        began_s, before = time.monotonic(), used(analyzer)
        seen, silent = look(where, seconds, analyzer)
        cores = (used(analyzer).cpu_s - before.cpu_s) / seconds
        with suppress(TimeoutError):
            wait_for(lambda: int(str(sql(where, count)[0][0])) >= items, PATIENCE_S)
        took_s, found = time.monotonic() - began_s, int(str(sql(where, count)[0][0]))
        gaps, ended = sql(where, "SELECT what, count, reason FROM gaps"), leases_ended(where)
    lags, took_ms = [each.lag_s for each in seen], [each.took_ms for each in seen]
    p99_ms, lapsed = float(np.quantile(took_ms, 0.99)), ended["lapsed"]
    late_s = max(lags) if given.sessions else lags[-1]
    lagging = ", ".join(f"{lag:.1f}" for lag in (*np.quantile(lags, (0.5, 0.99, 1)), lags[-1]))
    marks = [seen[min(round(part * len(seen)), len(seen) - 1)].memory_mb for part in (0.1, 0.5, 1)]
    rows = [
        ("stored of those logged", f"{found:,} of {items:,}", "all"),
        ("a second, until all is stored", f"{found / took_s:,.0f}", ""),
        ("rows in gaps", len(gaps), 0),
        ("behind by: p50, p99, worst, at the end", f"{lagging} s", f"{GOAL_LAG_S:g} s"),
        ("status, median and p99", f"{np.median(took_ms):.0f}, {p99_ms:.0f} ms", f"{GOAL_STATUS_MS:g} ms"),
        ("status without an answer", silent, 0),
        ("leases that lapsed (ended otherwise)", f"{lapsed} ({ended.total() - lapsed})", 0),
        ("cores of analyzer and store", f"{cores:.2f}", ""),
        ("their memory after a tenth, half and all", f"{', '.join(f'{mb:.0f}' for mb in marks)} MB", ""),
    ]
    wrong = sentences(
        (f"{items - found} are not stored.", found < items),
        *((f"a gap: {gap}", True) for gap in gaps[:5]),
        (f"{lapsed} leases lapsed.", lapsed),
        (f"{silent} times there was no status.", silent),
        (f"the analyzer was behind by {late_s:.1f} s.", late_s > GOAL_LAG_S),
        (f"a status took {p99_ms:.0f} ms.", p99_ms > GOAL_STATUS_MS),
    )
    title = f"{what} for {seconds:g} s through one analyzer, load {os.getloadavg()[0]:.1f}"
    return judged(title, " | found | goal", rows, wrong)


def main() -> int:
    given = options(__doc__, rate=300_000.0, sessions=0, seconds=60.0)
    with short_directory() as where:
        return measure(where, given)


if __name__ == "__main__":
    sys.exit(main())
