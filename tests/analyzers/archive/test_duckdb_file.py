"""Frames and rows go in and come back; nothing is lost, nothing is there twice."""

import contextlib
import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.frame_reader import PAGE_BYTES
from analyzers.results.readings import READING
from analyzers.results.result import OWN
from analyzers.results.rows import BudgetRow, BudgetShareRow, RunRow
from tests.analyzers.archives import (
    BOOTED_NS,
    DECISION,
    GPU,
    HOST,
    LOG,
    RUN,
    SECOND,
    STARTED,
    A,
    B,
    ask,
    energy_mj,
    fill,
    frame,
    frames,
    opened,
    readings,
    rows,
    window,
)
from tests.messages import COLLECTOR_STARTED, RUN_STARTED
from zeus_stream.errors import RefusedError, StorageError
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    EventsDropped,
    Metric,
    RunEnded,
    StepBoundary,
    WindowBegan,
    WindowCancelled,
    WindowEnded,
)
from zeus_stream.protocol.fields import Unknown
from zeus_stream.protocol.frames import Body, Break, Events, Frame
from zeus_stream.protocol.notes import Budget, BudgetsSet, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

SETTINGS = Settings()


def replayed(archive: DuckdbFile, offset: int = 0) -> list[tuple[Frame, Body]]:
    return list(archive.reader.frames_since(LOG, offset))


def by_gpu(body: Readings) -> list[tuple[Any, ...]]:
    """Return the rows with UUIDs in place of positions in a list that may be ordered otherwise."""
    return [
        (body.gpus[gpu], *values, seen) for *values, gpu, seen in np.frombuffer(body.rows, READING).tolist()
    ]


# ---- frames -----------------------------------------------------------------------------------------


def test_what_was_stored_comes_back_in_order(archive: DuckdbFile) -> None:
    stored = list(frames())
    for at in range(0, len(stored), 7):
        archive.put([stored[at : at + 7]])
    back = replayed(archive)
    assert [frame for frame, _ in back] == [
        replace(frame, body=b"") if isinstance(body, Readings) else frame for frame, body in stored
    ]
    for (_, body), (_, original) in zip(back, stored, strict=True):
        if isinstance(original, Readings):
            assert isinstance(body, Readings)
            assert by_gpu(body) == by_gpu(original)
        else:
            assert body == original


def test_a_frame_that_says_who_is_at_rest_comes_back(archive: DuckdbFile) -> None:
    alive = Readings(("GPU-a",), b"")
    archive.put([[frame(0, alive)]])
    assert [body for _, body in replayed(archive)] == [alive]
    assert archive.writer.malformed == 0


def test_what_a_device_does_not_say_is_null(archive: DuckdbFile) -> None:
    fill(archive)
    assert ask(
        archive, "SELECT gpu, count(clock_mhz), count(power_mw) FROM readings GROUP BY gpu ORDER BY gpu"
    ) == [
        (A, 1200, 1200),
        (B, 0, 1200),
    ]


def test_a_reading_has_its_utc_from_the_last_anchor_before_it(archive: DuckdbFile) -> None:
    rebooted_ns = BOOTED_NS + 3600 * SECOND
    start = replace(COLLECTOR_STARTED, boot_id="boot-2", wall_ns=rebooted_ns)
    archive.put([list(frames())])
    end = archive.position(HOST)[1] or 0
    archive.put([[frame(end, Notes((start,))), frame(end + 1, readings(1))]])
    bounds = "epoch_ns(min(read_at)), epoch_ns(max(read_at))"
    assert ask(archive, f"FROM samples SELECT {bounds} WHERE t_hi_ns < 2_000_000_000") == [
        (BOOTED_NS + SECOND + SECOND // 1000, rebooted_ns + 19 * SECOND // 10 + SECOND // 1000)
    ]


def test_events_are_rows_of_their_session(archive: DuckdbFile) -> None:
    every = (
        replace(RUN_STARTED, t_ns=1, rank=2, world_size=4, gpus=(A,), pid=7, wall_ns=5, wall_error_ns=1),
        EpochBegan(2, 0),
        StepBoundary(0, None, 3),
        StepBoundary(1, 4, None, "device", 7),
        WindowBegan(5, 9, "validation"),
        WindowEnded(6, 9),
        WindowCancelled(6, 8),
        Metric(7, "accuracy\x00é", 0.5),
        EventsDropped(8, 12, "the buffer was full"),
        Unknown("Novelty"),
        EpochEnded(9, 0),
        RunEnded(10),
    )
    archive.put([[frame(0, Events("s", 30, None, None, every))]])
    columns = "sequence, kind, t_ns, ended_ns, index, name, value"
    assert ask(archive, f"FROM events SELECT {columns} WHERE session = 's' ORDER BY sequence") == [
        (30, "run_started", 1, None, 2, "run", None),
        (31, "epoch_began", 2, None, 0, None, None),
        (32, "step_boundary", 3, None, 0, None, None),
        (33, "step_boundary", 4, 4, 1, None, None),
        (34, "window_began", 5, None, 9, "validation", None),
        (35, "window_ended", 6, None, 9, None, None),
        (36, "window_cancelled", 6, None, 8, None, None),
        (37, "metric", 7, None, None, "accuracy\x00é", 0.5),
        (38, "events_dropped", 8, None, None, "the buffer was full", 12.0),
        (39, "Novelty", None, None, None, None, None),
        (40, "epoch_ended", 9, None, 0, None, None),
        (41, "run_ended", 10, None, None, None, None),
    ]
    assert ask(archive, "FROM events SELECT sequence, placed, uncertainty_ns WHERE placed IS NOT NULL") == [
        (32, "dispatch", None),
        (33, "device", 7),
    ]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 30), st.integers(1, 40)), max_size=6))
