"""The status of the analyzer, as rows of section, name and value."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from analyzers.measurement.sensors import Gain
from analyzers.measurement.timeline import AGREES

Rows = list[tuple[str, str, str]]
FORGOTTEN_SHOWN = 20
"""Jobs in the status whose profiles were forgotten last."""
MAX_SECTION = 2_000


@dataclass(frozen=True, slots=True)
class Insight:
    """What the interpreter knows of GPUs and jobs, as it was a short time ago."""

    cross_checks: Mapping[str, float]
    """By GPU: the energy of its counter over that of its power readings."""
    gains: Mapping[str, Gain]
    """By GPU: its calibration."""
    forgotten_wall_ns: Mapping[str, int]
    """By job: profiles measured until then are not used (UTC, ns)."""


def insight_rows(insight: Insight) -> Rows:
    """Return the rows about GPUs and profiles."""
    rows = []
    for gpu, ratio in insight.cross_checks.items():
        says = "agrees" if AGREES[0] <= ratio <= AGREES[1] else "DOUBTFUL: its joules cannot be believed"
        rows.append((f"gpu {gpu}"[:MAX_SECTION], "counter over power", f"{ratio:.2f}, {says}"))
    for gpu, gain in insight.gains.items():
        rows.append((f"gpu {gpu}"[:MAX_SECTION], "calibration", f"{gain.words}, from {gain.source}"))
    forgotten = sorted(insight.forgotten_wall_ns.items(), key=lambda item: -item[1])[:FORGOTTEN_SHOWN]
    for job, wall_ns in forgotten:
        until = f"{datetime.fromtimestamp(wall_ns // 10**9, UTC):%F %T} UTC"
        rows.append(("profiles", "forgotten", f"{job}, up to {until}"))
    return rows
