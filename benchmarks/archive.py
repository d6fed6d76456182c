"""Measure how fast the archive takes readings in, by frames a commit, and the cost of a query of energy.

python benchmarks/archive.py
"""

import statistics
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from analyzers.archive.duckdb_file import Archive
from analyzers.archive.query import read_file
from analyzers.results.readings import READING
from benchmarks.common import directory, table
from zeus_stream.protocol.frames import Frame
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.settings import Settings

ROWS = 1_000
"""Readings a frame."""
READINGS = 500_000
GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(8))
PERIOD_NS = 20_000_000
GOAL = 350_000


def readings(offset: int) -> tuple[Frame, Readings]:
    """Return a frame of 8 GPUs at 200 to 300 W, read every 20 ms."""
    number = np.arange(offset * ROWS, (offset + 1) * ROWS)
    tick = number // len(GPUS)
    rows = np.full(ROWS, -1).astype(READING)
    rows["t_lo_ns"] = tick * PERIOD_NS
    rows["t_hi_ns"] = rows["t_lo_ns"] + 150_000
    rows["energy_mj"] = tick * 5_000
    rows["power_mw"] = 200_000 + number * 7919 % 100_000
    rows["limit_mw"] = rows["requested_mw"] = 300_000
    rows["gpu"] = number % len(GPUS)
    rows["seen"] = Seen.CHANGED
    frame = Frame(
        log_id="log",
        offset=offset,
        host="host",
        t_ns=int(rows["t_hi_ns"][-1]),
        topic="readings/host",
        body=b"",
    )
    return frame, Readings(GPUS, rows.tobytes())


def append(path: Path, frames: Sequence[tuple[Frame, Readings]], frames_a_commit: int) -> list[float]:
    """Return how long each commit took, s."""
    archive = Archive.open(path, Settings())
    took = []
    for at in range(0, len(frames), frames_a_commit):
        began = time.perf_counter()
        archive.put_frames(frames[at : at + frames_a_commit])
        took.append(time.perf_counter() - began)
    archive.close()
    return took


def ask(path: Path, query: str) -> float:
    """Return how long a shipped query takes, s, with the file opened for it."""
    sql = files("analyzers.archive").joinpath(f"queries/{query}.sql").read_text(encoding="utf-8")
    began = time.perf_counter()
    assert read_file(path, sql, Settings()).num_rows
    return time.perf_counter() - began


def main() -> None:
    frames = [readings(offset) for offset in range(READINGS // ROWS)]
    rows = []
    for frames_a_commit in (1, 2, 4, 10):
        with directory() as where:
            took = append(where / "energy.duckdb", frames, frames_a_commit)
            asked = {query: ask(where / "energy.duckdb", query) for query in ("between", "power")}
            size = (where / "energy.duckdb").stat().st_size
        rate = READINGS / sum(took)
        quantiles = statistics.quantiles(took, n=100)
        rows.append(
            [
                frames_a_commit,
                f"{rate / 1000:.0f} k/s",
                f"{quantiles[49] * 1000:.1f} ms",
                f"{quantiles[98] * 1000:.1f} ms",
                f"{size / READINGS:.0f}",
                f"{GOAL // 1000} k/s",
            ]
        )
    head = ["frames of 1000 readings a commit", "readings", "commit p50", "p99", "bytes a reading", "goal"]
    table(f"Archive, {READINGS} readings appended", head, rows)
    answers = [[query, f"{seconds * 1000:.0f} ms"] for query, seconds in asked.items()]
    table(f"Archive, {READINGS} readings asked", ["query", "took"], answers)


if __name__ == "__main__":
    main()
