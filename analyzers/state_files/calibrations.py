"""The calibrations of a setup, one file; and how one comes about: archive against meter."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analyzers.measurement import sensors
from analyzers.measurement.calibration import Record, compared, fit
from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import Timeline
from analyzers.results.readings import READING
from analyzers.state_files.json_file import load_json, store_json
from zeus_stream.errors import RefusedError
from zeus_stream.protocol.readings import ABSENT, Seen

if TYPE_CHECKING:
    import pyarrow as pa

Ask = Callable[[str], "pa.Table"]
"""Answers SQL over the archive."""
WHAT = "the calibrations"
MARGIN_NS = 2_000_000_000
"""Time of readings that is looked at before the meter's record and after it."""

_GPUS = """
SELECT gpu, any_value(name) AS name FROM readings JOIN hosts USING (log_id) JOIN gpus USING (gpu)
WHERE t_hi_ns + hosts.wall_ns - hosts.monotonic_ns BETWEEN {first} AND {last} GROUP BY gpu ORDER BY gpu
"""
_READINGS = """
SELECT readings.*, hosts.wall_ns - hosts.monotonic_ns AS ahead_ns
FROM readings ASOF JOIN hosts ON readings.log_id = hosts.log_id AND readings."offset" >= hosts."offset"
WHERE gpu = '{gpu}' AND t_hi_ns + hosts.wall_ns - hosts.monotonic_ns BETWEEN {first} AND {last}
ORDER BY t_hi_ns
"""


def load(path: Path) -> dict[str, Gain]:
    """Return the gains by GPU; none if there is no file. Raises StorageError when it is damaged."""
    return load_json(path, dict[str, Gain], WHAT, "Move it away, then calibrate again.") or {}


def store(path: Path, gains: Mapping[str, Gain]) -> None:
    """Put all gains in the place of those there. Raises StorageError."""
    store_json(path, dict(gains), WHAT)


def calibrate(ask: Ask, meter: Record, source: str, gpu: str | None) -> tuple[str, Gain, int]:
    """Return the GPU, its gain, and the windows it is from.

    Raises RefusedError: the archive has no readings of it, or of several GPUs; or as `fit` refuses.
    """
    first, last = int(meter.t_ns[0]) - MARGIN_NS, int(meter.t_ns[-1]) + MARGIN_NS
    known = ask(_GPUS.format(first=first, last=last)).to_pylist()
    names = {row["gpu"]: row["name"] for row in known}
    if gpu is None and len(names) == 1:
        [gpu] = names
    if gpu is None or gpu not in names:
        there = ", ".join(names) or "none"
        raise RefusedError(
            f"calibrate: could not choose the GPU: the archive's readings of that time are of {there}."
            " Name one of them with --gpu, and record with the collector running."
        )
    rows = ask(_READINGS.format(gpu=gpu, first=first, last=last))
    timeline = Timeline()
    timeline.sensor = sensors.sensor(names[gpu])
    timeline.add(_in_wall_time(rows))
    shown_w, true_w = compared(timeline, meter)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return gpu, fit(shown_w, true_w, source, at), len(shown_w)


def _in_wall_time(table: "pa.Table") -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return rows of ``readings``, each with how far UTC is ahead of its clock, as readings in ns of UTC."""
    rows = np.zeros(table.num_rows, READING)
    ahead_ns = table["ahead_ns"].to_numpy()
    for name in READING.names or ():
        if name in ("gpu", "seen"):
            continue
        column = table[name].combine_chunks().fill_null(ABSENT).to_numpy(zero_copy_only=False)
        rows[name] = column + ahead_ns if name in ("t_lo_ns", "t_hi_ns") else column
    rows["seen"] = [Seen[word.upper()] for word in table["seen"].to_pylist()]
    return rows
