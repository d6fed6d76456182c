import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.fleet.fleet import hangs
from analyzers.measurement.energy import KnownEnergy, measure
from analyzers.measurement.timeline import CROWDED, IDLE_NS, MAX_KNOTS, RECENT_NS, Timeline
from tests.analyzers.readings import MS, S, dice, energy, readings, row, steady, virtual
from zeus_stream.protocol.readings import Seen


@given(st.integers(0, 10**9), st.booleans())
def test_the_order_in_which_readings_arrive_does_not_matter(seed: int, powered: bool) -> None:  # noqa: FBT001 - hypothesis
    rng, rows = dice(seed), virtual(seed, seconds=1.0).rows
    if powered:
        rows["seen"], rows["power_mw"] = Seen.POWER, [rng.randint(20_000, 400_000) for _ in rows]
    whole, parts = Timeline(), Timeline()
    whole.add(rows)
    order = np.array(rng.sample(range(len(rows)), len(rows)))
    for chunk in np.array_split(order, rng.randint(1, len(rows))):
        parts.add(rows[chunk])
    for one, other in zip(whole.knots(), parts.knots(), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.sweep
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9))
def test_when_readings_are_looked_at_does_not_matter(seed: int) -> None:
    rng, rows = dice(seed), virtual(seed, seconds=2.0).rows
    asked, unasked = Timeline(), Timeline()
    for part in np.array_split(rows, rng.randint(1, len(rows))):
        if rng.random() < 0.1:
            asked.interrupt("gone")
            unasked.interrupt("gone")
        asked.add(part)
        unasked.add(part)
        t_ns = rng.choice((asked.received_ns, int(part["t_lo_ns"][-1])))
        assert asked.settled(t_ns) == unasked.settled(t_ns)
    for one, other in zip(asked.knots(), unasked.knots(), strict=True):
        assert one.tolist() == other.tolist()
    assert (asked.period_ns, asked.late) == (unasked.period_ns, unasked.late)


