"""The protocol of a log of frames. Tests in `tests/conformance/test_log.py` hold for every log.

A log gives each frame the next offset, keeps the newest frames within its bounds, and forgets the oldest.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from zeus_stream.protocol.frames import Frame

UNKNOWN_UID = -1


class SessionMemory(Struct, frozen=True):
    """The state of a session that a restarted collector needs: ``about`` is the caller's own text."""

    session: str
    next_sequence: int
    about: str


class Extent(Struct, frozen=True):
    """The frames of a log: from ``first_offset`` to below ``next_offset``."""

    log_id: str
    first_offset: int
    next_offset: int


class LogStore(Protocol):
    """A log that is open for writing. For one thread. Methods may raise StorageError."""

    log_id: str
    """UUID: another one after the log was lost."""

    @property
    def extent(self) -> Extent:
        """Return which frames there are."""

    @property
    def size_bytes(self) -> int:
        """Return the size of all frames."""

    def append(
        self,
        entries: Sequence[tuple[str, bytes]],
        t_ns: int,
        session: SessionMemory | None = None,
        *,
        written_by: int | None = None,
    ) -> list[Frame]:
        """Add frames (topic, body), and the next sequence number of a session, in one transaction.

        ``written_by``: the uid whose events they are, or `UNKNOWN_UID`; None: they are the collector's own.
        Raises StorageError: nothing was added; it may be tried again.
        """

    def fetch(self, first_offset: int, count: int, max_bytes: int) -> list[Frame]:
        """Return frames from ``first_offset`` (or the next there is) up to a hole: at most ``count``.

        They are one, or at most ``max_bytes``.
        """

    def sessions(self) -> list[SessionMemory]:
        """Return the sessions, longest silent first."""

    def prune(self, now_ns: int, max_bytes: int, max_age_ns: int) -> int:
        """Remove the oldest frames, some at a time, and return how many. The newest frame stays."""

    def close(self) -> None:
        """Close it."""