def test_frames_handed_over_again_and_again_are_there_once(spans: list[tuple[int, int]]) -> None:
    """A span is how far before (or, after a hole, behind) the next frame it begins, and its length."""
    stored = list(frames())
    with TemporaryDirectory() as directory, opened(Path(directory) / "energy.duckdb") as archive:
        next_offset = 0
        for back, count in spans:
            first = max(next_offset - back, 0)
            part = stored[first : first + count]
            if part and first > next_offset > 0:
                with pytest.raises(RefusedError, match=f"frame {next_offset} comes next"):
                    archive.put([part])
            elif first <= next_offset:
                archive.put([part])
                next_offset = max(next_offset, first + len(part))
        assert archive.position(HOST) == ((LOG, next_offset) if next_offset else (None, None))
        seconds = sum(isinstance(body, Readings) for _, body in stored[:next_offset])
        counted = ask(archive, 'SELECT count(DISTINCT "offset"), count(*) FROM readings')
        assert counted == [(seconds, 20 * seconds)]
        assert [frame.offset for frame, _ in replayed(archive)] == list(range(next_offset))


def test_of_a_log_that_was_pruned_before_the_first_look_any_frame_may_be_first(archive: DuckdbFile) -> None:
    archive.put([[frame(70, readings(1))]])
    assert archive.position(HOST) == (LOG, 71)


def test_a_break_is_a_gap_and_the_log_goes_on_behind_it(archive: DuckdbFile) -> None:
    archive.put([[frame(0, readings(1))]])
    for count in (3, 9):  # the follower was stopped after the first, and more was gone when it came back
        archive.put([Break(LOG, 1, count, "they had left the log")])
    archive.put([[frame(10, readings(2))]])
    assert ask(archive, "SELECT host, what, t_ns, count, reason, log_id, first_offset FROM gaps") == [
        (HOST, "frames", 0, 9, "they had left the log", LOG, 1)
    ]
    assert [frame.offset for frame, _ in replayed(archive)] == [0, 10]


def test_each_host_has_a_position_of_its_own(archive: DuckdbFile) -> None:
    first, second = frame(0, readings(1)), frame(0, readings(1), log_id="of beta")
    archive.put([[first, (replace(second[0], host="beta"), second[1]), frame(1, readings(2))]])
    assert archive.position(HOST) == (LOG, 2)
    assert archive.position("beta") == ("of beta", 1)
    assert archive.position("gamma") == (None, None)


def test_a_new_log_begins_anew(archive: DuckdbFile) -> None:
    archive.put([[frame(0, readings(1)), frame(1, readings(2))]])
    archive.put([Break(LOG, 2, 0, "the collector began a new log, log-2")])
    archive.put([[frame(0, readings(3), log_id="log-2")]])
    assert archive.position(HOST) == ("log-2", 1)
    assert ask(archive, "SELECT log_id, next_offset FROM logs ORDER BY log_id") == [(LOG, 2), ("log-2", 1)]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Readings((A,), bytes(47)), id="a row is cut off"),
        pytest.param(Readings((), bytes(48)), id="a GPU is not in the list"),
        pytest.param(Readings((A,), bytes(46) + b"\xff\x00"), id="a kind is not known"),
    ],
)
def test_readings_that_are_none_are_kept_as_bytes_and_counted(archive: DuckdbFile, broken: Readings) -> None:
    archive.put([[frame(0, broken), frame(1, readings(1))]])
    assert archive.writer.malformed == 1
    assert ask(archive, "SELECT count(*) FROM frames") == [(1,)]
    assert [frame.offset for frame, _ in replayed(archive)] == [1]