def test_a_change_that_was_looked_for_late_is_placed_where_the_others_let_expect_it() -> None:
    line = Timeline()
    line.add(steady(100, 40))
    regular = line.knots().mid_ns[-1]
    late = [(n, 100 * n * MS) for n in (1, 2, 3)]
    energy_mj = int(line.knots().energy_uj[-1]) // 1000
    line.add(
        readings(
            row(
                Seen.CHANGED,
                int(regular) + late[0][1] - 9 * MS,
                int(regular) + late[0][1] + MS,
                energy_mj=energy_mj + 1,
            ),
            row(
                Seen.CHANGED,
                int(regular) + late[1][1] + MS,
                int(regular) + late[1][1] + 9 * MS,
                energy_mj=energy_mj + 2,
            ),
            row(
                Seen.CHANGED,
                int(regular) + 4 * 100 * MS - 99 * MS,
                int(regular) + 4 * 100 * MS + MS,
                energy_mj=energy_mj + 3,
            ),
        )
    )
    placed = line.knots().mid_ns[-3:] - regular
    assert placed.tolist() == [100 * MS, 201 * MS, pytest.approx(400 * MS, abs=2 * MS)]


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(Seen.RESTED, "", id="a rest is no gap"),
        pytest.param(Seen.CHANGED, "unseen", id="a hang is one"),
    ],
)
def test_the_energy_of_a_gpu_at_rest_is_the_growth_of_its_counter(seen: Seen, words: str) -> None:
    line, last_ns = Timeline(), 3900 * MS
    line.add(steady(60, 40))
    for _ in range(5):
        read_ns = last_ns + 5400 * MS
        energy_mj = 60 * (read_ns // (100 * MS)) * 100
        line.add(readings(row(seen, last_ns, read_ns, energy_mj=energy_mj, power_mw=60_000)))
        last_ns = read_ns
    found = energy(line, 6 * S, 24 * S)
    assert isinstance(found, KnownEnergy)
    assert words in found.quality
    assert (found.quality == "ok") == (not words)
    if not words:
        assert found.energy_uj == pytest.approx(60 * 18e6, rel=0.003)
        assert not line.hangs_ns
    assert found.low_uj is not None
    assert found.high_uj is not None
    assert found.low_uj <= 60 * 18e6 <= found.high_uj


@pytest.mark.parametrize("jump_j", [100, 50_000])
def test_the_energy_at_a_jump_of_the_counter_is_filled_from_power(jump_j: int) -> None:
    drawn = steady(200, 60)
    drawn["power_mw"] = 200_000
    rows = drawn.copy()
    rows["energy_mj"][20:] += jump_j * 1000
    line = Timeline()
    line.most_mw = 300_000
    for at in range(0, len(rows), 7):
        line.add(rows[at : at + 7])
    for begin_ns, end_ns in ((S, 5 * S), (S + 30 * MS, 2 * S), (1_850 * MS, 1_870 * MS)):
        found = energy(line, begin_ns, end_ns)
        assert isinstance(found, KnownEnergy)
        truth_uj = 200 * (end_ns - begin_ns) // 1000
        assert found.energy_uj == pytest.approx(truth_uj, rel=0.01)
        assert found.low_uj is not None
        assert found.high_uj is not None
        assert found.low_uj <= found.p2_5_uj <= truth_uj <= found.p97_5_uj <= found.high_uj
        assert "filled from power" in found.quality
    after = energy(line, 3 * S, 4 * S)
    assert isinstance(after, KnownEnergy)
    assert (after.energy_uj, after.quality) == (200_000_000, "ok")


@pytest.mark.parametrize("jump_j", [100, 50_000])
def test_a_jump_of_the_counter_is_no_energy_and_is_named_with_both_figures(jump_j: int) -> None:
    rows = steady(100, 40)
    rows["energy_mj"][20:] += jump_j * 1000
    line = Timeline()
    line.most_mw = 300_000
    line.add(rows)
    drawn = steady(100, 40)
    at = line.knots().mid_ns
    whole, early, late = (
        energy(line, int(at[first]), int(at[last])) for first, last in ((2, 37), (2, 18), (22, 37))
    )
    assert isinstance(early, KnownEnergy)
    assert isinstance(late, KnownEnergy)
    assert not isinstance(whole, KnownEnergy), "what was drawn at the jump is not known"
    (jump,) = line.jumps
    grown_mj = int(drawn["energy_mj"][20] - drawn["energy_mj"][19]) + jump_j * 1000
    assert (jump.t_ns, jump.grown_uj) == (int(rows["t_hi_ns"][20]), grown_mj * 1000)
    [gap] = hangs("h", "GPU-1", line)
    assert (gap.what, f"rose by {grown_mj / 1000:.0f} J" in gap.reason) == ("energy counter", True)
    assert not line.jumps


def test_it_is_settled_once_a_change_surely_came_later() -> None:
    line = Timeline()
    line.add(steady(100, 5))
    line.add(readings(row(Seen.CHANGED, 450 * MS, 550 * MS, energy_mj=50_000)))
    assert line.settled(450 * MS)
    assert not line.settled(451 * MS)
    line.add(readings(row(Seen.UNCHANGED, 600 * MS, 601 * MS, energy_mj=50_000)))
    assert not line.settled(451 * MS)
    assert line.received_ns == 601 * MS
    line.interrupt("gone")
    assert line.settled(451 * MS)


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "limit_mw"),
    [
        pytest.param(0, 50, None, id="not known yet"),
        pytest.param(150, 350, 250_000, id="before the change"),
        pytest.param(150, 450, None, id="across the change"),
        pytest.param(395, 450, None, id="the change was between the two stamps"),
        pytest.param(450, 9_000, 100_000, id="after the change"),
    ],
)
def test_the_limit_of_a_window_is_that_in_force_all_through(
    begin_ms: int, end_ms: int, limit_mw: int | None
) -> None:
    line = Timeline()
    for t, in_force, requested in ((100, 250_000, 300_000), (200, 250_000, 250_000), (400, -1, 100_000)):
        line.add(
            readings(
                row(
                    Seen.UNCHANGED,
                    (t - 10) * MS,
                    t * MS,
                    energy_mj=1,
                    limit_mw=in_force,
                    requested_mw=requested,
                )
            )
        )
    assert line.limits_mw([begin_ms * MS], [end_ms * MS]) == [limit_mw]


def test_forgetting_keeps_what_is_needed_and_stays_small() -> None:
    line, period_ns = Timeline(), 20 * MS
    needed = [500 * MS, 7 * S]
    for part in range(200):
        rows = steady(100, 500, period_ns)
        shift = part * 500 * period_ns
        rows["t_lo_ns"] += shift
        rows["t_hi_ns"] += shift
        rows["energy_mj"] += 100 * shift // MS
        line.add(rows[0 if part == 0 else 1 :])
        if line.crowded:
            line.forget(needed)
    assert len(line.knots().mid_ns) < 2 * RECENT_NS // period_ns + 600
    end_ns = line.received_ns - 1
    answers = measure(line, [*needed, 500 * MS], [end_ns, end_ns, 7 * S])
    used = [answer.energy_uj for answer in answers if isinstance(answer, KnownEnergy)]
    assert used == [pytest.approx((end_ns - t_ns) / 10) for t_ns in needed] + [650_000_000]


