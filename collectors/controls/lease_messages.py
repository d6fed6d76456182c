"""The events of a control's lease, and its instructions. Pure.

Events go to `lease.step`, instructions come from it: the device's thread carries them out.
"""

from typing import TypeAlias

from msgspec import Struct

from zeus_stream.protocol.commands import ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import Cause, ControlApplied, ControlRefused, Note

SAME_MW = 1_000
"""Power limits that differ by less are the same. (A clock is never compared: it is not read back.)"""
ROUNDING_MW = 20_000
"""A driver may round a power limit by less than this."""

Command: TypeAlias = SetControl | ReleaseControl
Outcome: TypeAlias = ControlApplied | ControlRefused


class Limits(Struct, frozen=True):
    """The content of a control's restore record, in the control's unit."""

    found: int
    """Requested before any change of ours."""
    confirmed: int | None = None
    """Ours, as last read back."""
    pending: int | None = None
    """About to be set."""

    @property
    def changed(self) -> bool:
        """Something of ours may be in force: a record exists."""
        return self.confirmed is not None or self.pending is not None

    @property
    def last(self) -> int:
        """The value in force if only we changed anything, as far as it is known."""
        return next(each for each in (self.confirmed, self.pending, self.found) if each is not None)

    @property
    def expected(self) -> int:
        """The value in force before `pending` is set."""
        return self.found if self.confirmed is None else self.confirmed

    def read_back(self, requested: int) -> "Limits":
        """Return the limits after the set of `pending`, which reads ``requested``.

        A driver that still reports the value of before may take the pending one later: it stays ours.
        """
        late = requested == self.expected and requested != self.pending
        return Limits(self.found, requested, self.pending if late else None)

    def ours(self, requested: int, control: Control = "power_limit") -> bool:
        """Return True if we set what is requested now.

        As long as nobody has read back what the driver made of the pending value, any value from there to the
        one before counts as ours: a driver rounds and clamps.
        """
        if requested in (self.confirmed, self.pending):
            return True
        if self.pending is None or close(requested, self.found, control):
            return False
        if control != "power_limit":  # of power profiles, a driver leaves some out
            return requested & ~(self.pending | self.expected) == 0
        low, high = sorted((self.pending, self.expected))
        return low <= requested <= high or abs(requested - self.pending) < ROUNDING_MW


def close(one: int, other: int, control: Control = "power_limit") -> bool:
    """Return True if two values of a control are the same."""
    return abs(one - other) < SAME_MW if control == "power_limit" else one == other


# ---- events ----------------------------------------------------------------------------------------


class Asked(Struct, frozen=True):
    """A command came in. ``objection``: why its run may not command this device."""

    command: Command
    objection: str | None = None


class Beat(Struct, frozen=True):
    """Time has passed; this is what is requested now, as last read (None: not known)."""

    requested: int | None


class OwnerDisconnected(Struct, frozen=True):
    """The connection of a lease's owner has closed: its lease ends then, unless a renewal comes."""

    owner: str
    until_ns: int


class RunGone(Struct, frozen=True):
    """The run's last session on this host is gone."""

    run: str


class Returned(Struct, frozen=True):
    """The device was lost and is back; whether it remembers what was set cannot be read."""


class Stopping(Struct, frozen=True):
    """The collector stops: restore, and take no more commands."""


class PlanEnded(Struct, frozen=True):
    """The plan of clocks under this lease does not fit what runs."""

    reason: str


class RecordFailed(Struct, frozen=True):
    """Nothing was set: the record of it could not be written."""

    reason: str


class SetDone(Struct, frozen=True):
    """Set without error; ``requested`` was read back, and the record has it."""

    requested: int
    took_us: int = 0
    """The driver's call, of a clock."""


class SetIgnored(Struct, frozen=True):
    """Set without error, and ``requested`` is there as before: the driver did nothing."""

    requested: int


class SetFoundOther(Struct, frozen=True):
    """Nothing was set: ``requested`` was there, which neither we nor whom we found had set."""

    requested: int


class SetFailed(Struct, frozen=True):
    """The device refused or failed; ``requested`` was read afterwards (None: not even that)."""

    cause: Cause
    reason: str
    requested: int | None
    denied: bool = False
    """The driver will not take it later."""


class RestoreDone(Struct, frozen=True):
    """``requested`` is requested now: the value found, as near to it as the driver allows, or another
    program's (``other_program``), which stays."""

    requested: int
    other_program: bool


class RestoreFailed(Struct, frozen=True):
    reason: str


Event: TypeAlias = (
    Asked
    | RenewLeases
    | Beat
    | OwnerDisconnected
    | RunGone
    | Returned
    | Stopping
    | PlanEnded
    | RecordFailed
    | SetDone
    | SetIgnored
    | SetFoundOther
    | SetFailed
    | RestoreDone
    | RestoreFailed
)


# ---- instructions ----------------------------------------------------------------------------------


class CallSet(Struct, frozen=True):
    """Record ``limits``, then set ``limits.pending`` if ``limits.expected`` is still requested.

    Outcome: RecordFailed, SetDone, SetIgnored, SetFoundOther or SetFailed.
    """

    limits: Limits


class WriteRecord(Struct, frozen=True):
    """Record ``limits``, which are in force. No outcome: an older record tells what is ours less closely."""

    limits: Limits


class CallRestore(Struct, frozen=True):
    """Set ``limits.found``, or the nearest allowed, if ours is requested. Outcome: RestoreDone or -Failed."""

    limits: Limits


class ClearRecord(Struct, frozen=True):
    """Nothing of ours is in force any more. No outcome: a record that stays only says so again."""


class Say(Struct, frozen=True):
    """Log this; an outcome is also the reply to its command."""

    note: Note


class Repeat(Struct, frozen=True):
    """Reply to a command that came again; the log has its outcome already."""

    outcome: Outcome


Instruction: TypeAlias = CallSet | WriteRecord | CallRestore | ClearRecord | Say | Repeat
