"""What was heard is heard again: the same decisions, or what another selector would have chosen."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.memory_rows import read_begun
from analyzers.checkpoints.restart import settings_of_begun
from analyzers.interpreter.interpreter import Interpreter
from analyzers.power_limit import selectors
from analyzers.power_limit.selectors import Trial
from analyzers.results.memory import Memory
from analyzers.results.result import OWN
from analyzers.results.rows import DecisionRow, GpuRow, RecallRow, Row, RunRow, TrialRow
from analyzers.service.replay import (
    OtherChoice,
    Replayed,
    choose_again,
    compared,
    decided,
    differences,
    differing,
    interpret,
    replay,
)
from tests.analyzers.archives import DECISION, GPU, RUN, opened, plan_of, trial
from tests.empty_archive import archive_at
from tests.simulation.simulated_site import Training
from tests.simulation.world import World, outputs_of, replayed
from zeus_stream.errors import RefusedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.notes import Budget, BudgetsSet, Notes
from zeus_stream.settings import Settings

QUICK = Settings(search="exhaustive", stride_w=50, warmup_steps=1, profile_steps=5, settle_ms=0, refreshes=2)
SELECTORS = ("energy", "time", "cost:0.5", "slowdown:1.1", "slowdown:1.4")
SECOND_HOST = (("simulated:v100x1,seed=9", 77_000_000_000),)


def under(select: str) -> Settings:
    return replace(QUICK, select=select)


def simulated(under: Settings, training: Training, *, seed: int = 0, hosts: int = 1) -> World:
    """Return a world that has come to its end."""
    more = SECOND_HOST if hosts == 2 else ()
    world = World(f"simulated:v100x1,seed={seed},noise=0.02", training, plan_of(under), seed=seed, more=more)
    world.run()
    return world


def store(
    path: Path, under: Settings, frames: Iterable[tuple[Frame, Body]], rows: Iterable[Row], batch: int = 100
) -> None:
    """DuckdbFile what a world's analyzer heard and derived."""
    whole = [(replace(frame, body=codec.encode(body)), body) for frame, body in frames]
    with opened(path, under) as archive:
        for at in range(0, len(whole), batch):
            archive.put([whole[at : at + batch]])
        archive.put([], list(rows), {frame.log_id: frame.offset + 1 for frame, _ in whole}, replaying=True)


def rows_of(world: World) -> list[Row]:
    return [output for output in world.outputs if isinstance(output, Row)]


def heard(world: World, under: Settings) -> Replayed:
    return interpret(world.frames, plan_of(under), {})


TRAINING = Training("imagenet", 0.02, 60)


# ---- the same decisions ---------------------------------------------------------------------------------


@settings(max_examples=4, deadline=None)
@given(
    select=st.sampled_from(SELECTORS),
    seed=st.integers(0, 1000),
    epoch_steps=st.sampled_from([None, 7, 30]),
    hosts=st.sampled_from([1, 2]),
    batch=st.integers(1, 50),
    may_command=st.booleans(),
)
def test_the_archive_of_any_world_gives_its_decisions_again(
    select: str, seed: int, epoch_steps: int | None, hosts: int, batch: int, *, may_command: bool
) -> None:
    training = replace(TRAINING, epoch_steps=epoch_steps, noise=0.02, may_command=may_command)
    world = simulated(under(select), training, seed=seed, hosts=hosts)
    with TemporaryDirectory() as made:
        path = Path(made) / "energy.duckdb"
        store(path, under(select), world.frames, rows_of(world), batch)
        done = replay(path, Settings(), {}, None)
    assert done.frames == len(world.frames)
    assert done.differences == ()
    assert set(done.decisions) == set(world.rows(DecisionRow))
    assert len(done.decisions) == 1


def test_a_budget_is_heard_again_with_the_rest(tmp_path: Path) -> None:
    world = World("simulated:v100x1", TRAINING, plan_of(under("time")))
    world.run(1.5)
    holds = Budget(
        group="rack1", limit_mw=150_000, gpus=(), set_ns=0, begin_ns=0, end_ns=1, ramp_ns=0, way=1.0
    )
    world.hear(
        Frame(log_id="own", offset=0, host=OWN, t_ns=world.now_ns, topic="budgets", body=b""),
        Notes((BudgetsSet(0, (holds,)),)),
    )
    world.run()
    path = tmp_path / "energy.duckdb"
    store(path, under("time"), world.frames, rows_of(world))
    done = replay(path, Settings(), {}, None)
    assert done.differences == ()
    assert "budget rack1 allows no more than 150 W" in done.decisions[-1].reason


