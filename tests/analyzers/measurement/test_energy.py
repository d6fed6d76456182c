import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.measurement.energy import KnownEnergy, Meter, NoEnergy, measure
from analyzers.measurement.energy_fit import EnergyFit
from analyzers.measurement.sensors import sensor
from analyzers.measurement.timeline import Timeline
from tests.analyzers.readings import MS, S, dice, energy, readings, row, steady, virtual
from zeus_stream.protocol.readings import Seen

seeds = st.integers(0, 10**9)


def timeline(*chunks: object) -> Timeline:
    made = Timeline()
    for chunk in chunks:
        made.add(chunk)  # type: ignore[arg-type]  # NumPy's structured arrays have no useful type
    return made


def known(answer: KnownEnergy | NoEnergy) -> KnownEnergy:
    assert isinstance(answer, KnownEnergy), answer
    return answer


@pytest.mark.sweep
@given(seeds)
def test_the_bounds_contain_the_truth_of_the_counter(seed: int) -> None:
    counter, rng = virtual(seed), dice(seed)
    line = timeline(counter.rows)
    begins = [rng.randint(0, 2 * S) for _ in range(50)]
    ends = [begin + rng.randint(0, 2 * S - begin) for begin in begins]
    for begin_ns, end_ns, answer in zip(begins, ends, measure(line, begins, ends), strict=True):
        if isinstance(answer, KnownEnergy):
            truth_uj = counter.truth_uj(end_ns) - counter.truth_uj(begin_ns)
            assert answer.low_uj is not None
            assert answer.high_uj is not None
            assert answer.low_uj <= truth_uj <= answer.high_uj
            assert answer.low_uj <= answer.energy_uj <= answer.high_uj


@given(seeds, st.booleans())
def test_the_parts_of_a_window_add_up_to_the_whole(seed: int, powered: bool) -> None:  # noqa: FBT001 - hypothesis
    rng = dice(seed)
    rows = virtual(seed).rows
    if powered:
        rows["seen"], rows["power_mw"] = Seen.POWER, [rng.randint(20_000, 400_000) for _ in rows]
    edges = sorted(rng.randint(400 * MS, 1500 * MS) for _ in range(20))
    line = timeline(rows)
    parts = [known(part).energy_uj for part in measure(line, edges[:-1], edges[1:])]
    assert sum(parts) == known(energy(line, edges[0], edges[-1])).energy_uj
    assert min(parts) >= 0


def test_a_window_between_two_refreshes_says_so() -> None:
    line = timeline(steady(250, 10))
    assert known(energy(line, 210 * MS, 250 * MS)) == KnownEnergy(
        energy_uj=10_000_000,
        low_uj=0,
        high_uj=25_001_000,
        p2_5_uj=0,
        p97_5_uj=25_001_000,
        phase_coverage=None,
        estimator="counter",
        quality="within one refresh",
    )


def test_a_power_reading_is_held_until_the_next() -> None:
    rows = readings(
        row(Seen.POWER, 0, 0, power_mw=100_000),
        *(row(Seen.POWER, t * S, t * S, power_mw=100_000) for t in range(1, 10)),
        row(Seen.POWER, 10 * S, 10 * S, power_mw=300_000),
        row(Seen.POWER, 11 * S, 11 * S, power_mw=300_000),
    )
    line = timeline(rows)
    assert known(energy(line, 0, 11 * S)).energy_uj == 1_300_000_000
    found = known(energy(line, 0, 10 * S))
    assert (found.energy_uj, found.low_uj, found.high_uj) == (1_000_000_000, None, None)
    assert (found.estimator, found.quality) == ("power", "a sensor that is not known")
    assert known(energy(line, 9_500 * MS, 10_500 * MS)).energy_uj == 200_000_000


def test_time_without_readings_is_named() -> None:
    line = timeline(steady(100, 5), readings(row(Seen.CHANGED, 3 * S, 3 * S, energy_mj=300_000)))
    line.add(readings(row(Seen.CHANGED, 3100 * MS, 3100 * MS, energy_mj=310_000)))
    across = known(energy(line, 100 * MS, 3050 * MS))
    assert (across.energy_uj, across.quality) == (295_000_000, "unseen for 2.6 s")
    assert (
        known(energy(line, 100 * MS, 2 * S)).quality
        == "unseen for 1.6 s; an edge between readings 2.6 s apart"
    )


