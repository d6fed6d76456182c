"""Collect what is to be stored, and store it in few transactions.

    frames, breaks, rows -> wait here -> one transaction every few seconds, each second while somebody follows
                                         the results, or at once when a choice or a query waits, or for much
    row of a command, of a run's beginning -> a line of a file beside the archive, and the next transaction;
                                             without that file, a transaction

What was not yet stored when the analyzer is killed comes again from the collectors' logs, and gives the same
rows and the same names of commands. Where it might not, a command waits for all (`_alone`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from analyzers.archive.store import Received, Store
from analyzers.checkpoints import state_classes
from analyzers.results.result import OWN, Command, GiveAnswer, Instruction
from analyzers.results.rows import (
    CheckpointRow,
    CommandRow,
    Derived,
    JobRow,
    OwnUseRow,
    RecallRow,
    RunRow,
    StepColumns,
    TryRow,
)
from zeus_stream.clock import anchor, to_next_s
from zeus_stream.protocol.frames import Break, Frame
from zeus_stream.protocol.readings import Readings
from zeus_stream.settings import Settings

_log = logging.getLogger(__name__)
COMMIT_S = 1.0
"""Between two commits while results are followed."""
QUIET_COMMITS = 5
"""Times that, while nobody follows them: a commit costs about 30 ms of processor time, whatever is in it. The
first after a start comes after once that, the second after twice: one that is soon killed gets on as well."""
IDLE_COMMITS = 600
"""Times that, while nothing follows from the frames that wait but our own use: no training runs."""
COMMIT_BYTES = 4 << 20
"""Bytes of frames and rows that may wait; more are stored at once."""
READINGS_SHARE = 2
"""Bytes of readings are stored so many times as quickly as others, at least. So a commit of `COMMIT_BYTES`
has more than the 122,880 rows of a row group of DuckDB, which are written once. Fewer go through the WAL and
a checkpoint, and take twice as long each."""
ROW_BYTES = 100
"""Bytes of a row, about."""
MAX_BYTES = 2 * COMMIT_BYTES
"""Bytes that wait for the store before no more is taken in: a commit of a busy host takes 1 s, not 10."""
CHOICES = {TryRow, JobRow}
"""Rows that are stored at once: the answer to a script follows from them."""
FIRST_S = 60.0
"""From the start, which has other things to do, to the first removal of old rows."""
EVERY_S = 3600.0
"""Between two of them."""
BEGINNINGS = RunRow | RecallRow
"""Rows from which the commands of a run follow, and that other settings would not give again."""


def size_of(part: Sequence[Frame] | Break) -> int:
    return 0 if isinstance(part, Break) else sum(len(frame.body) for frame in part)


def _share(body: object) -> int:
    return READINGS_SHARE if isinstance(body, Readings) else 1


class Publish(Protocol):
    """A function that takes rows which were stored. It never waits."""

    def __call__(self, rows: Sequence[Derived], *, replayed: bool) -> None:
        """``replayed``: they were derived again after a start, and may have been stored before."""


class Commits:
    """Parts of the next transaction. For one event loop."""

    def __init__(self, store: Store, publish: Publish, followed: Callable[[], bool] = lambda: True) -> None:
        """``publish``: takes rows once they are stored. ``followed``: returns whether anybody reads those."""
        self._store = store
        self._publish = publish
        self._followed = followed
        self._one_at_a_time = anyio.Lock()
        self._received: list[Received] = []
        self._rows: list[Derived] = []
        self._kept = 0
        """The number of these rows, from the first, that were searched for rows of commands."""
        self._interpreted: dict[str, int] = {}
        self._bytes = 0
        self._choices = False
        """A choice waits."""
        self._causes = False
        """Something waits that may not come again, and from which commands follow."""
        self._storing_causes = False
        """The same of what is being stored."""
        self._large = anyio.Event()
        """Set: more than `COMMIT_BYTES` wait."""
        self._failure: Exception | None = None
        """The failure of a commit. What came after it is not stored either: the analyzer ends."""
        self.replaying = True
        """Rows of all kinds may be stored already."""

    def add_received(self, part: Received) -> None:
        self._received.append(part)
        if not isinstance(part, Break):
            self._grow(sum(len(frame.body) // _share(body) for frame, body in part))
            self._causes = self._causes or any(frame.host == OWN for frame, _ in part)

    def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes > COMMIT_BYTES:
            self._large.set()

    async def make_room(self) -> None:
        """Wait for the store while more waits for it than may."""
        if self._bytes > MAX_BYTES:
            await self.commit()

    async def add_derived(
        self, rows: Sequence[Derived], interpreted: Mapping[str, int], instructions: Sequence[Instruction]
    ) -> None:
        """Add rows, and return when the instructions that came with them may leave.

        A command or a choice leaves when its row is stored; a choice may be asked for at any time, but not
        before the end of a replay.
        """
        self._rows += rows
        self._grow(ROW_BYTES * sum(len(row) if type(row) is StepColumns else 1 for row in rows))
        self._interpreted |= interpreted
        kinds = set(map(type, rows))
        self._choices = self._choices or not CHOICES.isdisjoint(kinds)
        beginnings = [row for row in rows if isinstance(row, BEGINNINGS)]
        if beginnings and (self.replaying or not self._keep(beginnings)):
            self._causes = True
        waiting = [each for each in instructions if not isinstance(each, GiveAnswer)]
        together = self.replaying or not self._alone(waiting)
        if (self._choices and not self.replaying) or (waiting and together):
            await self.commit()
        elif waiting:
            await self._keep_commands()

    def _alone(self, instructions: Sequence[Instruction]) -> bool:
        """Return whether these are commands whose rows may be stored before what else waits."""
        rows = {row.command for row in self._rows if isinstance(row, CommandRow)}
        return not (self._causes or self._storing_causes) and all(
            isinstance(each, Command) and each.command in rows for each in instructions
        )

    def _keep(self, rows: Sequence[CommandRow | RunRow | RecallRow]) -> bool:
        """Have rows outlive this process. Return False if they do not before they are stored."""
        return self._store.commands is not None and self._store.commands.add(rows)

    async def _keep_commands(self) -> None:
        """Have the rows of commands outlive this process, and let the others wait."""
        rows = [row for row in self._rows[self._kept :] if isinstance(row, CommandRow)]
        self._kept = len(self._rows)
        if rows and not self._keep(rows):
            await self.commit()

    async def commit(self) -> None:
        """Store what waits. On return all is stored that waited at the call. Raises StorageError."""
        async with self._one_at_a_time:
            self._check()
            if not (self._received or self._rows):
                return  # frames that gave no rows may be interpreted again
            received, self._received = self._received, []
            rows, self._rows = self._rows, []
            interpreted, self._interpreted = self._interpreted, {}
            self._bytes = self._kept = 0
            self._storing_causes = self._causes
            self._choices = self._causes = False
            end = 0 if self._store.commands is None else self._store.commands.end
            await self._put(received, rows, interpreted)
            self._storing_causes = False
            if self._store.commands is not None:
                self._store.commands.clear(end)

    async def _put(
        self, received: Sequence[Received], rows: Sequence[Derived], interpreted: Mapping[str, int]
    ) -> None:
        replayed = self.replaying
        put = partial(self._store.put, received, rows, interpreted, replaying=replayed)
        try:
            with anyio.CancelScope(shield=True):
                await run_sync(put)
        except Exception as wrong:
            self._failure = wrong
            self._large.set()
            raise
        self._publish([row for row in rows if not isinstance(row, CheckpointRow)], replayed=replayed)

    def _check(self) -> None:
        """Raise what a commit has failed with: it may have been raised to a query alone."""
        if self._failure is not None:
            raise self._failure

    async def end_replay(self) -> None:
        """Store what was derived again. No row that comes after it is stored already."""
        await self.commit()
        self.replaying = False

    async def run(self) -> None:
        """Commit in time until cancelled, and once more then."""
        commits = 0
        try:
            while True:
                for waited in range(1, IDLE_COMMITS + 1):
                    with anyio.move_on_after(to_next_s(COMMIT_S)):
                        await self._large.wait()
                    pause = min(1 + commits, QUIET_COMMITS)
                    due = waited >= pause and not all(isinstance(row, OwnUseRow) for row in self._rows)
                    if due or self._large.is_set() or self._followed():
                        break
                self._large = anyio.Event()
                await self.commit()
                commits += 1
        finally:
            if self._failure is None:
                with anyio.CancelScope(shield=True):
                    await self.commit()


# ---- what is kept no longer


async def prune(store: Store, settings: Settings) -> None:
    """Remove old rows until cancelled. Commits wait in the meantime. Raises StorageError."""
    await anyio.sleep(FIRST_S)
    while True:
        removed = await run_sync(store.prune, settings, anchor().wall_ns, state_classes.version())
        if removed:
            _log.info("archive: removed %s.", words(removed))
        await anyio.sleep(EVERY_S)


def words(removed: dict[str, int]) -> str:
    nothing = (
        "nothing: no row is older than it is kept by the clock readings of its host, or a restart needs it"
    )
    return ", ".join(f"{count} rows of {table}" for table, count in removed.items()) or nothing