def test_a_frame_that_cannot_be_decoded_leaves_no_hole(archive: DuckdbFile) -> None:
    archive.put([[(replace(frame(0, readings(1))[0], body=b"\xc1"), None), frame(1, readings(2))]])
    assert ask(archive, "SELECT body FROM frames") == [(b"\xc1",)]
    assert [frame.offset for frame, _ in replayed(archive)] == [1]


# ---- derived rows -----------------------------------------------------------------------------------


def everything(archive: DuckdbFile) -> dict[str, list[tuple[Any, ...]]]:
    tables = ("windows", "runs", "gpus", "trials", "decisions", "commands", "gaps", "metrics")
    return {name: ask(archive, f"FROM {name} ORDER BY ALL") for name in tables}


def test_rows_that_are_derived_again_replace_those_before(archive: DuckdbFile) -> None:
    fill(archive)
    before = everything(archive)
    for part in (rows()[:30], rows()):
        archive.put([], part, {LOG: 5}, replaying=True)
    assert everything(archive) == before
    assert len(before["windows"]) == len(
        [row for row in rows() if type(row) is type(window("run", 0, 0, 1, A))]
    )
    assert ask(archive, "SELECT interpreted_offset = next_offset FROM logs") == [(True,)]


def test_of_rows_with_a_state_the_last_counts(archive: DuckdbFile) -> None:
    fill(archive)
    assert ask(archive, "SELECT outcome, outcome_limit_w FROM commands") == [("applied", 200.0)]
    archive.put([], [replace(GPU, gone="it fell off the bus")])
    assert ask(archive, "SELECT gone FROM gpus ORDER BY gpu") == [("it fell off the bus",), (None,)]


