"""A command waits for its row alone, or for all that waits. The archive is a real one."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from msgspec.structs import replace

from analyzers.archive.duckdb_file import DuckdbFile
from analyzers.archive.process.command_file import MAX_BYTES, CommandFile
from analyzers.results.result import OWN, ApplyControl, Command, GiveAdvice, Instruction
from analyzers.results.rows import Derived, RecallRow, Row
from analyzers.service import commits
from analyzers.service.commits import QUIET_COMMITS, Commits
from tests.analyzers import archives
from tests.analyzers.archives import HOST, RUN, A, ask, frame
from zeus_stream.errors import StorageError
from zeus_stream.protocol.events import Advice
from zeus_stream.protocol.frames import Body, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings

pytestmark = pytest.mark.anyio
FRAME = frame(0, Readings((A,), b""))
COMMAND = ApplyControl(
    command="run-1/session-1/1", run=RUN.run, host=HOST, gpu=A, control="power_limit", value=200_000
)
ROW = replace(archives.COMMAND, command=COMMAND.command, asked_ns=1)
RECALL = RecallRow(session=RUN.session, run=RUN.run, round=0)


class Stored:
    """An archive, and the commits that fill it."""

    def __init__(self, archive: DuckdbFile) -> None:
        self.archive, self.published = archive, list[object]()
        self.commits = Commits(archive, self._publish)
        self.commits.replaying = False

    def _publish(self, rows: Sequence[Derived], *, replayed: bool) -> None:
        assert replayed == self.commits.replaying
        self.published += rows

    async def give(
        self, *rows: Row, instructions: tuple[Instruction, ...] = (COMMAND,), received: Frame = FRAME[0]
    ) -> None:
        """Hand over a frame, and what it gave."""
        self.commits.add_received([(received, FRAME[1])])
        await self.commits.add_derived(rows, {received.log_id: received.offset + 1}, instructions)

    def count(self, table: str) -> int:
        [(number,)] = ask(self.archive, f"SELECT count(*) FROM {table}")  # noqa: S608  (a name of this file)
        return int(number)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Stored]:
    path = folder / "energy.duckdb"
    with archives.opened(path) as archive:
        archive.commands = CommandFile(path, archive.archive_id)
        yield Stored(archive)


async def test_a_command_leaves_when_its_row_is_in_the_file_and_the_row_follows(tmp_path: Path) -> None:
    async with opened(tmp_path) as stored:
        assert (file := stored.archive.commands) is not None
        await stored.give(ROW)
        assert (stored.count("commands"), stored.published) == (0, [])
        assert file.read() == [ROW]
        other = replace(ROW, command=OTHER.command)
        await stored.give(other, instructions=(OTHER,))
        assert file.read() == [ROW, other]
        await stored.commits.commit()
        assert (stored.count("commands"), stored.count("logs")) == (2, 1)
        assert stored.published == [ROW, other]
        assert file.read() == []


async def test_a_commit_that_failed_while_a_query_waited_for_it_ends_the_analyzer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query was refused, and the analyzer went on without storing anything."""

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no room")

    async with opened(tmp_path) as stored:
        monkeypatch.setattr(stored.archive, "put", fail)
        await stored.commits.add_derived([ROW], {}, ())
        with pytest.raises(StorageError, match="no room"):
            await stored.commits.commit()
        with anyio.fail_after(60), pytest.raises(StorageError, match="no room"):
            await stored.commits.run()
        assert stored.published == []


async def test_a_commit_under_way_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = anyio.CancelScope()

    async def cancel_and_run(work: Callable[[], None]) -> None:
        scope.cancel()
        await run_sync(work)

    monkeypatch.setattr(commits, "run_sync", cancel_and_run)
    async with opened(tmp_path) as stored:
        await stored.commits.add_derived([ROW], {}, ())
        with scope:
            await stored.commits.commit()
        assert scope.cancel_called
        assert (stored.count("commands"), stored.published) == (1, [ROW])


async def test_what_a_replay_gives_is_stored_together_and_not_slice_by_slice(tmp_path: Path) -> None:
    """A commit for each slice took ten times as long as the work: a kill came before the end of a replay."""
    async with opened(tmp_path) as stored:
        stored.commits.replaying = True
        for number in range(3):
            await stored.give(replace(ROW, command=str(number)), instructions=())
        assert (stored.count("commands"), stored.published) == (0, [])
        await stored.commits.end_replay()
        assert (stored.count("commands"), len(stored.published)) == (3, 3)
        assert not stored.commits.replaying


async def test_rows_that_wait_are_bounded_as_frames_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAX_BYTES", 2 * commits.ROW_BYTES)
    async with opened(tmp_path) as stored:
        stored.commits.replaying = True
        for number, expected in enumerate([0, 0, 3]):
            await stored.commits.add_derived([replace(ROW, command=str(number))], {}, ())
            await stored.commits.make_room()
            assert stored.count("commands") == expected


