"""The board of a simulated GPU: where its training process and its collectors meet.

For a simulated GPU this is what the driver is for a real one, and like a driver's its state outlives
the processes that use it. It is two files in ``<runtime directory>/simulated``:

``GPU-*.gpu``
    Written by the collector's side: model, energy counter, locks of the clocks, and every change of the limit
    and of the graphics clock's lock.
    Locked, shared, by every process that runs the GPU.
``GPU-*.load``
    Written by one training process, which holds the lock on it: its pid and its loads.

Every record carries its number and a checksum, so that a reader takes a torn record for one that is not
there yet. A load states when it ends unless it is renewed: the load of a killed process ends by itself.
"""

import fcntl
import mmap
import os
import struct
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from zeus_stream.clock import boot_id
from zeus_stream.errors import StorageError
from zeus_stream.protocol.fields import UNLOCKED, Control
from zeus_stream.simulated_gpu.workloads import load as load_models

LOADS = 4096
"""Loads a board holds. A collector that looks less often than a trainer fills it counts the loss."""
LAYOUT = 2
"""Of the records below. A board of another layout is set up again, at its default limit."""
LIMITS = 256
"""Changes of the limit and of the graphics clock's lock a board holds."""

IDENTITY = struct.Struct("<64s")  # model, boot and how much slower than the model it is
COUNTER = struct.Struct("<qQ")  # index of its refresh, nJ
PID = struct.Struct("<Q")
CLOCK = struct.Struct("<Q")  # MHz at which it is locked, 0: it is not
LIMIT = struct.Struct("<QQQQ")  # number, since ns, mW, MHz at which the graphics clock is locked
LOAD = struct.Struct("<QQQQ")  # number, begin ns, until ns, index of the workload
_CHECK = struct.Struct("<I")
COUNTER_AT = 128
CLOCKS_AT: dict[Control, int] = {"graphics_clock": 192, "memory_clock": 224}
_RINGS_AT = 256
STATE_BYTES = _RINGS_AT + LIMITS * (LIMIT.size + _CHECK.size)
WORK_BYTES = _RINGS_AT + LOADS * (LOAD.size + _CHECK.size)


class Load(Struct, frozen=True):
    """A GPU works on ``workload`` from ``begin_ns`` until ``until_ns`` (CLOCK_MONOTONIC)."""

    begin_ns: int
    until_ns: int
    workload: str


class LimitChange(Struct, frozen=True):
    """From ``since_ns`` on, ``limit_mw`` was in force, and this lock of the graphics clock."""

    since_ns: int
    limit_mw: int
    locked_mhz: int = UNLOCKED


