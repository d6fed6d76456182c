"""Roll-ups in the archive, and what is removed when it is old."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.memory_rows import read_removed_runs
from analyzers.results.readings import READING
from analyzers.results.rows import CheckpointRow, Derived, MetricRow
from analyzers.service.commits import words
from collectors.service import ANCHOR_NS
from tests.analyzers.archives import (
    BOOTED_NS,
    HOST,
    LOG,
    RUN,
    SECOND,
    STARTED,
    A,
    B,
    ask,
    energy_mj,
    frame,
    frames,
    opened,
    readings,
    rows,
)  # fmt: skip
from tests.messages import COLLECTOR_STARTED
from zeus_stream.clock import Anchor
from zeus_stream.protocol.frames import Body, Events, Frame
from zeus_stream.protocol.notes import ClockAnchored, Notes
from zeus_stream.protocol.readings import Readings, Seen
from zeus_stream.settings import Settings

DAY_NS = 86_400 * SECOND
KEPT = Settings()
KEPT_FOR_EVER = Settings(keep_readings_days=0, keep_seconds_days=0, keep_minutes_days=0, keep_steps_days=0)
LEAD_READINGS = 120
"""Of the last 5 s: a restart interprets them again."""
ROLLED_UP = ("seconds", "minutes", "hours")


def bins(archive: DuckdbFile) -> list[list[tuple[Any, ...]]]:
    rounded = "* REPLACE (round(energy_j, 6) AS energy_j, round(covered_s, 6) AS covered_s)"
    return [ask(archive, f"FROM {table} SELECT {rounded} ORDER BY ALL") for table in ROLLED_UP]


def sums(archive: DuckdbFile) -> list[list[tuple[Any, ...]]]:
    """Return energy, time and readings of each bin, in one row of it or several."""
    summed = "gpu, began_at, round(sum(energy_j), 3), round(sum(covered_s), 6), sum(readings)"
    return [ask(archive, f"FROM {table} SELECT {summed} GROUP BY ALL ORDER BY ALL") for table in ROLLED_UP]


def at(days: float) -> int:
    """Return the UTC so many days after the world's begin."""
    return BOOTED_NS + round(days * DAY_NS)


def world() -> list[tuple[Frame, Body]]:
    """Return the world's log, each frame logged a second after its readings began."""
    logged_ns, log = 0, []
    for each, body in frames():
        if isinstance(body, Readings):
            logged_ns = int(np.frombuffer(body.rows, READING)["t_hi_ns"].max())
        log.append((replace(each, t_ns=logged_ns), body))
    return log


def with_end(archive: DuckdbFile) -> None:
    """Store the world, with its run measured to the end, and a later reading of the clocks."""
    stored = world()
    late = frame(
        len(stored), Notes((ClockAnchored(200 * SECOND, BOOTED_NS + 200 * SECOND, 9),)), t_ns=200 * SECOND
    )
    archive.put([[*stored, late]], rows(), {LOG: len(stored) + 1})


def checkpoint(offset: int, *sessions: str) -> CheckpointRow:
    """Return a checkpoint from which the log is interpreted again from an offset on."""
    return CheckpointRow(
        name="analyzer", number=1, start=1, wall_ns=1, code="this", signature=b"", runs=sessions,
        sessions=sessions, log_ids=(LOG,), offsets=(offset,), state=b"", live=b"",
    )  # fmt: skip


def test_each_gpu_has_its_energy_by_second_minute_and_hour(archive: DuckdbFile) -> None:
    archive.put([world()])
    for table, end_s, read in (("seconds", 118, 1170), ("minutes", 60, 590), ("hours", 60, 590)):
        found = ask(
            archive, f"FROM {table} SELECT gpu, sum(energy_j), sum(covered_s), sum(readings) GROUP BY gpu"
        )
        assert {gpu: figures for gpu, *figures in found} == {
            gpu: [
                pytest.approx((energy_mj(gpu, end_s) - energy_mj(gpu, 1)) / 1000, rel=0.001),
                pytest.approx(end_s - 1.001),
                read,
            ]
            for gpu in (A, B)
        }
    assert ask(archive, "SELECT DISTINCT host FROM minutes") == [(HOST,)]
    half = "FROM power SELECT power_w, clock_mhz WHERE clock_mhz > 0 AND second(began_at) = 30 LIMIT 1"
    [(watts, clock)] = ask(archive, half)
    assert (watts, clock) == (pytest.approx(200), 1400)


