"""Restoring what a dead collector left in force: for its watchdog, and for `zeus-stream restore`.

A collector that starts again does the same in its own devices' threads (`lease.begin`). All of them take
the lock on a device's record, read it again, and call `value_changes.put_back`: the first restores, the
others find it done. A record that was dealt with stays, marked as settled, until the next collector has
logged it.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from queue import Queue
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from collectors.control import READ_BACK, spell
from collectors.controls.lease_messages import Limits, close
from collectors.controls.restore_record import (
    COPY,
    SUFFIXES,
    DamagedRecordError,
    RestoreRecord,
    RestoreRecordFile,
)
from collectors.controls.value_changes import put_back
from collectors.device import Bus, Device
from zeus_stream.clock import boot_id, monotonic_ns
from zeus_stream.errors import DeviceError, LostError, RefusedError, StorageError
from zeus_stream.paths import holder
from zeus_stream.protocol.fields import Control

LOCK_S = 1.0
"""Wait at most this long for another restorer; it has one call to a device to make."""
HANG_NS = 5_000_000_000
"""A device that takes longer is left to its thread."""
NO_PROFILE = 0
"""What a driver requests by default."""
PATIENCE_S = 60.0
"""A watchdog tries for this long."""
AGAIN_S = 0.05
AGAIN_MOST_S = 2.0
"""Between two tries: AGAIN_S, twice that, ... up to this."""


Recorded: TypeAlias = tuple[str, Control]
"""A GPU and a control that have a record."""


class Outcome(Struct, frozen=True):
    """The outcome of one record."""

    says: str
    """A sentence for people."""
    left: bool
    """Something of ours may be in force still."""


class Restorer:
    """Restores devices, each in a thread of its own: one whose driver hangs keeps no other waiting."""

    def __init__(
        self, bus: Bus, records: Path, *, by: str, dry_run: bool = False, default: bool = False
    ) -> None:
        """``by``: who restores, as the next collector will log it.

        ``default``: set the driver's default limit where a damaged record does not say what was found.
        """
        self._bus, self._records, self._by = bus, records, by
        self._dry_run, self._default = dry_run, default
        self._threads: dict[int, threading.Thread] = {}
        """By the identity of the bus's device."""
        self._answers: Queue[tuple[Recorded, Outcome | None]] = Queue()
        self._missing = ""
        """Why a device may be missing."""
        self._failure: Exception | None = None

    def restore(self) -> tuple[Outcome, ...]:
        """Restore once what every record says, and return an outcome for each not yet settled.

        Raises StorageError: the directory cannot be listed.
        """
        recorded = _recorded(self._records)
        if not recorded:
            return ()
        self._begin(recorded)
        end_ns = monotonic_ns() + HANG_NS
        for thread in self._threads.values():
            thread.join(max(0, end_ns - monotonic_ns()) / 1e9)
        hangs = any(thread.is_alive() for thread in self._threads.values())
        if self._failure is not None:
            raise self._failure
        answers: dict[Recorded, Outcome | None] = dict.fromkeys(recorded)
        silent = set(recorded)
        while not self._answers.empty():
            key, outcome = self._answers.get()
            answers[key] = outcome
            silent.discard(key)
        for gpu, control in silent:
            says = f"{gpu}: could not be restored: a call to a driver does not return. It is waited for."
            answers[gpu, control] = (
                Outcome(says, left=True) if hangs else self._restore_one(gpu, control, None)
            )
        return tuple(outcome for outcome in answers.values() if outcome is not None)

    def _begin(self, recorded: list[Recorded]) -> None:
        """Start a thread for each device that none is at work on."""
        self._missing = "no such GPU is there. It is restored when it is back and a collector starts"
        try:
            devices = self._bus.discover()
        except DeviceError as wrong:
            self._missing = str(wrong).rstrip(".")
            return
        for device in devices:
            before = self._threads.get(id(device))
            if before is None or not before.is_alive():
                # A daemon: the process ends though a driver hangs.
                thread = threading.Thread(target=self._restore_device, args=(device, recorded), daemon=True)
                self._threads[id(device)] = thread
                thread.start()

    def _restore_device(self, device: Device, recorded: list[Recorded]) -> None:
        try:
            gpu = device.describe().gpu
            for each, control in recorded:
                if each == gpu:
                    self._answers.put(((gpu, control), self._restore_one(gpu, control, device)))
        except DeviceError as wrong:
            self._missing = str(wrong).rstrip(".")
        except Exception as wrong:  # noqa: BLE001  (`restore` raises it)
            self._failure = wrong

    def _restore_one(self, gpu: str, control: Control, device: Device | None) -> Outcome | None:
        """Deal with one record. None: another restorer has done so."""
        try:
            with closing(RestoreRecordFile(self._records, gpu, LOCK_S)) as file:
                try:
                    record = file.read(control)
                except DamagedRecordError as wrong:
                    if device is None:
                        raise LostError(
                            f"{gpu}: its restore record is damaged, and {self._missing}."
                        ) from wrong
                    asks = self._by if self._default and not self._dry_run else None
                    return _propose_default(file, gpu, device, control, str(wrong), asks)
                if record is None or record.settled is not None:
                    return None
                found = spell(control, record.limits.found)
                if record.boot_id != boot_id():
                    says = (
                        f"{gpu}: the host was restarted since, which ended what was set; {found} was found."
                    )
                elif device is None:
                    raise LostError(f"{gpu}: could not be restored to {found}: {self._missing}.")
                elif self._dry_run:
                    return _look(device, record)
                else:
                    says = _put_back(device, record)
                settled = replace(record, limits=Limits(record.limits.found), settled=f"{self._by}: {says}")
                return Outcome(says if self._dry_run else _settle(file, settled, says), left=False)
        except (DeviceError, RefusedError, StorageError) as wrong:
            return Outcome(str(wrong), left=True)


