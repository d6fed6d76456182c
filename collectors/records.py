"""Restore records: what a device's limit was before it was changed, on disk before it is changed.

One file a device, ``<records>/<gpu>.json``::

    {"gpu": "GPU-...", "found_mw": 300000, "confirmed_mw": 250000, "pending_mw": null,
     "boot_id": "...", "time": "2026-01-02T03:04:05+00:00"}

It exists as long as something of ours may be in force. One that a restorer dealt with stays until the
next collector has logged it: another key, ``settled``, says how.

Whoever changes a device holds an exclusive flock on ``<gpu>.lock`` beside it (the record itself is
replaced at each write), from before it reads the record until it lets go of the device: so a restorer
and a new collector take turns, and the later one sees what the earlier has done. ``time`` is for people.
Unknown keys are ignored.
"""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from collectors.device import Device
from collectors.leases import Limits, close
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import RetryError, StorageError

PATIENCE_S = 5.0
"""A restorer that holds the lock is done in less."""
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Record:
    gpu: str
    limits: Limits
    boot_id: str
    time: str
    """UTC, ISO 8601."""
    settled: str | None = None
    """How a restorer settled it: nothing of ours is in force. What is left is to log it."""


class RecordFile:
    """The record of one device, held exclusively until it is closed."""

    def __init__(self, directory: Path, gpu: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for the lock at most ``patience_s``. Raises StorageError."""
        self.path = directory / f"{gpu}.json"
        self._gpu = gpu
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / f"{gpu}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as wrong:
            raise self._failure("be opened", wrong) from wrong
        deadline_ns = monotonic_ns() + round(patience_s * 1e9)
        while not self._locked():
            if monotonic_ns() > deadline_ns:
                os.close(self._lock)
                raise StorageError(
                    f"{self.path}: could not be opened: another process guards this device."
                    " Wait until it has restored the limit, or stop it."
                )
            time.sleep(_ASK_AGAIN_S)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self) -> Record | None:
        """Return the record, or None when there is none. Raises StorageError when it makes no sense."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as wrong:
            raise self._failure("be read", wrong) from wrong
        try:
            return _parse(json.loads(text))
        except (ValueError, TypeError, KeyError) as wrong:
            raise self._failure("be understood", wrong) from wrong

    def write(self, record: Record) -> None:
        """Replace the record; when this returns it outlives a power failure. Raises StorageError."""
        content = {
            "gpu": record.gpu,
            "found_mw": record.limits.found_mw,
            "confirmed_mw": record.limits.confirmed_mw,
            "pending_mw": record.limits.pending_mw,
            "boot_id": record.boot_id,
            "time": record.time,
        }
        if record.settled is not None:
            content["settled"] = record.settled
        new = self.path.with_suffix(".new")
        try:
            with new.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self.path)
            self._sync_directory()
        except OSError as wrong:
            raise self._failure("be written", wrong) from wrong

    def clear(self) -> None:
        """Remove the record: nothing of ours is in force. Raises StorageError."""
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as wrong:
            raise self._failure("be removed", wrong) from wrong

    def close(self) -> None:
        """Let go. The lock file stays: removing it would let two processes hold it."""
        os.close(self._lock)

    def _sync_directory(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _failure(self, what: str, wrong: Exception) -> StorageError:
        why = wrong.strerror if isinstance(wrong, OSError) else str(wrong)
        return StorageError(
            f"{self.path}: could not {what}: {why}. Without it no limit of {self._gpu} is changed:"
            " make room or give access; if it is broken, set the limit by hand and remove it."
        )


def _parse(content: object) -> Record:
    if not isinstance(content, dict):
        raise TypeError("it is not a JSON object")
    limits = Limits(
        _whole(content["found_mw"]),
        None if content["confirmed_mw"] is None else _whole(content["confirmed_mw"]),
        None if content["pending_mw"] is None else _whole(content["pending_mw"]),
    )
    settled = content.get("settled")
    return Record(
        str(content["gpu"]),
        limits,
        str(content["boot_id"]),
        str(content["time"]),
        None if settled is None else str(settled),
    )


def _whole(value: object) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"{value!r} is not a limit in mW")
    return value


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of a restore: the limit requested now, and whether a ``stranger`` set it."""

    requested_mw: int
    stranger: bool


def put_back(device: Device, limits: Limits) -> PutBack:
    """Restore the limit found if what is requested now is ours. Raises DeviceError or RefusedError."""
    requested_mw = device.requested_limit_mw()
    if limits.ours(requested_mw) and requested_mw != limits.found_mw:
        device.set_limit(limits.found_mw)
        requested_mw = device.requested_limit_mw()
        if limits.ours(requested_mw) and not close(requested_mw, limits.found_mw):
            raise RetryError(
                f"could not restore {limits.found_mw / 1000:g} W: the device took it, and requests"
                f" {requested_mw / 1000:g} W still. It is tried again."
            )
    return PutBack(requested_mw, stranger=not close(requested_mw, limits.found_mw))
