"""Reads of a device: their number, and the bounds of each refresh."""

from collections.abc import Iterator
from random import Random

import pytest

from collectors.device import Sample
from collectors.sampling import schedule
from collectors.sampling.sampled_device import Reading, SampledDevice
from zeus_stream.protocol.readings import Seen

MS = 1_000_000
READ_NS = 20_000
PERIOD_NS, PHASE_NS = 20 * MS, 7 * MS
COUNT = 1_000


def reads(device: SampledDevice, rng: Random, late: float) -> Iterator[tuple[Sample, int, int, int]]:
    """Read a counter as often as its reads ask for: yield sample, begin and end of each, and the next time.

    ``late``: share of the reads that come 5 ms too late.
    """
    now_ns = 0
    while now_ns < COUNT * PERIOD_NS:
        sample = Sample((now_ns - PHASE_NS) // PERIOD_NS, 100_000, 250_000, 250_000)
        end_ns = now_ns + READ_NS
        due_ns = device.take_in(sample, now_ns, end_ns)
        yield sample, now_ns, end_ns, due_ns
        now_ns = max(due_ns, end_ns) + (5 * MS if rng.random() < late else rng.randrange(50_000))


@pytest.mark.parametrize("late", [0, 0.05])
@pytest.mark.parametrize(("closely", "most"), [(True, 2.2), (False, 1.26)])
def test_a_refresh_takes_two_reads_or_one_and_none_is_missed(closely: bool, most: float, late: float) -> None:  # noqa: FBT001 - parametrized
    """One while windows are long; more at first, until refreshes are known to keep to a grid."""
    device, readings, count = SampledDevice(0), list[Reading](), 0
    device.closely = closely
    for _ in reads(device, Random(7), late):
        readings += device.take_readings(9)
        count += 1
    assert count < most * COUNT
    assert sum(reading.seen == Seen.CHANGED for reading in readings) > 0.97 * COUNT


def test_reads_of_a_device_without_counter_are_as_few() -> None:
    device, rng, now_ns, count = SampledDevice(0), Random(7), 0, 0
    while now_ns < COUNT * PERIOD_NS:
        power_mw = 100_000 + (now_ns - PHASE_NS) // PERIOD_NS % 1000
        now_ns = device.take_in(Sample(None, power_mw, 250_000, 250_000), now_ns, now_ns + READ_NS)
        now_ns += rng.randrange(50_000)
        count += 1
    assert count < 2.3 * COUNT


@pytest.mark.parametrize("late", [0, 0.3])
def test_each_refresh_lies_between_its_bounds_however_late_reads_come(late: float) -> None:
    device, readings = SampledDevice(0), list[Reading]()
    for _ in reads(device, Random(11), late):
        readings += device.take_readings(9)
    changes = [reading for reading in readings if reading.seen == Seen.CHANGED]
    assert len(changes) > 0.9 * COUNT
    for reading in changes:
        energy_mj = reading.sample.energy_mj
        assert energy_mj is not None
        assert reading.t_lo_ns <= energy_mj * PERIOD_NS + PHASE_NS <= reading.t_hi_ns
    assert device.period_ns == pytest.approx(PERIOD_NS, rel=0.02)


def test_at_rest_it_is_read_less_than_once_in_five_seconds_and_readings_say_so() -> None:
    device, now_ns, starts = SampledDevice(0), 0, list[int]()
    device.relax(relaxed=True)
    while now_ns < 120_000 * MS:
        starts.append(now_ns)
        sample = Sample((now_ns - PHASE_NS) // PERIOD_NS, 100_000, 250_000, 250_000)
        now_ns = device.take_in(sample, now_ns, now_ns + READ_NS)
    first, *later = (start_ns for start_ns in starts if start_ns > schedule.SEARCH_FOR_NS)
    assert len(later) <= 0.2 * (120_000 * MS - first) / 1e9
    readings = [reading for reading in device.take_readings(20_000) if reading.t_lo_ns > first]
    assert {reading.seen for reading in readings} == {Seen.RESTED}
    assert device.cost is not None
    assert device.cost.per_s < 0.2
    assert device.paused
    assert not device.overdue(now_ns)
    assert device.overdue(now_ns + 600 * MS), "its read hangs"
    late_ns = now_ns + 600 * MS
    device.take_in(Sample(10**9, 100_000, 250_000, 250_000), now_ns, late_ns)
    assert device.take_readings(9)[-1].seen == Seen.CHANGED, "so the pause before is a gap"
