"""Profiles of power limits in Zeus's JSON, and in the archive."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zeus_stream.quoting import quoted
from zeus_stream.transport.client import connect
from zeus_stream.zeus.optimizer.selectors import PowerLimitMeasurement

_TRIALS = """
SELECT power_limit_w, energy_j / steps AS step_j, duration_s / steps AS step_s FROM trials
WHERE run = {run} AND round = (SELECT max(round) FROM decisions WHERE run = {run})
    AND NOT confirms AND energy_j > 0 ORDER BY power_limit_w DESC, number DESC
"""
_CHOSEN = "SELECT power_limit_w FROM decisions WHERE run = {run} ORDER BY number DESC LIMIT 1"


def read_profile(path: Path) -> tuple[PowerLimitMeasurement, ...]:
    """Return the measurements of a file. Raises ValueError: it is no profile; OSError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = tuple(
            PowerLimitMeasurement(each["power_limit"], each["energy"], each["time"])
            for each in content["measurements"]
        )
    except (KeyError, TypeError, ValueError) as wrong:
        raise ValueError(
            f"{path}: could not be read as a profile: {wrong}. Remove it to profile again."
        ) from wrong
    if not found:
        raise ValueError(f"{path}: could not be used: it has no measurements. Remove it to profile again.")
    return found


def write_profile(path: Path, measurements: Sequence[PowerLimitMeasurement]) -> None:
    """Write a file that Zeus reads as well. It is whole or not there."""
    rows = [
        {"power_limit": each.power_limit, "energy": each.energy, "time": each.time} for each in measurements
    ]
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps({"measurements": rows}, indent=4), encoding="utf-8")
    partial.replace(path)


def decided(run: str, steps: int) -> tuple[int | None, tuple[PowerLimitMeasurement, ...]]:
    """Return the limit chosen for a run, W, and its measurements, for some steps. Raises UnreachableError."""
    connection = connect()
    chosen: list[Any] = connection.sql(_CHOSEN.format(run=quoted(run)))["power_limit_w"].to_pylist()
    if not chosen or chosen[0] is None:
        return None, ()
    rows = connection.sql(_TRIALS.format(run=quoted(run))).to_pylist()
    by_limit = {round(row["power_limit_w"]): row for row in reversed(rows)}
    measured = tuple(
        PowerLimitMeasurement(limit_w, row["step_j"] * steps, row["step_s"] * steps)
        for limit_w, row in sorted(by_limit.items(), reverse=True)
    )
    return round(chosen[0]), measured
