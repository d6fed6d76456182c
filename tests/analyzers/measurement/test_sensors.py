"""Readings of power are means of the time before them."""

import pytest

from analyzers.measurement.energy import KnownEnergy, Meter
from analyzers.measurement.sensors import Sensor, sensor, suspected_ns
from analyzers.measurement.timeline import Timeline
from tests.analyzers.readings import MS, S, energy, readings, row
from zeus_stream.protocol.readings import Seen

PERIOD_NS = 100 * MS
STEP_NS, GAP_NS = 70 * MS, 47 * MS
STEP_W, GAP_W = 300, 100


@pytest.mark.parametrize(
    ("name", "lag_ms", "window_ms", "sees_all"),
    [
        ("NVIDIA GeForce RTX 3090", 100, None, True),
        ("NVIDIA RTX A6000", 100, None, True),
        ("NVIDIA L40S", 100, None, True),
        ("NVIDIA A100-SXM4-40GB", 63, 25, False),
        ("NVIDIA H100 PCIe", 61.5, 23, False),
        ("Tesla P100-PCIE-16GB", 15, 10, False),
        ("NVIDIA B200", 0, None, False),
        ("Model X", 0, None, False),
    ],
)
def test_the_lag_of_a_sensor_is_that_of_its_model(
    name: str,
    lag_ms: float,
    window_ms: int | None,
    sees_all: bool,  # noqa: FBT001 - parametrized
) -> None:
    known = sensor(name)
    assert known == Sensor(round(lag_ms * MS), sees_all, window_ms and window_ms * MS)
    assert known.blind == (window_ms is not None)


@pytest.mark.parametrize(
    ("name", "window_ms"),
    [
        *(("NVIDIA GeForce RTX 3090", None), ("AMD Instinct MI300X", None), ("Model X", None)),
        ("NVIDIA H200", None),
        *(("Tesla V100-SXM2-16GB", 10), ("NVIDIA GH200 480GB", 25), ("NVIDIA B200", 25)),
    ],
)
def test_a_counter_of_nvidia_may_see_a_part_unless_its_sensor_is_known_to_see_all(
    name: str, window_ms: int | None
) -> None:
    assert suspected_ns(name) == (window_ms and window_ms * MS)


