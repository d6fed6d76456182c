"""A driver's own timestamps: believed as far as reads confirm them, and never where they lie."""

from collections.abc import Callable
from random import Random

import pytest

from collectors.device import Sample
from collectors.sampling.refresh_stamps import CHECKS, CLOSE_NS, STEP_NS, RefreshStamps
from collectors.sampling.sampled_device import SampledDevice
from zeus_stream.protocol.readings import Seen

MS = 1_000_000
US = 1_000
PERIOD_NS, PHASE_NS = 20 * MS, 7 * MS
COUNT = 1_500
WALL_NS = 1_700_000_000 * 10**9
Stamp = Callable[[int, int, Random], int]
"""The driver's word on a refresh at an instant, asked at another one, ns."""


def played(
    stamp: Stamp,
    read_ns: int,
    wall_ns: Callable[[int], int] = lambda _: WALL_NS,
    *,
    closely: bool = True,
) -> tuple[SampledDevice, int, list[int]]:
    """Read a device; return it, its reads, and the widths of the bounds of refreshes, ns.

    The instant of each refresh is within its bounds, or this fails.
    """
    device, rng, now_ns, count, widths_ns = SampledDevice(0), Random(3), 10**9, 0, list[int]()
    device.closely = closely
    while now_ns < COUNT * PERIOD_NS:
        looked_ns, end_ns = now_ns + read_ns // 2, now_ns + read_ns
        refresh = (looked_ns - PHASE_NS) // PERIOD_NS
        said_ns = stamp(refresh * PERIOD_NS + PHASE_NS, looked_ns, rng)
        sample = Sample(refresh, 100_000, 250_000, 250_000, stamp_us=(said_ns + wall_ns(looked_ns)) // US)
        due_ns = device.take_in(sample, now_ns, end_ns, wall_ns(end_ns))
        for reading in device.take_readings(9):
            if reading.seen == Seen.CHANGED:
                true_ns = (reading.sample.energy_mj or 0) * PERIOD_NS + PHASE_NS
                assert reading.t_lo_ns <= true_ns <= reading.t_hi_ns
                widths_ns.append(reading.t_hi_ns - reading.t_lo_ns)
        now_ns = max(due_ns, end_ns) + rng.randrange(50_000)
        count += 1
    return device, count, widths_ns


def true(refreshed_ns: int, _now_ns: int, _rng: Random) -> int:
    return refreshed_ns


def test_timestamps_of_refreshes_bound_those_that_long_windows_bound_loosely() -> None:
    device, count, widths_ns = played(true, 20 * US, closely=False)
    assert device.stamped
    assert count < 1.3 * COUNT
    assert sorted(widths_ns)[len(widths_ns) * 95 // 100] <= 2 * (CLOSE_NS + STEP_NS), "else it is a period"


def test_a_driver_with_slow_calls_has_bounds_of_two_milliseconds_in_place_of_a_period() -> None:
    slow_ns = 300 * US
    device, _, widths_ns = played(true, slow_ns)
    assert device.stamped
    late_ns = sorted(widths_ns[len(widths_ns) // 2 :])
    assert late_ns[len(late_ns) * 9 // 10] <= 2 * (CLOSE_NS + STEP_NS)
    _, _, unstamped_ns = played(lambda *_: 0, slow_ns)
    assert sorted(unstamped_ns)[len(unstamped_ns) // 2] > PERIOD_NS // 2


@pytest.mark.parametrize(
    "stamp",
    [
        pytest.param(lambda refreshed_ns, *_: refreshed_ns - 5 * MS, id="5 ms early"),
        pytest.param(lambda refreshed_ns, *_: refreshed_ns + 5 * MS, id="5 ms late"),
        pytest.param(lambda refreshed_ns, *_: refreshed_ns // (10 * MS) * 10 * MS, id="in whole 10 ms"),
        pytest.param(lambda refreshed_ns, _, rng: refreshed_ns + rng.randrange(-4 * MS, 4 * MS), id="random"),
        pytest.param(lambda _refreshed_ns, now_ns, _rng: now_ns, id="of the call"),
        pytest.param(lambda *_: 0, id="of long ago"),
    ],
)
@pytest.mark.parametrize("read_ns", [20 * US, 300 * US])
def test_a_timestamp_that_lies_makes_no_bound_false(stamp: Stamp, read_ns: int) -> None:
    played(stamp, read_ns)


def test_a_step_of_the_wall_clock_makes_no_bound_false() -> None:
    device, _, _ = played(true, 20 * US, lambda now_ns: WALL_NS + (now_ns > 20 * 10**9) * 3 * MS)
    assert device.stamped, "it costs one timestamp"


def test_one_timestamp_out_of_its_bounds_ends_the_belief() -> None:
    stamps = RefreshStamps()
    for at_ns in range(0, CHECKS * MS, MS):
        assert not stamps.believed
        assert stamps.narrow(at_ns, at_ns + MS, at_ns + MS // 2) == (at_ns, at_ns + MS)
    assert stamps.narrow(0, 20 * MS, 5 * MS) == (5 * MS - MS - STEP_NS, 5 * MS + MS + STEP_NS)
    assert stamps.narrow(0, 20 * MS, 21 * MS) == (0, 20 * MS)
    assert not stamps.believed
