"""An analyzer that starts goes on from the last checkpoint, or replays all where there is none to trust."""

import logging
import zlib
from itertools import chain, count, islice
from pathlib import Path
from shutil import copytree

import pytest
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.checkpoints import checkpoint_taker, object_graph
from analyzers.checkpoints.checkpoint_taker import CheckpointTaker, complete, load_key, sign
from analyzers.checkpoints.restart import Restart, restart
from analyzers.interpreter.interpreter import Interpreter
from analyzers.live.live_site import LiveSite
from analyzers.results.result import Result
from analyzers.results.rows import CheckpointRow, DecisionRow, GpuRow, Row, RunRow, WindowRow
from tests.analyzers.archives import ask, plan_of
from tests.empty_archive import archive_at
from tests.simulation.simulated_site import Training
from tests.simulation.world import World, outputs_of, replayed
from zeus_stream.errors import StorageError
from zeus_stream.protocol import codec
from zeus_stream.settings import Settings

SETTINGS = Settings(
    search="exhaustive", stride_w=50, warmup_steps=1, profile_steps=5, settle_ms=0, refreshes=2,
    select="energy",
)  # fmt: skip
TRAINING = Training("imagenet", 0.02, 200, noise=0.02)
MORE = (("simulated:v100x1,seed=9", 77_000_000_000),)
EVERY = 50
"""Frames between two checkpoints."""


KEY = bytes(range(32))


@pytest.fixture(scope="module")
def world() -> World:
    """A run on two hosts that was cut off after its decision."""
    made = World("simulated:v100x1", TRAINING, plan_of(SETTINGS, 1), more=MORE)
    while not made.rows(DecisionRow):
        made.run(0.1)
    made.run(0.5)
    return made


class Busy(CheckpointTaker):
    """Takes a checkpoint after every `EVERY` frames, whatever they cost."""

    def take_after(self, interpreter: Interpreter, number: int, rows: list[Row]) -> list[CheckpointRow]:
        if number % EVERY:
            return []
        self.times = checkpoint_taker.CheckpointTimes(0)
        self.times.wanted = True
        taken = self.take(interpreter.site, (), rows, 0)
        result = complete(Result(taken), LiveSite(), KEY)
        return [row for row in result.rows if isinstance(row, CheckpointRow)]


def store(path: Path, world: World, count: int, settings: Settings = SETTINGS) -> None:
    """DuckdbFile the first frames of a world, and what an analyzer derived that was killed after them."""
    archive = DuckdbFile.open(archive_at(path), settings)
    interpreter, taker = Interpreter(plan_of(settings, 1)), Busy(1, {}, whole=True)
    archive.put([[(replace(frame, body=codec.encode(body)), body) for frame, body in world.frames[:count]]])
    rows: list[Row] = []
    for number, (frame, body) in enumerate(world.frames[:count], 1):
        rows += [row for row in outputs_of(interpreter, frame, body) if isinstance(row, Row)]
        taker.take(interpreter.site, [(frame, body)], (), 0)
        rows += taker.take_after(interpreter, number, rows)
    interpreted = {frame.log_id: frame.offset + 1 for frame, _ in world.frames[:count]}
    archive.put([], rows, interpreted, replaying=True)
    archive.close()


def started(archive: DuckdbFile) -> tuple[Restart, int]:
    """Start on an archive. Return what began, and the number of frames that it interpreted again."""
    begin = restart(archive, SETTINGS, KEY)
    pages = chain.from_iterable(archive.replay(begin.since))
    count = 0
    for frame, body in pages:
        outputs_of(begin.interpreter, frame, body)
        count += 1
    return begin, count


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_it_goes_on_as_if_nothing_had_happened(tmp_path: Path, world: World, share: float) -> None:
    count = round(share * len(world.frames))
    store(tmp_path / "energy.duckdb", world, count)
    archive = DuckdbFile.open(archive_at(tmp_path / "energy.duckdb"), SETTINGS)
    begin, again = started(archive)
    archive.close()
    assert again < EVERY
    undisturbed = Interpreter(plan_of(SETTINGS, 1))
    replayed(undisturbed, world.frames[:count])
    after, expected = (
        [output for output in replayed(each, world.frames[count:]) if isinstance(output, Row)]
        for each in (begin.interpreter, undisturbed)
    )
    assert after == expected