def test_power_that_comes_late_is_put_where_it_was_drawn() -> None:
    """100 W until 1 s, then 300 W; the sensor shows the mean of each 100 ms at its end."""
    line = Timeline()
    line.sensor = Sensor(PERIOD_NS)
    shown = [(t, 100_000 if t <= 10 else 300_000) for t in range(1, 40)]
    line.add(readings(*(row(Seen.POWER, t * PERIOD_NS, t * PERIOD_NS, power_mw=mw) for t, mw in shown)))
    found = energy(line, S // 2, 3 * S // 2)
    assert isinstance(found, KnownEnergy)
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
                assert isinstance(found, KnownEnergy)
                worst = max(worst, abs(found.energy_uj / 1000 / (STEP_W * STEP_NS // 1_000_000) - 1))
    return worst


def test_means_of_all_the_time_are_shaped_by_the_events_as_a_counter_is() -> None:
    assert worst_step(Sensor(PERIOD_NS, sees_all=True)) < 0.03
    assert worst_step(Sensor(PERIOD_NS)) > 0.1


def square(half_ms: int, sensor: Sensor, seconds: int = 20) -> list[tuple[float, KnownEnergy]]:
    """Return truth (J) and answer of windows of 1 s of a square wave: `STEP_W` for half a step, then `GAP_W`.

    Each step is told, not where power falls. The sensor is refreshed every 101 ms and sees 25 of them.
    """
    meter = Meter(Timeline())
    meter.timeline.sensor = sensor
    step_ns, refresh_ns, found = 2 * half_ms * MS, 101 * MS, list[tuple[float, KnownEnergy]]()

    def used(t_ns: int) -> int:
        turns, rest_ns = divmod(t_ns, step_ns)
        high_ns = turns * step_ns // 2 + min(rest_ns, step_ns // 2)
        return (high_ns * STEP_W + (t_ns - high_ns) * GAP_W) // 1_000_000

    marked = 0
    for refresh in range(1, seconds * S // refresh_ns):
        now_ns = refresh * refresh_ns
        while marked * step_ns <= now_ns:
            meter.shape.mark("run", marked * step_ns, "job//gap")
            meter.shape.mark("run", marked * step_ns, "job//step")
            marked += 1
        power_mw = (used(now_ns) - used(now_ns - 25 * MS)) * 40
        meter.timeline.add(readings(row(Seen.POWER, now_ns, now_ns, power_mw=power_mw)))
        begin_ns = (len(found) + 2) * S
        if meter.settled(begin_ns + S, now_ns):
            [answer] = meter.measure([begin_ns], [begin_ns + S], now_ns)
            assert isinstance(answer, KnownEnergy)
            found.append(((used(begin_ns + S) - used(begin_ns)) / 1000, answer))
    return found


@pytest.mark.parametrize("sensor", [Sensor(63 * MS, window_ns=25 * MS), Sensor()], ids=["known", "not known"])
def test_a_sum_of_power_readings_has_no_hard_bounds_and_an_interval_with_what_was_not_seen(
    sensor: Sensor,
) -> None:
    """Steps of 100 ms, refreshes of 101: for seconds the sensor sees one half of the steps only."""
    found = square(50, sensor)
    assert len(found) > 10
    for truth_j, answer in found:
        assert (answer.low_uj, answer.high_uj) == (None, None)
        assert answer.p2_5_uj <= truth_j * 1e6 <= answer.p97_5_uj
        assert answer.quality != "ok"


@pytest.mark.parametrize(("half_ms", "aliased"), [(50, True), (101, True), (37, False), (65, False)])
def test_steps_in_time_with_the_refreshes_of_a_sensor_are_named(half_ms: int, aliased: bool) -> None:  # noqa: FBT001 - parametrized
    found = square(half_ms, Sensor(63 * MS, window_ns=25 * MS))[3:]
    assert {"aliased" in answer.quality for _, answer in found} == {aliased}
    if not aliased:
        errors = [abs(answer.energy_uj / 1e6 / truth_j - 1) for truth_j, answer in found]
        assert sum(errors) / len(errors) < 0.05


@pytest.mark.parametrize("window_ms", [50, 100])
def test_a_reading_of_power_hides_how_steps_and_gaps_within_it_differ(window_ms: int) -> None:
    """Readings that hardly differ had an interval of 1 % for steps that draw 12 % more than their mean."""
    line = Timeline()
    shown = [(t, 250_000 + 1_000 * (t % 3)) for t in range(1, 300)]
    line.add(readings(*(row(Seen.POWER, t * PERIOD_NS, t * PERIOD_NS, power_mw=mw) for t, mw in shown)))
    found = energy(line, 20 * S, 20 * S + window_ms * MS)
    assert isinstance(found, KnownEnergy)
    assert found.p97_5_uj > 280_000 * window_ms > 220_000 * window_ms > found.p2_5_uj


def test_a_wide_interval_of_power_readings_is_not_called_ok() -> None:
    line = Timeline()
    line.sensor = sensor("NVIDIA GeForce RTX 3090")
    shown = [(t, 100_000 + 200_000 * (t // 7 % 2)) for t in range(1, 300)]
    line.add(readings(*(row(Seen.POWER, t * PERIOD_NS, t * PERIOD_NS, power_mw=mw) for t, mw in shown)))
    short, long = energy(line, 20 * S, 20 * S + 150 * MS), energy(line, 5 * S, 25 * S)
    assert isinstance(short, KnownEnergy)
    assert isinstance(long, KnownEnergy)
    assert (short.quality, long.quality) == ("readings of power say little of a window so short", "ok")
