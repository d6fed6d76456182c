"""A counter that is filled by samples of power: as recorded on an H100, and in arithmetic time."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from analyzers.measurement.energy import KnownEnergy, Meter
from analyzers.measurement.timeline import Timeline
from analyzers.results.readings import READING
from collectors.device import PowerSample, Sample, SampleTimes
from collectors.devices.cards.known_cards import shipped_cards
from collectors.sampling.counter_filling import CounterFilling, FilledInstant
from collectors.sampling.sampled_device import MAX_UNFILLED, Reading, SampledDevice, pack
from zeus_stream.protocol.readings import Seen

MS, S = 1_000_000, 1_000_000_000
PERIOD_NS, LATE_NS, WINDOW_NS = 100_002_187, 10 * MS, 25 * MS
"""Of an H100's counter; a sample is the mean of a window until 1 ms before it."""
RECORDING = Path("tests/data/h100_samples/samples-0.csv")


def h100() -> SampleTimes:
    times = shipped_cards()["h100-sxm"].sample_times
    assert times is not None
    return times


def test_the_samples_of_a_recorded_h100_follow_its_counter() -> None:
    with RECORDING.open(newline="") as file:
        rows = list(csv.DictReader(file))
    filling, filled, shown = CounterFilling(h100()), list[FilledInstant](), list[tuple[int, int, int]]()
    for place, row in enumerate(rows):
        if row["what"] == "sample":
            filling.add([PowerSample(int(row["end_ns"]), int(row["value"]))])
        elif row["what"] == "counter":
            shown.append((int(row["begin_ns"]), int(row["end_ns"]), int(row["value"])))
            filling.see(*shown[-1])
        if place % 10 == 0:  # samples are read seldom
            filled += filling.take()
    assert not filling.strays
    assert len(filled) > 5 * 0.7 * len(shown), "five samples a refresh"
    assert all(a.t_lo_ns <= b.t_lo_ns and a.t_hi_ns <= b.t_hi_ns for a, b in pairwise(filled))
    assert all(a.energy_mj <= b.energy_mj for a, b in pairwise(filled))
    # Refreshes come at even distances: their bounds together leave 4 ms open.
    bounds = np.array(shown)
    periods = np.round((bounds[:, 1] - bounds[0, 1]) / PERIOD_NS)
    at_ns = ((bounds[:, 0] - periods * PERIOD_NS).max() + (bounds[:, 1] - periods * PERIOD_NS).min()) / 2
    at_ns = at_ns + periods * PERIOD_NS - LATE_NS
    middle_ns = [(each.t_lo_ns + each.t_hi_ns) / 2 for each in filled]
    within = (at_ns > middle_ns[0]) & (at_ns < middle_ns[-1])
    known_mj = np.interp(at_ns[within], middle_ns, [each.energy_mj for each in filled])
    off_j = (known_mj - bounds[within, 2]) / 1e3
    assert np.std(off_j) < 3.0, "power swings by 450 W, and a refresh is 44 J"


class World(NamedTuple):
    """Steps of some milliseconds with gaps between them, as a counter, its reads and samples show them."""

    marks_ns: npt.NDArray[np.int64]
    """Begin and end of each step, shape (n, 2)."""
    drawn_j: npt.NDArray[np.float64]
    """Of each step."""
    readings: list[Reading]
    device: SampledDevice