def test_the_number_of_frames_that_are_replayed_does_not_grow_with_the_run(
    tmp_path: Path, world: World
) -> None:
    counts = []
    for share in (0.25, 0.5, 1.0):
        path, count = tmp_path / f"{share}.duckdb", round(share * len(world.frames))
        store(path, world, count)
        archive = DuckdbFile.open(archive_at(path), SETTINGS)
        begin, again = started(archive)
        whole = sum(len(page) for page in archive.replay())
        archive.close()
        assert begin.since is not None
        assert again == count % EVERY
        counts.append(whole)
    assert counts == sorted(counts)
    assert counts[-1] > 3 * counts[0]


def test_frames_of_a_log_that_began_after_the_checkpoint_are_replayed_from_its_first(
    tmp_path: Path, world: World
) -> None:
    path = tmp_path / "energy.duckdb"
    store(path, world, 2 * EVERY)
    archive = DuckdbFile.open(archive_at(path), SETTINGS)
    later = [(replace(frame, log_id="later", host="later"), body) for frame, body in world.frames[:5]]
    offsets = range(len(later))
    later = [(replace(frame, offset=at), body) for at, (frame, body) in zip(offsets, later, strict=True)]
    archive.put([[(replace(frame, body=codec.encode(body)), body) for frame, body in later]])
    begin = restart(archive, SETTINGS, KEY)
    again = [frame for frame, _ in chain.from_iterable(archive.replay(begin.since))]
    archive.close()
    assert [(frame.log_id, frame.offset) for frame in again] == [("later", at) for at in offsets]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    """The directory of an analyzer that was killed after three checkpoints."""
    path = tmp_path_factory.mktemp("killed") / "energy.duckdb"
    store(path, world, 3 * EVERY)
    return path.parent


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(
            {"code": "0123"}, "its classes consist of other parts by now", id="classes that have changed"
        ),
        pytest.param({"state": zlib.compress(b"?")}, "it is damaged", id="no state"),
        pytest.param({"state": b"?"}, "it is damaged", id="damaged bytes"),
        pytest.param({"live": zlib.compress(b"\xc0")}, "it is damaged", id="no live state"),
        pytest.param({"offsets": (2**40, 2**40)}, "does not reach as far", id="an archive that lost frames"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_a_sentence_and_everything_is_replayed(
    tmp_path: Path,
    world: World,
    killed: Path,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, object],
    says: str,
) -> None:
    copytree(killed, tmp_path, dirs_exist_ok=True)
    archive = DuckdbFile.open(tmp_path / "energy.duckdb", SETTINGS)
    row = archive.checkpoint(checkpoint_taker.NAME)
    assert row is not None
    archive.put([], [sign(replace(row, **change), KEY)])
    with caplog.at_level(logging.WARNING):
        begin, again = started(archive)
    archive.close()
    assert begin.since is None
    assert again > 2 * EVERY
    (sentence,) = caplog.messages
    assert says in sentence
    assert sentence.endswith("The streams of all open runs are replayed instead.")
    undisturbed = Interpreter(plan_of(SETTINGS, 1))
    replayed(undisturbed, world.frames[: 3 * EVERY])
    rest = world.frames[3 * EVERY :]
    decided = [
        [row for row in replayed(each, rest) if isinstance(row, DecisionRow)]
        for each in (begin.interpreter, undisturbed)
    ]
    assert decided[0] == decided[1] != []


SLICE, SLICE_NS = 20, 50 * 1_000_000
"""Frames that are interpreted and committed together, and the work that they are."""
LIFE_SLICES = 8
"""Of an analyzer; then it is killed."""


