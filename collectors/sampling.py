"""One thread a device: it reads at the times the schedule gives, and does between two reads what it is told.

Every call to a device is made here, and every write of its restore record. What comes of it, and what
happens to the device, goes to the event loop through the `Mail`.
"""

import logging
import os
import queue
import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import anyio

from collectors import leases, sampler, schedule
from collectors.device import Description, Device
from collectors.records import Record, RecordFile, put_back
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.errors import (
    DeviceError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    StorageError,
    UnsupportedError,
)
from zeus_stream.messages import Cause, Seen

MAX_ROWS = 20_000
"""Readings of one device that wait for the event loop; past it new ones are dropped and counted."""
_NEVER_NS = 2**63
_LONGEST_NS = 3_600_000_000_000
_log = logging.getLogger(__name__)


# ---- what a thread is told -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeeProcesses:
    """Look who computes on the device. Comes back as ProcessesSeen."""


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Job: TypeAlias = (
    leases.WriteRecord | leases.CallSet | leases.CallRestore | leases.ClearRecord | SeeProcesses | Stop
)


# ---- what a thread has to say ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """The device answers, for the first time or again."""

    t_ns: int
    description: Description
    requested_mw: int | None
    """None: it has no limit that can be set."""
    left: Record | None
    """What a dead collector left."""
    trouble: str | None
    """Why no record can be kept."""


@dataclass(frozen=True, slots=True)
class Gone:
    t_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Happened:
    """What came of an instruction of `leases`."""

    t_ns: int
    event: leases.Event


@dataclass(frozen=True, slots=True)
class ProcessesSeen:
    pids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Crashed:
    """An error that nobody foresaw: the thread reads no more, but does what it is told."""

    error: BaseException


News: TypeAlias = Found | Gone | Happened | ProcessesSeen | Crashed


class Mail:
    """From the device threads to the event loop. Bounded by what the loop has asked for."""

    def __init__(self) -> None:
        self._items: deque[tuple[Watch, News]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, watch: "Watch", news: News) -> None:
        self._items.append((watch, news))
        os.eventfd_write(self._bell, 1)

    async def wait(self) -> None:
        """Return when there is something."""
        while not self._items:
            await anyio.wait_readable(self._bell)
            os.eventfd_read(self._bell)

    def take(self) -> tuple["Watch", News] | None:
        """Return the oldest, or None."""
        return self._items.popleft() if self._items else None

    def close(self) -> None:
        os.close(self._bell)


