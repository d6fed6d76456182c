import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.device import Sample
from collectors.sampling.sampled_device import ENOUGH, DetectorState, Reading, observe, pack
from zeus_stream.protocol.readings import READING_BYTES, READING_FIELDS, READING_STRUCT, Seen

MS = 1_000_000
HEARTBEAT_NS = 500 * MS
FOREVER_NS = 10**18


def sample(energy_mj: int | None, power_mw: int | None = 100_000, limit_mw: int = 250_000) -> Sample:
    return Sample(energy_mj, power_mw, limit_mw, limit_mw)


def readings(*reads: tuple[int, Sample], heartbeat_ns: int = FOREVER_NS) -> list[Reading]:
    """Return what is published of reads that begin at a time (ms) and take 1 ms."""
    state, published = DetectorState(), []
    for t_ms, seen in reads:
        state, reading = observe(state, seen, t_ms * MS, (t_ms + 1) * MS, heartbeat_ns)
        if reading is not None:
            published.append(reading)
    return published


def bounds_ms(reading: Reading) -> tuple[int, int, Seen]:
    return reading.t_lo_ns // MS, reading.t_hi_ns // MS, reading.seen


def test_a_change_lies_between_the_beginning_of_the_last_old_read_and_the_end_of_the_first_new_one() -> None:
    seen = readings((0, sample(5)), (10, sample(5)), (20, sample(5)), (30, sample(9)))
    assert [bounds_ms(r) for r in seen] == [(0, 1, Seen.FIRST), (20, 31, Seen.CHANGED)]


def test_a_counter_that_fell_is_a_reset_and_not_a_change() -> None:
    seen = readings((0, sample(50)), (10, sample(3)), (20, sample(4)))
    assert [r.seen for r in seen] == [Seen.FIRST, Seen.RESET, Seen.CHANGED]


def test_a_long_pause_between_reads_gives_wide_stamps_not_wrong_ones() -> None:
    *_, late = readings((0, sample(5)), (10, sample(5)), (60_000, sample(900)))
    assert bounds_ms(late) == (10, 60_001, Seen.CHANGED)


def test_nothing_new_is_said_only_once_a_heartbeat() -> None:
    seen = readings(*((t, sample(5)) for t in range(0, 1200, 10)), heartbeat_ns=HEARTBEAT_NS)
    assert [bounds_ms(r) for r in seen] == [
        (0, 1, Seen.FIRST),
        (500, 501, Seen.UNCHANGED),
        (1000, 1001, Seen.UNCHANGED),
    ]


def test_a_changed_limit_is_said_at_once_though_the_counter_did_not_move() -> None:
    seen = readings((0, sample(5)), (10, sample(5)), (20, sample(5, limit_mw=200_000)))
    assert [(r.seen, r.sample.limit_mw) for r in seen] == [(Seen.FIRST, 250_000), (Seen.UNCHANGED, 200_000)]


def test_a_device_without_counter_says_between_which_reads_its_power_became_another() -> None:
    seen = readings((0, sample(None, 90)), (10, sample(None, 90)), (20, sample(None, 95)))
    assert [bounds_ms(r) for r in seen] == [(0, 1, Seen.POWER), (10, 21, Seen.POWER)]


@given(
    period_ms=st.floats(10, 120),
    phase=st.floats(0, 1),
    gaps_ms=st.lists(st.floats(0.05, 400), min_size=2, max_size=60),
    call_ms=st.floats(0.01, 5),
    where=st.floats(0, 1),
)
def test_the_refresh_that_gave_a_new_value_lies_between_its_stamps(
    period_ms: float, phase: float, gaps_ms: list[float], call_ms: float, where: float
) -> None:
    """``where`` within its call the driver looked at its counter, which counts its refreshes."""

    def refreshes(t_ns: int) -> int:
        return int((t_ns / MS + phase * period_ms) // period_ms)

    state, now_ns = DetectorState(), 10**9
    for gap_ms in gaps_ms:
        before_ns = now_ns
        after_ns = before_ns + int(call_ms * MS)
        looked_ns = before_ns + int((after_ns - before_ns) * where)
        state, reading = observe(state, sample(refreshes(looked_ns)), before_ns, after_ns, FOREVER_NS)
        if reading is not None and reading.seen is Seen.CHANGED:
            energy = reading.sample.energy_mj
            assert energy is not None
            refreshed_ns = (energy - phase) * period_ms * MS
            assert reading.t_lo_ns - 1 <= refreshed_ns <= reading.t_hi_ns + 1
        now_ns = after_ns + int(gap_ms * MS)


@pytest.mark.parametrize("period_ms", [20, 100])
def test_the_period_is_learned_from_changes_and_not_from_a_pause_among_them(period_ms: int) -> None:
    state, t_ms, changes = DetectorState(), 0, 0
    while changes < 40:
        assert state.period_ns is None or changes > ENOUGH
        before_ns = state.changed_ns
        state, _ = observe(state, sample(t_ms // period_ms), t_ms * MS, t_ms * MS, FOREVER_NS)
        changes += state.changed_ns != before_ns
        t_ms += 5 if t_ms != 300 else 7000
    assert state.period_ns == pytest.approx(period_ms * MS, rel=0.01)


def test_a_packed_row_is_what_readers_unpack_and_absent_figures_are_marked() -> None:
    reading = Reading(1, 2, Sample(7, None, 250_000, 240_000, 1380, 61, None), Seen.CHANGED)
    row = pack(reading, 3)
    assert len(row) == READING_BYTES
    expected = (1, 2, 7, -1, 250_000, 240_000, 1380, 61, -1, 3, Seen.CHANGED)
    assert struct.unpack(READING_STRUCT, row) == expected
    assert np.frombuffer(row, np.dtype(list(READING_FIELDS)))[0].item() == expected