def test_a_window_has_its_utc_from_its_run(archive: DuckdbFile) -> None:
    archive.put([], [window("step", 0, 11.5, 12, A), RUN])
    assert ask(archive, "SELECT epoch_ns(began_at) FROM windows") == [(BOOTED_NS + 23 * SECOND // 2,)]
    assert ask(archive, "SELECT epoch_ns(began_at), ended_at FROM runs") == [(BOOTED_NS + 10 * SECOND, None)]


def test_a_sum_with_a_part_missing_is_not_known(archive: DuckdbFile) -> None:
    whole = [window("step", 0, 10, 11, gpu) for gpu in (A, B)]
    parts = [
        window("step", 1, 11, 12, A),
        replace(window("step", 1, 11, 12.5, B), energy_j=None, quality="reset"),
    ]
    archive.put([], [*whole, *parts])
    assert ask(archive, "SELECT step, duration_s, energy_j, gpus, quality FROM steps ORDER BY step") == [
        (0, 1.0, 300.0, 2, "ok"),
        (1, 1.5, None, 2, "reset"),
    ]


def test_a_step_that_a_later_process_of_the_rank_made_again_counts_once(archive: DuckdbFile) -> None:
    attempts = {"second": (0, 1), "third": (3, 4)}
    later = [
        replace(RUN, session=name, began_wall_ns=RUN.began_wall_ns + n * 20 * SECOND)
        for n, name in enumerate(attempts, 1)
    ]
    again = [
        replace(window("step", n, 30 + n, 31 + n, A), session=name, energy_j=5.0)
        for name, steps in attempts.items()
        for n in steps
    ]
    archive.put([], [RUN, *later, *[window("step", n, 11 + n, 12 + n, A) for n in range(4)], *again])
    assert ask(archive, "SELECT step, duration_s, energy_j, gpus FROM steps ORDER BY step") == [
        (0, 1.0, 5.0, 1),
        (1, 1.0, 5.0, 1),
        (2, 1.0, 200.0, 1),
        (3, 1.0, 5.0, 1),
        (4, 1.0, 5.0, 1),
    ]


def test_the_gpu_of_two_ranks_counts_once_in_a_step(archive: DuckdbFile) -> None:
    ranks = [replace(RUN, session=f"rank {n}", rank=n, world_size=2, gpus=(A,)) for n in range(2)]
    made = [replace(window("step", 0, 11, 12, A), session=each.session, rank=each.rank) for each in ranks]
    archive.put([], [*ranks, *made])
    assert ask(archive, "SELECT step, energy_j, gpus FROM steps") == [(0, 200.0, 1)]


def test_savings_are_those_of_the_last_decision_that_chose_a_limit(archive: DuckdbFile) -> None:
    lost = replace(DECISION, number=1, power_limit_w=None, energy_per_step_j=None, step_s=None, applied=False)
    archive.put([], [RUN, DECISION, lost])
    saved = "SELECT power_limit_w, steps_at_limit, saved_j, applied FROM savings"
    assert ask(archive, saved) == [(200.0, 0, 0.0, True)]
    archive.put([], [replace(window("step", 0, 40, 41, A), energy_j=None)])
    assert ask(archive, saved) == [(200.0, 1, None, True)]


# ---- starting again ---------------------------------------------------------------------------------


def test_a_run_that_is_open_is_replayed_with_what_it_stands_on(path: Path) -> None:
    stored = list(frames())
    with opened(path) as archive:
        archive.put([stored])
        archive.put([], [RUN], {LOG: 100}, replaying=False)
    with opened(path) as archive:
        offsets = [frame.offset for page in archive.replay() for frame, _ in page]
    began = next(frame.offset for frame, body in stored if isinstance(body, Events))
    assert offsets[0] == 0, "the notes of the collector's start come first"
    assert offsets[1] == began - 1 - 5, "then five seconds of readings before the run"
    assert offsets[1:] == list(range(offsets[1], len(stored)))


def test_large_frames_come_back_in_small_pages(path: Path) -> None:
    """A page of 200 of them took seconds on a busy host, and commits waited for it."""
    steps = tuple(StepBoundary(index, 2 * index, 2 * index + 1) for index in range(400))
    stored = [frame(offset, Events("session", 400 * offset, 0, 1, steps)) for offset in range(60)]
    largest = max(len(each.body) for each, _ in stored)
    with opened(path) as archive:
        archive.put([stored])
        pages = list(archive.replay({}))
    assert [each for page in pages for each in page] == stored
    assert all(sum(len(each.body) for each, _ in page) < PAGE_BYTES + largest for page in pages)
    assert len(pages) < len(stored) / 5


def test_frames_of_several_logs_come_back_in_the_order_in_which_they_were_heard(path: Path) -> None:
    order = [("one", 0), ("two", 0), ("two", 1), ("one", 1), ("two", 2), ("one", 2), ("three", 0)]
    stored = [frame(offset, readings(offset + 1), log_id=log_id) for log_id, offset in order]
    with opened(path) as archive:
        archive.put([stored[:2]])
    with opened(path) as archive:
        archive.put([stored[2:]])
        archive.put([], [], {"one": 3, "two": 2}, replaying=False)
        heard = [(frame.log_id, frame.offset) for frame, _ in archive.reader.stored_frames()]
        to_replay = [(frame.log_id, frame.offset) for page in archive.replay() for frame, _ in page]
        turns = ask(archive, "FROM turns")
    assert heard == [turn for turn in order if turn not in (("two", 2), ("three", 0))], "of which rows came"
    assert to_replay == order
    assert turns == [("one", 0), ("two", 0), ("one", 1), ("two", 2), ("one", 2), ("three", 0)]


def test_the_analyzers_own_words_are_replayed_from_the_first_on_in_their_turn(path: Path) -> None:
    with opened(path) as archive:
        log_id = f"own-{archive.archive_id}"
        assert archive.position(OWN) == (None, None)
        holds = Budget(group="rack1", limit_mw=1000, gpus=(), set_ns=0, begin_ns=0, end_ns=1, ramp_ns=0)
        words = Notes((BudgetsSet(0, (holds,)),))
        said = replace(frame(0, words, log_id=log_id)[0], host=""), words
        stored = [frame(0, readings(1)), said, frame(1, readings(2))]
        archive.put([stored])
        archive.put([], [], {LOG: 2, log_id: 1}, replaying=False)
    with opened(path) as archive:
        assert archive.position(OWN) == (log_id, 1)
        assert archive.position(HOST) == (LOG, 2)
        again = [(frame.log_id, body) for page in archive.replay() for frame, body in page]
    assert again[0][0] == LOG, "the five seconds of readings before what is new"
    assert again[1] == (log_id, words)


def test_budgets_and_what_they_leave_are_rows(archive: DuckdbFile) -> None:
    budget = BudgetRow(
        budget="rack1", set_ns=5, limit_w=1200.0, begin_ns=10**9, end_ns=2 * 10**9, gpus=(A, B), binding=True,
        reason="",
    )  # fmt: skip
    ration = BudgetShareRow(gpu=A, budget="rack1", run="run", most_w=200.0, limit_w=175.0, reason="")
    archive.put([], [GPU, budget, ration, replace(ration, gpu=B)])
    archive.put(
        [], [replace(budget, binding=False), replace(ration, budget=None, most_w=None)], {}, replaying=False
    )
    told = ask(archive, "SELECT budget, epoch(ended_at), gpus, binding FROM budgets")
    assert told == [("rack1", 2.0, [A, B], False)]
    assert ask(archive, "SELECT gpu, host, most_w, limit_w FROM budgeted_gpus") == [(B, None, 200.0, 175.0)]


def test_an_open_run_is_replayed_with_its_sessions_of_older_logs(path: Path) -> None:
    later = replace(RUN, session="session-2")
    first = Events(RUN.session, 0, 0, 7, (STARTED,))
    second = Events(later.session, 0, 0, 7, (STARTED,))
    with opened(path) as archive:
        archive.put([[frame(0, readings(1)), frame(1, first), frame(0, second, log_id="log-2")]])
        closed = window("run", 0, 10, 50, A)
        archive.put([], [RUN, closed, later], {LOG: 2, "log-2": 1}, replaying=False)
        events = [body for page in archive.replay() for _, body in page if isinstance(body, Events)]
        assert events == [first, second]
        archive.put([], [replace(closed, session=later.session)])
        events = [body for page in archive.replay() for _, body in page if isinstance(body, Events)]
        assert events == []


def test_without_an_open_run_only_what_is_new_is_interpreted(archive: DuckdbFile) -> None:
    fill(archive)
    archive.put([[frame((archive.position(HOST)[1] or 0), readings(200), t_ns=200 * SECOND)]])
    offsets = [frame.offset for page in archive.replay() for frame, _ in page]
    end = archive.position(HOST)[1] or 0
    notes, lead = offsets[:-7], offsets[-7:]
    assert lead == list(range(end - 7, end)), "the new frame, and five seconds before it"
    assert notes == [frame.offset for frame, body in frames() if isinstance(body, Notes)]


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        pytest.param(RUN, "run", id="a run"),
        pytest.param(replace(RUN, world_size=0), "window", id="a session that only measures"),
    ],
)
def test_a_session_is_replayed_until_it_is_measured_to_its_end(
    archive: DuckdbFile, run: RunRow, kind: str
) -> None:
    stored = list(frames())
    archive.put([stored])
    archive.put([], [replace(run, ended_ns=50 * SECOND)], {LOG: len(stored)}, replaying=False)

    def replayed() -> list[str]:
        return [body.session for page in archive.replay() for _, body in page if isinstance(body, Events)]

    assert run.session in replayed()
    archive.put([], [window(kind, 0, 10, 50, A)])
    assert replayed() == []