def test_a_run_is_replayed_under_the_settings_it_was_heard_under_last(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    store(path, under("slowdown:1.1"), [], [])
    world = simulated(under("energy"), TRAINING)
    store(path, under("energy"), world.frames, rows_of(world))
    store(path, under("time"), [], [])
    done = replay(path, Settings(), {}, None)
    assert done.differences == ()
    assert [row.selector for row in done.decisions] == ["energy"]


def test_a_decision_that_is_not_what_it_was_is_named_by_its_column() -> None:
    changed = replace(DECISION, power_limit_w=150.0, steps=21)
    found = differences([DECISION], [changed])
    assert [(each.what, each.stored, each.replayed) for each in found] == [
        ("power_limit_w", 200.0, 150.0),
        ("steps", 20, 21),
    ]
    assert differing(found)["stored"].to_pylist() == ["200.0", "20"]


def test_a_decision_that_one_side_lacks_is_a_difference_and_rounding_is_none() -> None:
    assert [(each.what, each.replayed) for each in differences([DECISION], [])] == [("decision", None)]
    assert [(each.what, each.stored) for each in differences([], [DECISION])] == [("decision", None)]
    assert differences([DECISION], [replace(DECISION, step_s=1.0 + 1e-12)]) == ()
    assert len(differences([DECISION], [replace(DECISION, step_s=1.0 + 1e-6)])) == 1


def test_the_archive_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    world = simulated(under("energy"), TRAINING)
    store(path, under("energy"), world.frames, rows_of(world))
    before = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in tmp_path.iterdir()}
    replay(path, Settings(), {}, "time")
    after = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in tmp_path.iterdir()}
    assert after == before


def test_a_function_that_only_the_archive_names_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("def choose(trials, gpus):\n    return trials[0].limit_mw\n")
    path, theirs = tmp_path / "energy.duckdb", under("theirs:choose")
    store(path, theirs, [], [RUN])
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(RefusedError, match="--select theirs:choose"):
            replay(path, Settings(), {}, "energy")
        assert "theirs" not in sys.modules
        assert replay(path, Settings(), {}, "theirs:choose").differences == ()
        assert "theirs" in sys.modules
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("theirs", None)


# ---- what was remembered --------------------------------------------------------------------------------

AGAIN = replace(TRAINING, run="second", steps=400)
ADAPTIVE = replace(QUICK, search="adaptive")


def later(memory: Memory, under: Settings) -> World:
    """Return a world on another host that starts with a memory and has come to its first decision."""
    plan = plan_of(under)
    world = World("simulated:v100x1,seed=9,noise=0.02", AGAIN, plan, host="elsewhere")
    world.interpreter = Interpreter(plan, memory)
    world.outputs = replayed(world.interpreter, world.frames)
    while not world.rows(DecisionRow):
        world.run(0.1)
    return world


def memory_of(path: Path) -> Memory:
    with opened(path) as archive:
        return archive.memory()


def test_a_run_that_began_with_a_memory_decides_the_same_again(tmp_path: Path) -> None:
    """Its profile is of a run in the archive, under other settings, where it would be measured otherwise."""
    path = tmp_path / "energy.duckdb"
    first = simulated(under("energy"), TRAINING)
    store(path, under("energy"), first.frames, rows_of(first))
    adaptive = replace(ADAPTIVE, select="cost:0.5")
    second = later(memory_of(path), adaptive)
    assert [row.profile_run for row in second.rows(RecallRow)] == ["run"]
    assert "measured before in run run of 1970-01-01" in second.rows(DecisionRow)[0].reason
    lower, *_ = second.rows(TrialRow)
    assert lower.power_limit_w < 250
    weighed_j = 0.5 * lower.energy_j + 0.5 * 250 * lower.duration_s
    assert lower.cost == pytest.approx(weighed_j), "by the highest limit, though it is not measured yet"
    store(path, adaptive, second.frames, rows_of(second))
    done = replay(path, Settings(), {}, None)
    assert done.differences == ()
    assert set(done.decisions) == {*first.rows(DecisionRow), *second.rows(DecisionRow)}


