"""The notes that hold now: for a reader that begins in the middle of the log. Pure."""

from zeus_stream.protocol import codec
from zeus_stream.protocol.notes import (
    ClockAnchored,
    CollectorStarted,
    DeviceFound,
    DeviceGone,
    Note,
    Notes,
)


class Standing:
    """The start of the collector, its clock, and its devices."""

    def __init__(self) -> None:
        self._started: CollectorStarted | None = None
        self._anchored: ClockAnchored | None = None
        self._devices: dict[str, DeviceFound] = {}
        self._encoded: bytes | None = None

    def take(self, note: Note) -> None:
        """Take in a note of the log."""
        match note:
            case CollectorStarted():
                self._started, self._anchored = note, None
                self._devices.clear()
            case ClockAnchored():
                self._anchored = note
            case DeviceFound(gpu=gpu):
                self._devices[gpu] = note
            case DeviceGone(gpu=gpu):
                self._devices.pop(gpu, None)
            case _:
                return
        self._encoded = None

    def notes(self) -> bytes:
        """Return them as one encoded `Notes`."""
        if self._encoded is None:
            notes = (self._started, self._anchored, *self._devices.values())
            self._encoded = codec.encode(Notes(tuple(note for note in notes if note is not None)))
        return self._encoded
