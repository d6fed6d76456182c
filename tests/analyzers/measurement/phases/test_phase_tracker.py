"""Phases of steps: their seconds and joules, from a counter that is coarser than they are."""

from collections.abc import Sequence

import numpy as np
import pytest

from analyzers.measurement.energy import Meter
from analyzers.measurement.phases.mark_times import MAX_PHASES, OTHER, MarkTimes
from analyzers.measurement.phases.phase_tracker import NOT_IDENTIFIED, PhaseTracker
from analyzers.measurement.timeline import Timeline
from analyzers.measurement.windows import Owner
from analyzers.results.readings import READING
from analyzers.results.window_rows import PhaseRow
from tests.analyzers.readings import MS, S
from zeus_stream.protocol.events import PhasesRan, pack_marks
from zeus_stream.protocol.readings import Seen

NAMES = ("forward", "backward")
POWER_W = np.array([150.0, 300.0])
LENGTH_NS = np.array([9.0, 14.0]) * MS


def marks_of(seconds: float, jitter: float, seed: int = 1) -> np.ndarray:
    rng, count = np.random.default_rng(seed), int(seconds * S / LENGTH_NS.sum())
    lengths_ns = LENGTH_NS * (1 + jitter * rng.uniform(-1, 1, (count, 2)))
    marks_ns: np.ndarray = S + np.concatenate(([0], np.cumsum(lengths_ns))).astype(np.int64)
    return marks_ns


def meter_of(
    marks_ns: np.ndarray,
    *,
    limit_mw: int = 300_000,
    period_ns: int = 100 * MS,
    lags_ns: Sequence[int] | np.ndarray = (0,),
) -> Meter:
    """Return a meter whose counter counted what phases of this length use.

    Power follows the marks by each of ``lags_ns``, equally often.
    """
    used_j = np.concatenate(
        ([0.0], np.cumsum(np.diff(marks_ns) / 1e9 * np.tile(POWER_W, len(marks_ns) // 2)))
    )
    t_ns = np.arange(S, int(marks_ns[-1]) + 2 * S, period_ns)
    rows = np.zeros(len(t_ns), READING)
    rows["t_lo_ns"] = rows["t_hi_ns"] = t_ns
    rows["energy_mj"] = (
        np.mean([np.interp(t_ns - lag, marks_ns, used_j) for lag in lags_ns], axis=0) * 1e3 + 1
    )
    rows["power_mw"], rows["limit_mw"], rows["requested_mw"] = 200_000, limit_mw, limit_mw
    rows["seen"] = Seen.CHANGED
    rows["seen"][0] = Seen.FIRST
    made = Meter(Timeline())
    for at in range(0, len(rows), 100):
        made.timeline.add(rows[at : at + 100])
    return made


def event_of(marks_ns: np.ndarray, names: tuple[str, ...] = NAMES) -> PhasesRan:
    numbers = [*np.tile([1, 2], len(marks_ns) // 2).tolist(), 0]
    marks = list(zip(marks_ns.tolist(), numbers, strict=True))
    return PhasesRan(marks[0][0], names, pack_marks(marks[0][0], marks))


def tracked(marks_ns: np.ndarray, epochs: Sequence[tuple[int, int | None]] = ()) -> list[PhaseRow]:
    tracker = PhaseTracker(Owner("session", "run", "job", 0, "host"))
    tracker.take(event_of(marks_ns))
    for t_ns, index in epochs:
        tracker.epoch(t_ns, index)
    return tracker.measure({"GPU-a": meter_of(marks_ns)}, int(marks_ns[-1]) + 2 * S, ended=True)


def test_the_joules_of_phases_shorter_than_a_refresh_are_told_by_many() -> None:
    rows = {row.phase: row for row in tracked(marks_of(60, 0.1))}
    assert set(rows) == set(NAMES)
    for name, power_w in zip(NAMES, POWER_W.tolist(), strict=True):
        row = rows[name]
        assert row.energy_j == pytest.approx(power_w * row.duration_s, rel=0.02)
        assert row.energy_p2_5_j is not None
        assert row.energy_p97_5_j is not None
        assert row.energy_p2_5_j <= power_w * row.duration_s <= row.energy_p97_5_j
        assert (row.quality, row.epoch) == ("ok", None)
    assert sum(row.share or 0.0 for row in rows.values()) == pytest.approx(1.0)
    assert rows["forward"].times == pytest.approx(60 * S / LENGTH_NS.sum(), rel=0.01)


def test_power_that_moves_by_and_by_is_not_booked_to_the_phase_of_least_power() -> None:
    """Each change is 0 to 1 ms late and takes 1 ms, so power is 1 ms late in the mean."""
    marks_ns, tracker = marks_of(60, 0.1), PhaseTracker(Owner("session", "run", "job", 0, "host"))
    lags_ns = np.add.outer(np.linspace(0, MS, 9), np.linspace(0, MS, 9)).ravel()
    tracker.take(event_of(marks_ns))
    rows = tracker.measure(
        {"GPU-a": meter_of(marks_ns, lags_ns=lags_ns)}, int(marks_ns[-1]) + 2 * S, ended=True
    )
    forward = next(row for row in rows if row.phase == "forward")
    used_j = POWER_W[0] * forward.duration_s + forward.times * np.diff(POWER_W)[0] * 1e-3
    assert forward.energy_j == pytest.approx(used_j, rel=0.002)


def test_marks_that_never_move_against_the_counter_tell_nothing() -> None:
    steps = np.tile([8 * MS, 12 * MS], 500)  # five steps of 20 ms in each refresh of 100 ms
    rows = tracked(S + np.concatenate(([0], np.cumsum(steps))))
    assert {row.phase for row in rows} == set(NAMES)
    for row in rows:
        assert (row.energy_j, row.energy_p2_5_j, row.share, row.quality) == (None, None, None, NOT_IDENTIFIED)
        assert row.duration_s > 0


def test_each_epoch_has_rows_of_its_own_beside_the_run() -> None:
    marks_ns = marks_of(60, 0.1)
    rows = tracked(marks_ns, [(S, 0), (31 * S, None), (32 * S, 1)])
    seconds = {(row.epoch, row.phase): row.duration_s for row in rows}
    assert {epoch for epoch, _ in seconds} == {None, 0, 1}
    of_run = seconds[None, "forward"]
    assert seconds[0, "forward"] + seconds[1, "forward"] == pytest.approx(of_run * 59 / 60, rel=0.02)


def test_a_run_that_goes_on_has_rows_every_ten_seconds() -> None:
    marks_ns, tracker = marks_of(30, 0.1), PhaseTracker(Owner("session", "run", "job", 0, "host"))
    tracker.take(event_of(marks_ns))
    meters = {"GPU-a": meter_of(marks_ns)}
    assert tracker.measure(meters, 40 * S, ended=False)
    assert tracker.measure(meters, 41 * S, ended=False) == []
    assert tracker.measure(meters, 50 * S, ended=False)


def test_more_names_than_are_told_apart_count_as_other() -> None:
    times = MarkTimes()
    numbers = [times.number(f"phase {each}") for each in range(MAX_PHASES + 3)]
    assert numbers == [*range(1, MAX_PHASES), 0, 0, 0, 0]
    assert times.names[0] == OTHER


def test_seconds_of_phases_go_on_after_the_last_mark() -> None:
    times = MarkTimes()
    first = times.number("forward")
    times.add([1 * S, 2 * S], [first, 0])
    assert times.until(np.array([1 * S, 1_500 * MS, 3 * S])).tolist() == [[0.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    assert times.under_way(np.array([1 * S, 2 * S])).tolist() == [first, 0]