def world(
    seed: int,
    *,
    filled: bool,
    of_another: bool = False,
    kept: bool = True,
    jump_mj: int = 0,
    step_ms: int = 190,
) -> World:
    """Read an H100 for 50 s.

    ``of_another``: samples are of another GPU. ``kept``: the driver keeps some. ``jump_mj``: of the counter,
    at 35 s.
    """
    rng, dice, device = np.random.default_rng(seed), Random(seed), SampledDevice(0)
    device.begin(0, 0, PERIOD_NS, h100() if filled else None)
    took_ns = (rng.uniform(0.9, 1.1, (30 * S // (step_ms * MS), 2)) * (step_ms * MS, 8 * MS)).astype(np.int64)
    edges_ns = 20 * S + np.cumsum(np.append(0, took_ns))
    power_w = np.where(np.arange(len(edges_ns) - 1) % 2 == 0, 650.0, 180.0) * rng.normal(
        1, 0.03, took_ns.size
    )
    times_ns = np.concatenate(([0], edges_ns, [edges_ns[-1] + 9 * S]))
    sum_mj = np.append(0, np.cumsum(np.diff(times_ns) * np.concatenate(([150.0], power_w, [150.0])) / 1e6))

    def drawn_mj(t_ns: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        return np.asarray(np.interp(np.asarray(t_ns), times_ns, sum_mj))

    sampled_ns = np.cumsum(rng.choice((16 * MS, 20 * MS, 24 * MS), int(times_ns[-1]) // (20 * MS)))
    mean_mw = (drawn_mj(sampled_ns - MS) - drawn_mj(sampled_ns - MS - WINDOW_NS)) / WINDOW_NS * 1e9
    if of_another:
        mean_mw = np.roll(mean_mw, len(mean_mw) // 2)
    refreshed_ns, now_ns, found = np.arange(17 * MS, times_ns[-1], PERIOD_NS), 0, list[Reading]()
    while now_ns < edges_ns[-1] + 4 * S:
        end_ns = now_ns + round(min(6 * dice.lognormvariate(0, 0.45), 26) * MS)
        seen_ns = int(refreshed_ns[max(int(refreshed_ns.searchsorted(dice.randint(now_ns, end_ns))) - 1, 0)])
        energy_mj = 10**9 + int(drawn_mj(max(seen_ns - LATE_NS, 0))) + (jump_mj if seen_ns > 35 * S else 0)
        due_ns = device.take_in(Sample(energy_mj, 90_000, 700_000, 700_000), now_ns, end_ns)
        if (since_ns := device.unsampled_ns) is not None:
            first, last = sampled_ns.searchsorted((max(since_ns, end_ns - 2 * S), end_ns), side="right")
            some = slice(int(first), int(last))
            both = zip(sampled_ns[some].tolist(), mean_mw[some].astype(int).tolist(), strict=True)
            device.take_samples([PowerSample(*each) for each in both] if kept else [])
        found += device.take_readings(1_000)
        now_ns = max(due_ns, end_ns) + 50_000
    marks_ns = edges_ns[: len(edges_ns) // 2 * 2].reshape(-1, 2)
    return World(marks_ns, np.diff(drawn_mj(marks_ns), axis=1)[:, 0] / 1e3, found, device)


def measured(seen: World) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return by which part the energies of steps are off, and how wide their intervals are to each side."""
    timeline = Timeline()
    timeline.add(np.frombuffer(b"".join(pack(each, 0) for each in seen.readings), READING))
    meter = Meter(timeline)
    meter.shape.suspect(None)
    for begin_ns, end_ns in seen.marks_ns.tolist():
        meter.shape.mark_all(((begin_ns, "s", "job//step", 0), (end_ns, "s", "job//gap", 0)))
    begins_ns, ends_ns = seen.marks_ns.T.tolist()
    found = meter.measure(begins_ns, ends_ns, ends_ns[-1] + 4 * S)
    known: Sequence[KnownEnergy] = [each for each in found if isinstance(each, KnownEnergy)]
    assert len(known) == len(found)
    energy_uj = np.array([each.energy_uj for each in known])
    wide_uj = np.array([each.p97_5_uj - each.p2_5_uj for each in known]) / 2
    for each, drawn_j in zip(known, seen.drawn_j.tolist(), strict=True):
        assert each.low_uj is not None
        assert each.high_uj is not None
        assert each.low_uj <= drawn_j * 1e6 <= each.high_uj, "bounds are hard"
    return energy_uj / 1e6 / seen.drawn_j - 1, wide_uj / energy_uj


def test_steps_of_a_filled_counter_are_known_three_times_as_well() -> None:
    plain_off, _ = measured(world(11, filled=False))
    off, wide = measured(world(11, filled=True))
    assert np.abs(off).mean() < np.abs(plain_off).mean() / 3
    assert np.mean(np.abs(off) <= wide) > 0.93
    assert np.median(wide) < 0.03
    assert abs(off.mean()) < 0.003


def test_a_filled_counter_never_falls_and_says_the_limits_in_force() -> None:
    readings = world(12, filled=True).readings
    assert {each.seen for each in readings} == {Seen.FIRST, Seen.SAMPLED}
    assert all(a.t_hi_ns <= b.t_hi_ns for a, b in pairwise(readings))
    energies_mj = [each.sample.energy_mj or 0 for each in readings]
    assert all(a <= b for a, b in pairwise(energies_mj))
    assert {each.sample.limit_mw for each in readings} == {700_000}


@pytest.mark.parametrize("kept", [True, False])
def test_samples_of_something_else_or_none_leave_the_refreshes(*, kept: bool) -> None:
    seen = world(13, filled=True, of_another=True, kept=kept)
    assert seen.device.unsampled_ns is None
    begun = next(place for place, each in enumerate(seen.readings) if each.seen == Seen.CHANGED)
    assert len([each for each in seen.readings if each.seen == Seen.CHANGED]) > 100
    if not kept:
        assert begun <= 1 + MAX_UNFILLED
    energies_mj = [each.sample.energy_mj or 0 for each in seen.readings]
    assert all(a <= b for a, b in pairwise(energies_mj))


def test_a_jump_of_the_counter_is_no_energy_and_is_reported() -> None:
    seen = world(15, filled=True, jump_mj=50_000_000)
    timeline = Timeline()
    timeline.most_mw = 700_000
    timeline.add(np.frombuffer(b"".join(pack(each, 0) for each in seen.readings), READING))
    knots = timeline.knots()
    begin_ns, end_ns = seen.marks_ns[0, 0], seen.marks_ns[-1, 1]
    known_uj = np.diff(np.interp((begin_ns, end_ns), knots.mid_ns, knots.energy_uj))
    assert [jump.grown_uj > 50_000_000_000 for jump in timeline.jumps] == [True]
    assert known_uj / 1e6 == pytest.approx(
        float(seen.drawn_j.sum()) + 8e-3 * 180 * len(seen.drawn_j), rel=0.03
    )


def test_at_rest_and_while_windows_are_long_no_samples_are_read() -> None:
    device = world(14, filled=True).device
    assert device.unsampled_ns is not None
    device.closely = False
    now_ns = 100 * S
    for count in range(5):
        device.take_in(Sample(10**12 + count, 1, None, None), now_ns, now_ns + MS)
        now_ns += PERIOD_NS
    assert device.unsampled_ns is None
