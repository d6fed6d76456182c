"""The protocol of a store of the analyzer's data. Tests in `tests/conformance/test_store.py` hold for
every store.

A store keeps what was received and what was derived from it, each with how far it goes: both in one
transaction, so that what is asked again after a crash is neither lost nor stored twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from analyzers.archive.process.command_file import CommandFile
from analyzers.archive.rows.event_rows import EventRows
from analyzers.archive.sandbox.bounded_queries import Question
from analyzers.results.memory import Memory
from analyzers.results.rows import CheckpointRow, Derived
from zeus_stream.protocol.frames import Body, Break, Frame
from zeus_stream.settings import Settings

Received = Sequence[tuple[Frame, Body | EventRows | None]] | Break
"""Frames with their bodies, or the rows of their events (None: it cannot be decoded); or frames that are gone
for good."""
Page = list[tuple[Frame, Body]]
"""Frames that are stored, with their bodies."""


class Store(Protocol):
    """A store that is open for writing. Every method may raise StorageError."""

    @property
    def archive_id(self) -> str:
        """UUID of what is stored."""

    @property
    def starts(self) -> int:
        """The number of times that it was opened for writing, this time included."""

    @property
    def commands(self) -> CommandFile | None:
        """Rows that commands wait for and that are not stored yet. None: they are stored before that."""

    def put(
        self,
        received: Sequence[Received],
        rows: Sequence[Derived] = (),
        interpreted: Mapping[str, int] | None = None,
        *,
        replaying: bool = False,
    ) -> None:
        """Store all of it or nothing. What could not be stored may be handed over again.

        Args:
            received: frames, in order for each log, with their bodies (None: cannot be decoded), and breaks
                in their place. Frames that are stored already are skipped.
            rows: of one key, the last counts.
            interpreted: for each log, the offset to be interpreted next; it is never lowered.
            replaying: rows of all kinds may be stored already; otherwise only those that have a state.

        Raises RefusedError: a frame is missing before another; put the break there that is gone for good.
        """

    def position(self, host: str) -> tuple[str, int] | tuple[None, None]:
        """Return the log of a host that was followed last, and the offset it goes on with."""

    def replay(self, since: Mapping[str, int] | None = None) -> Iterator[Page]:
        """Yield what has to be interpreted, again or not, a page at a time, in its first order.

        ``since``: by log, the offset to begin at. None: all since the oldest open run began.
        """

    def memory(self, since: Mapping[str, int] | None = None, sessions: Sequence[str] = ()) -> Memory:
        """Return what an analyzer needs beyond `replay`. ``sessions``: open ones that began before it."""

    def checkpoint(self, name: str) -> CheckpointRow | None:
        """Return the last checkpoint of that name."""

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe; return what ends it. ``out`` may be closed then."""

    def prune(self, settings: Settings, wall_ns: int, code: str | None = None) -> dict[str, int]:
        """Remove what is older than it is kept, except what a restart interprets again.

        Return the rows removed by table. ``settings``: say for how long rows are kept. ``code``: a restart
        goes on from a checkpoint of this version; None: from the oldest open run's begin.
        """

    def close(self) -> None:
        """Close it. Nothing may be under way."""
