"""Where the energy of runs went: a simulated pipeline whose truth is known, then worlds of exact figures."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.power_limit import selectors
from analyzers.power_limit.run_settings import RunSettings
from analyzers.results.rows import DecisionRow, Row, RunRow, TrialRow, WindowRow
from tests.analyzers.archives import DECISION, RUN, SECOND, WINDOW, A, B, asked, fill, frames, opened, trial
from tests.simulation.simulated_site import Training
from tests.simulation.world import World
from zeus_stream.protocol.events import (
    EpochBegan,
    EpochEnded,
    RunStarted,
    StepBoundary,
    WindowBegan,
    WindowEnded,
)
from zeus_stream.protocol.frames import Events
from zeus_stream.questions.run_questions import WHOLE as ENERGY

Waste = dict[str, dict[str, Any]]
Stored = Callable[[Sequence[Row]], DuckdbFile]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    """Store rows in an archive of their own, which is closed after the test."""
    with ExitStack() as stack:
        names = map(str, count())

        def store(rows: Sequence[Row]) -> DuckdbFile:
            archive = stack.enter_context(opened(tmp_path / next(names)))
            archive.put([], rows)
            return archive

        yield store


def waste(archive: DuckdbFile, run: str = RUN.run) -> Waste:
    """Return the parts of a run by cause."""
    return {row["cause"]: row for row in asked(archive, f"FROM waste_of('{run}')")}


# ---- a simulated pipeline


class Truth:
    """The true joules of each activity of the first GPU, from what the training did and the GPU drew."""

    def __init__(self, world: World) -> None:
        self.joules: defaultdict[str, float] = defaultdict(float)
        self.steps: dict[str, dict[int, float]] = {}
        self._begun: dict[object, int] = {}
        host = world.hosts[0]
        (gpu,) = host.gpus.values()
        hear = world.hear

        def joules(begin_ns: int, end_ns: int) -> float:
            return gpu.device.energy_mj(begin_ns, end_ns) / 1000

        def follow(frame: Any, body: Any) -> None:
            if isinstance(body, Events):
                for event in body.events:
                    self._take(body.session, event, joules)
            hear(frame, body)

        world.hear = follow  # type: ignore[method-assign]

    def _take(self, session: str, event: object, joules: Callable[[int, int], float]) -> None:
        match event:
            case RunStarted(t_ns=t_ns):
                self.steps[session] = {}
                self._begun["pause"] = t_ns
            case EpochBegan(t_ns):
                self.joules["outside epochs"] += joules(self._begun["pause"], t_ns)
            case EpochEnded(t_ns):
                self._begun["pause"] = t_ns
            case WindowBegan(t_ns):
                self._begun["window"] = t_ns
            case WindowEnded(t_ns):
                self.joules["checkpoint"] += joules(self._begun["window"], t_ns)
            case StepBoundary(index, ended_ns, began_ns):
                if ended_ns is not None:
                    self.steps[session][index - 1] = joules(self._begun["step"], ended_ns)
                if began_ns is not None:
                    self._begun["step"] = began_ns
                if ended_ns is not None and began_ns is not None:
                    self.joules["data wait"] += joules(ended_ns, began_ns)
            case _:
                pass


def archive_of(world: World, stored: Stored) -> DuckdbFile:
    return stored(
        [row for row in world.outputs if isinstance(row, RunRow | WindowRow | TrialRow | DecisionRow)]
    )


@pytest.mark.sweep
def test_the_causes_of_a_simulated_training_are_its_true_joules(stored: Stored) -> None:
    training = Training(
        "imagenet", 0.2, 160, epoch_steps=40, load_s=0.15, checkpoint_s=2.0, pause_s=3.0, noise=0.02
    )
    search = RunSettings(
        selector=selectors.parse("energy"),
        stride_mw=75_000,
        profile_steps=12,
        warmup_steps=1,
        exhaustive=True,
    )
    world = World("simulated:v100x1", training, search)
    truth = Truth(world)
    world.run()
    archive = archive_of(world, stored)
    found = waste(archive, training.run)
    viewed = asked(archive, f"FROM waste WHERE run = '{training.run}'")
    assert {row["cause"]: row for row in viewed} == found
    (whole,) = [row for row in world.rows(WindowRow) if row.kind == "run"]
    assert whole.energy_j is not None
    assert sum(row["energy_j"] for row in found.values()) == pytest.approx(whole.energy_j)
    assert sum(row["duration_s"] for row in found.values()) == pytest.approx(whole.duration_s)
    assert sum(row["share"] for row in found.values()) == pytest.approx(1)
    for cause in ("data wait", "checkpoint", "outside epochs"):
        assert found[cause]["energy_j"] == pytest.approx(truth.joules[cause], rel=0.05), cause
    assert found["data wait"]["duration_s"] == pytest.approx(0.15 * 156)
    assert found["checkpoint"]["duration_s"] == pytest.approx(8)
    (steps,) = truth.steps.values()
    (decision,) = [row for row in world.rows(DecisionRow) if row.applied]
    after = [joules for number, joules in steps.items() if number > decision.steps + 20]
    chosen_j = sum(after) / len(after)
    spans = [
        (each.began_ns, each.ended_ns)
        for each in world.rows(TrialRow)
        if not each.confirms and each.power_limit_w != decision.power_limit_w
    ]
    tried = {
        row.index: spans.index(span)
        for row in world.rows(WindowRow)
        for span in spans
        if row.kind == "step" and span[0] <= row.begin_ns and row.end_ns <= span[1]
    }
    excess_j = [
        sum(steps[number] - chosen_j for number, of in tried.items() if of == each)
        for each in range(len(spans))
    ]
    assert found["profiling"]["energy_j"] == pytest.approx(
        sum(each for each in excess_j if each > 0), rel=0.1
    )
    assert found.get("not attributed", {"share": 0})["share"] < 0.01


def test_steps_that_are_done_again_after_a_restart_are_waste(stored: Stored) -> None:
    training = Training("imagenet", 0.3, 80, epoch_steps=80)
    world = World("simulated:v100x1", training, RunSettings(selector=None))
    truth = Truth(world)
    while world.step < 50:
        world.run(0.1)
    world.kill()
    world.run(1)
    world.restart(40)
    world.run()
    found = waste(archive_of(world, stored), training.run)
    first = next(iter(truth.steps.values()))
    redone_j = sum(joules for number, joules in first.items() if number >= 40)
    assert found["redone steps"]["energy_j"] == pytest.approx(redone_j, rel=0.1)
    whole_j = sum(row.energy_j or 0 for row in world.rows(WindowRow) if row.kind == "run")
    assert sum(row["energy_j"] for row in found.values()) == pytest.approx(whole_j)


# ---- worlds of exact figures: 10 s of 100 W steps, 2 s apart at 50 W, in an epoch


def row(kind: str, index: int, begin_s: float, end_s: float, watts: float | None, **other: Any) -> WindowRow:
    """Return a window on GPU A, or another, with this mean power."""
    seconds = end_s - begin_s
    joules = None if watts is None else watts * seconds
    row = replace(
        WINDOW,
        session=RUN.session,
        run=RUN.run,
        job=RUN.job,
        host=RUN.host,
        kind=kind,
        name=kind,
        index=index,
        gpu=A,
        begin_ns=round(begin_s * SECOND),
        end_ns=round(end_s * SECOND),
        duration_s=seconds,
        energy_j=joules,
        energy_low_j=joules,
        energy_high_j=joules,
        energy_p2_5_j=joules,
        energy_p97_5_j=joules,
        power_limit_w=200.0,
    )
    return replace(row, **other)


STEPS = tuple(row("step", n, 12 + 12 * n, 22 + 12 * n, 100) for n in range(4))
"""From 12 s to 58 s; 6 s of data wait between them."""
EPOCH_J = 4000 + 3 * 100.0
CLOSED = replace(RUN, gpus=(A,), ended_ns=70 * SECOND, ended_how="ended")
WHOLE = replace(row("run", 0, 10, 70, 0), energy_j=EPOCH_J + 14 * 20)
EPOCH = replace(row("epoch", 0, 12, 58, 0), energy_j=EPOCH_J)


def test_what_is_between_the_steps_of_an_epoch_is_data_wait(stored: Stored) -> None:
    found = waste(stored([CLOSED, *STEPS, EPOCH, WHOLE]))
    assert {cause: each["energy_j"] for cause, each in found.items()} == {
        "steps": 4000,
        "data wait": 300,
        "outside epochs": 280,
    }
    assert {cause: each["duration_s"] for cause, each in found.items()} == {
        "steps": 40,
        "data wait": 6,
        "outside epochs": 14,
    }
    assert found["data wait"]["share"] == pytest.approx(300 / 4580)


def test_a_named_window_outside_steps_is_a_cause_and_one_inside_or_around_them_is_none(
    stored: Stored,
) -> None:
    checkpoint = row("window", 0, 60, 65, 30, name="checkpoint")
    inner = row("window", 1, 61, 62, 30, name="upload")
    forward = row("window", 2, 13, 14, 100, name="forward")
    around = row("window", 3, 11, 69, 90, name="budget")
    found = waste(stored([CLOSED, *STEPS, EPOCH, checkpoint, inner, forward, around, WHOLE]))
    assert {cause: each["energy_j"] for cause, each in found.items()} == {
        "steps": 4000,
        "data wait": 300,
        "checkpoint": 150,
        "outside epochs": 130,
    }


def test_a_window_that_has_the_name_of_a_cause_is_kept_apart(stored: Stored) -> None:
    found = waste(stored([CLOSED, *STEPS, EPOCH, row("window", 0, 60, 65, 30, name="steps"), WHOLE]))
    assert found["steps"]["energy_j"] == 4000
    assert found["window steps"]["energy_j"] == 150


def test_without_epochs_nobody_knows_what_the_time_between_steps_was(stored: Stored) -> None:
    found = waste(stored([CLOSED, *STEPS, WHOLE]))
    assert {cause: each["energy_j"] for cause, each in found.items()} == {
        "steps": 4000,
        "not attributed": 580,
    }


def test_a_long_end_of_an_epoch_may_be_a_validation_without_a_name(stored: Stored) -> None:
    epoch = replace(row("epoch", 0, 12, 66, 0), energy_j=EPOCH_J + 8 * 80)
    whole = replace(WHOLE, energy_j=EPOCH_J + 8 * 80 + 6 * 20)
    found = waste(stored([CLOSED, *STEPS, epoch, whole]))
    assert "data wait" not in found
    assert found["not attributed"]["energy_j"] == 300 + 640
    named = row("window", 0, 58, 66, 80, name="validation")
    found = waste(stored([CLOSED, *STEPS, named, epoch, whole]))
    assert found["data wait"]["energy_j"] == 300
    assert found["validation"]["energy_j"] == 640


def test_a_step_without_energy_leaves_its_epoch_untold_and_the_parts_still_add_up(stored: Stored) -> None:
    missing = replace(STEPS[1], energy_j=None, quality="no readings")
    found = waste(stored([CLOSED, STEPS[0], missing, *STEPS[2:], EPOCH, WHOLE]))
    assert {cause: each["energy_j"] for cause, each in found.items()} == {
        "steps": 3000,
        "not attributed": 1300,
        "outside epochs": 280,
    }


def test_a_run_whose_energy_is_missing_or_which_goes_on_has_no_shares(stored: Stored) -> None:
    cases: list[list[Row]] = [
        [CLOSED, *STEPS, EPOCH, replace(WHOLE, energy_j=None, quality="no readings")],
        [replace(CLOSED, ended_ns=None), *STEPS, EPOCH],
    ]
    for rows in cases:
        found = waste(stored(rows))
        assert found["data wait"]["energy_j"] == 300
        assert {each["share"] for each in found.values()} == {None}
        assert found["not attributed"]["energy_j"] is None


def test_a_rank_that_waits_for_another_between_steps_waits_for_a_straggler(stored: Stored) -> None:
    """GPU B ends each step 1 s later than A; both go on together."""
    late = [replace(step, rank=1, session="b", gpu=B) for step in STEPS]
    late = [replace(s, end_ns=s.end_ns + SECOND, duration_s=11.0, energy_j=1100.0) for s in late]
    other = [replace(each, rank=1, session="b", gpu=B) for each in (EPOCH, WHOLE)]
    other[0] = replace(other[0], end_ns=59 * SECOND, duration_s=47.0, energy_j=4400 + 3 * 50.0)
    other[1] = replace(other[1], energy_j=4400 + 150 + 13 * 20)
    ranks = [replace(CLOSED, world_size=2), replace(CLOSED, world_size=2, session="b", rank=1, gpus=(B,))]
    found = waste(stored([*ranks, *STEPS, EPOCH, WHOLE, *late, *other]))
    assert found["stragglers"]["energy_j"] == pytest.approx(3 * 50)
    assert found["stragglers"]["duration_s"] == pytest.approx(3 / 2)
    assert found["data wait"]["energy_j"] == pytest.approx(3 * 50 + 150)
    assert found["steps"]["energy_j"] == pytest.approx(8400)


AGAIN = replace(
    CLOSED,
    session="again",
    began_ns=100 * SECOND,
    ended_ns=160 * SECOND,
    began_wall_ns=RUN.began_wall_ns + 90 * SECOND,
)
KILLED = replace(CLOSED, ended_how="killed by signal 9")


def later(each: WindowRow, seconds: int, index: int, **other: Any) -> WindowRow:
    shift_ns = seconds * SECOND
    moved = replace(each, index=index, begin_ns=each.begin_ns + shift_ns, end_ns=each.end_ns + shift_ns)
    return replace(moved, **({"session": "again"} | other))


def resumed(first: int, **other: Any) -> list[WindowRow]:
    steps = [later(step, 90, first + n, **other) for n, step in enumerate(STEPS)]
    return [*steps, later(EPOCH, 90, 0, **other), later(WHOLE, 90, 0, **other)]


def test_steps_that_are_numbered_as_done_again_are_redone(stored: Stored) -> None:
    found = waste(stored([KILLED, AGAIN, *STEPS, EPOCH, WHOLE, *resumed(2)]))
    assert found["redone steps"]["energy_j"] == 2000
    assert found["steps"]["energy_j"] == 6000
    assert found["data wait"]["energy_j"] == 600


def test_a_restart_that_counts_from_zero_does_not_say_what_was_done_twice(stored: Stored) -> None:
    found = waste(stored([KILLED, AGAIN, *STEPS, EPOCH, WHOLE, *resumed(0)]))
    assert "redone steps" not in found
    assert found["steps"]["energy_j"] == 4000
    assert found["not attributed"]["energy_j"] == 4000


def test_a_second_training_of_a_command_does_nothing_again(stored: Stored) -> None:
    found = waste(stored([CLOSED, AGAIN, *STEPS, EPOCH, WHOLE, *resumed(0)]))
    assert found["steps"]["energy_j"] == 8000
    assert "redone steps" not in found


def test_a_new_run_of_the_job_that_begins_above_zero_resumes_the_one_that_was_killed(stored: Stored) -> None:
    other = resumed(2, run="run-2")
    archive = stored([KILLED, replace(AGAIN, run="run-2"), *STEPS, EPOCH, WHOLE, *other])
    assert waste(archive)["redone steps"]["energy_j"] == 2000
    assert "redone steps" not in waste(archive, "run-2")
    finished = stored([CLOSED, replace(AGAIN, run="run-2"), *STEPS, EPOCH, WHOLE, *other])
    assert "redone steps" not in waste(finished)


def test_the_waste_of_an_ended_run_is_read_and_not_computed_again(stored: Stored) -> None:
    archive = stored([CLOSED, *STEPS, EPOCH, WHOLE])
    ended = waste(archive)
    archive.file.connection.execute("DELETE FROM windows WHERE kind = 'step'")
    assert waste(archive) == ended


def test_what_is_stored_of_a_killed_run_changes_when_another_goes_on_from_it(stored: Stored) -> None:
    archive = stored([KILLED, *STEPS, EPOCH, WHOLE])
    assert "redone steps" not in waste(archive)
    archive.put([], [replace(AGAIN, run="run-2"), *resumed(2, run="run-2")])
    assert waste(archive)["redone steps"]["energy_j"] == 2000


@pytest.mark.parametrize(("chosen_step_s", "more_s"), [(0.9, 0.5), (1.2, -1.0)])
def test_profiling_is_what_trials_used_above_the_choice(
    stored: Stored, chosen_step_s: float, more_s: float
) -> None:
    """Trials of 5 steps with 5 times their limit: at 300 W 1500 J in 5 s, at 200 W, the choice, 1000 J."""
    trials = [trial(0, 300.0), trial(1, 200.0), trial(2, 150.0), trial(3, 300.0, confirms=True)]
    choice = replace(DECISION, energy_per_step_j=200.0, step_s=chosen_step_s)
    found = waste(stored([CLOSED, *STEPS, EPOCH, WHOLE, *trials, choice]))
    assert found["profiling"]["energy_j"] == 500
    assert found["profiling"]["duration_s"] == pytest.approx(more_s)
    assert found["steps"]["energy_j"] == 3500
    assert found["steps"]["duration_s"] == pytest.approx(40 - more_s)
    assert sum(row["duration_s"] for row in found.values()) == pytest.approx(60)


def test_two_ranks_on_one_gpu_count_its_energy_once(stored: Stored) -> None:
    twin = [replace(each, session="b", rank=1) for each in (*STEPS, EPOCH, WHOLE)]
    ranks = [replace(CLOSED, world_size=2), replace(CLOSED, world_size=2, session="b", rank=1)]
    archive = stored([*ranks, *STEPS, EPOCH, WHOLE, *twin])
    assert sum(each["energy_j"] for each in waste(archive).values()) == 4580
    assert asked(archive, "SELECT energy_j FROM job_energy") == [{"energy_j": 4580}]


def test_the_energy_of_a_run_and_of_its_cpus_is_that_of_all_attempts_and_of_each_rank_once(
    stored: Stored,
) -> None:
    wholes = [WHOLE, *(each for each in resumed(2) if each.kind == "run")]
    wholes += [replace(each, gpu="CPU-h", energy_j=100.0) for each in wholes]
    ranks = [
        replace(each, session="b", rank=1, gpu="CPU-h", energy_j=99.0, duration_s=59.0)
        for each in wholes[2:3]
    ]
    archive = stored([KILLED, AGAIN, replace(KILLED, session="b", rank=1), *STEPS, EPOCH, *wholes, *ranks])
    (run,) = asked(archive, ENERGY.format(run="'run-1'"))
    assert (run["energy_j"], run["cpu_energy_j"]) == (9160, 200)
    (whole,) = asked(archive, "FROM whole('run')")
    assert whole["energy_j"] == 9160


def test_a_session_that_goes_on_in_another_counts_once(stored: Stored) -> None:
    """The collector lost its log: the publisher begins again with the same beginning."""
    first = [STEPS[0], STEPS[1], replace(row("run", 0, 10, 35, 0), energy_j=2100.0)]
    second = [replace(each, session="b") for each in (STEPS[2], STEPS[3], WHOLE)]
    last = row("epoch", 1, 60, 68, 20, session="b")
    archive = stored(
        [replace(CLOSED, ended_ns=35 * SECOND), *first, replace(CLOSED, session="b"), *second, last]
    )
    found = waste(archive)
    assert {cause: each["energy_j"] for cause, each in found.items()} == {
        "steps": 4000,
        "not attributed": 580,
    }
    assert asked(archive, "SELECT runs, attempts, energy_j FROM job_energy") == [
        {"runs": 1, "attempts": 1, "energy_j": 4580}
    ]


def test_idle_energy_is_not_known_where_that_of_a_gpu_is_not(archive: DuckdbFile) -> None:
    """Two runs had one GPU at the same time, in part."""
    fill(archive)
    archive.put([], [later(WHOLE, 25, 0, session="other", run="other")])
    assert {each["gpu"]: each["energy_j"] is None for each in asked(archive, "FROM idle_gpus")} == {
        A: True,
        B: False,
    }
    (idle,) = asked(archive, "FROM waste WHERE run IS NULL")
    assert idle["energy_j"] is None


def test_gpus_of_no_run_are_idle(archive: DuckdbFile) -> None:
    """60 s at 200 and 100 W, of which the run has 40 s; 60 s at 50 W. Readings end at 120.9 s."""
    fill(archive)
    (idle,) = asked(archive, "FROM waste WHERE run IS NULL")
    assert idle["cause"] == "idle GPU"
    assert idle["energy_j"] == pytest.approx((200 + 100) * 19 + 2 * 50 * 60.9)
    assert idle["duration_s"] == pytest.approx(2 * 79.9)
    gpus = {each["gpu"]: each for each in asked(archive, "FROM idle_gpus")}
    assert gpus[A]["energy_j"] == pytest.approx(200 * 19 + 50 * 60.9)


def test_a_gpu_of_an_open_run_is_idle_until_that_begins(archive: DuckdbFile) -> None:
    """200 W for the 10 s before the run, which is still open when readings end at 120.9 s."""
    archive.put([list(frames())], [replace(RUN, ended_ns=None)], {})
    (idle,) = asked(archive, f"FROM idle_gpus WHERE gpu = '{A}'")
    assert 8.9 <= idle["duration_s"] <= 10
    assert idle["energy_j"] == pytest.approx(200 * idle["duration_s"], abs=10)


def test_the_energy_of_a_job_is_that_of_all_its_runs_and_restarts(stored: Stored) -> None:
    unknown = [later(WHOLE, 200, 0, run="run-3", session="c", energy_j=None, quality="no readings")]
    third = replace(AGAIN, run="run-3", session="c", began_ns=210 * SECOND, ended_ns=270 * SECOND)
    archive = stored([KILLED, AGAIN, third, *STEPS, EPOCH, WHOLE, *resumed(2), *unknown])
    (job,) = asked(archive, "FROM job_energy")
    assert (job["job"], job["runs"], job["attempts"], job["gpus"]) == ("train", 2, 3, 1)
    assert job["energy_j"] == 2 * 4580
    assert (job["missing"], job["missing_gpu_s"]) == (1, 60)
    assert job["quality"] == "no readings"
