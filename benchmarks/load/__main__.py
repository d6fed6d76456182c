"""Hold a steady load on one analyzer through the whole path, with every guarantee on.

    python -m benchmarks.load [--rate 300000] [--seconds 60]

A real collector logs, besides its own GPU's, the readings of 10,000 GPUs as they would come in; a real
analyzer follows, archives and interprets. Looked at all the while: how long ago the newest archived frame
was logged (the lag), both processes' memory, and what the log takes on disk. Ends with exit code 1 if a
reading is lost, or if the lag at the end is more than 2 s.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from benchmarks.harness import directory, memory_mb, process, sql, table, wait_for
from benchmarks.load.loaded_collector import GPUS_PER_HOST, HOSTS, ROWS, S, loaded_collector, log_load
from zeus_stream.clock import monotonic_ns

LOOKS = 10
"""Lines of the table."""
MARKS = (0.1, 0.5, 1.0)
"""Parts of the time at which the analyzer's memory is named."""
LOOK_S = 0.2
LAG_S = 2.0
LOOK = "SELECT (SELECT count(*) FROM readings), (SELECT max(logged_ns) FROM logs)"
ARCHIVED = "SELECT count(*) FROM readings WHERE gpu LIKE 'GPU-load-%'"


# ---- looking on -------------------------------------------------------------------------------------------


class Look(Struct, frozen=True):
    """An observation at one time."""

    at_s: float
    lag_s: float
    readings: int
    collector_mb: float
    analyzer_mb: float
    log_mb: float


def look(where: Path, begin: float, collector: int, analyzer: int) -> Look:
    [(count, logged_ns)] = sql(where, LOOK)
    lag_s = 0.0 if logged_ns is None else (monotonic_ns() - int(str(logged_ns))) / S
    log_mb = sum(path.stat().st_size for path in where.glob("log.sqlite*")) / 1e6
    at_s = time.monotonic() - begin
    return Look(at_s, lag_s, int(str(count)), memory_mb(collector), memory_mb(analyzer), log_mb)


def archived(where: Path) -> int:
    return int(str(sql(where, ARCHIVED)[0][0]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=300_000, help="readings a second")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    frames = round(options.rate * options.seconds / ROWS)
    looks: deque[Look] = deque()
    with directory() as where:
        load = partial(log_load, options.rate, frames)
        with loaded_collector(where, load) as collector, process(where, "analyze", ready="query") as analyzer:
            begin = time.monotonic()
            while time.monotonic() - begin < options.seconds:
                looks.append(look(where, begin, collector, analyzer))
                time.sleep(LOOK_S)
            with suppress(TimeoutError):  # the table says what is missing
                wait_for(lambda: archived(where) >= frames * ROWS, 60)
            took_s, count = time.monotonic() - begin, archived(where)
            gaps = sql(where, "SELECT what, count, reason FROM gaps")
    if count < frames * ROWS:
        print(f"not archived in time: {frames * ROWS - count:,} readings", file=sys.stderr)
    status = report(list(looks), options.seconds, count / took_s, gaps)
    return status if count >= frames * ROWS else 1


def report(looks: list[Look], seconds: float, rate: float, gaps: list[tuple[object, ...]]) -> int:
    lines = []
    before = looks[0]
    for number in range(LOOKS):
        part = [seen for seen in looks if number <= seen.at_s / seconds * LOOKS < number + 1]
        if not part:
            continue
        lag_ms = [1000 * seen.lag_s for seen in part]
        per_s = (part[-1].readings - before.readings) / max(part[-1].at_s - before.at_s, LOOK_S)
        before = part[-1]
        lines.append(
            [
                f"{part[-1].at_s:.0f} s",
                f"{per_s:,.0f}",
                *(f"{figure:.0f}" for figure in (np.median(lag_ms), np.quantile(lag_ms, 0.99), max(lag_ms))),
                f"{part[-1].collector_mb:.0f}",
                f"{part[-1].analyzer_mb:.0f}",
                f"{part[-1].log_mb:.0f}",
            ]
        )
    table(
        f"{rate:,.0f} readings/s of {HOSTS * GPUS_PER_HOST:,} GPUs through one analyzer; {len(gaps)} gaps",
        "until | readings/s | lag p50 ms | p99 | max | collector MB | analyzer MB | log MB",
        lines,
    )
    lag_ms = [1000 * seen.lag_s for seen in looks]
    lags = (np.median(lag_ms), np.quantile(lag_ms, 0.99), max(lag_ms))
    marked = [
        next(seen for seen in looks if seen.at_s >= min(part * seconds, looks[-1].at_s)) for part in MARKS
    ]
    table(
        f"The same over all of {seconds:.0f} s",
        ["readings/s", "lag p50 ms", "p99", "worst", *(f"MB at {part:.0%}" for part in MARKS), "gaps"],
        [
            [
                f"{rate:,.0f}",
                *(f"{figure:.0f}" for figure in lags),
                *(f"{seen.analyzer_mb:.0f}" for seen in marked),
                len(gaps),
            ]
        ],
    )
    for gap in gaps:
        print(f"a gap: {gap}", file=sys.stderr)
    return 1 if gaps or looks[-1].lag_s > LAG_S else 0


if __name__ == "__main__":
    sys.exit(main())