def test_events_of_a_run_that_is_over_are_not_replayed_for_the_sake_of_another(archive: DuckdbFile) -> None:
    stored = list(frames())
    archive.put([stored])
    archive.put([], [RUN, window("run", 0, 10, 50, A)], {LOG: len(stored)}, replaying=False)
    later = Events("session-2", 0, 0, 8, (replace(STARTED, t_ns=119 * SECOND, run="run-2"),))
    archive.put([[frame(len(stored), later)]])
    events = [body for page in archive.replay() for _, body in page if isinstance(body, Events)]
    assert events == [later]


WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from analyzers.archive.duckdb_file import DuckdbFile
    from tests.analyzers.archives import HOST, frame, readings
    from zeus_stream.settings import Settings
    archive = DuckdbFile.open(Path(sys.argv[1]), Settings())
    print("open", flush=True)
    offset = archive.position(HOST)[1] or 0
    while True:
        archive.put([[frame(offset, readings(offset % 100))]])
        offset += 1
        print(offset, flush=True)
""")


@contextlib.contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that stores one frame after the other, and kill it at the end."""
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def test_a_process_killed_in_the_middle_loses_nothing_it_had_stored(path: Path) -> None:
    stored = 0
    for kill in range(2):
        with writer(path) as process:
            assert process.stdout is not None
            while stored < 20 * (kill + 1):
                stored = int(process.stdout.readline())
        with opened(path) as archive:
            next_offset = archive.position(HOST)[1] or 0
            assert next_offset >= stored
            assert [frame.offset for frame, _ in replayed(archive)] == list(range(next_offset))
            assert ask(archive, "SELECT count(*) FROM readings") == [(20 * next_offset,)]