@pytest.mark.parametrize("batch", [29, 90])
def test_no_energy_is_counted_twice_or_lost_by_restarts(
    archive: DuckdbFile, tmp_path: Path, batch: int
) -> None:
    archive.put([world()])
    stored = world()
    for begin in range(0, len(stored), batch):
        part = stored[begin : begin + batch]
        with opened(tmp_path / "restarted.duckdb") as restarted:
            restarted.put([part])
            restarted.put([part])  # stored already
            found = bins(restarted)
    assert found == bins(archive)


def away(seconds: int) -> list[tuple[Frame, Body]]:
    """Return the world's log, its collector away for so long after a minute: the counters count on."""
    log = world()[:61]
    for second in range(61 + seconds, 121 + seconds):
        rows = np.frombuffer(readings(second).rows, READING).copy()
        if second == 61 + seconds:
            rows["seen"][:2] = Seen.FIRST
        at_ns = int(rows["t_hi_ns"].max())
        log.append(frame(len(log), Readings((A, B), rows.tobytes()), t_ns=at_ns))
    return log


@pytest.mark.parametrize("batch", [61, 62, 90])
def test_what_was_drawn_while_the_collector_was_away_is_counted_once_by_restarts(
    archive: DuckdbFile, tmp_path: Path, batch: int
) -> None:
    """So many seconds closed those that were under way, or not, as frames came together."""
    stored = away(400)
    archive.put([stored])
    for begin in range(0, len(stored), batch):
        with opened(tmp_path / "restarted.duckdb") as restarted:
            restarted.put([stored[begin : begin + batch]])
            found = sums(restarted)
    assert found == sums(archive)


@pytest.mark.parametrize("batch", [29, 1000])
def test_energy_goes_to_the_name_that_the_host_had_then(
    archive: DuckdbFile, tmp_path: Path, batch: int
) -> None:
    archive.put([world()])
    stored = [(replace(each, host=HOST if n < 55 else "new"), body) for n, (each, body) in enumerate(world())]
    for begin in range(0, len(stored), batch):
        with opened(tmp_path / "renamed.duckdb") as renamed:
            renamed.put([stored[begin : begin + batch]])
            read = ask(renamed, "SELECT count(*) FROM readings WHERE host <> 'new'")
            counted = ask(renamed, "SELECT sum(readings) FROM seconds WHERE host <> 'new'")
            total = ask(renamed, "SELECT sum(energy_j) FROM seconds")
    assert counted == read
    assert total == [(pytest.approx(ask(archive, "SELECT sum(energy_j) FROM seconds")[0][0]),)]


def test_a_commit_that_fails_counts_nothing(archive: DuckdbFile, tmp_path: Path) -> None:
    archive.put([world()])
    stored = world()
    with opened(tmp_path / "failing.duckdb") as failing:
        for begin in range(0, len(stored), 40):
            part = stored[begin : begin + 40]
            with pytest.raises(Exception, match="NotARow"):
                failing.put([part], [], {LOG: "NotARow"})  # type: ignore[dict-item]
            failing.put([part])
        assert bins(failing) == bins(archive)


def test_readings_go_by_age_and_energy_stays(archive: DuckdbFile) -> None:
    with_end(archive)
    assert archive.prune(KEPT, at(6.9)) == {}
    before = ask(archive, "SELECT sum(energy_j) FROM power")
    removed = archive.prune(KEPT, at(8))
    assert removed == {"readings": 2400 - LEAD_READINGS, "frames": 40}
    assert archive.prune(KEPT, at(8)) == {}
    assert ask(archive, "SELECT sum(energy_j) FROM power") == before
    assert set(archive.prune(KEPT, at(15))) == {"seconds"}
    assert set(ask(archive, "SELECT DISTINCT length_s FROM power")) == {(60,)}
    assert set(archive.prune(KEPT, at(402))) == {"minutes", "events", "windows", "metrics"}
    assert ask(archive, "SELECT DISTINCT length_s FROM power") == [(3600,)]
    assert ask(archive, "SELECT sum(energy_j) FROM power") == [(pytest.approx(before[0][0]),)]
    assert sorted(ask(archive, 'SELECT "table", rows FROM removed'))[-3:] == [
        ("readings", 2400 - LEAD_READINGS), ("seconds", 240), ("windows", 88)
    ]  # fmt: skip


