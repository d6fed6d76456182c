"""Restore records: what a device was like before it was changed, on disk before it is changed.

One file a control. ``<records>/<gpu>.json`` is of the power limit, in mW::

    {"gpu": "GPU-...", "found_mw": 300000, "confirmed_mw": 250000, "pending_mw": null,
     "boot_id": "...", "time": "2026-01-02T03:04:05+00:00", "crc32": 1234567890}

``<records>/<gpu>.clock.json`` is of the graphics clock and ``<gpu>.memory_clock.json`` of the memory clock,
with ``_mhz`` for ``_mw`` and 0 for unlocked; ``<gpu>.power_profile.json`` has ``_bits``. A version that does
not know one of these files leaves it.
``crc32`` is of the JSON without it, and each file has a second copy, ``<name>.copy``. The copy that is whole
is used; a damaged one is set aside as ``<name>.damaged``, and named.

A record exists as long as something of ours may be in force. One that a restorer dealt with stays until the
next collector has logged it: another key, ``settled``, says how.

A process that changes a device holds an exclusive flock on ``<gpu>.lock`` beside them (a record itself is
replaced at its first write), from before it reads the records until it lets go of the device: so a restorer
and a new collector take turns, and the later one sees what the earlier has done. ``time`` is for people.
"""

import fcntl
import json
import logging
import os
import time
import zlib
from errno import EIO
from pathlib import Path

from msgspec import Struct

from collectors.control import READ_BACK, unit, words
from collectors.controls.lease_messages import Limits
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import StorageError
from zeus_stream.protocol.fields import UNLOCKED, Control

SUFFIXES: dict[Control, str] = {
    "graphics_clock": ".clock.json",
    "memory_clock": ".memory_clock.json",
    "power_profile": ".power_profile.json",
    "power_limit": ".json",
}
"""The first that a name ends with is its control's."""
PLACE_BYTES = 512
"""A record is filled up to this, a sector of a disk: a longer one never replaces it in place."""
ROOM_BYTES = 1 << 20
"""With less room on its disk a record is made again at each change, which fails when there is none."""
PATIENCE_S = 5.0
"""A restorer that holds the lock is done in less."""
COPY = ".copy"
"""Ends the name of a record's second copy."""
DAMAGED = ".damaged"
"""Ends the name of a copy that was set aside."""
_ASK_AGAIN_S = 0.02
_log = logging.getLogger(__name__)


class DamagedRecordError(StorageError):
    """Neither copy of a record can be believed: what was found is not known."""


class RestoreRecord(Struct, frozen=True, kw_only=True):
    gpu: str
    limits: Limits
    boot_id: str
    time: str
    """UTC, ISO 8601."""
    settled: str | None = None
    """How a restorer settled it: nothing of ours is in force. What is left is to log it."""
    control: Control = "power_limit"


def place(directory: Path, gpu: str, control: Control) -> Path:
    """Return where the record of a control is, or would be."""
    return directory / f"{gpu}{SUFFIXES[control]}"


def copies(path: Path) -> tuple[Path, Path]:
    """Return the files that have a record."""
    return path, path.with_name(path.name + COPY)


