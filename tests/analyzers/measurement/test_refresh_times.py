"""When refreshes came, against when they did: intervals as a collector's reads give them."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.measurement.knots import Floats, Ints, Knots, RefreshPeriod, RefreshTimes
from analyzers.measurement.timeline import Timeline
from tests.analyzers.readings import MS, row
from tests.analyzers.readings import readings as rows_of
from tests.simulation.played import Counter, readings
from zeus_stream.protocol.readings import Seen

COUNT = 1_500
LEARNED = 50


def instants(period_ns: int, off_ns: Floats) -> Ints:
    return np.rint(np.arange(len(off_ns)) * period_ns * (1 + 3e-5) + 7 * MS + off_ns).astype(np.int64)


def bounds(t_ns: Ints, late_ns: Callable[[], int] = lambda: 0) -> tuple[Ints, Ints, Ints]:
    """Return what a collector's reads say of refreshes: since when, until when, and which it is."""
    shown = Counter(t_ns, np.arange(1, len(t_ns) + 1) * 1_000)
    rows = np.concatenate([rows for _, rows in readings(shown, int(t_ns[-1]), late_ns)])
    rows = rows[rows["seen"] == Seen.CHANGED]
    return rows["t_lo_ns"], rows["t_hi_ns"], rows["energy_mj"] // 1_000 - 1


def placed(lo_ns: Ints, hi_ns: Ints) -> tuple[Floats, Floats]:
    rhythm = RefreshPeriod()
    found = np.array([rhythm.place(*pair) for pair in zip(lo_ns.tolist(), hi_ns.tolist(), strict=True)])
    return found[:, 0], found[:, 1] ** 0.5


def knots(lo_ns: Ints, hi_ns: Ints) -> Knots:
    nothing = np.zeros(len(lo_ns), np.int64)
    mid_ns = lo_ns + (hi_ns - lo_ns) // 2
    return Knots(lo_ns, hi_ns, mid_ns, nothing, nothing, nothing, (hi_ns - lo_ns) / 12**0.5, nothing > 0)


def jitter(kind: str, rng: np.random.Generator) -> Floats:
    match kind:
        case "punctual":
            return np.zeros(COUNT)
        case "jitter":
            return rng.uniform(-0.2, 0.2, COUNT) * MS
        case "much jitter":
            return rng.uniform(-1, 1, COUNT) * MS
        case "wanders":
            return np.cumsum(rng.normal(0, 0.05, COUNT)) * MS
        case _:
            return 2 * MS * np.sin(np.arange(COUNT) / 300)


