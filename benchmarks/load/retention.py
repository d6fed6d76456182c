"""Measure how large an archive of 8 GPUs becomes in a year, and check that it stops growing.

python -m benchmarks.load.retention [--hours 8]

Some hours are stored as collectors send them, with ages of a few hours, and old rows are removed hourly.
The size of the file by hour shows whether it grows. At the end most rows are removed and the file is
compacted. Bytes a row of each table, times the rows that the defaults keep, give the size after a year.
"""

import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.repair import compact
from analyzers.results.readings import READING
from analyzers.results.rows import WindowRow
from benchmarks.harness import directory, options, table
from tests.analyzers.archives import BOOTED_NS, LOG, RUN, SECOND, frame, frames, window
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.settings import Settings

HOURS = 8
GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(8))
A_SECOND = 10
"""Changes of a counter."""
FRAME_S = 2
PUT_S = 60
HOUR = 1 / 24
KEPT = Settings(
    keep_readings_days=3 * HOUR, keep_seconds_days=6 * HOUR, keep_minutes_days=0, keep_steps_days=6 * HOUR
)
BLOCK = 262_144
YEAR_DAYS = 365
A_DAY = {
    "readings": 86_400 * A_SECOND,
    "seconds": 86_400,
    "windows": 86_400,
    "events": 86_400,
    "frames": 43_200,
    "minutes": 1440,
    "hours": 24,
}
"""Rows of one GPU and one rank, at one step a second; a frame of events every two seconds."""