def test_nothing_goes_that_a_restart_interprets_again(archive: DuckdbFile) -> None:
    stored = world()
    unfinished = [row for row in rows() if getattr(row, "kind", "") != "run"]
    archive.put([stored], unfinished, {LOG: len(stored)})
    whole = [frame for page in archive.replay() for frame, _ in page]
    assert "readings" in archive.prune(KEPT, at(9)), "those of before the run"
    assert set(archive.prune(KEPT, at(300))) == {"seconds"}
    assert words(archive.prune(KEPT, at(300))).startswith("nothing: "), (
        "readings are older than they are kept"
    )
    assert words({}).endswith("or a restart needs it")
    assert [frame for page in archive.replay() for frame, _ in page] == whole


def test_readings_of_a_run_that_is_open_for_weeks_go_up_to_its_last_checkpoint(archive: DuckdbFile) -> None:
    stored = world()
    unfinished = [row for row in rows() if getattr(row, "kind", "") != "run"]
    archive.put([stored], [*unfinished, checkpoint(100, RUN.session)], {LOG: len(stored)})
    last = ClockAnchored(200 * SECOND, BOOTED_NS + 200 * SECOND, 9)
    archive.put([[frame(len(stored), Notes((last,)), t_ns=200 * SECOND)]], [], {LOG: 100})
    whole = {each.offset for page in archive.replay({LOG: 100}) for each, _ in page}
    archive.prune(KEPT, at(9), "another")
    before = ask(archive, 'SELECT count(*) FROM readings WHERE "offset" < 100')
    archive.prune(KEPT, at(9), "this")
    assert ask(archive, 'SELECT count(*) FROM readings WHERE "offset" < 90') < before
    assert ask(archive, 'SELECT count(*) FROM frames JOIN events USING (log_id, "offset")'
               " WHERE kind = 'run_started'") == [(1,)]  # fmt: skip
    again = {each.offset for page in archive.replay({LOG: 100}) for each, _ in page}
    assert again == whole


