"""Batches of one part of a site -> frames in order for each log, and what is missing of them. Pure.

a batch that goes on where its log is        its frames
one that begins before                       what is new of it
one of a log that is not known yet           its frames, if it is the first that was sent of this log; else as
                                             below
one that begins later, and says that the     `Break`, and its frames
  frames between had left the log
one that begins later, and does not          `BatchesMissingError`: the stream is read again;
                                             while it is read again: `Break`, and its frames
what is no batch of that host                counted, and left out
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analyzers.archive.store import Received
from zeus_stream.broker import batches
from zeus_stream.errors import MalformedError
from zeus_stream.protocol import codec
from zeus_stream.protocol.frames import Body, Break, Events, Frame
from zeus_stream.protocol.notes import Notes
from zeus_stream.protocol.readings import Readings

LEFT = "they had left the log"
LOST = "the broker lost them"


class BatchesMissingError(Exception):
    """The stream has to be read again from its first message."""


@dataclass(slots=True)
class BatchIntake:
    """Frames that were read of a stream and are not stored yet."""

    next_of: dict[str, int]
    """The offset that comes next, by log."""
    again: bool = False
    """The stream is read again: what is missing now is gone."""
    parts: list[Received] = field(default_factory=list)
    """What is to be stored."""
    message_bytes: int = 0
    """Of the messages that it came in."""
    malformed: int = 0

    def take(self, message: bytes, subject: str, site: str) -> None:
        """Take in a message of the stream.

        Raises:
            BatchesMissingError: batches before it are missing.
        """
        try:
            batch = batches.decode(message, subject, site)
        except MalformedError:
            self.malformed += 1
            return
        known = self.next_of.get(batch.log_id)
        if known is None and batch.after:
            known = 0  # batches of this log were sent before, and none is stored
        first = batch.frames[0].offset
        if known is not None and first > known:
            if batch.after > known and not self.again:
                raise BatchesMissingError
            reason = LOST if batch.after > known else LEFT
            self.parts.append(Break(batch.log_id, known, first - known, reason))
            known = first
        fresh = [frame for frame in batch.frames if known is None or frame.offset >= known]
        if fresh:
            self.parts.append([(frame, _body(frame)) for frame in fresh])
            self.next_of[batch.log_id] = batch.next_offset
            self.message_bytes += len(message)

    def taken(self) -> Sequence[Received]:
        """Return what is to be stored, once."""
        parts, self.parts, self.message_bytes = self.parts, [], 0
        return parts


def _body(frame: Frame) -> Body | None:
    try:
        return codec.decode(frame.body, Readings, Events, Notes)
    except MalformedError:
        return None  # its bytes are kept