# ---- opening ----------------------------------------------------------------------------------------


def test_a_file_held_by_another_process_names_it(path: Path) -> None:
    with writer(path) as process:
        for open_it in (DuckdbFile.open, DuckdbFile.open_read_only):
            with pytest.raises(StorageError, match=rf"process {process.pid} holds it.*zeus-stream sql"):
                open_it(path, SETTINGS)


@pytest.mark.parametrize(
    ("made", "match"),
    [
        pytest.param(
            "CREATE TABLE meta AS SELECT 'theirs' AS application, 1 AS schema_version",
            "another program's database",
            id="that is like ours",
        ),
        pytest.param("CREATE TABLE customers (id INTEGER)", "energy.duckdb", id="with other tables"),
        pytest.param("CREATE VIEW answer AS SELECT 42 AS a", "another program's database", id="of views"),
    ],
)
def test_another_programs_database_is_left_alone(path: Path, made: str, match: str) -> None:
    with duckdb.connect(path) as theirs:
        theirs.execute(made)
        before = theirs.execute("SHOW TABLES").fetchall()
    with pytest.raises(StorageError, match=match):
        DuckdbFile.open(path, SETTINGS)
    with duckdb.connect(path) as theirs:
        assert theirs.execute("SHOW TABLES").fetchall() == before


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
        other.commit()
    content = path.read_bytes()
    with pytest.raises(StorageError, match="it is no DuckDB database"):
        DuckdbFile.open(path, SETTINGS)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"could not be opened: No such file or directory\. .*--archive"):
        DuckdbFile.open(tmp_path / "absent" / "energy.duckdb", SETTINGS)
    with pytest.raises(StorageError, match="Is a directory"):
        DuckdbFile.open(tmp_path, SETTINGS)


def test_the_last_changes_of_an_archive_that_was_moved_away_are_not_deleted(path: Path) -> None:
    with writer(path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
    changes, moved = path.with_name(f"{path.name}.wal"), path.with_name("moved.duckdb")
    content = changes.read_bytes()
    path.rename(moved)
    with pytest.raises(StorageError, match=r"it is gone, and its last changes are left in .*Move it back"):
        DuckdbFile.open(path, SETTINGS)
    assert changes.read_bytes() == content
    moved.rename(path)
    with opened(path) as archive:
        assert archive.position(HOST)[1]


def test_an_archive_that_was_killed_is_read_without_an_analyzer(path: Path) -> None:
    with writer(path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
    archive = DuckdbFile.open_read_only(path, SETTINGS)
    try:
        assert ask(archive, "SELECT gpu, min(energy_mj) FROM readings GROUP BY gpu ORDER BY gpu") == [
            (A, energy_mj(A, 0)),
            (B, energy_mj(B, 0)),
        ]
    finally:
        archive.close()


def test_the_latest_times_that_a_message_may_hold_are_stored(path: Path) -> None:
    """UTC is computed from three of them."""
    latest = replace(RUN, began_ns=0, ended_ns=2**62, began_wall_ns=4_102_444_800 * 10**9, world_size=2**53)
    with opened(path) as archive:
        archive.put([], [latest])
        assert ask(archive, "SELECT year(began_at), year(ended_at) FROM runs") == [(2100, 2246)]


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


def allocated_bytes() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallocInfo
    numbers = libc.mallinfo2().numbers
    mapped, used = int(numbers[4]), int(numbers[7])
    return mapped + used


def test_a_checkpoint_has_duckdb_forget_what_it_has_freed_and_keep_its_limit(archive: DuckdbFile) -> None:
    """DuckDB lists each buffer that it has freed: a store grew by 0.7 MB a minute for an hour."""
    connection = archive.file.connection
    limit = "SELECT current_setting('memory_limit')"
    [before] = connection.execute(limit).fetchall()
    archive.flush()
    least = allocated_bytes()
    for _ in range(1250):  # each frees three buffers
        connection.execute("FROM range(3) AS a(x) JOIN range(3) AS b(x) USING (x)").fetchall()
    grown = allocated_bytes() - least
    archive.flush()
    assert grown > 500_000
    assert allocated_bytes() - least < grown / 4
    assert connection.execute(limit).fetchall() == [before]
