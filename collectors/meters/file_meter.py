"""A figure in a file: a sensor of Linux, Cray's pm_counters, or what another program writes."""

from pathlib import Path

from collectors.meters.host_meter import JOULES, MeterReading, MeterUnit, first_number
from zeus_stream.errors import LostError, PermissionMissingError, RetryError

CRAY = Path("/sys/cray/pm_counters/energy")
"""Joules of the node since it was switched on, refreshed ten times a second."""


class FileMeter:
    """The first number of a file (a `collectors.meters.host_meter.HostMeter`)."""

    def __init__(self, path: Path, unit: MeterUnit) -> None:
        self._path, self._unit = path, unit

    def read(self) -> MeterReading:
        """Read the file. Raises LostError: it is gone. PermissionMissingError, RetryError."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError as wrong:
            raise LostError(
                f"{self._path}: could not be read: it is not there. It is read again when it is."
            ) from wrong
        except PermissionError as wrong:
            raise PermissionMissingError(
                f"{self._path}: could not be read: {wrong.strerror}. Let the collector's user read it."
            ) from wrong
        except OSError as wrong:
            raise RetryError(
                f"{self._path}: could not be read: {wrong}. It is read again at the next turn."
            ) from wrong
        return self._unit.reading(first_number(text, str(self._path)), str(self._path))


def cray_meter() -> FileMeter:
    """Return the node's meter of a Cray."""
    return FileMeter(CRAY, JOULES)