@pytest.mark.parametrize(("body", "most"), [(Notes(()), 4), (FRAME[1], 4 * commits.READINGS_SHARE)])
async def test_more_readings_wait_than_others_since_they_are_stored_more_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: Body, most: int
) -> None:
    """In small commits each reading took twice as long."""
    monkeypatch.setattr(commits, "MAX_BYTES", 399)
    async with opened(tmp_path) as stored:
        for offset in range(most):
            assert stored.count("logs") == 0
            stored.commits.add_received([(replace(FRAME[0], offset=offset, body=b"x" * 100), body)])
            await stored.commits.make_room()
        assert stored.count("logs") == 1


async def test_the_first_commits_after_a_start_come_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyzer that lived for less than five seconds stored nothing, unless it received much."""
    waited, stored_at = 0, list[int]()

    def wait(_: float) -> float:
        nonlocal waited
        waited += 1
        return 0.0

    class Noted(Commits):
        """Commits that store nothing, so that something waits at any time."""

        async def commit(self) -> None:
            stored_at.append(waited)

    monkeypatch.setattr(commits, "to_next_s", wait)
    async with opened(tmp_path) as stored, anyio.create_task_group() as tasks:
        noted = Noted(stored.archive, lambda *_, **__: None, followed=lambda: False)
        await noted.add_derived([ROW], {}, ())
        tasks.start_soon(noted.run)
        while len(stored_at) < QUIET_COMMITS + 2:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    pauses = [after - before for before, after in pairwise([0, *stored_at])][: QUIET_COMMITS + 2]
    assert pauses == [*range(1, QUIET_COMMITS + 1), QUIET_COMMITS, QUIET_COMMITS]


async def test_the_first_command_of_a_run_waits_for_no_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as stored:
        assert (file := stored.archive.commands) is not None
        await stored.give(RUN, instructions=())
        await stored.give(RECALL, ROW)
        assert (stored.count("runs"), stored.count("commands")) == (0, 0)
        assert file.read() == [RUN, RECALL, ROW]


async def test_the_begin_of_a_run_that_is_being_stored_is_in_the_file_until_then(tmp_path: Path) -> None:
    async with opened(tmp_path) as stored, anyio.create_task_group() as tasks:
        assert (file := stored.archive.commands) is not None
        await stored.give(RUN, instructions=())
        tasks.start_soon(stored.commits.commit)
        await anyio.lowlevel.checkpoint()
        await stored.give(ROW)
        assert file.read() == [RUN, ROW]
        async with anyio.create_task_group() as others:
            others.start_soon(stored.commits.commit)
        assert (stored.count("runs"), stored.count("commands"), file.read()) == (1, 1, [])


async def test_a_begin_of_a_run_that_finds_no_room_in_the_file_is_stored_before_a_command(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as stored:
        await stored.give(replace(RUN, command_reason="x" * MAX_BYTES), instructions=())
        await stored.give(ROW)
        assert (stored.count("runs"), stored.count("commands")) == (1, 1)


async def test_a_command_whose_row_finds_no_room_in_the_file_waits_for_all(tmp_path: Path) -> None:
    async with opened(tmp_path) as stored:
        await stored.give(replace(ROW, reason="x" * MAX_BYTES))
        assert (stored.count("commands"), stored.count("logs")) == (1, 1)


OTHER: Command = replace(COMMAND, command="another")


@pytest.mark.parametrize(
    ("rows", "instructions", "received"),
    [
        pytest.param((ROW,), (COMMAND, OTHER), FRAME[0], id="another command that has no row here"),
        pytest.param((), (COMMAND,), FRAME[0], id="a command of a power budget, which has no row yet"),
        pytest.param(
            (ROW,),
            (COMMAND,),
            replace(FRAME[0], host=OWN),
            id="a note of the analyzer, which no log gives again",
        ),
        pytest.param(
            (ROW,), (GiveAdvice(HOST, Advice("q", 32, go_on=True, reason="")),), FRAME[0], id="a batch size"
        ),
    ],
)
async def test_what_may_not_come_again_is_stored_before_a_command_leaves(
    rows: tuple[Row, ...],
    instructions: tuple[Instruction, ...],
    received: Frame,
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as stored:
        await stored.give(*rows, instructions=instructions, received=received)
        assert stored.count("logs") == 1


async def test_a_row_that_a_full_commit_took_along_is_stored_and_published_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as stored, anyio.create_task_group() as tasks:
        tasks.start_soon(stored.commits.commit)
        await stored.give(ROW)
        await stored.commits.commit()
        assert (stored.count("commands"), stored.published) == (1, [ROW])
