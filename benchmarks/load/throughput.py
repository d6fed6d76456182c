"""Measure how many readings a second one analyzer takes in, through the whole path.

A collector's log is filled with frames of 1000 readings; then a collector serves it and an analyzer
catches up: log -> socket -> follower -> archive -> interpretation, every guarantee on. Cores are those of the
analyzer and of the process that owns the archive, until all is stored and interpreted. On a busy machine they
are few; readings a second of one core say what it could do, and an empty loop what share of a core there was.

python -m benchmarks.load.throughput [--frames 2000] [--runs 5]
"""

import struct
import time
from collections.abc import Iterator
from operator import truediv
from pathlib import Path
from statistics import median

from benchmarks.harness import empty_loop, options, process, sql, table, used
from collectors.log.sqlite import SqliteLog
from tests.directories import short_directory
from zeus_stream.clock import anchor, boot_id
from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.readings import READING_STRUCT, Readings, Seen

ROWS = 1_000
GPUS = tuple(f"GPU-{number:032x}" for number in range(8))
PERIOD_NS = 1_000_000
LOOK_S = 0.5
"""Between two questions how much is stored: each has all stored that waits."""
DONE = """
SELECT count(*), (SELECT max(interpreted_offset) FROM logs) > {} FROM readings WHERE gpu LIKE 'GPU-000%'
"""
"""The readings that are stored, and whether all are interpreted: the first frame has none."""


def frames(count: int) -> Iterator[tuple[int, bytes]]:
    """Give times and bodies of frames: 8 GPUs at 250 W, counters that changed every ms until now.

    The first has both clocks: without them no reading has a place in the roll-ups.
    """
    both, frame_ns = anchor(), ROWS // len(GPUS) * PERIOD_NS
    begin_ns = both.monotonic_ns - count * frame_ns
    note = ClockAnchored(begin_ns, both.wall_ns - both.monotonic_ns + begin_ns, both.error_ns)
    yield begin_ns, codec.encode(Notes((note,)))
    for frame in range(count):
        rows = bytearray()
        for row in range(ROWS):
            tick = frame * ROWS // len(GPUS) + row // len(GPUS)
            t_ns = begin_ns + tick * PERIOD_NS
            seen = Seen.FIRST if tick == 0 else Seen.CHANGED
            rows += struct.pack(
                READING_STRUCT, t_ns, t_ns + PERIOD_NS // 10, tick * 250, 250_000, 250_000, 250_000,
                1380, 65, 99, row % len(GPUS), seen,
            )  # fmt: skip
        yield begin_ns + (frame + 1) * frame_ns, codec.encode(Readings(GPUS, bytes(rows)))


def fill(where: Path, count: int) -> None:
    log = SqliteLog(where / "log.sqlite", "benchmark", boot_id())
    for t_ns, body in frames(count):
        log.append([("frames/benchmark", body)], t_ns)
    log.close()


def caught_up(count: int) -> tuple[float, float]:
    """Let an analyzer catch up. Return readings a second, and the cores that it took."""
    settings = {"ZEUS_STREAM_LOG_MB": "1000", "ZEUS_STREAM_DEVICE": "simulated:v100x1"}
    with short_directory() as where:
        fill(where, count)
        with (
            process(where, "collect", ready="publish", environ=settings),
            process(where, "analyze", ready="query") as analyzer,
        ):
            begin_s, cpu_s = time.monotonic(), used(analyzer).cpu_s
            while sql(where, DONE.format(count)) != [(count * ROWS, True)]:
                time.sleep(LOOK_S)
            took_s = time.monotonic() - begin_s
            return count * ROWS / took_s, (used(analyzer).cpu_s - cpu_s) / took_s


def main() -> None:
    given = options(__doc__, frames=2_000, runs=5)
    rates, shares, loops = list[float](), list[float](), list[float]()
    for _ in range(given.runs):
        loops.append(empty_loop(0.5))
        rate, share = caught_up(given.frames)
        rates.append(rate)
        shares.append(share)
    row = [
        given.frames * ROWS,
        f"{median(rates):,.0f}",
        f"{median(shares):.2f}",
        f"{min(loops):.0f} to {max(loops):.0f} %",
        f"{median(map(truediv, rates, shares)):,.0f}",
        f"{min(map(truediv, rates, shares)):,.0f}",
        "500,000 at one core",
    ]
    head = "readings | readings/s | cores | empty loop | readings/s of one core | least | goal"
    title = f"Readings through log, feed, follower, archive and interpreter (median of {given.runs} runs)"
    table(title, head, [row])


if __name__ == "__main__":
    main()
