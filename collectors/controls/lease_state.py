"""The state of the lease of one control of one device. Pure."""

from collectors.controls.lease_messages import Command, Limits, Outcome, close
from zeus_stream.protocol.commands import ReleaseControl, SetControl
from zeus_stream.protocol.fields import Control
from zeus_stream.protocol.notes import LeaseCause
from zeus_stream.records import record

DEAD = "a collector that died"
"""Owner of what a dead collector left behind."""


@record(kw_only=True)
class Rules:
    """The constants of a leased control, and what its machine has to know of the rest."""

    gpu: str
    incarnation: str
    least_mw: int = 0
    """Lowest limit the device accepts."""
    observe: bool = False
    trouble: str | None = None
    """Why no restore record can be kept."""
    control: Control = "power_limit"
    clocks_mhz: tuple[int, ...] = ()
    """Clocks that can be locked, descending."""
    beside: "tuple[Lease, ...]" = ()
    """Leases of the device's other controls."""


@record
class Ending:
    cause: LeaseCause
    reason: str


LAPSED = Ending("lapsed", "its owner was silent for too long")
RELEASED = Ending("released", "its owner gave it back")
RUN_ENDED = Ending("run", "its run has ended")
STOPPING = Ending("shutdown", "the collector stops")
FORGOTTEN = Ending("device", "the GPU was lost, and may have forgotten it")
LEFT_OVER = Ending("restart", "a collector died and left it")
OTHER_VALUE = Ending("stranger", "another value was in force")
"""Until the restore has found out whether another program set it."""


@record
class Lease:
    owner: str
    run: str
    deadline_ns: int
    ending: Ending | None = None
    """Why it is over, from when that was noticed."""

    def over(self, now_ns: int) -> bool:
        return self.ending is not None or now_ns >= self.deadline_ns


@record
class Recording:
    command: SetControl
    limits: Limits


@record
class Setting:
    command: SetControl


@record
class Restoring:
    pass


@record
class Waiting:
    command: Command
    received_ns: int
    objection: str | None
    """Why its run may not command this device."""


@record(kw_only=True)
class Guarded:
    """State of one device."""

    limits: Limits
    lease: Lease | None = None
    busy: Recording | Setting | Restoring | None = None
    waiting: tuple[Waiting, ...] = ()
    releasing: tuple[ReleaseControl, ...] = ()
    """Releases that the restore under way will answer."""
    outcomes: tuple[Outcome, ...] = ()
    fences: tuple[tuple[str, int], ...] = ()
    """Highest fence of each owner, least recent first."""
    failures: int = 0
    """Restores that failed in a row."""
    retry_ns: int = 0
    closing: bool = False

    @property
    def at_rest(self) -> bool:
        """Nothing of ours is in force, and nothing is under way."""
        return self.busy is None and not self.limits.changed and not self.waiting

    def unmoved(self, requested: int | None, now_ns: int) -> bool:
        """Return True if a `Beat` with this value would change nothing."""
        if self.busy is not None or self.waiting:
            return False
        if self.lease is None:
            return not self.limits.changed and requested in (None, self.limits.found)
        confirmed = self.limits.confirmed
        if confirmed is None or self.lease.over(now_ns):
            return False
        return requested is None or close(requested, confirmed)
