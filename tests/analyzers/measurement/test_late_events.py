"""Steps whose events come in after the readings of their time: together with others, or on a busy host."""

import numpy as np
import pytest

from analyzers.measurement.energy import Meter
from analyzers.measurement.timeline import Timeline
from analyzers.measurement.windows import Owner, Windows
from analyzers.results.rows import WindowRow, each_row
from tests.analyzers.readings import MS, S
from tests.simulation.loads import load
from tests.simulation.played import counter, readings
from zeus_stream.protocol.events import StepBoundary

TOGETHER_NS = 500 * MS
STEPS = 250


def measured(most_late_ns: int) -> tuple[float, float, int]:
    """Return the mean error of steps, how many intervals hold the truth, and the most that a step waited.

    Readings come in each half second, and events too, up to ``most_late_ns`` behind them.
    """
    played = load("clean", 50, STEPS)
    truth_j = played.energy_pj(played.steps_ns[:, 0], played.steps_ns[:, 1]) / 1e12
    meter, windows = Meter(Timeline()), Windows(Owner("session", "run", "job", 0, "host"), 5 * S)
    meter.shape.mark("session", 1, "job//rest")
    events = [
        (t_ns, index, phase)
        for index, step_ns in enumerate(played.steps_ns.tolist())
        for t_ns, phase in zip(step_ns, ("step", "gap"), strict=True)
    ]
    heard, waited_ns, rng = 0, 0, np.random.default_rng(9)
    found: list[WindowRow] = []
    for now_ns, rows in readings(counter(played, 20 * MS), played.end_ns + 3 * S):
        if len(rows):
            meter.timeline.add(rows)
        if now_ns % TOGETHER_NS:
            continue
        came_ns = now_ns + int(rng.integers(most_late_ns))
        for at_ns in (now_ns, came_ns):
            while at_ns == came_ns and heard < len(events) and events[heard][0] <= now_ns:
                t_ns, index, phase = events[heard]
                heard += 1
                meter.shape.mark("session", t_ns, f"job//{phase}")
                begins = phase == "step"
                boundary = StepBoundary(index, None, t_ns) if begins else StepBoundary(index + 1, t_ns, None)
                windows.pass_steps((boundary,), (came_ns,))
            fresh = each_row(windows.measured({"gpu": meter}, at_ns, lambda *_: False))
            steps = [row for row in fresh if isinstance(row, WindowRow)]
            waited_ns = max([waited_ns, *(at_ns - step.end_ns for step in steps)])
            found += steps
    assert [row.index for row in found] == list(range(len(truth_j)))
    energy_j = np.array([row.energy_j for row in found], float)
    inside = [
        (row.energy_p2_5_j or 0) - 2e-3 <= truth <= (row.energy_p97_5_j or 0) + 2e-3
        for row, truth in zip(found, truth_j.tolist(), strict=True)
    ]
    return float(np.abs(energy_j / truth_j - 1).mean()), float(np.mean(inside)), waited_ns


@pytest.mark.parametrize("late_ms", [20, 150, 450])
def test_steps_are_measured_as_well_when_their_events_are_late(late_ms: int) -> None:
    error, inside, waited_ns = measured(late_ms * MS)
    assert error < 0.001
    assert inside > 0.95
    assert waited_ns < 4 * S