def test_steps_of_old_runs_go_and_their_savings_stay(archive: DuckdbFile) -> None:
    with_end(archive)
    metric = MetricRow(session=RUN.session, run=RUN.run, name="loss", t_ns=0, step=0, value=0.5, epoch=0)
    archive.put([], [replace(metric, t_ns=t * SECOND, step=t, epoch=t // 10) for t in range(1, 40)])
    savings = ask(archive, "FROM savings")
    assert savings[0]
    archive.prune(KEPT, at(91))
    assert ask(archive, "SELECT DISTINCT kind FROM windows ORDER BY ALL") == [("epoch",), ("run",)]
    assert ask(archive, "FROM savings") == savings
    assert ask(archive, "SELECT epoch, step FROM metrics WHERE name = 'loss' ORDER BY ALL") == [
        (0, 9), (1, 19), (2, 29), (3, 39)
    ]  # fmt: skip
    with archive.file.cursor() as cursor:
        assert read_removed_runs(cursor) == {RUN.run}


def test_what_is_kept_for_ever_is_not_removed(archive: DuckdbFile) -> None:
    with_end(archive)
    assert (
        archive.prune(
            KEPT_FOR_EVER,
            at(36_500),
        )
        == {}
    )


@pytest.mark.parametrize(
    "moved_s", [pytest.param(8 * 3600, id="suspended"), pytest.param(-3600, id="set back")]
)
def test_energy_is_at_most_a_second_in_the_wrong_hour_when_the_clock_of_a_host_moves(
    archive: DuckdbFile, moved_s: int
) -> None:
    """The clocks of a host were logged each minute: up to a minute of energy was in an hour long over."""
    log, said = list[tuple[Frame, Body]](), Anchor(0, 0, 0)
    for second in range(1, 101):
        moved_ns = moved_s * SECOND if second >= 50 else 0
        now = Anchor(second * SECOND, BOOTED_NS + second * SECOND + moved_ns, 9)
        if said.is_outdated(now, ANCHOR_NS):
            said, note = now, ClockAnchored(now.monotonic_ns, now.wall_ns, 9)
            log.append(frame(len(log), Notes((note,)), t_ns=now.monotonic_ns))
        log.append(frame(len(log), readings(second), t_ns=(second + 1) * SECOND))
    archive.put([log])
    by_hour = dict(ask(archive, "SELECT hour(began_at), sum(covered_s) FROM seconds GROUP BY ALL"))
    assert by_hour[0] == pytest.approx(2 * 49, abs=3)


def test_readings_are_placed_by_the_clock_that_was_known_then(archive: DuckdbFile) -> None:
    stored = world()
    archive.put([stored])
    set_back = BOOTED_NS - 3600 * SECOND
    end = len(stored)
    note = Notes((ClockAnchored(200 * SECOND, set_back + 200 * SECOND, 9),))
    archive.put([[frame(end, note, t_ns=200 * SECOND), frame(end + 1, readings(201), t_ns=202 * SECOND)]])
    assert ask(archive, "SELECT max(read_at)::VARCHAR FROM samples WHERE t_hi_ns > 200e9") == [
        ("2025-12-31 23:03:21.901",)
    ]


def test_a_host_whose_clock_is_wrong_after_a_boot_loses_nothing_early(archive: DuckdbFile) -> None:
    """A board without a battery begins at 1970 until it has asked the network."""
    with_end(archive)
    end = ask(archive, "SELECT next_offset FROM logs")[0][0]
    clocks = 5 * SECOND, BOOTED_NS + 6 * SECOND
    late = [
        frame(end + n, Notes((ClockAnchored(5 * SECOND, wall_ns, 9),)), t_ns=5 * SECOND)
        for n, wall_ns in enumerate(clocks)
    ]
    archive.put([late], [], {LOG: end + 2})
    assert archive.prune(KEPT, at(1)) == {}
    assert set(archive.prune(KEPT, at(8))) == {"readings", "frames"}


@pytest.mark.parametrize("code", ["this", "another"])
def test_a_session_that_measured_nothing_keeps_no_steps(archive: DuckdbFile, code: str) -> None:
    """One that only watches has no row of a whole run. It was taken for open, for ever."""
    watched = replace(STARTED, run="watched", world_size=0)
    ended = replace(RUN, session="watched", run="watched", world_size=0, ended_ns=SECOND, ended_how="ended")
    begun = frame(0, Events("watched", 0, 1000, 7, (watched,)), t_ns=0)
    stored = [begun, *((replace(each, offset=each.offset + 1), body) for each, body in world())]
    end = len(stored)
    stored.append(frame(end, Notes((ClockAnchored(200 * SECOND, BOOTED_NS + 200 * SECOND, 9),))))
    archive.put([stored], [*rows(), ended, checkpoint(end + 1)], {LOG: end + 1})
    assert {"windows", "events"} < set(archive.prune(KEPT, at(91), code))


def test_steps_of_runs_since_a_run_that_goes_on_are_kept_no_longer_than_others(archive: DuckdbFile) -> None:
    serving = replace(STARTED, run="serving")
    begun = frame(0, Events("serving", 0, 1000, 7, (serving,)), t_ns=0)
    stored = [begun, *((replace(each, offset=each.offset + 1), body) for each, body in world())]
    end = len(stored)
    stored.append(frame(end, Notes((ClockAnchored(200 * SECOND, BOOTED_NS + 200 * SECOND, 9),))))
    open_still: list[Derived] = [
        replace(RUN, session="serving", run="serving"),
        checkpoint(end + 1, "serving"),
    ]
    archive.put([stored], [*rows(), *open_still], {LOG: end + 1})
    assert "windows" not in archive.prune(KEPT, at(91), "another")
    assert "windows" in archive.prune(KEPT, at(91), "this")


def test_a_host_whose_clock_is_wrong_hides_no_energy(archive: DuckdbFile) -> None:
    """Its seconds are older than all others, whose minutes were left out for it."""
    with_end(archive)
    archive.prune(KEPT, at(15))
    before = ask(archive, "SELECT sum(energy_j) FROM power")[0][0]
    started = replace(COLLECTOR_STARTED, t_ns=0, boot_id="boot-2", wall_ns=0)
    log = [frame(0, Notes((started,)), log_id="log-2", t_ns=0)]
    log += [frame(n, readings(n), log_id="log-2", t_ns=n * SECOND) for n in range(1, 100)]
    archive.put([log], [], {"log-2": 100})
    more = ask(archive, "SELECT sum(energy_j) FROM minutes WHERE year(began_at) = 1970")[0][0]
    assert more > 0
    total = "SELECT sum(energy_j) FROM power"
    assert ask(archive, f"{total} WHERE year(began_at) > 1970") == [(pytest.approx(before),)]
    assert ask(archive, f"{total} WHERE year(began_at) = 1970") == [(pytest.approx(more),)]