class Load:
    """Counters of GPUs under a load that varies."""

    def __init__(self, seed: int = 7) -> None:
        self._rng = np.random.default_rng(seed)
        self._energy_mj = np.zeros(len(GPUS), np.int64)

    def readings(self, begin_s: int) -> Readings:
        """Return what FRAME_S of sampling give."""
        rows = np.zeros(FRAME_S * A_SECOND * len(GPUS), READING)
        count = FRAME_S * A_SECOND
        power_mw = self._rng.integers(150_000, 300_000, (count, len(GPUS)))
        energy_mj = self._energy_mj + np.cumsum(power_mw // A_SECOND, axis=0)
        self._energy_mj = energy_mj[-1]
        ticks_ns = (begin_s * SECOND + np.arange(count) * SECOND // A_SECOND)[:, None]
        late_ns = self._rng.integers(0, 3_000_000, (count, len(GPUS)))
        rows["t_hi_ns"] = (ticks_ns + late_ns).ravel()
        rows["t_lo_ns"] = rows["t_hi_ns"] - self._rng.integers(100_000, 1_000_000, rows.shape)
        rows["energy_mj"], rows["power_mw"] = energy_mj.ravel(), power_mw.ravel()
        rows["limit_mw"] = rows["requested_mw"] = 300_000
        rows["clock_mhz"] = self._rng.integers(1200, 1500, rows.shape)
        rows["temperature_c"], rows["utilization_pct"] = 60 + begin_s // 60 % 10, 97
        rows["gpu"] = np.tile(np.arange(len(GPUS)), count)
        rows["seen"] = Seen.CHANGED
        return Readings(GPUS, rows.tobytes())

    def step(self, second: int, gpu: str) -> WindowRow:
        """Return a step of a second."""
        energy_j = float(self._rng.normal(220, 20))
        return replace(
            window("step", second, second, second + 1, None),
            gpu=gpu,
            energy_j=energy_j,
            energy_low_j=energy_j - self._rng.random(),
            energy_high_j=energy_j + self._rng.random(),
            energy_p2_5_j=energy_j - self._rng.random() / 2,
            energy_p97_5_j=energy_j + self._rng.random() / 2,
            phase_coverage=self._rng.random(),
        )


def minute(load: Load, offset: int, begin_s: int) -> tuple[list[tuple[Frame, Body]], list[WindowRow]]:
    """Return what comes in during a minute, and what is derived from it."""
    bodies: list[tuple[int, Body]] = []
    for second in range(begin_s, begin_s + PUT_S, FRAME_S):
        bodies.append((second + FRAME_S, load.readings(second)))
        steps = tuple(
            StepBoundary(each, each * SECOND, each * SECOND) for each in range(second, second + FRAME_S)
        )
        bodies.append((second + FRAME_S, Events(RUN.session, second, 1000, 7, steps)))
    end_ns = (begin_s + PUT_S) * SECOND
    bodies.append((begin_s + PUT_S, Notes((ClockAnchored(end_ns, BOOTED_NS + end_ns, 500),))))
    stored = [
        frame(offset + number, body, t_ns=second * SECOND) for number, (second, body) in enumerate(bodies)
    ]
    rows = [load.step(second, gpu) for second in range(begin_s, begin_s + PUT_S) for gpu in GPUS]
    return stored, rows


def bytes_a_row(archive: DuckdbFile, name: str) -> float:
    """Return the space of a table on disk, by its blocks, for each row."""
    blocks = f"FROM pragma_storage_info('{name}') SELECT count(DISTINCT block_id) WHERE persistent"
    with archive.file.cursor() as cursor:
        [(used,)] = cursor.execute(blocks).fetchall()
        [(rows,)] = cursor.execute(f"FROM {name} SELECT count(*)").fetchall()
    return float(used * BLOCK / max(rows, 1))


def shrink(path: Path, now_ns: int) -> str:
    """Remove what is old then, and compact the file: what that gave."""
    archive = DuckdbFile.open(path, Settings())
    archive.prune(KEPT, now_ns)
    archive.close()
    before_mb, began_s = path.stat().st_size / 1e6, time.process_time()
    compact(path, Settings())
    took_s, after_mb = time.process_time() - began_s, path.stat().st_size / 1e6
    return f"Eight hours later {before_mb:.0f} MB were compacted to {after_mb:.0f} MB in {took_s:.1f} s."


def main() -> None:
    hours = options(__doc__, hours=HOURS).hours
    load, offset, sizes, pruned_s = Load(), 1, [], []
    with directory() as where:
        path = where / "energy.duckdb"
        archive = DuckdbFile.open(path, Settings())
        archive.put([[next(frames())]], [RUN])
        began_s = time.process_time()
        for hour in range(hours):
            for begin_s in range(hour * 3600, (hour + 1) * 3600, PUT_S):
                stored, rows = minute(load, offset, begin_s)
                offset += len(stored)
                run = f"run-{hour}"  # a run an hour: the steps of a run go together
                archive.put([stored], [replace(row, run=run, session=run) for row in rows], {LOG: offset})
            now_ns = BOOTED_NS + (hour + 1) * 3600 * SECOND
            at_s = time.process_time()
            archive.prune(KEPT, now_ns)
            pruned_s.append(time.process_time() - at_s)
            archive.flush()
            sizes.append(path.stat().st_size)
        took_s = time.process_time() - began_s
        a_row = {
            name: bytes_a_row(archive, name)
            for name in ("readings", "seconds", "windows", "events", "frames")
        }
        archive.close()
        shrunk = shrink(path, now_ns + 8 * 3600 * SECOND)
    a_row |= {"minutes": a_row["seconds"], "hours": a_row["seconds"]}
    kept_days = {
        "readings": 7,
        "seconds": 14,
        "windows": 90,
        "events": 90,
        "frames": 90,
        "minutes": YEAR_DAYS,
        "hours": YEAR_DAYS,
    }
    print(f"\n{took_s:.0f} s of processor time; a removal took {max(pruned_s):.1f} s at most.")
    print(shrunk)
    table(
        "Size of the file by hour, MB: readings kept for 3 h, all else for 6 h",
        [str(hour + 1) for hour in range(hours)],
        [[f"{size / 1e6:.0f}" for size in sizes]],
    )
    in_year = {name: len(GPUS) * A_DAY[name] * days for name, days in kept_days.items()}
    of_year = {name: in_year[name] * a_row[name] / 1e9 for name in in_year}
    table(
        "A year on 8 GPUs at the defaults, each with a rank, 10 readings and 1 step a second",
        "table | days kept | rows | bytes a row | GB",
        [
            *(
                [name, days, f"{in_year[name]:,}", f"{a_row[name]:.1f}", f"{of_year[name]:.2f}"]
                for name, days in kept_days.items()
            ),
            ["all", "", "", "", f"{sum(of_year.values()):.1f}"],
        ],
    )


if __name__ == "__main__":
    main()
