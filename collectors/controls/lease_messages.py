"""The events of a control's lease, and its instructions. Pure.

Events go to `lease.step`, instructions come from it: the device's thread carries them out.
"""

from typing import TypeAlias

from zeus_stream.protocol.commands import ReleaseControl, RenewLeases, SetControl
from zeus_stream.protocol.notes import Cause, ControlApplied, ControlRefused, Note
from zeus_stream.records import record

SAME_MW = 1_000
"""Power limits that differ by less are the same. (A clock is never compared: it is not read back.)"""
ROUNDING_MW = 20_000
"""A driver may round a power limit by less than this."""

Command: TypeAlias = SetControl | ReleaseControl
Outcome: TypeAlias = ControlApplied | ControlRefused


@record
class Limits:
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
        return self.confirmed or self.pending or self.found

    @property
    def expected(self) -> int:
        """The value in force before `pending` is set."""
        return self.found if self.confirmed is None else self.confirmed

    def ours(self, requested: int) -> bool:
        """Return True if we set what is requested now.

        As long as nobody has read back what the driver made of the pending value, any value from there to the
        one before counts as ours: a driver rounds and clamps.
        """
        if requested in (self.confirmed, self.pending):
            return True
        if self.pending is None or close(requested, self.found):
            return False
        low, high = sorted((self.pending, self.expected))
        return low <= requested <= high or abs(requested - self.pending) < ROUNDING_MW


def close(one: int, other: int) -> bool:
    """Return True if two power limits are the same."""
    return abs(one - other) < SAME_MW


# ---- events ----------------------------------------------------------------------------------------


@record
class Asked:
    """A command came in. ``objection``: why its run may not command this device."""

    command: Command
    objection: str | None = None


@record
class Beat:
    """Time has passed; this is what is requested now, as last read (None: not known)."""

    requested: int | None


@record
class RunGone:
    """The run's last session on this host is gone."""

    run: str


@record
class Returned:
    """The device was lost and is back; whether it remembers what was set cannot be read."""


@record
class Stopping:
    """The collector stops: restore, and take no more commands."""


@record
class PlanEnded:
    """The plan of clocks under this lease does not fit what runs."""

    reason: str


@record
class RecordWritten:
    limits: Limits


@record
class RecordFailed:
    limits: Limits
    reason: str


@record
class SetDone:
    """Set without error; ``requested`` was read back, and the record has it."""

    requested: int


@record
class SetIgnored:
    """Set without error, and ``requested`` is there as before: the driver did nothing."""

    requested: int


@record
class SetFoundOther:
    """Nothing was set: ``requested`` was there, which neither we nor whom we found had set."""

    requested: int


@record
class SetFailed:
    """The device refused or failed; ``requested`` was read afterwards (None: not even that)."""

    cause: Cause
    reason: str
    requested: int | None


@record
class RestoreDone:
    """``requested`` is requested now: the value found, as near to it as the driver allows, or another
    program's (``stranger``), which stays."""

    requested: int
    stranger: bool


@record
class RestoreFailed:
    reason: str


Event: TypeAlias = (
    Asked
    | RenewLeases
    | Beat
    | RunGone
    | Returned
    | Stopping
    | PlanEnded
    | RecordWritten
    | RecordFailed
    | SetDone
    | SetIgnored
    | SetFoundOther
    | SetFailed
    | RestoreDone
    | RestoreFailed
)


# ---- instructions ----------------------------------------------------------------------------------


@record
class WriteRecord:
    """Make ``limits`` last on disk. Outcome: RecordWritten or RecordFailed."""

    limits: Limits


@record
class CallSet:
    """Set ``limits.pending`` if what is requested is still ``limits.expected``, and record what came of it.

    Outcome: SetDone, SetIgnored, SetFoundOther or SetFailed.
    """

    limits: Limits


@record
class CallRestore:
    """Set ``limits.found``, or what is allowed nearest to it, if what is requested is ours.

    Outcome: RestoreDone or RestoreFailed.
    """

    limits: Limits


@record
class ClearRecord:
    """Nothing of ours is in force any more. No outcome: a record that stays only says so again."""


@record
class Say:
    """Log this; an outcome is also the reply to its command."""

    note: Note


@record
class Repeat:
    """Reply to a command that came again; the log has its outcome already."""

    outcome: Outcome


Instruction: TypeAlias = WriteRecord | CallSet | CallRestore | ClearRecord | Say | Repeat
