"""The guide's example in real processes: saving beside the oracle, time to the first plan, cost of profiling.

    python -m benchmarks.pipeline.live [--iterations 200] [--profiled 8]

Four simulated A100s train `examples/pipeline.py`. Saved and longer: measured by the analyzer, iterations
under the plan beside those at the highest clock, with 95 % intervals. The oracle is the bound of single
instructions by the profile; switches take none. Profiling: iterations until the plan, beside those at
the highest clock. Instructions are sleeps of processes: a busy host makes all of it longer.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, options, table
from tests.directories import short_directory
from zeus_stream.live.archive_file import ArchiveFile, open_archive

FIGURES = """
SELECT iterations, saved, saved_low, saved_high, longer, longer_low, longer_high, promised_j,
    plans.unplanned_j, bound_j, first_iteration, iteration_s
FROM plans JOIN pipelines USING (run)
JOIN plan_points ON plan_points.run = plans.run AND plan_points.slowdown = 1
WHERE saved IS NOT NULL ORDER BY iterations DESC LIMIT 1
"""
BEGUN = """
SELECT index, min(t_ns) / 1e9 AS t_s FROM events WHERE kind = 'iteration_ran' GROUP BY index ORDER BY index
"""


def train(where: Path, profiled: int, gpus: int, *arguments: object, clocks: int = 9) -> ArchiveFile:
    """Run the example on simulated GPUs to its end. Return its archive.

    Args:
        where: directory of the setup.
        profiled: iterations at each clock.
        gpus: of the example.
        arguments: of the example.
        clocks: that are profiled.
    """
    command = [
        *(sys.executable, "-m", "zeus_stream", "run", "--device", f"simulated:a100x{gpus}"),
        *("--control", "graphics_clock", "--pipeline-iterations", str(profiled)),
        *("--pipeline-clocks", str(clocks), "--", sys.executable, str(ROOT / "examples" / "pipeline.py")),
        *map(str, arguments),
    ]
    environ = {**os.environ, "ZEUS_STREAM_DIR": str(where), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return open_archive(where / "energy.duckdb")


def main() -> int:
    """Run the example and print the table."""
    given = options(__doc__, iterations=200, profiled=8, work_ms=20.0)
    with short_directory() as where:
        begin_load = os.getloadavg()[0]
        archive = train(
            where, given.profiled, 4, "--iterations", given.iterations, "--work-ms", given.work_ms
        )
        found: list[dict[str, Any]] = archive.sql(FIGURES).to_pylist()
        why = archive.sql("SELECT reason FROM pipelines").to_pylist()[0]["reason"]
        begun = {row["index"]: row["t_s"] for row in archive.sql(BEGUN).to_pylist()}
    if not found:
        print(f"live: no plan was measured: {why or 'more iterations are needed'}.", file=sys.stderr)
        return 1
    [row] = found
    first = row["first_iteration"]
    profiling_s = (begun[first] - begun[2]) / (first - 2)
    oracle = 1 - row["bound_j"] / row["unplanned_j"]
    table(
        f"The example of the guide, {given.profiled} iterations at each clock, load {begin_load:.1f} before",
        ["figure", "value"],
        [
            ["energy saved, measured", _percent(row, "saved")],
            ["iterations longer, measured", _percent(row, "longer")],
            ["promised", f"{100 * (1 - row['promised_j'] / row['unplanned_j']):.1f} %"],
            ["the oracle's", f"{100 * oracle:.1f} %"],
            ["share of the oracle's", f"{100 * row['saved'] / oracle:.0f} %"],
            ["time to the first plan", f"{begun[first] - begun[0]:.0f} s, {first} iterations"],
            ["iterations longer until then", f"{100 * (profiling_s / row['iteration_s'] - 1):.1f} %"],
            ["iterations measured under the plan", f"{row['iterations']}"],
        ],
    )
    return 0


def _percent(row: dict[str, Any], name: str) -> str:
    value, low, high = (100 * row[each] for each in (name, f"{name}_low", f"{name}_high"))
    return f"{value:.1f} % (95 %: {low:.1f} to {high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