@pytest.mark.parametrize("seen", [1, 4, 7])
def test_a_read_of_700_ms_may_have_seen_any_of_its_refreshes(seen: int) -> None:
    """``seen``: the refresh since its begin that it saw."""
    t_ns = np.concatenate((np.arange(1, 40), [39 + seen, *range(47, 80)])) * 100 * MS
    rows = [row(Seen.FIRST, 0, 0, energy_mj=0)]
    rows += [row(Seen.CHANGED, t - MS // 4, t + MS // 4, energy_mj=t // MS * 200) for t in t_ns.tolist()]
    late = 40
    rows[late] = row(Seen.CHANGED, 3_930 * MS, 4_630 * MS, energy_mj=int(t_ns[late - 1]) // MS * 200)
    rows[late + 1] = row(Seen.CHANGED, 3_940 * MS, 4_700 * MS + MS // 4, energy_mj=4_700 * 200)
    line = Timeline()
    line.most_mw = 300_000
    line.add(rows_of(*rows))
    placed_knots = RefreshTimes().placed(line.knots(), 0, len(rows) - 1)
    off_ns = np.abs(placed_knots.mid_ns[1:] - t_ns)
    assert (off_ns <= 2 * placed_knots.doubt_ns[1:] + 1).all()


@pytest.mark.parametrize("period_ms", [20, 100])
@pytest.mark.parametrize(
    ("kind", "part", "most_us", "late_ms"),
    [
        ("punctual", 0.3, 40, 0.0),
        ("jitter", 0.3, 100, 0.0),
        ("jitter", 0.4, 250, 0.5),
        ("much jitter", 0.35, 350, 0.0),
        ("wanders", 0.8, 100, 0.0),
        ("drifts", 0.4, 40, 0.0),
    ],
)
def test_a_rhythm_says_more_than_bounds_and_how_much_more(
    kind: str, part: float, most_us: int, late_ms: float, period_ms: int
) -> None:
    """``part``: of the error of the middle of the bounds. ``late_ms``: of reads, on a busy host."""
    rng = np.random.default_rng(5)
    t_ns = instants(period_ms * MS, jitter(kind, rng))
    lo_ns, hi_ns, which = bounds(t_ns, lambda: int(rng.exponential(late_ms * MS)))
    mid_ns, doubt_ns = (row[LEARNED:] for row in placed(lo_ns, hi_ns))
    error_ns = mid_ns - t_ns[which][LEARNED:]
    middle_ns = ((lo_ns + hi_ns) / 2 - t_ns[which])[LEARNED:]
    assert np.abs(error_ns).mean() < min(part * np.abs(middle_ns).mean(), most_us * 1000)
    assert 0.4 < np.mean((error_ns / doubt_ns) ** 2) ** 0.5 < 1.6


def test_without_a_rhythm_the_middle_of_the_bounds_is_left() -> None:
    rng = np.random.default_rng(7)
    lo_ns = np.cumsum(rng.uniform(5 * MS, 60 * MS, COUNT)).astype(np.int64)
    hi_ns = lo_ns + MS // 2
    mid_ns, doubt_ns = placed(lo_ns, hi_ns)
    assert np.abs(mid_ns - lo_ns - MS / 4).mean() < 0.05 * MS
    assert doubt_ns.mean() == pytest.approx(MS / 2 / 12**0.5, rel=0.1)


def test_after_a_pause_and_a_jump_the_rhythm_is_found_again() -> None:
    t_ns = instants(20 * MS, np.zeros(COUNT))
    t_ns[500:] += 7 * MS
    t_ns[1000:] += 90_000_000_003
    lo_ns, hi_ns = t_ns - 150_000, t_ns + 350_000
    mid_ns, doubt_ns = placed(lo_ns, hi_ns)
    for settled in (slice(600, 1000), slice(1100, None)):
        assert np.abs(mid_ns - t_ns)[settled].max() < 2 * doubt_ns[settled].max() + 100_000


def test_two_first_distances_that_are_no_period_are_forgotten() -> None:
    """15.8 ms were taken for the period of a counter of 20 ms, with a jitter of 4.5 ms, for ever."""
    t_ns = instants(20 * MS, np.zeros(COUNT))
    t_ns[:2] = t_ns[2] - np.array([31_600_000, 15_800_000])
    lo_ns = t_ns - np.random.default_rng(8).integers(0, MS, COUNT)
    mid_ns, doubt_ns = placed(lo_ns, lo_ns + MS)
    assert doubt_ns[200:].mean() < 100_000
    assert np.abs(mid_ns - t_ns)[200:].mean() < 50_000


@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(0, 10**9)), min_size=1, max_size=60))
@settings(max_examples=100)
def test_whatever_the_bounds_are_an_instant_lies_within_them(steps: list[tuple[int, int]]) -> None:
    lo_ns = np.cumsum([since for since, _ in steps])
    hi_ns = np.maximum.accumulate(lo_ns + [wide for _, wide in steps])
    found = RefreshTimes().placed(knots(lo_ns, hi_ns), 0, len(steps) - 1)
    assert (found.mid_ns >= lo_ns).all()
    assert (found.mid_ns <= hi_ns).all()
    assert (np.diff(found.mid_ns) >= 0).all()
    assert np.isfinite(found.doubt_ns).all()
    assert (found.doubt_ns >= 0).all()


def test_each_is_placed_once_however_many_come_together_and_are_forgotten() -> None:
    lo_ns, hi_ns, _ = bounds(instants(20 * MS, jitter("jitter", np.random.default_rng(8))))
    all_knots = knots(lo_ns, hi_ns)
    whole = RefreshTimes().placed(all_knots, 0, COUNT)
    parts = RefreshTimes()
    for end in range(7, 400, 9):
        oldest = max(end - 100, 0)
        seen = knots(lo_ns[oldest:], hi_ns[oldest:])
        some = parts.placed(seen, int(seen.lo_ns[0]), end - oldest - 1)
        assert (some.mid_ns[: end - oldest] == whole.mid_ns[oldest:end]).all()
        assert (some.mid_ns[end - oldest :] == all_knots.mid_ns[end:]).all()


def test_the_first_value_of_a_counter_is_no_refresh() -> None:
    t_ns = instants(20 * MS, np.zeros(200))
    shown = knots(t_ns - 150_000, t_ns + 350_000)
    shown.lo_ns[100] = shown.hi_ns[99]
    shown.epoch[100], shown.epoch[101:] = 1, 2
    found = RefreshTimes().placed(shown, 0, 199)
    assert found.mid_ns[100] == shown.mid_ns[100]
    assert np.abs(found.mid_ns - t_ns)[101:].max() < 150_000