class Board:
    """One GPU's board as the collector's side uses it: any number of processes; one may set the limit.

    It is taken up as it was left, but after a restart of the host the GPU is at its default limit.
    """

    def __init__(
        self,
        directory: Path,
        gpu: str,
        model: str,
        default_limit_mw: int,
        now_ns: int,
        slower: float = 1.0,
        index: int = 0,
    ) -> None:
        folder = directory / "simulated"
        expected = f"{model} {boot_id()} {slower:g} {index} {LAYOUT}".encode()
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if folder.stat().st_uid == os.geteuid():
                    folder.chmod(0o755)  # trainers of any user come here, whatever the umask
            except OSError as wrong:
                raise _unusable(folder, wrong) from wrong
            mutex = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, mutex)
            fcntl.flock(mutex, fcntl.LOCK_EX)
            self._state = Region(folder / f"{gpu}.gpu", STATE_BYTES, create_mode=0o644)
            # trainers of any user write their loads here; what they write is never more than arithmetic
            self._work = Region(folder / f"{gpu}.load", WORK_BYTES, create_mode=0o666)
            self._limits = Ring(self._state, LIMIT, LIMITS)
            self._loads = Ring(self._work, LOAD, LOADS)
            if identity(self._state) != expected:
                self._state.clear()
                self._work.clear()
                self._state.put(IDENTITY, 0, expected)
                self.set_limit(default_limit_mw, now_ns)
            fcntl.flock(self._state.fd, fcntl.LOCK_SH)
        self._workloads = tuple(load_models()[model].workloads)
        self._next_limit = self._limits.oldest()
        self._from_load = self._loads.oldest()
        self._last_load: tuple[int, ...] = (0,)
        self._last_written = b""
        """The bytes in the place of that load when it was looked at: it may have been renewed."""

    def set_limit(self, limit_mw: int, since_ns: int) -> None:
        """Put a limit in force."""
        self._limits.put(self._limits.newest() + 1, since_ns, limit_mw, self.locked_mhz("graphics_clock"))

    def limits(self) -> list[LimitChange]:
        """Return changes of the limit since the last call, oldest first; at first, all the board holds."""
        records = self._limits.since(self._next_limit)
        if not records:
            return []
        self._next_limit = records[-1][0] + 1
        return [LimitChange(*record[1:]) for record in records]

    def loads(self) -> list[tuple[int, Load]]:
        """Return numbered loads since the last call, and the newest of then again if it was renewed."""
        ring, newest = self._loads, self._last_load[0]
        written = ring.written(newest)
        if written == self._last_written and not ring.may_have(newest + 1):  # as mostly
            return []
        self._last_written = written
        news = [record for record in ring.since(self._from_load) if record != self._last_load]
        if not news:
            return []
        self._last_load = news[-1]
        self._from_load = self._last_load[0]
        self._last_written = b""
        return [
            (number, Load(begin_ns, until_ns, self._workloads[index]))
            for number, begin_ns, until_ns, index in news
            if index < len(self._workloads)
        ]

    def counter(self) -> tuple[int, int] | None:
        """Return the counter as saved last (index of its refresh, nJ), or None when it never was."""
        saved = self._state.get(COUNTER, COUNTER_AT)
        return None if saved is None else (saved[0], saved[1])

    def save_counter(self, refresh: int, energy_nj: int) -> None:
        """Keep the counter for the next process that runs this GPU."""
        self._state.put(COUNTER, COUNTER_AT, refresh, energy_nj)

    def locked_mhz(self, control: Control) -> int:
        """Return at what a clock is locked, MHz, or UNLOCKED."""
        saved = self._state.get(CLOCK, CLOCKS_AT[control])
        return UNLOCKED if saved is None else int(saved[0])

    def lock_clock(self, control: Control, clock_mhz: int, since_ns: int) -> None:
        """Lock a clock, MHz, or unlock it (UNLOCKED)."""
        self._state.put(CLOCK, CLOCKS_AT[control], clock_mhz)
        newest = self._limits.newest()
        if control == "graphics_clock" and (records := self._limits.since(newest)):
            self._limits.put(newest + 1, since_ns, records[0][2], clock_mhz)

    def processes(self) -> tuple[int, ...]:
        """Return the pid of the training process, if one is there."""
        saved = self._work.get(PID, 0)
        pid = 0 if saved is None else saved[0]
        return (pid,) if pid and Path(f"/proc/{pid}").exists() else ()

    def close(self) -> None:
        """Let go of the board, and leave it as it is."""
        self._state.close()
        self._work.close()


class Region:
    """A file in shared memory, and the descriptor on which it is locked."""

    def __init__(self, path: Path, size: int, *, write: bool = True, create_mode: int | None = None) -> None:
        flags = os.O_RDWR if write else os.O_RDONLY
        try:
            if create_mode is None:
                self.fd = os.open(path, flags)
            else:
                self.fd = os.open(path, flags | os.O_CREAT, create_mode)
                if os.fstat(self.fd).st_size < size:  # new: the umask shall not close it to other users
                    os.fchmod(self.fd, create_mode)
                    os.ftruncate(self.fd, size)
        except OSError as wrong:
            raise _unusable(path, wrong) from wrong
        self.memory = mmap.mmap(self.fd, size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)

    def get(self, layout: struct.Struct, at: int) -> tuple[Any, ...] | None:
        """Return the values at a place, or None while it is empty or being written."""
        body = self.memory[at : at + layout.size]
        (check,) = _CHECK.unpack_from(self.memory, at + layout.size)
        return layout.unpack(body) if zlib.crc32(body) == check else None

    def put(self, layout: struct.Struct, at: int, *values: Any) -> None:
        body = layout.pack(*values)
        self.memory[at : at + layout.size + _CHECK.size] = body + _CHECK.pack(zlib.crc32(body))

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    @property
    def closed(self) -> bool:
        return self.memory.closed

    def close(self) -> None:
        if not self.closed:
            self.memory.close()
            os.close(self.fd)


