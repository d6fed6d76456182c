"""Hold a steady load on one analyzer through the whole path, with every guarantee on.

    python -m benchmarks.load [--rate 300000] [--seconds 60]

A real collector logs, besides its own GPU's, the readings of 10,000 GPUs as they would come in; a real
analyzer follows, archives and interprets. Looked at all the while: how long ago the newest archived frame
was logged (the lag), both processes' memory, and what the log takes on disk. Ends with exit code 1 if a
reading is lost, or if the lag at the end is more than 2 s.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import numpy as np
from msgspec import Struct

from benchmarks.harness import directory, process, sql, table, wait_for
from collectors import service
from collectors.devices.registry import open_bus
from zeus_stream.clock import monotonic_ns
from zeus_stream.protocol.readings import READING_FIELDS, Readings, Seen
from zeus_stream.settings import Settings

HOSTS = 1_250
GPUS_PER_HOST = 8
ROWS = 1_000
"""Of one host, in a frame."""
POWER_MW = 250_000
S = 1_000_000_000
LOOKS = 10
"""Lines of the table."""
MARKS = (0.1, 0.5, 1.0)
"""Parts of the time at which the analyzer's memory is named."""
LOOK_S = 0.2
BEHIND = 20
"""Frames logged in one go when the load is behind its schedule."""
LAG_S = 2.0
BEGIN_S = 0.01
LOOK = "SELECT (SELECT count(*) FROM readings), (SELECT max(logged_ns) FROM logs)"
ARCHIVED = "SELECT count(*) FROM readings WHERE gpu LIKE 'GPU-load-%'"


# ---- the collector ----------------------------------------------------------------------------------------


def readings(rate: float, begin_ns: int) -> Iterator[tuple[int, Readings]]:
    """Give frames of ROWS readings and when each is due, for ever; host after host has its turn."""
    turn_ns = HOSTS * ROWS / rate * S
    ticks = ROWS // GPUS_PER_HOST
    rows = np.zeros(ROWS, np.dtype(list(READING_FIELDS)))
    tick = np.repeat(np.arange(ticks), GPUS_PER_HOST)
    rows["gpu"] = np.tile(np.arange(GPUS_PER_HOST), ticks)
    rows["power_mw"] = rows["limit_mw"] = rows["requested_mw"] = POWER_MW
    number = 0
    while True:
        turn, host = divmod(number, HOSTS)
        number += 1
        due_ns = begin_ns + round(number * ROWS / rate * S)
        rows["t_hi_ns"] = due_ns - turn_ns * (ticks - 1 - tick) / ticks
        rows["t_lo_ns"] = rows["t_hi_ns"] - 1_000_000
        rows["energy_mj"] = (turn * ticks + tick + 1) * (POWER_MW * turn_ns / ticks / S)
        rows["seen"] = np.where((turn == 0) & (tick == 0), Seen.FIRST, Seen.CHANGED)
        gpus = tuple(f"GPU-load-{host}-{gpu}" for gpu in range(GPUS_PER_HOST))
        yield due_ns, Readings(gpus, rows.tobytes())


class Loaded(service.Collector):
    """The real collector, that logs a load beside its own work."""

    rate = 0.0
    frames = 0

    async def _tell_time(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(super()._tell_time)
            tasks.start_soon(self._load)

    async def _load(self) -> None:
        """Begin when the analyzer has come."""
        while not self._server.connected:  # noqa: ASYNC110  (the real service has no event for it)
            await anyio.sleep(BEGIN_S)
        left = self.frames
        for due_ns, body in readings(self.rate, monotonic_ns()):
            if not left:
                return
            wait_ns = due_ns - monotonic_ns()
            if wait_ns > 0 or left % BEHIND == 0:
                await anyio.sleep(max(wait_ns, 0) / S)
            self._journal.readings(body, ROWS)
            left -= 1


def collect(where: Path, rate: float, frames: int) -> None:
    """Be the process of the collector."""
    Loaded.rate, Loaded.frames = rate, frames
    service.Collector = Loaded  # type: ignore[misc]  # what `collect` opens and closes is to be the real thing
    environ = {"ZEUS_STREAM_DIR": str(where)}
    bus = open_bus("simulated:v100x1", where)
    anyio.run(lambda: service.collect(Settings(), bus, environ=environ, started=lambda _: None))


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


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


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
        collector = multiprocessing.get_context("spawn").Process(
            target=collect, args=(where, options.rate, frames)
        )
        collector.start()
        try:
            wait_for((where / "publish").exists, 20)
            assert collector.pid is not None
            with process(where, "analyze", ready="query") as analyzer:
                begin = time.monotonic()
                while time.monotonic() - begin < options.seconds:
                    looks.append(look(where, begin, collector.pid, analyzer))
                    time.sleep(LOOK_S)
                with suppress(TimeoutError):  # the table says what is missing
                    wait_for(lambda: archived(where) >= frames * ROWS, 60)
                took_s, count = time.monotonic() - begin, archived(where)
                gaps = sql(where, "SELECT what, count, reason FROM gaps")
        finally:
            collector.terminate()
            collector.join(20)
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
        ["until", "readings/s", "lag p50 ms", "p99", "max", "collector MB", "analyzer MB", "log MB"],
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