def test_an_analyzer_that_is_killed_again_and_again_reaches_the_end_of_what_is_stored(
    tmp_path: Path, world: World
) -> None:
    """No checkpoint was taken in a replay: each life began at the same frame."""
    path, first = tmp_path / "energy.duckdb", 2 * EVERY
    store(path, world, first)
    archive = DuckdbFile.open(archive_at(path), SETTINGS)
    later = world.frames[first:]
    archive.put([[(replace(frame, body=codec.encode(body)), body) for frame, body in later]])
    lives, replayed_last = 0, False
    while not replayed_last:
        lives += 1
        assert lives <= 4 * len(later) / (SLICE * LIFE_SLICES) + 1, "it does not get on"
        begin = restart(archive, SETTINGS, KEY)
        assert begin.since is not None
        parts = chain.from_iterable(archive.replay(begin.since))
        for _ in range(LIFE_SLICES):
            part = list(islice(parts, SLICE))
            replayed_last = not part
            rows = [row for row in replayed(begin.interpreter, part) if isinstance(row, Row)]
            taken = begin.taker.take(begin.interpreter.site, part, rows, SLICE_NS)
            result = complete(Result((*rows, *taken)), begin.live, KEY)
            interpreted = {frame.log_id: frame.offset + 1 for frame, _ in part}
            archive.put([], result.rows, interpreted, replaying=True)
    undisturbed = Interpreter(plan_of(SETTINGS, 1))
    expected = [row for row in replayed(undisturbed, world.frames) if isinstance(row, WindowRow)]
    found = ask(archive, "SELECT session, kind, index, gpu, energy_j FROM windows")
    archive.close()
    assert sorted(found) == sorted(
        (row.session, row.kind, row.index, row.gpu, row.energy_j) for row in expected
    )


def test_one_is_taken_when_the_kind_of_a_counter_is_known(world: World) -> None:
    taker = CheckpointTaker(1, {}, whole=True)
    assert taker.take(world.interpreter.site, (), world.rows(RunRow)[:1], 0) == ()
    (row,) = taker.take(world.interpreter.site, (), world.rows(GpuRow)[-1:], 0)
    assert row.runs == ("run",)


def test_none_is_taken_in_the_middle_of_a_replay_of_open_runs_nor_after_one_could_not_be(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taker = CheckpointTaker(1, {}, whole=False)
    assert taker.take(world.interpreter.site, world.frames, (), 0) == ()
    taker.whole = True
    (row,) = taker.take(world.interpreter.site, (), (), 0)
    assert row.runs == ("run",)
    assert dict(zip(row.log_ids, row.offsets, strict=True)) == {
        frame.log_id: frame.offset + 1 for frame, _ in world.frames
    }
    monkeypatch.setitem(world.interpreter.site.boots, "odd", lambda: 1)
    for _ in range(2):
        taker.times = checkpoint_taker.CheckpointTimes(0)
        taker.times.wanted = True
        assert taker.take(world.interpreter.site, (), (), 0) == ()
    (sentence,) = caplog.messages
    assert "A restart replays the streams of all open runs" in sentence


def test_one_that_waited_for_the_processor_puts_off_the_next_no_more_than_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host the next came half a minute later, and a restart repeated that."""
    now_s = count(0, 10)
    monkeypatch.setattr(checkpoint_taker, "monotonic_ns", lambda: next(now_s) * 1_000_000_000)
    taker = CheckpointTaker(1, {}, whole=True)
    for _ in range(10):
        taker.times.wanted = True
        assert taker.take(world.interpreter.site, (), (), 0) != ()


def test_one_waits_while_a_command_waits_but_not_for_ever(world: World) -> None:
    taker = CheckpointTaker(1, {}, whole=True)
    taker.times.wanted = True
    for _ in range(checkpoint_taker.MOST_PUT_OFF):
        assert taker.take(world.interpreter.site, (), (), 0, hurried=True) == ()
    assert taker.take(world.interpreter.site, (), (), 0, hurried=True) != ()
    taker.times = checkpoint_taker.CheckpointTimes(0)
    taker.times.wanted = True
    assert taker.take(world.interpreter.site, (), (), 0) != ()


def test_a_checkpoint_that_came_with_a_file_from_elsewhere_makes_no_object(
    tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crafted archive made an analyzer construct classes of ours with arguments of its author."""
    path = tmp_path / "energy.duckdb"
    store(path, world, 3 * EVERY)
    archive = DuckdbFile.open(archive_at(path), SETTINGS)
    monkeypatch.setattr(object_graph, "decode", lambda *_: pytest.fail("it was looked at"))
    with caplog.at_level(logging.WARNING):
        begin = restart(archive, SETTINGS, bytes(32))
    archive.close()
    assert begin.since is None
    assert "its signature is not of this analyzer" in caplog.messages[0]


def test_the_key_is_made_once_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    key = load_key(tmp_path / "state")
    path = tmp_path / "state" / "checkpoint.key"
    assert load_key(tmp_path / "state") == key
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(StorageError, match="other users can read"):
        load_key(tmp_path / "state")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="could not be used"):
        load_key(tmp_path / "state")