def test_a_reading_whose_place_was_forgotten_is_dropped_and_counted() -> None:
    line = Timeline()
    rows = steady(100, 5000, 20 * MS)
    line.add(rows)
    line.forget(())
    line.add(readings(row(Seen.CHANGED, 30 * MS, 30 * MS, energy_mj=3_000)))
    assert line.late == 1
    assert not isinstance(energy(line, 10 * MS, 50 * MS), KnownEnergy)


def test_a_limit_in_force_below_the_requested_one_is_a_ceiling_until_more_is_in_force() -> None:
    line, seen = Timeline(), []
    told = [(250, 250), (225, 250), (200, 200), (225, 225), (225, 240), (240, 240), (249.9, 250)]
    for place, (limit_w, requested_w) in enumerate(told, start=1):
        figures = {"limit_mw": round(limit_w * 1000), "requested_mw": round(requested_w * 1000)}
        line.add(readings(row(Seen.UNCHANGED, place * MS, place * MS, energy_mj=1, **figures)))
        seen.append(line.ceiling_mw)
    assert seen == [None, 225_000, 225_000, 225_000, 225_000, None, None]


def test_what_is_forgotten_is_given_back_limits_as_well() -> None:
    line, rows = Timeline(), steady(100, 20_000, 20 * MS)
    rows["limit_mw"] = np.arange(len(rows)) // 100
    line.add(rows)
    held = [column.base for column in line.knots()[:6]]
    assert all(base is not None and base.nbytes > 20_000 * 4 for base in held)
    line.forget((), IDLE_NS)
    kept = IDLE_NS // (20 * MS)
    assert kept <= len(line.knots().mid_ns) <= kept + 2
    assert all(
        base is not None and base.nbytes <= 8 * 8 * (kept + 2) for base in (c.base for c in line.knots()[:6])
    )
    end_ns = line.received_ns
    assert line.limits_mw([0, end_ns - IDLE_NS], [1, end_ns - IDLE_NS]) == [None, 195]


@pytest.mark.sweep
def test_memory_is_bounded_even_when_everything_is_needed() -> None:
    line = Timeline()
    line.add(steady(100, MAX_KNOTS + 1000, 1 * MS))
    assert line.crowded
    line.forget(range(0, line.received_ns, MS))
    assert len(line.knots().mid_ns) == MAX_KNOTS
    assert CROWDED < MAX_KNOTS


def test_the_period_is_that_of_the_last_refreshes() -> None:
    line = Timeline()
    line.add(steady(100, 16))
    assert line.period_ns is None or line.period_ns == 100 * MS
    line.add(steady(100, 20, begin_ns=5 * S)[1:])
    assert line.period_ns == 100 * MS


@pytest.mark.parametrize(
    ("every_ms", "left_out", "open_ms", "told_ms"),
    [
        pytest.param(20, 3, 1, 20, id="some reads leave refreshes out"),
        pytest.param(20, 3, 15, None, id="bounds are wide"),
        pytest.param(200, 0, 1, None, id="each read leaves a refresh out"),
    ],
)
def test_the_period_of_refreshes_is_not_the_distance_of_reads(
    every_ms: int, left_out: int, open_ms: int, told_ms: int | None
) -> None:
    line, rng, t_ns = Timeline(), dice(1), 0
    rows = []
    for number in range(100):
        t_ns += every_ms * MS * rng.randint(1, 1 + left_out)
        seen = Seen.CHANGED if number else Seen.FIRST
        rows.append(row(seen, t_ns - open_ms * MS, t_ns, energy_mj=t_ns // MS))
    line.add(readings(*rows))
    assert line.refresh_period_ns == (told_ms and told_ms * MS)
    if left_out:
        assert line.period_ns is not None
        assert line.period_ns > 30 * MS


def test_a_counter_that_was_once_unreadable_stays_a_counter() -> None:
    line = Timeline()
    line.add(readings(row(Seen.POWER, 0, 0, power_mw=90_000), row(Seen.POWER, 9, 9, power_mw=91_000)))
    estimators = [line.estimator]
    line.add(steady(100, 10, begin_ns=1 * S))
    line.add(readings(row(Seen.POWER, 2 * S, 2 * S, power_mw=90_000)))
    estimators += [line.estimator]
    assert estimators == ["power", "counter"]
    answer = energy(line, 1100 * MS, 1200 * MS)
    assert isinstance(answer, KnownEnergy)
    assert answer.energy_uj == 10_000_000


def test_temperature_is_the_mean_of_the_readings_that_have_one() -> None:
    line = Timeline()
    temperatures = enumerate((-1, 40, 50, -1, 90))
    line.add(
        readings(*(row(Seen.CHANGED, t * S, t * S, energy_mj=t, temperature_c=c) for t, c in temperatures))
    )
    assert line.temperature_c(0, 4 * S) == 45
    assert line.temperature_c(3 * S, 4 * S) is None
