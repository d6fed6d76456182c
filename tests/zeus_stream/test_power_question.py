"""Power over time: its area is the energy, whatever the counter did."""

from collections.abc import Callable
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_stream.questions.asking import answered
from zeus_stream.questions.power_question import bucket_ns, find_power
from zeus_stream.questions.run_questions import PageGpu

MS = 1_000_000
BOOTED_NS = 1_700_000_000_000_000_000
TABLES = """
CREATE TABLE hosts (log_id VARCHAR, host VARCHAR, monotonic_ns BIGINT, wall_ns BIGINT);
CREATE TABLE logs (log_id VARCHAR, host VARCHAR, logged_ns BIGINT);
CREATE TABLE readings (log_id VARCHAR, logged_ns BIGINT, gpu VARCHAR, t_lo_ns BIGINT, t_hi_ns BIGINT,
    energy_mj BIGINT, power_mw INTEGER, limit_mw INTEGER, seen VARCHAR);
CREATE TABLE minutes (gpu VARCHAR, began_at TIMESTAMP, energy_j DOUBLE, covered_s DOUBLE, peak_w DOUBLE,
    limit_w DOUBLE);
"""
Change = tuple[int, int | None, str]
"""ms of the host's clock, mJ of the counter, how it was seen."""


def gpu(name: str = "a", period_ms: float = 100.0) -> PageGpu:
    return PageGpu(
        gpu=name, host="h", index=0, model="X", driver="1", period_ms=period_ms, found_limit_w=None
    )


def archive(changes: dict[str, list[Change]]) -> Callable[[str], pa.Table]:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(TABLES)
    connection.execute("INSERT INTO hosts VALUES ('l', 'h', 0, ?)", [BOOTED_NS])
    connection.execute("INSERT INTO logs VALUES ('l', 'h', ?)", [10**15])
    names = ("log_id", "logged_ns", "gpu", "t_lo_ns", "t_hi_ns", "energy_mj", "power_mw", "limit_mw", "seen")
    rows = [
        ("l", at_ms * MS + MS, name, low_ms * MS, at_ms * MS, energy_mj, 150_000, 200_000, seen)
        for name, listed in changes.items()
        for (before_ms, *_), (at_ms, energy_mj, seen) in pairwise([(0, 0, ""), *listed])
        for low_ms in [before_ms if seen == "rested" else at_ms]
    ]
    read = pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})
    connection.register("read", read)
    connection.execute("INSERT INTO readings FROM read")
    return lambda sql: connection.sql(sql).to_arrow_table()


steps = st.lists(
    st.tuples(
        st.integers(60, 400), st.integers(0, 100_000), st.sampled_from(["changed"] * 9 + ["unchanged"])
    ),
    min_size=30,
    max_size=80,
)


@pytest.mark.sweep
@settings(max_examples=12)
@given(first=steps, second=steps, px=st.integers(1, 60))
def test_the_area_of_the_means_is_the_difference_of_the_counters(
    first: list[tuple[int, int, str]], second: list[tuple[int, int, str]], px: int
) -> None:
    known: dict[str, list[Change]] = {}
    for name, moves in (("a", first), ("b", second)):
        at_ms, energy_mj, rows = 0, 1_000_000, [(0, 1_000_000, "first")]
        for width_ms, used_mj, seen in moves:
            at_ms += width_ms
            energy_mj += 0 if seen == "unchanged" else used_mj
            rows.append((at_ms, energy_mj, seen))
        known[name] = [*rows, (40_000, energy_mj, "changed")]
    begin_ns, end_ns = BOOTED_NS + 300 * MS, BOOTED_NS + 1_700 * MS
    found = answered(find_power((gpu("a"), gpu("b")), begin_ns, end_ns, px), archive(known))
    end_ms = 300 + found.points[-1].end_s * 1000
    expected = sum(at(rows, end_ms) - at(rows, 300) for rows in known.values()) / 1000
    assert found.energy_j == pytest.approx(expected, rel=1e-6, abs=1e-3)


def at(rows: list[Change], t_ms: float) -> float:
    """Return the counter at an instant, between its changes."""
    changes = [(when, value) for when, value, seen in rows if seen != "unchanged" and value is not None]
    for (t0, e0), (t1, e1) in pairwise(changes):
        if t0 <= t_ms <= t1:
            return e0 + (e1 - e0) * (t_ms - t0) / (t1 - t0)
    raise AssertionError(t_ms)


def steady(until_ms: int) -> list[Change]:
    return [(t, 200 * t, "changed" if t else "first") for t in range(0, until_ms + 1, 100)]