class RestoreRecordFile:
    """The records of one device, held exclusively until they are closed."""

    def __init__(self, directory: Path, gpu: str, patience_s: float = PATIENCE_S) -> None:
        """Wait for the lock at most ``patience_s``. Raises StorageError."""
        self._directory = directory
        self._gpu = gpu
        self._on_disk: dict[Control, tuple[int, str]] = {}
        """Found and boot id of the records that are on disk."""
        self._unforced: set[Control] = set()
        """Those with a later value that may not be on disk yet."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / f"{gpu}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as wrong:
            raise self._failure(directory, "be opened", wrong) from wrong
        deadline_ns = monotonic_ns() + round(patience_s * 1e9)
        while not self._locked():
            if monotonic_ns() > deadline_ns:
                os.close(self._lock)
                raise StorageError(
                    f"{self.path()}: could not be opened: another process guards this device."
                    " Wait until it has restored what it changed, or stop it."
                )
            time.sleep(_ASK_AGAIN_S)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def path(self, control: Control = "power_limit") -> Path:
        """Return where the record of a control is."""
        return place(self._directory, self._gpu, control)

    def read(self, control: Control = "power_limit") -> RestoreRecord | None:
        """Return a control's record, if there is one. Raises DamagedRecordError and other StorageErrors."""
        whole: list[RestoreRecord] = []
        damaged: list[tuple[Path, Exception]] = []
        for path in copies(self.path(control)):
            try:
                whole.append(_parse(path.read_bytes(), control))
            except FileNotFoundError:
                continue
            except OSError as wrong:
                raise self._failure(path, "be read", wrong) from wrong
            except (ValueError, TypeError, KeyError) as wrong:
                damaged.append((path, wrong))
        if whole:
            for path, damage in damaged:
                self._set_aside(path, damage)
            return whole[0]
        if not damaged:
            return None
        if control in READ_BACK:
            path, damage = damaged[0]
            raise DamagedRecordError(
                f"{path}: could not be understood, and no copy of it: {damage}. What was found is not known,"
                f" so no {words(control)} of {self._gpu} is changed: stop the collector, and run"
                " `zeus-stream restore`, which proposes the driver's default."
            )
        # A clock is always found unlocked.
        limits = Limits(UNLOCKED, pending=UNLOCKED)
        return RestoreRecord(gpu=self._gpu, limits=limits, boot_id=boot_id(), time="", control=control)

    def _set_aside(self, path: Path, wrong: Exception) -> None:
        """Rename a damaged copy, whose other copy is whole. Raises StorageError."""
        aside = path.with_name(path.name + DAMAGED)
        try:
            path.rename(aside)
        except OSError as failed:
            raise self._failure(path, "be set aside", failed) from failed
        _log.warning(
            "%s: could not be understood: %s. Its copy is used, and it was renamed to %s.",
            path,
            wrong,
            aside.name,
        )

    def write(self, record: RestoreRecord) -> None:
        """Replace a control's record; when this returns it outlives a power failure. Raises StorageError."""
        path, content = self.path(record.control), _spelled(record)
        self._on_disk.pop(record.control, None)
        try:
            for copy in copies(path):
                new = copy.with_suffix(".new")
                with new.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                new.rename(copy)
            self._sync_directory()
        except OSError as wrong:
            raise self._failure(path, "be written", wrong) from wrong
        if len(content) == PLACE_BYTES:
            self._on_disk[record.control] = record.limits.found, record.boot_id
        self._unforced.discard(record.control)

    def update(self, record: RestoreRecord) -> None:
        """Replace a control's record; when this returns it outlives this process. Raises StorageError.

        The value found outlives a power failure. What was set does so after `force`: a restart of the host
        ends it anyway.
        """
        content = _spelled(record)
        known = self._on_disk.get(record.control) == (record.limits.found, record.boot_id)
        if not known or len(content) > PLACE_BYTES:
            self.write(record)
            return
        path = self.path(record.control)
        try:
            in_place = all(_overwrite(copy, content) for copy in copies(path))
        except FileNotFoundError:  # somebody removed it
            in_place = False
        except OSError as wrong:
            raise self._failure(path, "be written", wrong) from wrong
        if in_place:
            self._unforced.add(record.control)
        else:
            self.write(record)

    @property
    def forced(self) -> bool:
        """Every record outlives a power failure as it is."""
        return not self._unforced

    def force(self) -> None:
        """Force to disk what `update` has written. Raises StorageError; the next update is forced then."""
        while self._unforced:
            control = self._unforced.pop()
            path = self.path(control)
            try:
                for copy in copies(path):
                    place = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        os.fdatasync(place)
                    finally:
                        os.close(place)
            except OSError as wrong:
                self._on_disk.pop(control, None)
                raise self._failure(path, "be written", wrong) from wrong

    def clear(self, control: Control = "power_limit") -> None:
        """Remove a control's record: nothing of ours is in force. Raises StorageError."""
        path = self.path(control)
        self._on_disk.pop(control, None)
        self._unforced.discard(control)
        try:
            for copy in copies(path):
                copy.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as wrong:
            raise self._failure(path, "be removed", wrong) from wrong

    def close(self) -> None:
        """Let go. The lock file stays: removing it would let two processes hold it."""
        os.close(self._lock)

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _failure(self, path: Path, what: str, wrong: Exception) -> StorageError:
        why = wrong.strerror if isinstance(wrong, OSError) else str(wrong)
        return StorageError(
            f"{path}: could not {what}: {why}. Without it nothing of {self._gpu} is changed:"
            " make room or give access; if it is broken, set the value by hand and remove it."
        )


def _overwrite(path: Path, content: bytes) -> bool:
    """Replace what a file begins with. False: its disk has no room. Raises OSError."""
    place = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        disk = os.fstatvfs(place)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            return False
        if os.pwrite(place, content, 0) < len(content):
            raise OSError(EIO, "only a part was written")
    finally:
        os.close(place)
    return True


def _spelled(record: RestoreRecord) -> bytes:
    """Return a record as its file has it: blanks leave room for a later value."""
    suffix = unit(record.control)
    content: dict[str, object] = {
        "gpu": record.gpu,
        f"found_{suffix}": record.limits.found,
        f"confirmed_{suffix}": record.limits.confirmed,
        f"pending_{suffix}": record.limits.pending,
        "boot_id": record.boot_id,
        "time": record.time,
    }
    if record.settled is not None:
        content["settled"] = record.settled
    content["crc32"] = _crc32(content)
    return json.dumps(content).encode().ljust(PLACE_BYTES - 1) + b"\n"


def _crc32(content: dict[str, object]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _parse(text: bytes, control: Control) -> RestoreRecord:
    """Raises ValueError, TypeError or KeyError for what is no record, or a damaged one."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError("it is not a JSON object")
    if content.pop("crc32", None) != _crc32(content):
        raise ValueError("its checksum is another")
    found, confirmed, pending = (
        content[f"{name}_{unit(control)}"] for name in ("found", "confirmed", "pending")
    )
    limits = Limits(
        UNLOCKED if control != "power_limit" and found == UNLOCKED else _whole(found, control),
        None if confirmed is None else _whole(confirmed, control),
        None if pending is None else _whole(pending, control),
    )
    settled = content.get("settled")
    return RestoreRecord(
        gpu=str(content["gpu"]),
        limits=limits,
        boot_id=str(content["boot_id"]),
        time=str(content["time"]),
        settled=None if settled is None else str(settled),
        control=control,
    )


def _whole(value: object, control: Control) -> int:
    if type(value) is not int or value < (control != "power_profile"):
        raise ValueError(f"{value!r} is no {words(control)} in {unit(control)}")
    return value
