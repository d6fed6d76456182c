"""Set a control of a device, and restore what was found: the only two ways in which a device is changed.

Both compare the value that is *requested* of the driver with the restore record, and read it again after the
change: a driver rounds, clamps, allows another range than before, or answers OK and does nothing.
"""

import logging
import time
from typing import TypeAlias

from msgspec import Struct

from collectors.control import READ_BACK, spell
from collectors.controls.lease_messages import (
    ROUNDING_MW,
    Limits,
    SetDone,
    SetFailed,
    SetFoundOther,
    SetIgnored,
    close,
)
from collectors.device import Device, OutOfRangeError
from zeus_stream.clock import monotonic_ns
from zeus_stream.errors import (
    DeviceError,
    LostError,
    PermissionMissingError,
    RefusedError,
    RetryError,
    UnsupportedError,
)
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import Cause

LATE_S = 0.05
"""A driver that still reports the value of before gets this long before it is asked again."""
_log = logging.getLogger(__name__)

SetOutcome: TypeAlias = SetDone | SetIgnored | SetFoundOther | SetFailed


class PutBack(Struct, frozen=True):
    """The outcome of a restore: the value requested now, and whether it is that of an ``other_program``."""

    requested: int
    other_program: bool


def change(device: Device, control: Control, limits: Limits) -> SetOutcome:
    """Set ``limits.pending`` if what is requested is still ``limits.expected``; return what came of it."""
    try:
        return _set(device, control, limits)
    except PermissionMissingError as wrong:
        return _failed(device, control, "permission", wrong, limits.expected, denied=True)
    except RefusedError as wrong:
        return _failed(device, control, "range", wrong, limits.expected, denied=True)
    except LostError as wrong:
        return _failed(device, control, "lost", wrong, None)
    except DeviceError as wrong:
        denied = isinstance(wrong, UnsupportedError)
        return _failed(device, control, "device", wrong, limits.expected if denied else None, denied=denied)


def _set(device: Device, control: Control, limits: Limits) -> SetDone | SetIgnored | SetFoundOther:
    """Raises DeviceError or RefusedError."""
    value, before = limits.pending, device.read_control(control)
    assert value is not None, limits
    if before is None:  # of a clock, which no driver reports
        begin_ns = monotonic_ns()
        device.set_control(control, value)
        return SetDone(value, (monotonic_ns() - begin_ns) // 1000)
    if not close(before, limits.expected, control):
        return SetFoundOther(before)
    device.set_control(control, value)
    if (now := _read(device, control)) == before and not close(before, value, control):
        time.sleep(LATE_S)
        now = _read(device, control)
    if now == before == limits.found and not _rounded(value, before, control):
        device.set_control(control, before)  # a driver that takes it later takes this one last
        return SetIgnored(before)
    return SetDone(now)


def _read(device: Device, control: Control) -> int:
    """Return the value that is requested. Raises DeviceError."""
    requested = device.read_control(control)
    assert requested is not None, control
    return requested


def _rounded(wanted: int, now: int, control: Control) -> bool:
    """Return True if a driver may have made of a value the one of now."""
    return close(wanted, now, control) or (control == "power_limit" and abs(wanted - now) < ROUNDING_MW)


def _failed(
    device: Device,
    control: Control,
    cause: Cause,
    wrong: Exception,
    seen: int | None,
    *,
    denied: bool = False,
) -> SetFailed:
    """``seen``: what is in force, of a clock; None: the device may have taken what was to be set."""
    if control in READ_BACK:
        try:
            seen = device.read_control(control)
        except DeviceError as again:
            _log.info("%s", again)
            seen = None
    return SetFailed(cause, str(wrong), seen, denied)


def put_back(device: Device, limits: Limits, control: Control = "power_limit") -> PutBack:
    """Restore what was found, or the nearest allowed, if it is ours. Raises DeviceError, RefusedError."""
    before = device.read_control(control)
    if before is None:  # of a clock, which no driver reports
        device.set_control(control, limits.found)
        return PutBack(limits.found, other_program=False)
    set_by_us = before in (limits.confirmed, limits.pending) and before != limits.found
    at_found = close(before, limits.found, control) and not set_by_us
    if at_found and limits.pending is None:
        return PutBack(before, other_program=False)
    moved = control == "power_limit" and _moved_by_driver(device, limits, before)
    if not at_found and not limits.ours(before, control) and not moved:
        return PutBack(before, other_program=True)
    # Set though it is there, while a value is pending: a driver that takes that one late takes this one last.
    wanted = limits.found
    try:
        device.set_control(control, wanted)
    except OutOfRangeError as wrong:
        wanted = wrong.nearest_mw
        if not close(before, wanted):
            device.set_control(control, wanted)
    except (PermissionMissingError, UnsupportedError):
        if not at_found:
            raise
        return PutBack(before, other_program=False)  # where nothing can be set, nothing of ours comes late
    if (now := _read(device, control)) == before and not close(now, wanted, control):
        time.sleep(LATE_S)
        device.set_control(control, wanted)
        now = _read(device, control)
    if now == before and not _rounded(wanted, now, control):
        raise RetryError(
            f"could not restore {spell(control, wanted)}: the device took it, and requests"
            f" {spell(control, now)} still. It is tried again."
        )
    return PutBack(now, other_program=False)


def _moved_by_driver(device: Device, limits: Limits, requested_mw: int) -> bool:
    """Return True if the device's range of now makes what is requested of a limit of ours."""
    description = device.describe()
    lowest_mw, highest_mw = description.min_limit_mw, description.max_limit_mw
    ours = [value for value in (limits.confirmed, limits.pending) if value is not None]
    if lowest_mw is None or highest_mw is None:
        return False
    outside = (value for value in ours if not lowest_mw <= value <= highest_mw)
    return any(close(requested_mw, min(max(value, lowest_mw), highest_mw)) for value in outside)