def test_a_steady_load_has_no_spike_and_no_hole_at_any_width() -> None:
    answer = archive({"a": steady(20_000)})
    for px in (1, 7, 33, 90, 4000):
        found = answered(find_power((gpu(),), BOOTED_NS + 1_030 * MS, BOOTED_NS + 11_030 * MS, px), answer)
        assert [point.mean_w for point in found.points] == pytest.approx([200.0] * len(found.points))


def test_a_gpu_that_rests_and_is_read_rarely_has_no_spike_and_keeps_its_limit() -> None:
    """A reading after a rest was drawn in the middle of it: idle GPUs leapt to twice their power."""
    rests = [(t, 200 * t, "rested") for t in range(7_000, 17_000, 2_000)]
    awake = [(t, 200 * t, "changed") for t in range(15_100, 20_000, 100)]
    answer = archive({"a": [*steady(5_000), *rests, *awake]})
    found = answered(find_power((gpu(),), BOOTED_NS + 1_000 * MS, BOOTED_NS + 18_000 * MS, 85), answer)
    assert [point.mean_w for point in found.points] == pytest.approx([200.0] * 85)
    assert {point.limit_w for point in found.points} == {200.0}


def test_a_reset_of_the_counter_is_a_gap_and_never_a_negative_power() -> None:
    rows = [
        *steady(5_000),
        *((5_100 + t, 200 * t, "changed" if t else "reset") for t in range(0, 5_000, 100)),
    ]
    found = answered(find_power((gpu(),), BOOTED_NS, BOOTED_NS + 10_000 * MS, 50), archive({"a": rows}))
    means = [point.mean_w for point in found.points]
    assert means.count(None) == 1
    assert [mean for mean in means if mean is not None] == pytest.approx([200.0] * (len(means) - 1))
    assert found.energy_j is None, "a part of the range has no energy"


def test_before_the_first_reading_nothing_is_known() -> None:
    rows = [(2_000 + t, e, seen) for t, e, seen in steady(5_000)]
    found = answered(find_power((gpu(),), BOOTED_NS, BOOTED_NS + 4_000 * MS, 4), archive({"a": rows}))
    assert [point.mean_w for point in found.points] == [None, None, pytest.approx(200), pytest.approx(200)]
    assert [point.limit_w for point in found.points[:2]] == [None, None]


def test_a_gpu_without_counter_has_the_means_of_its_sensor_and_no_energy() -> None:
    rows: list[Change] = [(t, None, "changed") for t in range(0, 5_000, 100)]
    found = answered(find_power((gpu(),), BOOTED_NS, BOOTED_NS + 4_000 * MS, 4), archive({"a": rows}))
    assert [point.mean_w for point in found.points] == [150.0] * 4
    assert not found.counted
    assert found.energy_j is None


def test_a_bucket_has_two_periods_at_least() -> None:
    assert bucket_ns(0, 10_000 * MS, 4000, 100.0) == 200 * MS
    assert bucket_ns(0, 10_000 * MS, 10, 100.0) == 1_000 * MS
    assert bucket_ns(0, 10_000 * MS, 4000, 20.0) == 100 * MS


def test_a_long_range_is_drawn_from_whole_minutes() -> None:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(TABLES)
    connection.execute(
        "INSERT INTO minutes"
        " SELECT gpu, make_timestamp(?) + to_minutes(CAST(n AS INTEGER)), 6000, 60, 150, 200"
        " FROM range(300) AS r(n), (SELECT unnest(['a', 'b']) AS gpu)"
        " WHERE gpu = 'a' OR n <> 7",
        [BOOTED_NS // 60_000_000_000 * 60_000_000],
    )
    begin_ns = BOOTED_NS // 60_000_000_000 * 60_000_000_000
    end_ns = begin_ns + 300 * 60_000 * MS

    def ask(sql: str) -> pa.Table:
        return connection.sql(sql).to_arrow_table()

    one = answered(find_power((gpu("a"),), begin_ns, end_ns, 100), ask)
    assert one.bucket_s == 180
    assert [point.mean_w for point in one.points] == [100.0] * 100
    assert one.energy_j == 300 * 6000
    both = answered(find_power((gpu("a"), gpu("b")), begin_ns, end_ns, 300), ask)
    assert [point.mean_w for point in both.points].count(None) == 1, "a minute that one of them lacks"
    assert {point.mean_w for point in both.points} == {200.0, None}
    assert both.points[0].limit_w == 400.0
    assert both.energy_j is None