def test_a_short_part_of_a_pause_is_named_in_milliseconds() -> None:
    line = timeline(steady(100, 5), readings(row(Seen.CHANGED, 3 * S, 3 * S, energy_mj=300_000)))
    assert known(energy(line, 500 * MS, 540 * MS)).quality.startswith("unseen for 40 ms;")


def broken(seen: Seen) -> Timeline:
    begun = row(seen, 1 * S, 1 * S, energy_mj=7)
    return timeline(steady(100, 5), readings(begun), steady(100, 5, begin_ns=2 * S)[1:])


@pytest.mark.parametrize(
    ("line", "begin_ms", "end_ms", "reason"),
    [
        pytest.param(timeline(), 0, 1, "no readings of this GPU", id="nothing was read"),
        pytest.param(timeline(steady(100, 5)), -50, 50, "before its begin", id="it began before"),
        pytest.param(timeline(steady(100, 5)), 0, 401, "no reading from after its end", id="nothing after"),
        pytest.param(timeline(steady(100, 5)), 300, 200, "it ends before it begins", id="time runs back"),
        pytest.param(broken(Seen.RESET), 100, 2100, "the counter started over", id="a reset within"),
        pytest.param(broken(Seen.FIRST), 100, 2100, "the counter started over", id="a return within"),
        pytest.param(broken(Seen.FIRST), 100, 700, "the counter started over", id="a reset before the end"),
        pytest.param(broken(Seen.FIRST), 1500, 2100, "before its begin", id="the first change is awaited"),
        pytest.param(
            timeline(steady(100, 5), readings(row(Seen.UNCHANGED, 900 * MS, 900 * MS, energy_mj=40_000))),
            *(100, 800, "the counter did not change after its end"),
            id="the counter stands still",
        ),
    ],
)
def test_what_cannot_be_known_is_missing_for_a_reason(
    line: Timeline, begin_ms: int, end_ms: int, reason: str
) -> None:
    answer = energy(line, begin_ms * MS, end_ms * MS)
    assert isinstance(answer, NoEnergy)
    assert reason in answer.reason


def test_a_window_may_begin_before_the_first_change_of_a_counter() -> None:
    line = timeline(readings(row(Seen.FIRST, 40 * MS, 40 * MS, energy_mj=0)), steady(100, 15)[2:])
    found = known(energy(line, 70 * MS, 1350 * MS))
    assert found.energy_uj == 128_000_000
    assert (found.low_uj, found.high_uj) == (119_999_000, 140_001_000), (
        "the first refresh lies before or within"
    )
    assert isinstance(energy(line, 30 * MS, 1350 * MS), NoEnergy)
    assert isinstance(energy(line, 70 * MS, 350 * MS), NoEnergy), "too much of it is not known"


def test_a_gpu_that_went_away_is_named() -> None:
    line = timeline(steady(100, 5))
    line.interrupt("it fell off the bus")
    assert energy(line, 100 * MS, 800 * MS) == NoEnergy("GPU lost: it fell off the bus")


def test_a_counter_that_falls_without_a_word_is_never_negative() -> None:
    fallen = readings(
        *(row(Seen.CHANGED, t * MS, t * MS, energy_mj=t) for t in (500, 600)),
        row(Seen.CHANGED, 700 * MS, 700 * MS, energy_mj=3),
        *(row(Seen.CHANGED, t * MS, t * MS, energy_mj=t) for t in (800, 900)),
    )
    line = timeline(fallen)
    assert isinstance(energy(line, 550 * MS, 850 * MS), NoEnergy)
    assert known(energy(line, 510 * MS, 590 * MS)).energy_uj == 80_000


def counted(begin_ms: int, end_ms: int, first: Seen, offset_mj: int) -> object:
    """Return exact readings, every 100 ms, of a counter that stood at ``offset_mj`` at 0, under 200 W."""
    rows = [
        row(
            first if t_ms == begin_ms else Seen.CHANGED,
            t_ms * MS,
            t_ms * MS,
            energy_mj=offset_mj + 200 * t_ms,
        )
        for t_ms in range(begin_ms, end_ms + 1, 100)
    ]
    return readings(*rows)


def paused(offset_mj: int, most_mw: int | None, after: Seen = Seen.FIRST, lost_mj: int = 0) -> Timeline:
    """Return a timeline whose collector was away from 3 s to 8 s."""
    line = Timeline()
    line.most_mw = most_mw
    line.add(counted(0, 3_000, Seen.FIRST, offset_mj))  # type: ignore[arg-type]
    line.interrupt(None)
    line.add(counted(8_000, 11_000, after, offset_mj - lost_mj))  # type: ignore[arg-type]
    return line


