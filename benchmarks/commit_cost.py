"""Processor time of the archive's commits for one GPU at 40 steps/s, by how often is committed.

python benchmarks/commit_cost.py [--seconds 20]

Every 50 ms come a frame of readings (3 rows) and a frame of events (2 steps); both steps become rows of
``windows``. As it was: a commit of the frames and one of the rows, 20 times a second. As it is: all of it
in one commit a second. Without rows: readings alone, as on a GPU that no run uses. Nothing was tuned on it.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from analyzers.archive.duckdb_file import Archive
from analyzers.results.readings import READING
from analyzers.results.rows import Row
from benchmarks.common import directory, table
from tests.analyzers.archives import FOUND, RUN, A, frame, window
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import CollectorStarted, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

TICK_S = 0.05
STEP_NS = 25_000_000
TICKS = 20
"""A second."""


class Stream:
    """The rows of one GPU and one training."""

    def __init__(self) -> None:
        self.offset = 0
        self.step = 0

    def frame(self, body: Body) -> tuple[Frame, Body]:
        self.offset += 1
        return frame(self.offset - 1, body)

    def tick(self, *, steps: bool) -> tuple[list[tuple[Frame, Body]], list[Row]]:
        """Return the frames of 50 ms and the rows derived from them."""
        rows = np.zeros(3, READING)
        rows["t_lo_ns"] = self.step * STEP_NS
        rows["t_hi_ns"] = rows["t_lo_ns"] + 1000
        rows["power_mw"] = 200_000
        frames = [self.frame(Readings((A,), rows.tobytes()))]
        if not steps:
            self.step += 2
            return frames, []
        first = self.step
        self.step += 2
        events = tuple(
            StepBoundary(step, step * STEP_NS, (step + 1) * STEP_NS) for step in (first, first + 1)
        )
        frames.append(self.frame(Events(RUN.session, first, 1000, 7, events)))
        return frames, [replace(window("step", step, 10, 11, A), index=step) for step in (first, first + 1)]


def measure(path: Path, seconds: int, put: Callable[[Archive, Stream], int]) -> tuple[float, float, int]:
    """Return ms of processor time a commit (median), and a second, and rows a second."""
    archive = Archive.open(path, Settings())
    stream = Stream()
    began = CollectorStarted(
        t_ns=0,
        incarnation="inc-1",
        version="0.1.0",
        boot_id="boot-1",
        wall_ns=RUN.began_wall_ns,
        wall_error_ns=500,
        observe=False,
    )
    archive.put([[stream.frame(Notes((began, FOUND)))]], [RUN])
    took, commits = [], 0
    for _ in range(seconds):
        before = time.process_time()
        commits += put(archive, stream)
        took.append(1000 * (time.process_time() - before))
    archive.close()
    return sum(took) / commits, statistics.median(took), commits // seconds


def twenty(archive: Archive, stream: Stream) -> int:
    for _ in range(TICKS):
        frames, rows = stream.tick(steps=True)
        archive.put([frames])
        archive.put([], rows, {"log-1": stream.offset})
    return 2 * TICKS


def one(archive: Archive, stream: Stream, *, steps: bool = True) -> int:
    parts = [stream.tick(steps=steps) for _ in range(TICKS)]
    rows = [row for _, rows in parts for row in rows]
    archive.put([frames for frames, _ in parts], rows, {"log-1": stream.offset})
    return 1


def idle(archive: Archive, stream: Stream) -> int:
    return one(archive, stream, steps=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=20)
    seconds = parser.parse_args().seconds
    rows = []
    for name, put in (("frames, rows, every 50 ms", twenty), ("all, once a second", one), ("no run", idle)):
        with directory() as where:
            commit_ms, second_ms, commits = measure(where / "energy.duckdb", seconds, put)
        a_row = 20 * (3 + (4 if put is not idle else 0))
        rows.append(
            [
                name,
                commits,
                f"{commit_ms:.1f} ms",
                f"{second_ms:.0f} ms",
                f"{1000 * second_ms / a_row:.0f} us",
            ]
        )
    table(
        "Processor time of commits",
        ["committed", "commits/s", "CPU a commit", "CPU a second", "CPU a row"],
        rows,
    )


if __name__ == "__main__":
    main()