class Watch:
    """A device's thread. What it is told it does in order; its attributes may be read at any time."""

    def __init__(
        self, device: Device, place: int, mail: Mail, records: Path, *, poll_ns: int, heartbeat_ns: int
    ) -> None:
        """``place`` is the device's place in `Readings.gpus`."""
        self._device = device
        self._place = place
        self._mail = mail
        self._records = records
        self._poll_ns = poll_ns
        self._heartbeat_ns = heartbeat_ns
        self._boot_id = boot_id()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"device {place}")
        self._description: Description | None = None
        self._record: RecordFile | None = None
        self._seen = sampler.State()
        self._schedule = schedule.Schedule(0)
        self._rows: deque[bytes] = deque()
        self.gpu = ""
        """Known once it was found."""
        self.requested_mw: int | None = None
        """As last read; never older than the last Happened."""
        self.reads = 0
        self.retries = 0
        """Reads that failed and were tried again."""
        self._dropped = 0
        self.trouble: str | None = None
        """Why it does not answer."""

    @property
    def period_ns(self) -> int | None:
        """How often the device refreshes, as far as it was seen."""
        return self._schedule.period_ns

    def start(self) -> None:
        self._thread.start()

    def do(self, job: Job) -> None:
        """Have the thread do something, at once if it waits."""
        self._jobs.put(job)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end after a `Stop`. False: a call to the device does not return."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_rows(self, most: int) -> list[bytes]:
        """Return the oldest readings, packed."""
        return [self._rows.popleft() for _ in range(min(most, len(self._rows)))]

    def take_dropped(self) -> int:
        """Return how many readings found no room since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _run(self) -> None:
        due_ns = 0
        try:
            while not isinstance(job := self._wait(due_ns), Stop):
                try:
                    due_ns = self._turn(job, due_ns)
                except Exception as wrong:  # noqa: BLE001  (the event loop raises it; it can still restore)
                    self._mail.put(self, Crashed(wrong))
                    due_ns = _NEVER_NS
        finally:
            if self._record is not None:
                self._record.close()
            self._device.close()

    def _wait(self, due_ns: int) -> Job | None:
        """Return the next job, or None when it is time to read."""
        wait_ns = min(due_ns - monotonic_ns(), _LONGEST_NS)
        try:
            return self._jobs.get(timeout=wait_ns / 1e9) if wait_ns > 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _turn(self, job: Job | None, due_ns: int) -> int:
        """Do one thing; return when to read next."""
        if job is not None:
            self._carry_out(job)
        elif due_ns <= monotonic_ns():
            return self._open() if self._description is None else self._read()
        return due_ns

    # ---- reading ---------------------------------------------------------------------------------

    def _open(self) -> int:
        """Find out what the device is; return when to do what is next."""
        try:
            description = self._device.describe()
            requested_mw = self._requested_mw()
        except RetryError as wrong:
            return self._try_again(wrong)
        except DeviceError as wrong:
            self.trouble = str(wrong)
            return monotonic_ns() + schedule.RETURN_NS
        now_ns = monotonic_ns()
        left, trouble = None, None
        if requested_mw is not None and description.min_limit_mw is not None:
            left, trouble = self._open_record(description.gpu)
        self.gpu, self._description, self.trouble = description.gpu, description, None
        self.requested_mw = requested_mw
        self._seen = sampler.State()
        self._schedule = schedule.Schedule(now_ns, self._poll_ns)
        self._mail.put(self, Found(now_ns, description, requested_mw, left, trouble))
        return now_ns

    def _open_record(self, gpu: str) -> tuple[Record | None, str | None]:
        try:
            if self._record is None:
                self._record = RecordFile(self._records, gpu)
            return self._record.read(), None
        except StorageError as wrong:
            return None, str(wrong)

    def _requested_mw(self) -> int | None:
        try:
            return self._device.requested_limit_mw()
        except UnsupportedError:
            return None

    def _read(self) -> int:
        """Read the device; return when to read next."""
        before_ns = monotonic_ns()
        try:
            sample = self._device.sample()
        except RetryError as wrong:
            return self._try_again(wrong)
        except DeviceError as wrong:
            self.trouble = str(wrong)
            self._description = None
            self._mail.put(self, Gone(monotonic_ns(), str(wrong)))
            return monotonic_ns() + schedule.RETURN_NS
        after_ns = monotonic_ns()
        self.reads += 1
        self.trouble = None
        self.requested_mw = sample.requested_mw
        self._seen, reading = sampler.observe(self._seen, sample, before_ns, after_ns, self._heartbeat_ns)
        if reading is not None:
            if len(self._rows) < MAX_ROWS:
                self._rows.append(sampler.pack(reading, self._place))
            else:
                self._dropped += 1
        change = None
        if reading is not None and reading.seen == Seen.CHANGED:
            change = reading.t_lo_ns, reading.t_hi_ns
        self._schedule = schedule.was_read(self._schedule, self._seen.period_ns, change)
        return schedule.next_poll_ns(self._schedule, after_ns)

    def _try_again(self, wrong: RetryError) -> int:
        self.retries += 1
        self.trouble = str(wrong)
        self._schedule = schedule.failed(self._schedule)
        return schedule.next_poll_ns(self._schedule, monotonic_ns())

    # ---- doing what it is told -------------------------------------------------------------------

    def _carry_out(self, job: Job) -> None:
        match job:
            case leases.WriteRecord(limits):
                self._report(self._write_record(limits))
            case leases.CallSet(limit_mw, expected_mw):
                self._report(self._set(limit_mw, expected_mw))
            case leases.CallRestore(limits):
                self._report(self._restore(limits))
            case leases.ClearRecord():
                self._clear_record()
            case SeeProcesses():
                self._mail.put(self, ProcessesSeen(self._processes()))
            case Stop():
                pass

    def _report(self, event: leases.Event) -> None:
        self._mail.put(self, Happened(monotonic_ns(), event))

    def _write_record(self, limits: leases.Limits) -> leases.Event:
        now = datetime.fromtimestamp(anchor().wall_ns / 1e9, UTC).isoformat(timespec="seconds")
        try:
            if self._record is None:
                return leases.RecordFailed(limits, "no restore record can be kept.")
            self._record.write(Record(self.gpu, limits, self._boot_id, now))
        except StorageError as wrong:
            _log.warning("%s", wrong)
            return leases.RecordFailed(limits, str(wrong))
        return leases.RecordWritten(limits)

    def _clear_record(self) -> None:
        try:
            if self._record is not None:
                self._record.clear()
        except StorageError as wrong:
            _log.warning("%s", wrong)  # the next start finds that what it says is not in force any more

    def _set(self, limit_mw: int, expected_mw: int) -> leases.Event:
        try:
            requested_mw = self._device.requested_limit_mw()
            if not leases.close(requested_mw, expected_mw):
                return leases.SetFoundStranger(requested_mw)
            self._device.set_limit(limit_mw)
            self.requested_mw = self._device.requested_limit_mw()
            return leases.SetDone(self.requested_mw)
        except PermissionMissingError as wrong:
            return self._failed_set("permission", wrong)
        except RefusedError as wrong:
            return self._failed_set("range", wrong)
        except DeviceError as wrong:
            return self._failed_set("device", wrong)

    def _failed_set(self, cause: Cause, wrong: Exception) -> leases.SetFailed:
        try:
            self.requested_mw = self._device.requested_limit_mw()
        except DeviceError as again:
            _log.info("%s", again)
            return leases.SetFailed(cause, str(wrong), None)
        return leases.SetFailed(cause, str(wrong), self.requested_mw)

    def _restore(self, limits: leases.Limits) -> leases.Event:
        try:
            done = put_back(self._device, limits)
        except (DeviceError, RefusedError) as wrong:
            return leases.RestoreFailed(str(wrong))
        self.requested_mw = done.requested_mw
        return leases.RestoreDone(done.requested_mw, done.stranger)

    def _processes(self) -> tuple[int, ...] | None:
        try:
            return self._device.processes()
        except DeviceError as wrong:
            _log.info("%s", wrong)
            return None