def restore_patiently(
    open_bus: Callable[[], Bus], records: Path, collector_lock: Path, by: str, say: Callable[[str], None]
) -> bool:
    """Restore, and try again for PATIENCE_S what failed. Return whether nothing of ours is left.

    Ends early when a new collector is there: it has what is left. Raises SettingsError and StorageError.
    """
    if not _recorded(records):
        return True
    deadline_ns = monotonic_ns() + round(PATIENCE_S * 1e9)
    said: set[str] = set()
    wait_s = AGAIN_S
    with closing(open_bus()) as bus:
        restorer = Restorer(bus, records, by=by)
        while True:
            outcomes = restorer.restore()
            for outcome in outcomes:
                if outcome.says not in said:
                    said.add(outcome.says)
                    say(outcome.says)
            if not any(outcome.left for outcome in outcomes):
                return True
            with suppress(OSError):  # the disk of its lock has failed: no collector starts there
                if (collector := holder(collector_lock)) is not None:
                    say(f"process {collector}, a new collector, restores what is left.")
                    return True
            if monotonic_ns() > deadline_ns:
                say(
                    f"could not restore everything within {PATIENCE_S:g} s: see above. Remove the cause, then"
                    " run `zeus-stream restore` or start the collector."
                )
                return False
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_MOST_S)


def _recorded(records: Path) -> list[Recorded]:
    """Return the GPUs and controls that have a record, by name."""
    try:
        names = [path.name for path in records.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as wrong:
        raise StorageError(
            f"{records}: could not be listed: {wrong.strerror}. Run this as the collector's user."
        ) from wrong
    found: dict[Recorded, None] = {}
    for name in sorted(name.removesuffix(COPY) for name in names):
        for control, suffix in SUFFIXES.items():
            if name.endswith(suffix):
                found[name.removesuffix(suffix), control] = None
                break
    return list(found)


def _settle(file: RestoreRecordFile, settled: RestoreRecord, says: str) -> str:
    """Keep how a record was dealt with. Return what to say: one that cannot be written stays as it is."""
    try:
        file.write(settled)
    except StorageError as wrong:
        return f"{says} But {wrong}"
    return says


def _propose_default(
    file: RestoreRecordFile, gpu: str, device: Device, control: Control, wrong: str, by: str | None
) -> Outcome:
    """Name the driver's default where nobody knows what was found; set it if ``by`` wants it."""
    value = device.read_control(control)
    default = device.describe().default_limit_mw if control == "power_limit" else NO_PROFILE
    if value is None or default is None:
        return Outcome(wrong, left=True)
    now, wanted = spell(control, value), spell(control, default)
    if by is None:
        says = (
            f"{gpu}: its restore record is damaged, and so is its copy: what was found is not known."
            f" {now} is in force. Set the driver's default, {wanted}, with `zeus-stream restore --default`."
        )
        return Outcome(says, left=True)
    device.set_control(control, default)
    says = f"{gpu}: set to {wanted}, the driver's default: its record is damaged."
    settled, limits = f"{by}: {says}", Limits(default)
    record = RestoreRecord(
        gpu=gpu, limits=limits, boot_id=boot_id(), time="", settled=settled, control=control
    )
    return Outcome(_settle(file, record, says), left=False)


def _put_back(device: Device, record: RestoreRecord) -> str:
    done = put_back(device, record.limits, record.control)
    now = spell(record.control, done.requested)
    if done.other_program:
        return f"{record.gpu}: somebody else set {now}, which stays."
    if record.control not in READ_BACK or close(done.requested, record.limits.found, record.control):
        return f"{record.gpu}: restored to {now}, as it was found."
    found = spell(record.control, record.limits.found)
    return f"{record.gpu}: restored to {now}, the nearest to {found}, which was found, that is allowed."


def _look(device: Device, record: RestoreRecord) -> Outcome:
    gpu, control, limits = record.gpu, record.control, record.limits
    read = device.read_control(control)
    requested = limits.last if read is None else read
    now, found = spell(control, requested), spell(control, limits.found)
    if requested == limits.found:
        return Outcome(f"{gpu}: {found} is in force, as it was found.", left=False)
    if limits.ours(requested, control):
        return Outcome(f"{gpu}: would be restored from {now} to {found}.", left=True)
    return Outcome(f"{gpu}: somebody else set {now}, which would stay.", left=False)
