"""Readings of power are means of the time before them."""

import pytest

from analyzers.measurement.energy import Energy, Meter, energy
from analyzers.measurement.sensors import Sensor, sensor
from analyzers.measurement.timeline import Timeline
from tests.analyzers.readings import MS, S, readings, row
from zeus_stream.protocol.readings import Seen

PERIOD_NS = 100 * MS
STEP_NS, GAP_NS = 70 * MS, 47 * MS
STEP_W, GAP_W = 300, 100


@pytest.mark.parametrize(
    ("name", "lag_ms", "sees"),
    [
        ("NVIDIA GeForce RTX 3090", 100, "all"),
        ("NVIDIA RTX A6000", 100, "all"),
        ("NVIDIA L40S", 100, "all"),
        ("NVIDIA A100-SXM4-40GB", 63, "a part"),
        ("NVIDIA H100 PCIe", 61.5, "a part"),
        ("Tesla P100-PCIE-16GB", 15, "a part"),
        ("NVIDIA B200", 0, ""),
        ("Model X", 0, ""),
    ],
)
def test_the_lag_of_a_sensor_is_that_of_its_model(name: str, lag_ms: float, sees: str) -> None:
    assert sensor(name) == Sensor(round(lag_ms * MS), sees == "all", sees == "a part")


def test_power_that_comes_late_is_put_where_it_was_drawn() -> None:
    """100 W until 1 s, then 300 W; the sensor shows the mean of each 100 ms at its end."""
    line = Timeline()
    line.sensor = Sensor(PERIOD_NS)
    shown = [(t, 100_000 if t <= 10 else 300_000) for t in range(1, 40)]
    line.add(readings(*(row(Seen.POWER, t * PERIOD_NS, t * PERIOD_NS, power_mw=mw) for t, mw in shown)))
    found = energy(line, S // 2, 3 * S // 2)
    assert isinstance(found, Energy)
    assert found.energy_uj == (50 + 150) * 1_000_000


def used_mj(t_ns: int) -> int:
    """Steps and gaps in turn, from 0 on."""
    turns, rest_ns = divmod(t_ns, STEP_NS + GAP_NS)
    in_step_ns = turns * STEP_NS + min(rest_ns, STEP_NS)
    return (in_step_ns * STEP_W + (t_ns - in_step_ns) * GAP_W) // 1_000_000


def worst_step(known: Sensor) -> float:
    """Return the worst error of steps shorter than the period, as a share, after 4 s to learn from."""
    meter, worst, marked = Meter(Timeline()), 0.0, 0
    meter.timeline.sensor = known
    ended: list[int] = []
    for refresh in range(1, 80):
        now_ns = refresh * PERIOD_NS
        while (begin_ns := marked * (STEP_NS + GAP_NS)) + STEP_NS <= now_ns:
            meter.shape.mark("run", begin_ns, "step")
            meter.shape.mark("run", begin_ns + STEP_NS, "gap")
            ended.append(begin_ns)
            marked += 1
        power_mw = (used_mj(now_ns) - used_mj(now_ns - PERIOD_NS)) * 10
        meter.timeline.add(readings(row(Seen.POWER, now_ns, now_ns, power_mw=power_mw)))
        while ended and meter.settled(ended[0] + STEP_NS, now_ns):
            begin_ns = ended.pop(0)
            [found] = meter.measure([begin_ns], [begin_ns + STEP_NS], now_ns)
            if begin_ns > 4 * S:
                assert isinstance(found, Energy)
                worst = max(worst, abs(found.energy_uj / 1000 / (STEP_W * STEP_NS // 1_000_000) - 1))
    return worst


def test_means_of_all_the_time_are_shaped_by_the_events_as_a_counter_is() -> None:
    assert worst_step(Sensor(PERIOD_NS, sees_all=True)) < 0.03
    assert worst_step(Sensor(PERIOD_NS)) > 0.1