class Ring:
    """Numbered records (1, 2, ...) in a region, the newest over the oldest."""

    def __init__(self, region: Region, layout: struct.Struct, slots: int) -> None:
        self._region, self._layout, self._slots = region, layout, slots
        self._stride = layout.size + _CHECK.size

    def put(self, number: int, *values: int) -> None:
        self._region.put(self._layout, self._at(number), number, *values)

    def newest(self) -> int:
        """Return the highest number there is; 0: none."""
        records = (self._region.get(self._layout, self._at(slot)) for slot in range(self._slots))
        return max((int(record[0]) for record in records if record is not None), default=0)

    def oldest(self) -> int:
        """Return the number to begin reading at."""
        return max(self.newest() - self._slots + 1, 1)

    def may_have(self, number: int) -> bool:
        """Tell whether a record may be there, or a newer one in its place; one being written may be wrong."""
        (found,) = PID.unpack_from(self._region.memory, _RINGS_AT + number % self._slots * self._stride)
        return bool(found >= number)

    def written(self, number: int) -> bytes:
        """Return what is in the place of a record."""
        at = _RINGS_AT + number % self._slots * self._stride
        return self._region.memory[at : at + self._stride]

    def since(self, number: int) -> list[tuple[int, ...]]:
        """Return the records from ``number`` on, without those overwritten in the meantime."""
        found: list[tuple[int, ...]] = []
        if not self.may_have(number):  # as nearly always: a look at all of it takes longer
            return found
        while (record := self._region.get(self._layout, self._at(number))) and record[0] >= number:
            if record[0] == number:
                found.append(record)
                number += 1
            else:
                number = record[0] - self._slots + 1
        return found

    def _at(self, number: int) -> int:
        return _RINGS_AT + number % self._slots * self._stride


def _unusable(path: Path, wrong: OSError) -> StorageError:
    return StorageError(
        f"{path}: could not be used for simulated GPUs: {wrong.strerror}."
        " Set ZEUS_STREAM_DIR to a directory that this user may write."
    )


def host_of_boards(directory: Path) -> str | None:
    """Return the host whose boards are in a runtime directory; None: it is not named yet."""
    try:
        return (directory / "simulated" / "host").read_text(encoding="utf-8") or None
    except OSError:
        return None


def name_host_of_boards(directory: Path, host: str) -> None:
    """Keep the host whose boards are in a runtime directory. Raises StorageError."""
    path = directory / "simulated" / "host"
    try:
        path.write_text(host, encoding="utf-8")
    except OSError as wrong:
        raise _unusable(path, wrong) from wrong


def identity(state: Region) -> bytes:
    """Return "model boot slower index layout", or nothing for a board that was never set up."""
    found = state.get(IDENTITY, 0)
    return b"" if found is None else found[0].rstrip(b"\0")


def running(directory: Path) -> dict[str, Path]:
    """Return the boards in a runtime directory that a collector holds, by UUID, in the order of its GPUs."""
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted((directory / "simulated").glob("*.gpu")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = identity_of(path).split()
            found[path.stem] = int(words[3]) if len(words) > 3 else 0, path
        finally:
            os.close(descriptor)
    return {gpu: path for gpu, (_, path) in sorted(found.items(), key=lambda item: item[1])}


def identity_of(board: Path) -> bytes:
    """Return the `identity` of a board."""
    state = Region(board, STATE_BYTES, write=False)
    try:
        return identity(state)
    finally:
        state.close()
