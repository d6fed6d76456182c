"""The collector's journal: each entry goes into the log on disk first, then to the feed.

While the log cannot be written, events stay with their publishers, notes wait, and readings are dropped and
counted. Later the notes follow, and `Lost` says what was dropped.
"""

import logging
from collections import deque
from collections.abc import Sequence

from collectors.log.standing import Standing
from collectors.log.store import UNKNOWN_UID, LogStore, SessionMemory
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import StorageError
from zeus_stream.live.latest import Latest
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Events, encode_frame
from zeus_stream.protocol.notes import Lost, Note, Notes
from zeus_stream.protocol.readings import Readings
from zeus_stream.transport.listening.listener import Listener

MAX_NOTES = 1_000
"""Notes that wait for room; past it the oldest is dropped and counted."""
FRAME_NOTES = 100
"""In one frame: whatever they say, it is no longer than a follower takes."""
MAX_TOPIC = 200
_log = logging.getLogger(__name__)


class LogFeed:
    """Logs and publishes. ``trouble`` says why the log cannot be written now."""

    def __init__(self, log: LogStore, feed: Listener, host: str) -> None:
        self._log = log
        self._feed = feed
        self._host = host
        self._notes: deque[Note] = deque()
        self._lost: dict[str, tuple[int, str]] = {}
        self.latest = Latest()
        """What was logged last of each device, for those who ask."""
        self.standing = Standing()
        """The facts that a reader needs who begins in the middle of the log."""
        self.trouble: str | None = None
        self.failures = 0
        """Appends that failed."""
        self.dropped = 0
        """Readings and notes that were dropped."""

    @property
    def next_offset(self) -> int:
        """The offset of the log's next frame."""
        return self._log.extent.next_offset

    def events(self, job: str, events: Events, session: SessionMemory) -> bool:
        """Log new events, and the next sequence number of their session. False: they must come again."""
        uid = UNKNOWN_UID if events.uid is None else events.uid
        entry = f"events/{self._host}/{job}"[:MAX_TOPIC], codec.encode(events)
        return self._write([entry], session, written_by=uid)

    def readings(self, readings: Readings, count: int) -> None:
        """Log ``count`` readings, or drop them."""
        now_ns = monotonic_ns()
        self.latest.take_readings(self._host, now_ns, readings, now_ns)
        if not self._append(f"readings/{self._host}", readings):
            self.lose("readings", count, self.trouble or "")

    def say(self, *notes: Note) -> None:
        """Log notes now, or as soon as there is room."""
        for note in notes:
            self.latest.take_note(self._host, note)
            self.standing.take(note)
            if len(self._notes) >= MAX_NOTES:
                self._notes.popleft()
                self.lose("notes", 1, "too many waited for room in the log")
            self._notes.append(note)
        self.flush()

    def lose(self, what: str, count: int, reason: str) -> None:
        """Count what was dropped; the log says so when it can."""
        self.dropped += count
        self.latest.add_gap(self._host, what, count, reason)
        before, _ = self._lost.get(what, (0, ""))
        self._lost[what] = before + count, reason

    def flush(self) -> None:
        """Log what waits."""
        now_ns = monotonic_ns()
        lost = [Lost(now_ns, what, count, reason[:2000]) for what, (count, reason) in self._lost.items()]
        notes: Sequence[Note] = [*lost, *self._notes][:FRAME_NOTES]
        if notes and self._append(f"notes/{self._host}", Notes(tuple(notes))):
            self._lost.clear()
            for _ in range(len(notes) - len(lost)):
                self._notes.popleft()

    def prune(self, max_bytes: int, max_age_ns: int) -> int:
        """Let the log forget its oldest frames; return how many. When it cannot, it is tried again."""
        try:
            return self._log.prune(monotonic_ns(), max_bytes, max_age_ns)
        except StorageError as wrong:
            self._fail(wrong)
            return 0

    def remember(self, session: SessionMemory) -> None:
        """Keep what is known of a session beyond a restart."""
        self._write([], session)

    def _append(self, topic: str, body: Body) -> bool:
        return self._write([(topic, codec.encode(body))])

    def _write(
        self,
        entries: list[tuple[str, bytes]],
        session: SessionMemory | None = None,
        written_by: int | None = None,
    ) -> bool:
        try:
            frames = self._log.append(entries, monotonic_ns(), session, written_by=written_by)
        except StorageError as wrong:
            self._fail(wrong)
            return False
        self.trouble = None
        for frame in frames:
            self._feed.send(*encode_frame(frame))
        return True

    def _fail(self, wrong: StorageError) -> None:
        if self.trouble is None:
            _log.warning("%s", wrong)
        self.trouble = str(wrong)
        self.failures += 1
