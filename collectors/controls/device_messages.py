"""The instructions to a device's thread, and its reports. `Mail` takes the reports to the event loop."""

import os
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import anyio
from msgspec import Struct

from collectors.controls import lease_messages
from collectors.controls.frequency_plan import ChangeClock
from collectors.controls.restore_record import RestoreRecord
from collectors.device import Description, ProcessesSeen
from zeus_stream.protocol.fields import Control

if TYPE_CHECKING:
    from collectors.controls.device_thread import DeviceThread

# ---- instructions to a thread -------------------------------------------------------------------------


Step: TypeAlias = (
    lease_messages.CallSet
    | lease_messages.WriteRecord
    | lease_messages.CallRestore
    | lease_messages.ClearRecord
)


class Do(Struct, frozen=True):
    """Do what a control's machine asks. What comes of it comes back as Happened."""

    control: Control
    step: Step


class SeeProcesses(Struct, frozen=True):
    """Look who computes on the device. Comes back as ProcessesSeen."""


class FindAgain(Struct, frozen=True):
    """The device was lost: look for it from time to time."""


class Stop(Struct, frozen=True):
    pass


Job: TypeAlias = Do | ChangeClock | SeeProcesses | FindAgain | Stop


# ---- what a thread has to say ------------------------------------------------------------------------


class FoundControl(Struct, frozen=True):
    """Something of the device that can be set, or that a dead collector's record says was."""

    control: Control
    requested: int
    """Now; of a clock, what its record says."""
    left: RestoreRecord | None
    """What a dead collector left."""
    trouble: str | None
    """Why no record can be kept."""


class DeviceAnswers(Struct, frozen=True):
    """The device answers, for the first time or again."""

    t_ns: int
    description: Description
    requested_mw: int | None
    """None: it has no power limit."""
    controls: tuple[FoundControl, ...]


class RecordsRead(Struct, frozen=True):
    """Records that could not be read when the device was found are read now."""

    t_ns: int
    requested_mw: int | None
    controls: tuple[FoundControl, ...]


class Gone(Struct, frozen=True):
    t_ns: int
    reason: str


class Happened(Struct, frozen=True):
    """The outcome of an instruction of `lease`."""

    t_ns: int
    control: Control
    event: lease_messages.Event


class ChangeFailed(Struct, frozen=True):
    """The device did not take a clock of its plan."""

    reason: str


class Crashed(Struct, frozen=True):
    """An unexpected error: the thread reads no more, but carries out its instructions."""

    error: BaseException


News: TypeAlias = DeviceAnswers | RecordsRead | Gone | Happened | ChangeFailed | ProcessesSeen | Crashed


class Mail:
    """From the device threads to the event loop. Bounded by what the loop has asked for."""

    def __init__(self) -> None:
        self._items: deque[tuple[DeviceThread, News]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, watch: "DeviceThread", news: News) -> None:
        self._items.append((watch, news))
        os.eventfd_write(self._bell, 1)

    async def wait(self) -> None:
        """Return when there is something."""
        while not self._items:
            await anyio.wait_readable(self._bell)
            os.eventfd_read(self._bell)

    def take(self) -> tuple["DeviceThread", News] | None:
        """Return the oldest, or None."""
        return self._items.popleft() if self._items else None

    def close(self) -> None:
        os.close(self._bell)
