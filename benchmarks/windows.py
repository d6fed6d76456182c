"""Energy of step windows against the truth of the simulated GPU: constant load, integrating counter.

In virtual time through sampler, schedule, timeline and windows (tests/simulation/world.py). Beside it, the
same counter read directly at both ends of each step, which is how Zeus measures.

python benchmarks/windows.py
"""

from bisect import bisect_right

import numpy as np
from common import table

from analyzers.interpreter import Plan
from analyzers.rows import WindowRow
from tests.simulation.world import Training, World
from zeus_stream.messages import READING_FIELDS, Readings, Seen

STEPS_MS = (20, 50, 100, 500, 5000)
GOALS = ("5 %", "5 %", "5 %", "1 %", "1 %")
PERIODS_MS = (20, 100)


def errors(step_ms: int, period_ms: int) -> tuple[float, float]:
    """Return the mean absolute error in % of step windows, and that of direct reads."""
    count = max(40, 20_000 // step_ms)
    device = f"simulated:a40x1,period_ms={period_ms},seed={step_ms}"
    world = World(device, Training("imagenet", step_ms / 1000 * 0.987, count), Plan(None))
    world.run()
    [gpu] = world.hosts[0].gpus.values()
    rows = [row for row in world.rows(WindowRow) if row.kind == "step" and row.energy_j is not None]
    truths = np.array([gpu.device.energy_mj(row.begin_ns, row.end_ns) / 1000 for row in rows])
    ours = np.array([row.energy_j for row in rows])

    readings = [
        np.frombuffer(body.rows, list(READING_FIELDS))
        for _, body in world.frames
        if isinstance(body, Readings)
    ]
    changes = np.concatenate(readings)
    changes = changes[changes["seen"] == Seen.CHANGED]
    at = changes["t_lo_ns"].tolist()
    counter = [int(changes["energy_mj"][0]), *changes["energy_mj"].tolist()]
    direct = np.array(
        [counter[bisect_right(at, row.end_ns)] - counter[bisect_right(at, row.begin_ns)] for row in rows]
    )
    return float(np.mean(np.abs(ours / truths - 1)) * 100), float(
        np.mean(np.abs(direct / 1000 / truths - 1)) * 100
    )


def main() -> None:
    rows = []
    for step_ms, goal in zip(STEPS_MS, GOALS, strict=True):
        row: list[str] = [f"{step_ms} ms"]
        for period_ms in PERIODS_MS:
            ours, direct = errors(step_ms, period_ms)
            row += [f"{ours:.2f} %", f"{direct:.2f} %"]
        rows.append([*row, goal])
    head = ["step"]
    for period_ms in PERIODS_MS:
        head += [f"{period_ms} ms counter", "direct reads of it"]
    table("Energy of steps at constant load, mean absolute error", [*head, "goal at 100 ms"], rows)


if __name__ == "__main__":
    main()
