"""Measure how large an archive of 8 GPUs becomes in a year.

python -m benchmarks.load.retention [--hours 8]

Some hours are stored as collectors send them. Bytes a row of each table, times the rows that the defaults
keep, give the size after a year.
"""

import numpy as np
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.results.readings import READING
from analyzers.results.rows import WindowRow
from benchmarks.harness import options, table
from tests.analyzers.archives import BOOTED_NS, LOG, RUN, SECOND, frame, frames, window
from tests.directories import short_directory
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.settings import Settings

GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(8))
A_SECOND = 10
"""Changes of a counter."""
FRAME_S = 2
PUT_S = 60
BLOCK = 262_144
KEPT = {
    "readings": (7, 86_400 * A_SECOND),
    "seconds": (14, 86_400),
    "windows": (90, 86_400),
    "events": (90, 86_400),
    "frames": (90, 43_200),
    "minutes": (365, 1440),
    "hours": (365, 24),
}
"""By table, the days that the defaults keep, and rows a day of one GPU and one rank, at one step a second."""


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

    def step(self, second: int, gpu: str, run: str) -> WindowRow:
        """Return a step of a second."""
        energy_j = float(self._rng.normal(220, 20))
        return replace(
            window("step", second, second, second + 1, None),
            gpu=gpu,
            run=run,
            session=run,
            energy_j=energy_j,
            energy_low_j=energy_j - self._rng.random(),
            energy_high_j=energy_j + self._rng.random(),
            energy_p2_5_j=energy_j - self._rng.random() / 2,
            energy_p97_5_j=energy_j + self._rng.random() / 2,
            phase_coverage=self._rng.random(),
        )


def minute(load: Load, offset: int, begin_s: int) -> list[tuple[Frame, Body]]:
    """Return what comes in during a minute."""
    bodies: list[tuple[int, Body]] = []
    for second in range(begin_s, begin_s + PUT_S, FRAME_S):
        bodies.append((second + FRAME_S, load.readings(second)))
        steps = tuple(
            StepBoundary(each, each * SECOND, each * SECOND) for each in range(second, second + FRAME_S)
        )
        bodies.append((second + FRAME_S, Events(RUN.session, second, 1000, 7, steps)))
    end_ns = (begin_s + PUT_S) * SECOND
    bodies.append((begin_s + PUT_S, Notes((ClockAnchored(end_ns, BOOTED_NS + end_ns, 500),))))
    return [frame(offset + number, body, t_ns=at_s * SECOND) for number, (at_s, body) in enumerate(bodies)]


def bytes_a_row(archive: DuckdbFile, name: str) -> float:
    """Return the space of a table on disk, by its blocks, for each row."""
    blocks = f"FROM pragma_storage_info('{name}') SELECT count(DISTINCT block_id) WHERE persistent"
    with archive.file.cursor() as cursor:
        [(used,)] = cursor.execute(blocks).fetchall()
        [(rows,)] = cursor.execute(f"FROM {name} SELECT count(*)").fetchall()
    return float(used * BLOCK / max(rows, 1))


def main() -> None:
    hours = options(__doc__, hours=8).hours
    load, offset = Load(), 1
    with short_directory() as where:
        archive = DuckdbFile.open(where / "energy.duckdb", Settings())
        archive.put([[next(frames())]], [RUN])
        for begin_s in range(0, hours * 3600, PUT_S):
            stored = minute(load, offset, begin_s)
            offset += len(stored)
            run = f"run-{begin_s // 3600}"  # a run an hour: the steps of a run go together
            steps = [
                load.step(second, gpu, run) for second in range(begin_s, begin_s + PUT_S) for gpu in GPUS
            ]
            archive.put([stored], steps, {LOG: offset})
        archive.flush()
        like = {name: "seconds" if name in ("minutes", "hours") else name for name in KEPT}
        a_row = {name: bytes_a_row(archive, measured) for name, measured in like.items()}
        archive.close()
    rows, all_gb = [], 0.0
    for name, (days, a_day) in KEPT.items():
        count = len(GPUS) * a_day * days
        size_gb = count * a_row[name] / 1e9
        all_gb += size_gb
        rows.append([name, days, f"{count:,}", f"{a_row[name]:.1f}", f"{size_gb:.2f}"])
    rows.append(["all", "", "", "", f"{all_gb:.1f}"])
    title = "A year on 8 GPUs at the defaults, each with a rank, 10 readings and 1 step a second"
    table(title, "table | days kept | rows | bytes a row | GB", rows)


if __name__ == "__main__":
    main()
