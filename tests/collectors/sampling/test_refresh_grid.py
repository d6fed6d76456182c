"""The grid of refreshes: bounds that reads alone leave wide become narrow, and hold."""

import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from collectors.device import Sample
from collectors.sampling.refresh_grid import CHECKS, CORNERS, MOST, RefreshGrid
from collectors.sampling.sampled_device import SampledDevice
from zeus_stream.protocol.readings import Seen

MS, S = 1_000_000, 1_000_000_000
PERIOD_NS = 100_002_187
"""As an H100 has it."""
H100 = Path("tests/data/h100_square/samples-0.csv")


class Seconds(NamedTuple):
    """Reads of a device: how many, how long they took together, and what they say of refreshes."""

    reads: int
    busy_ns: int
    changes: list[tuple[int, int, int]]
    """Bounds of each refresh, and when it came."""
    timed: bool


def of_an_h100(rng: Random) -> float:
    """Return how long a read takes, ms: as an H100 with driver 580 was seen to."""
    return rng.uniform(12, 25) if rng.random() < 0.03 else rng.choice((2.3, 3, 3, 3.2, 3.5, 4, 5, 9))


def read_for(
    seconds: int,
    took_ms: Callable[[Random], float],
    refreshes_ns: list[int],
    *,
    closely: bool = True,
    known: bool = True,
) -> Seconds:
    """Read a counter as often as its reads ask for. The driver answers at some instant of each read."""
    rng, device, now_ns, count, busy_ns = Random(7), SampledDevice(0), 0, 0, 0
    if known:
        device.begin(0, 0, PERIOD_NS - MS // 10)  # by its sensor card
    device.closely = closely
    changes, passed = [], 0
    while now_ns < seconds * S:
        took_ns = round(took_ms(rng) * MS)
        answered_ns = now_ns + rng.randrange(took_ns)
        while refreshes_ns[passed] <= answered_ns:
            passed += 1
        due_ns = device.take_in(Sample(7_000 * passed, None, None, None), now_ns, now_ns + took_ns)
        changes += [
            (each.t_lo_ns, each.t_hi_ns, refreshes_ns[passed - 1])
            for each in device.take_readings(9)
            if each.seen == Seen.CHANGED
        ]
        count, busy_ns = count + 1, busy_ns + took_ns
        now_ns = max(due_ns, now_ns + took_ns) + rng.randrange(100_000)
    return Seconds(count, busy_ns, changes, device.timed)


def grid(jitter_ms: float, seconds: int) -> list[int]:
    rng, count = Random(3), (seconds + 1) * S // PERIOD_NS
    return [17 * MS + n * PERIOD_NS + round(rng.uniform(-jitter_ms, jitter_ms) * MS) for n in range(count)]


def widths(found: Seconds) -> list[int]:
    """Return the sorted widths of the later two thirds."""
    return sorted(hi - lo for lo, hi, _ in found.changes[len(found.changes) // 3 :])


@pytest.mark.parametrize("jitter_ms", [0, 1])
@pytest.mark.parametrize(
    ("closely", "share", "count", "most_ms"), [(True, 0.05, 750, 19), (False, 0.016, 230, 28)]
)
def test_few_slow_reads_bound_refreshes_that_keep_to_a_grid(
    *, jitter_ms: float, closely: bool, share: float, count: int, most_ms: float
) -> None:
    found = read_for(100, of_an_h100, grid(jitter_ms, 100), closely=closely)
    assert found.timed
    assert all(lo <= came <= hi for lo, hi, came in found.changes)
    assert found.busy_ns < share * 100 * S
    assert len(found.changes) > count
    assert widths(found)[len(widths(found)) * 9 // 10] < most_ms * MS, "of 100 ms and more by reads alone"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_reads_that_wait_for_those_of_another_program_are_few_and_tell_as_much(
    *, known: bool, seed: int
) -> None:
    def took_ms(rng: Random) -> float:
        """6 ms, as an H100 that two programs read, 19 at most in 99 of 100 cases."""
        return min(6 * math.exp(rng.gauss(0, 0.45)), 26)

    refreshes = [t_ns + seed * 31 * MS for t_ns in grid(0, 100)]
    found = read_for(100, took_ms, refreshes, known=known)
    assert found.timed
    assert all(lo <= came <= hi for lo, hi, came in found.changes)
    assert widths(found)[len(widths(found)) // 2] < 26 * MS


@pytest.mark.parametrize("jitter_ms", [2, 3])
@pytest.mark.parametrize("seed", [3, 4])
def test_a_refresh_that_strays_farther_than_the_grid_has_seen_is_within_its_bounds(
    jitter_ms: float, seed: int
) -> None:
    """Reads of 3 ms on both sides of where it should be hide that: up to 23 of 100 bounds were wrong."""
    refreshes = [t_ns + seed * 31 * MS for t_ns in grid(jitter_ms, 100)]
    found = read_for(100, lambda _: 3.0, refreshes)
    assert found.timed
    assert all(lo <= came <= hi for lo, hi, came in found.changes)
    assert widths(found)[len(widths(found)) // 2] < 14 * MS


def test_refreshes_without_a_rhythm_are_bounded_by_reads_alone() -> None:
    rng, t_ns, refreshes = Random(5), 0, []
    while t_ns < 101 * S:
        t_ns += round(rng.uniform(60, 140) * MS)
        refreshes.append(t_ns)
    found = read_for(100, of_an_h100, refreshes)
    assert not found.timed
    assert sum(not lo <= came <= hi for lo, hi, came in found.changes) <= 0.005 * len(found.changes)


def test_a_grid_that_jumps_begins_again() -> None:
    """A driver that is loaded again has another phase."""
    refreshes = grid(0, 200)
    refreshes = [t_ns + 40 * MS * (n > 800) for n, t_ns in enumerate(refreshes)]
    found = read_for(200, of_an_h100, refreshes)
    wrong = [came for lo, hi, came in found.changes if not lo <= came <= hi]
    assert len(wrong) <= 20, "until a first read finds the counter changed before it should be"
    assert found.timed
    assert widths(found)[len(widths(found)) // 2] < 23 * MS


def recorded() -> Iterator[tuple[int, int]]:
    """Yield the instants between which each refresh of the recorded H100 came, ns."""
    last_mj = ""
    with H100.open(newline="") as file:
        for row in csv.DictReader(file):
            if last_mj and row["energy_mj"] != last_mj:
                yield int(row["since_ns"]), int(row["t_ns"])
            last_mj = row["energy_mj"]


def test_the_recorded_h100_keeps_to_a_grid() -> None:
    known = RefreshGrid()
    found = [known.narrow(lo_ns, hi_ns, lo_ns, 100 * MS) for lo_ns, hi_ns in recorded()]
    assert len(found) > 3 * CHECKS
    assert known.believed
    assert all(hi - lo < 100 * MS // MOST for lo, hi in found[-CHECKS:])


def test_what_is_known_of_a_grid_does_not_grow_with_time() -> None:
    """Equal bounds each cut off another corner: after five minutes a refresh took 7 ms of processor time."""
    known = RefreshGrid()
    for n in range(1, 2_000):
        at_ns = n * PERIOD_NS
        lo_ns, hi_ns = known.narrow(at_ns - MS // 3, at_ns + MS // 3, at_ns + MS // 4, 100 * MS)
        assert lo_ns <= at_ns <= hi_ns
    assert known.believed
    assert len(known._corners) <= 2 * CORNERS