def test_a_counter_that_cannot_have_been_reset_in_a_pause_is_bridged() -> None:
    """300 W x 1.5 x 5.1 s are 2.3 kJ; it had counted 10 kJ before, and shows more."""
    line = paused(10_000_000, 300_000)
    across = known(energy(line, 2 * S, 10 * S))
    assert across.energy_uj == 1_600_000_000
    assert across.low_uj is not None
    assert across.high_uj is not None
    assert across.low_uj <= 1_600_000_000 <= across.high_uj
    assert across.quality == "unseen for 5.1 s"
    within = known(energy(line, 4 * S, 5 * S))
    assert within.low_uj == 0
    assert within.high_uj is not None
    assert within.high_uj > 1_000_000_000


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(paused(10_000, 300_000), id="it may have begun at zero, and caught up"),
        pytest.param(paused(10_000_000, None), id="the highest power is not known"),
        pytest.param(paused(10_000_000, 300_000, Seen.RESET), id="it was seen to fall"),
        pytest.param(paused(10_000_000, 300_000, lost_mj=5_000_000), id="it shows less than before"),
        pytest.param(paused(10_000_000, 300_000, lost_mj=-5_000_000), id="it shows more than there can be"),
    ],
)
def test_where_the_arithmetic_leaves_a_doubt_the_energy_is_missing(line: Timeline) -> None:
    answer = energy(line, 2 * S, 10 * S)
    assert isinstance(answer, NoEnergy)
    assert "the counter started over" in answer.reason


@pytest.mark.parametrize("read_first", [False, True])
def test_a_hang_of_the_driver_is_named_and_bounded(read_first: bool) -> None:  # noqa: FBT001 - parametrized
    """From 3 s to 5 s a read hung. It gave the value of its end, or (``read_first``) of its begin."""
    line = Timeline()
    line.add(counted(0, 3_000, Seen.FIRST, 0))  # type: ignore[arg-type]
    shown_ms = 3_100 if read_first else 5_000
    line.add(readings(row(Seen.CHANGED, 3_050 * MS, 5_060 * MS, energy_mj=200 * shown_ms)))
    line.add(counted(5_100, 8_000, Seen.CHANGED, 0))  # type: ignore[arg-type]
    for begin_ms, end_ms in ((3_200, 3_300), (3_500, 4_500), (2_000, 4_000), (4_900, 6_000), (1_000, 7_000)):
        found = known(energy(line, begin_ms * MS, end_ms * MS))
        truth_uj = 200_000 * (end_ms - begin_ms)
        assert found.low_uj is not None
        assert found.high_uj is not None
        assert found.low_uj <= truth_uj <= found.high_uj
        assert found.energy_uj == pytest.approx(truth_uj, rel=0.01)
        assert "unseen for" in found.quality
    assert known(energy(line, 6 * S, 7 * S)).quality == "ok"
    assert list(line.hangs_ns) == [(3_050 * MS, 5_060 * MS)]


def test_a_long_run_of_steps_that_beat_with_the_sensor_carries_their_common_error() -> None:
    """Steps of 100 ms on a sensor that sees 25 of each 100 ms: what it misses does not average out."""
    count, begin_ns = 2_000, S
    line = Timeline()
    line.sensor = sensor("NVIDIA A100-SXM4-40GB")
    shape = EnergyFit()
    shape.mark("session", 1, "job//rest")
    for step in range(count):
        shape.mark("session", begin_ns + step * 100 * MS, "job//step")
        shape.mark("session", begin_ns + step * 100 * MS + 60 * MS, "job//gap")
    end_ns = begin_ns + count * 100 * MS
    rows = []
    for place in range(count + 30):  # always within the step (280 W, then 200), and another figure each time
        t_ns = (100 * place + 50) * MS
        power_mw = (280_000 if begin_ns < t_ns < end_ns else 70_000) + place % 2
        rows.append(row(Seen.POWER, t_ns - MS // 5, t_ns + MS // 5, power_mw=power_mw))
    line.add(readings(*rows))
    (run,) = Meter(line, shape).measure([begin_ns], [end_ns], rows[-1][1])
    assert isinstance(run, KnownEnergy)
    truth_uj = (280 * 0.6 + 200 * 0.4) * count * 100_000
    assert "aliased" in run.quality
    assert run.p2_5_uj <= truth_uj <= run.p97_5_uj
