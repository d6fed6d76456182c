"""One device: the `Poller` reads it at the times of the schedule, its own thread carries out instructions.

Every call to a device is made here, one at a time, and every write of its restore record. What comes of it,
and what happens to the device, goes to the event loop through the `Mail`.
"""

import logging
import queue
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from collectors.control import CONTROLS, READ_BACK
from collectors.controls import lease_messages
from collectors.controls.device_messages import (
    ChangeFailed,
    Crashed,
    DeviceAnswers,
    Do,
    FindAgain,
    FoundControl,
    Gone,
    Happened,
    Job,
    Mail,
    RecordsRead,
    SeeProcesses,
    Stop,
)
from collectors.controls.frequency_plan import ChangeClock
from collectors.controls.restore_record import PATIENCE_S, RestoreRecord, RestoreRecordFile, copies, place
from collectors.controls.value_changes import change, put_back
from collectors.device import (
    Description,
    Device,
    ProcessesSeen,
    SampleTimes,
    memory_of,
    power_samples_of,
    sleeps,
)
from collectors.devices.cards.known_cards import known_card
from collectors.real_time import take_real_time_priority
from collectors.sampling import sampled_device, schedule
from collectors.sampling.poller import Poller
from collectors.sampling.sampled_device import SampledDevice
from zeus_stream.clock import anchor, boot_id, monotonic_ns
from zeus_stream.errors import (
    DeviceError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    StorageError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import UNLOCKED, Control

FORCE_S = 0.5
"""From the last job to when its record is forced to disk: nobody waits by then."""
_BUSY_NS = 1_000_000
"""From when it could not be read, since an instruction is carried out, to the next try; doubled up to
_BUSY_MOST_NS."""
_BUSY_MOST_NS = 50_000_000
OPENS = 3
"""A device that does not say its limit so often is measured without one."""
_log = logging.getLogger(__name__)


class DeviceThread:
    """A device. Its thread carries out instructions in order; its attributes may be read at any time."""

    def __init__(
        self,
        device: Device,
        place: int,
        mail: Mail,
        poller: Poller,
        records: Path,
        *,
        cards: Path | None = None,
    ) -> None:
        """``place`` is the device's place in `Readings.gpus`; ``poller`` reads it once it was found.

        ``cards``: the directory of sensor cards.
        """
        self._cards = cards
        self.card = ""
        """Its sensor card, for people; empty: there is none."""
        self._device = device
        self._gate = threading.Lock()
        """Held by the thread that uses the device."""
        self._busy_ns = _BUSY_NS
        self._opens = 0
        """Times that it was tried to be opened, in a row."""
        self._place = place
        self._mail = mail
        self._poller = poller
        self._records = records
        self._boot_id = boot_id()
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=f"device {place}")
        self._description: Description | None = None
        self._record: RestoreRecordFile | None = None
        self._unread: tuple[Control, ...] = ()
        """Those whose record could not be read."""
        self._read_ns = 0
        """When to try that again."""
        self.sampled = SampledDevice(0)
        """Its reads. Another thread takes the readings, and says whether windows are short (``closely``)."""
        self._find_ns: int | None = 0
        """When to look for it; None: it is there."""
        self.gpu = ""
        """Known once it was found."""
        self.requested_mw: int | None = None
        """As last read; never older than the last Happened."""
        self.enforced_mw: int | None = None
        """The limit in force, any limiter included, as last read."""
        self.profiles: tuple[int, int | None] | None = None
        """Bits of the power profiles that are requested and in force, as last read; None: it has none."""
        self.reads = 0
        self.slept = 0
        """Reads that were left out, since the device was suspended."""
        self.retries = 0
        """Reads that failed and were tried again."""
        self.trouble: str | None = None
        """Why it does not answer."""

    @property
    def at_rest(self) -> bool:
        """Tell whether it is read seldom, or not there."""
        return self.sampled.paused or self._description is None

    def requested(self, control: Control) -> int | None:
        """Return the value of a control that is requested, as last read; None: not known."""
        match control:
            case "power_limit":
                return self.requested_mw
            case "power_profile":
                return None if self.profiles is None else self.profiles[0]
            case _:
                return None

    def rests(self, now_ns: int) -> bool:
        """Tell whether it is there and read seldom, and no read is overdue."""
        return self._description is not None and self.sampled.paused and not self.sampled.overdue(now_ns)

    def start(self) -> None:
        self._thread.start()

    def do(self, job: Job) -> None:
        """Have the thread do something, at once if it waits."""
        self._jobs.put(job)

    def relax(self, *, relaxed: bool) -> None:
        """Read seldom from now on, or again each refresh, and then at once."""
        if self.sampled.relax(relaxed=relaxed):
            self._poller.read_now(self)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end after a `Stop`. False: a call to the device does not return."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_rows(self, most: int) -> list[bytes]:
        """Return the oldest readings, packed."""
        return [sampled_device.pack(reading, self._place) for reading in self.sampled.take_readings(most)]

    def _run(self) -> None:
        take_real_time_priority()
        try:
            while not isinstance(job := self._wait(), Stop):
                try:
                    self._take_turn(job)
                except Exception as wrong:  # noqa: BLE001  (the event loop raises it; it can still restore)
                    self._mail.put(self, Crashed(wrong))
                    self._find_ns = None
        finally:
            if self._record is not None:
                self._force_record()
                self._record.close()
            with self._gate:
                self._description = None
                self._device.close()

    def _wait(self) -> Job | None:
        """Return the next job, or None when it is time to look for the device, or to force its records."""
        wait_s = None if self._find_ns is None else max(0, self._find_ns - monotonic_ns()) / 1e9
        if self._record is not None and not self._record.forced:
            wait_s = FORCE_S if wait_s is None else min(wait_s, FORCE_S)
        if self._unread and self._description is not None:
            again_s = max(0, self._read_ns - monotonic_ns()) / 1e9
            wait_s = again_s if wait_s is None else min(wait_s, again_s)
        try:
            return self._jobs.get(timeout=wait_s) if wait_s != 0 else self._jobs.get_nowait()
        except queue.Empty:
            return None

    def _take_turn(self, job: Job | None) -> None:
        """Carry out a job, or what is due without one. The poller may read while a record is written."""
        match job:
            case Do(control, lease_messages.WriteRecord(limits)):
                self._write_record(control, limits)
            case Do(control, lease_messages.ClearRecord()):
                self._clear_record(control)
            case Do(control, lease_messages.CallSet(limits)):
                self._report(control, self._set(control, limits))
            case Do(control, lease_messages.CallRestore(limits)):
                with self._gate:
                    self._report(control, self._restore(control, limits))
            case ChangeClock(clock_mhz):
                with self._gate:
                    self._change_clock(clock_mhz)
            case SeeProcesses():
                with self._gate:
                    self._mail.put(self, self._processes())
            case None if self._unread and self._description is not None and self._read_ns <= monotonic_ns():
                with self._gate:
                    self._read_again(self._description)
            case None if self._find_ns is None or self._find_ns > monotonic_ns():
                self._force_record()
            case None:
                with self._gate:
                    if self._description is None:
                        self._find_ns = self._open()
            case _:
                pass  # a Stop ends the thread, and a FindAgain has woken it

    # ---- reading ---------------------------------------------------------------------------------

    def _open(self) -> int | None:
        """Find out what the device is, and have it read; return when to try again, None: it is there."""
        try:
            description = self._device.describe()
            self._opens += 1
            requested_mw, controls = self._find_controls(description, CONTROLS, PATIENCE_S)
        except RetryError as wrong:
            return self._try_again(wrong)
        except DeviceError as wrong:
            self.trouble = str(wrong)
            return monotonic_ns() + schedule.RETURN_NS
        self._opens = 0
        now_ns = monotonic_ns()
        self._note_unread(controls)
        self.gpu, self._description, self.trouble = description.gpu, description, None
        self.requested_mw = requested_mw
        self.sampled.begin(now_ns, description.every_ns, *self._read_card(description))
        self._mail.put(self, DeviceAnswers(now_ns, description, requested_mw, controls))
        self._poller.add(self, alone=description.every_ns > 0)
        return None

    def _read_card(self, description: Description) -> tuple[int | None, SampleTimes | None]:
        """Return the period of refreshes, ns, and the times of samples of power, by the sensor card."""
        known = None if self._cards is None else known_card(self._cards, description)
        refreshed = None if known is None else known[0].counter or known[0].power
        if known is None or refreshed is None:
            return None, None
        self.card = f"{known[1]}: refreshed every {refreshed.period_ms:.1f} ms"
        if (times := known[0].sample_times) is not None:
            self.card += f", filled by samples every {times.period_ns / 1e6:.1f} ms"
        return round(refreshed.period_ms * 1e6), times

    def _read_again(self, description: Description) -> None:
        """Read the records that could not be read, if the device says what is requested of it."""
        try:
            requested_mw, found = self._find_controls(description, self._unread, 0.0)
        except DeviceError as wrong:
            _log.info("%s", wrong)
            self._read_ns = monotonic_ns() + schedule.RETURN_NS
            return
        self._note_unread(found)
        if read := tuple(each for each in found if each.trouble is None):
            self._mail.put(self, RecordsRead(monotonic_ns(), requested_mw, read))

    def _note_unread(self, found: Iterable[FoundControl]) -> None:
        self._unread = tuple(each.control for each in found if each.trouble is not None)
        self._read_ns = monotonic_ns() + schedule.RETURN_NS

    def _find_controls(
        self, description: Description, controls: Iterable[Control], patience_s: float
    ) -> tuple[int | None, tuple[FoundControl, ...]]:
        """Return the limit requested, and those of these controls that there are. Raises DeviceError.

        Records are opened first: who holds them may change what is requested.
        """
        gpu, found = description.gpu, list[FoundControl]()
        shut = self._open_records(gpu, patience_s)
        requested_mw = self._requested(gpu, "power_limit")
        for control in controls:
            if not description.has(control) and not self._recorded(gpu, control):
                continue
            requested = requested_mw if control == "power_limit" else self._requested(gpu, control)
            if requested is None and control in READ_BACK:
                continue
            left, trouble = (None, shut) if shut is not None else self._read_record(control)
            if requested is None:  # of a clock, which no driver reports
                locked = left is not None and left.boot_id == self._boot_id
                requested = left.limits.last if left is not None and locked else UNLOCKED
            found.append(FoundControl(control, requested, left, trouble))
        return requested_mw, tuple(found)

    def _recorded(self, gpu: str, control: Control) -> bool:
        """Return True if a dead collector left a record of a control."""
        return any(path.exists() for path in copies(place(self._records, gpu, control)))

    def _open_records(self, gpu: str, patience_s: float) -> str | None:
        """Open the records of this device, unless they are. Return why they could not be."""
        try:
            self._record = self._record or RestoreRecordFile(self._records, gpu, patience_s)
        except StorageError as wrong:
            return str(wrong)
        return None

    def _read_record(self, control: Control) -> tuple[RestoreRecord | None, str | None]:
        assert self._record is not None, control
        try:
            return self._record.read(control), None
        except StorageError as wrong:
            return None, str(wrong)

    def _requested(self, gpu: str, control: Control) -> int | None:
        """Return the value requested, None for none. Raises RetryError while one of ours may be in force."""
        try:
            return self._device.read_control(control)
        except (UnsupportedError, PermissionMissingError):
            return None
        except RetryError:
            if self._opens < OPENS or self._recorded(gpu, control):
                raise
            return None

    def poll(self) -> int | None:
        """Read the device in the poller's thread, unless it is busy; return when to read next, if at all."""
        if not self._gate.acquire(blocking=False):
            self._busy_ns = min(2 * self._busy_ns, _BUSY_MOST_NS)
            return monotonic_ns() + self._busy_ns
        try:
            self._busy_ns = _BUSY_NS
            return None if self._description is None else self._read()
        except Exception as wrong:  # noqa: BLE001  (the event loop raises it; it can still restore)
            self._mail.put(self, Crashed(wrong))
            return None
        finally:
            self._gate.release()

    def _read(self) -> int | None:
        """Read the device; return when to read next, None: it is lost."""
        if self.sampled.paused and sleeps(self._device):
            due_ns = self.sampled.sleep(monotonic_ns())
            if due_ns is not None:
                self.slept += 1
                return due_ns
        before_ns = monotonic_ns()
        try:
            sample = self._device.sample()
        except RetryError as wrong:
            return self._try_again(wrong)
        except DeviceError as wrong:
            self.trouble = str(wrong)
            self._description = None
            self._find_ns = monotonic_ns() + schedule.RETURN_NS
            self._mail.put(self, Gone(monotonic_ns(), str(wrong)))
            self._jobs.put(FindAgain())
            return None
        after_ns = monotonic_ns()
        self.reads += 1
        due_ns = self.sampled.take_in(sample, before_ns, after_ns)
        self._read_samples()
        self.trouble, self.requested_mw, self.enforced_mw = None, sample.requested_mw, sample.limit_mw
        if sample.requested_profiles is not None:
            self.profiles = sample.requested_profiles, sample.enforced_profiles
        return due_ns

    def _read_samples(self) -> None:
        """Read the samples of power by which the counter is filled, if it is."""
        since_ns = self.sampled.unsampled_ns
        if since_ns is None:
            return
        try:
            samples = power_samples_of(self._device, since_ns)
        except DeviceError as wrong:  # the counter is read on, and says whether the device is lost
            _log.info("%s", wrong)
            samples = ()
        if not self.sampled.take_samples(samples):
            _log.warning(
                "%s: its samples of power do not follow its energy counter, as its sensor card says they do:"
                " they are left out. Measure it again with `zeus-stream doctor --sensor`.",
                self.gpu,
            )

    def _try_again(self, wrong: RetryError) -> int:
        self.retries += 1
        self.trouble = str(wrong)
        return self.sampled.fail(monotonic_ns())

    # ---- carrying out instructions -------------------------------------------------------------------

    def _report(self, control: Control, event: lease_messages.Event) -> None:
        self._mail.put(self, Happened(monotonic_ns(), control, event))

    def _write_record(self, control: Control, limits: lease_messages.Limits) -> str | None:
        """Record limits. Return why they could not be."""
        now = datetime.fromtimestamp(anchor().wall_ns / 1e9, UTC).isoformat(timespec="seconds")
        try:
            if self._record is None:
                return "no restore record can be kept."
            self._record.update(
                RestoreRecord(gpu=self.gpu, limits=limits, boot_id=self._boot_id, time=now, control=control)
            )
        except StorageError as wrong:
            _log.warning("%s", wrong)
            return str(wrong)
        return None

    def _force_record(self) -> None:
        try:
            if self._record is not None:
                self._record.force()
        except StorageError as wrong:
            _log.warning("%s", wrong)  # the next change is refused as long as it cannot be written

    def _clear_record(self, control: Control) -> None:
        try:
            if self._record is not None:
                self._record.clear(control)
        except StorageError as wrong:
            _log.warning("%s", wrong)  # the next start finds that what it says is not in force any more

    def _set(self, control: Control, limits: lease_messages.Limits) -> lease_messages.Event:
        """Record a value, set it, and record at once what the driver made of it."""
        if (wrong := self._write_record(control, limits)) is not None:
            return lease_messages.RecordFailed(wrong)
        with self._gate:
            event = change(self._device, control, limits)
            if event.requested is not None:
                self._see(control, event.requested)
        if isinstance(event, lease_messages.SetDone):
            # Without room for it the record has the pending value, which counts as ours too.
            self._write_record(control, limits.read_back(event.requested))
        return event

    def _restore(self, control: Control, limits: lease_messages.Limits) -> lease_messages.Event:
        try:
            done = put_back(self._device, limits, control)
        except (DeviceError, RefusedError) as wrong:
            return lease_messages.RestoreFailed(str(wrong))
        self._see(control, done.requested)
        return lease_messages.RestoreDone(done.requested, done.other_program)

    def _change_clock(self, clock_mhz: int) -> None:
        """Lock the graphics clock as a plan says: the record says already that it is ours."""
        try:
            self._device.set_control("graphics_clock", clock_mhz)
        except (DeviceError, RefusedError) as wrong:
            self._mail.put(self, ChangeFailed(str(wrong)))

    def _see(self, control: Control, requested: int) -> None:
        if control == "power_limit" and requested != self.requested_mw:
            self.requested_mw, self.enforced_mw = requested, None  # until the next read
        if control == "power_profile" and (self.profiles is None or requested != self.profiles[0]):
            self.profiles = requested, None

    def _processes(self) -> ProcessesSeen:
        if self.sampled.paused and sleeps(self._device):
            return ProcessesSeen(())  # nobody computes on it
        try:
            return ProcessesSeen(self._device.processes(), memory_of(self._device))
        except DeviceError as wrong:
            _log.info("%s", wrong)
            return ProcessesSeen()