def test_a_memory_from_before_the_archive_s_first_frame_is_in_it(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "energy.duckdb", tmp_path / "other.duckdb"
    first = simulated(under("energy"), TRAINING)
    store(elsewhere, under("energy"), first.frames, rows_of(first))
    second = later(memory_of(elsewhere), ADAPTIVE)
    store(path, ADAPTIVE, second.frames, rows_of(second))
    assert replay(path, Settings(), {}, None).differences == ()


def test_an_analyzer_that_is_started_anew_gives_a_run_the_memory_it_began_with(tmp_path: Path) -> None:
    """Not its own first measurements, which the archive has by then."""
    path = tmp_path / "energy.duckdb"
    plan = plan_of(QUICK)
    world = World("simulated:v100x1", TRAINING, plan)
    while not world.rows(TrialRow):
        world.run(0.1)
    heard_before = len(world.frames)
    store(path, QUICK, world.frames, rows_of(world))
    archive = DuckdbFile.open(archive_at(path), QUICK)
    memory = archive.memory()
    assert [profile.run for profile in memory.profiles] == ["run"]
    again = Interpreter(plan, memory)
    world.outputs = replayed(again, chain.from_iterable(archive.replay()))
    archive.close()
    assert heard_before == len(world.frames)
    assert [row.limits for row in world.rows(RecallRow)] == [()]
    world.interpreter = again
    world.run()
    undisturbed = World("simulated:v100x1", TRAINING, plan)
    undisturbed.run()
    assert differences(undisturbed.rows(DecisionRow), world.rows(DecisionRow)) == ()


# ---- an analyzer that starts with other settings -----------------------------------------------------------


def half_way(path: Path, was: Settings) -> World:
    """Archive a run that was cut off in the middle of its profiling, and return its world."""
    world = World("simulated:v100x1", TRAINING, plan_of(was))
    while not world.rows(TrialRow):
        world.run(0.1)
    store(path, was, world.frames, rows_of(world))
    return world


def started_anew(path: Path, world: World, now: Settings) -> None:
    """Let a world's analyzer go on as one that starts with these settings does, and archive what it says."""
    archive, selector = DuckdbFile.open(archive_at(path), now), selectors.parse(now.select)
    memory = archive.memory()
    again = Interpreter(plan_of(now), memory, began_under=settings_of_begun(memory, now, selector))
    world.outputs = replayed(again, chain.from_iterable(archive.replay()))
    archive.close()
    world.interpreter, heard_before = again, len(world.frames)
    world.run()
    fresh = world.frames[heard_before:]
    store(path, now, fresh, rows_of(world))


def test_a_run_keeps_the_settings_it_began_with_when_its_analyzer_starts_with_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "energy.duckdb"
    world = half_way(path, under("energy"))
    started_anew(path, world, replace(under("time"), stride_w=75, lease_ms=700))
    (sentence,) = caplog.messages
    assert "run run keeps to what it began with, select = energy, stride_w = 50" in sentence
    undisturbed = World("simulated:v100x1", TRAINING, plan_of(under("energy")))
    undisturbed.run()
    assert differences(undisturbed.rows(DecisionRow), world.rows(DecisionRow)) == ()
    assert [row.selector for row in world.rows(DecisionRow)] == ["energy"]
    archive = DuckdbFile.open_read_only(path, Settings())
    with archive.file.cursor() as cursor:
        assert [(each.run, each.start, each.over) for each in read_begun(cursor)] == [("run", 1, True)]
    archive.close()
    assert replay(path, Settings(), {}, None).differences == ()


def test_a_run_after_it_of_the_same_name_follows_the_settings_of_now(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    world = half_way(path, under("energy"))
    now = under("time")
    started_anew(path, world, now)
    second = World("simulated:v100x1,seed=9", TRAINING, plan_of(now), host="elsewhere")
    second.interpreter = world.interpreter
    for frame, body in second.frames:
        outputs_of(second.interpreter, frame, body)
    second.run()
    (first,), (decision,) = world.rows(DecisionRow), second.rows(DecisionRow)
    assert (first.run, first.number, first.selector) == ("run", 1, "energy")
    assert (decision.run, decision.number, decision.selector) == ("run", 2, "time")


def test_a_function_that_the_analyzer_was_not_told_to_run_is_not_run_for_an_open_run(tmp_path: Path) -> None:
    path = tmp_path / "energy.duckdb"
    world = half_way(path, under("energy"))
    archive = DuckdbFile.open(archive_at(path), under("theirs:choose"))
    archive.put([], [replace(row, start=None) for row in world.rows(RunRow)], {}, replaying=True)
    archive.close()
    started_anew(path, world, under("energy"))
    assert "theirs" not in sys.modules
    (decision,) = world.rows(DecisionRow)
    assert not decision.applied
    assert "Start it with --select theirs:choose until the run has ended" in decision.reason


# ---- another selector -----------------------------------------------------------------------------------


@settings(max_examples=3, deadline=None)
@given(pair=st.permutations(SELECTORS), seed=st.integers(0, 1000))
def test_another_selector_chooses_what_it_would_have_decided_itself(pair: list[str], seed: int) -> None:
    select, other = pair[:2]
    training = replace(TRAINING, noise=0.02)
    first, second = (simulated(under(text), training, seed=seed) for text in (select, other))
    parsed = selectors.parse(other)
    assert parsed is not None
    (choice,) = choose_again(heard(first, under(select)), parsed, 50_000, ["run"])
    (decision,) = second.rows(DecisionRow)
    assert choice.decided == first.rows(DecisionRow)[0]
    assert (choice.limit_mw or 0) / 1000 == decision.power_limit_w
    assert choice.unmeasured_mw == ()
    chosen = next(tried for tried in choice.tried if tried.limit_mw == choice.limit_mw)
    assert decision.energy_per_step_j is not None
    assert chosen.step_mj / 1000 == pytest.approx(decision.energy_per_step_j)


def test_what_was_not_visited_stays_unknown_and_is_said() -> None:
    world = simulated(under("energy"), replace(TRAINING, steps=20))
    assert not world.rows(DecisionRow), "it ended before"
    (choice,) = choose_again(heard(world, under("energy")), time(), 50_000, ["run"])
    measured = [tried.limit_mw for tried in choice.tried]
    assert choice.decided is None
    assert choice.limit_mw == max(measured)
    assert sorted((*measured, *choice.unmeasured_mw)) == [100_000, 150_000, 200_000, 250_000]
    assert choice.unmeasured_mw
    (row,) = compared([choice], "time").to_pylist()
    assert row["limits_measured"] == len(measured)
    assert row["not_measured_w"] == " ".join(f"{limit // 1000}" for limit in choice.unmeasured_mw)
    assert row["power_limit_w"] is None
    assert row["energy_percent"] is None


def time() -> selectors.Selector:
    found = selectors.parse("time")
    assert found is not None
    return found


def derived(decision: DecisionRow, trials: Sequence[TrialRow]) -> Replayed:
    runs: dict[str, RunRow] = {RUN.session: RUN}
    gpus: dict[str, GpuRow] = {gpu: replace(GPU, gpu=gpu) for gpu in RUN.gpus}
    return Replayed(
        0, runs, gpus, {(row.run, row.number): row for row in trials}, {(decision.run, 0): decision}
    )


def test_what_was_observed_is_chosen_anew_from_the_earlier_run_it_was_known_from() -> None:
    trials = [trial(0, 300.0, run="earlier"), trial(1, 200.0, run="earlier")]
    observed = replace(DECISION, applied=False, trials_run="earlier", trials_round=1)
    (choice,) = choose_again(derived(observed, trials), time(), 100_000, [RUN.run])
    assert [tried.limit_mw for tried in choice.tried] == [300_000, 200_000]
    assert choice.limit_mw == 300_000
    assert choice.unmeasured_mw == (100_000,)


def test_where_nothing_was_measured_nothing_is_chosen() -> None:
    nothing = replace(DECISION, power_limit_w=None, applied=False, reason="No permission.")
    (choice,) = choose_again(derived(nothing, []), time(), 100_000, [RUN.run])
    assert (choice.limit_mw, choice.reason) == (None, "No permission.")


def test_both_choices_are_shown_per_step() -> None:
    tried = (Trial(300_000, 400_000, 800_000_000, 1), Trial(200_000, 300_000, 10**9, 1))
    choice = OtherChoice(
        run=RUN.run, round=1, decided=DECISION, tried=tried, limit_mw=300_000, unmeasured_mw=(100_000,),
        reason="",
    )  # fmt: skip
    (row,) = compared([choice], "time").to_pylist()
    assert (row["power_limit_w"], row["energy_per_step_j"], row["step_ms"]) == (200, 300, 1000)
    assert (row["other_limit_w"], row["other_energy_per_step_j"], row["other_step_ms"]) == (300, 400, 800)
    assert row["energy_percent"] == pytest.approx(100 / 3)
    assert row["time_percent"] == pytest.approx(-20)
    assert row["not_measured_w"] == "100"


def test_tables_of_nothing_have_their_columns() -> None:
    assert decided([]).num_rows == differing([]).num_rows == compared([], "time").num_rows == 0
    assert "power_limit_w" in decided([]).column_names
