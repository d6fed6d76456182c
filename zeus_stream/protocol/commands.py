"""Requests on the control socket: who is there, missing frames, limits and clocks under a lease.

collector <--control-- analyzer   Hello, Fetch, SetLimit, ReleaseLimit, LockClock, ReleaseClock,
                                  RenewLeases, Answer, Advice
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from zeus_stream.protocol.fields import Count, Gpu, Gpus, Megahertz, Milliseconds, Milliwatts, Name, Within


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks who is there. ``analyzer``: pass questions of scripts to me from now on."""

    role: Literal["analyzer", "watcher"]
    name: Name


@dataclass(frozen=True, slots=True)
class Welcome:
    host: Name
    incarnation: Name
    """New at every start of the collector; a command that carries another is stale."""
    log_id: Name
    first_offset: Count
    """Oldest still in the log."""
    next_offset: Count
    observe: bool


@dataclass(frozen=True, slots=True)
class Fetch:
    log_id: Name
    first_offset: Count
    count: Annotated[int, Within(1, 1000)]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Frames follow, three parts each: from ``first_offset`` on, as many as fit."""

    log_id: Name
    first_offset: Count
    oldest_offset: Count
    next_offset: Count


@dataclass(frozen=True, slots=True)
class SetLimit:
    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    """Grows with every command of an owner on a device; below its last one for the same knob it is stale."""
    run: Name
    """The lease ends with this run."""
    gpu: Gpu
    limit_mw: Milliwatts
    lease_ms: Milliseconds
    """From receipt."""


@dataclass(frozen=True, slots=True)
class ReleaseLimit:
    """Restore the value found, now. Outcome `Applied` with that value."""

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class LockClock:
    """Lock a GPU's graphics clock. It has a lease of its own beside the power limit's, for the same run."""

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    run: Name
    gpu: Gpu
    clock_mhz: Megahertz
    """One that the device names."""
    lease_ms: Milliseconds
    """From receipt."""


@dataclass(frozen=True, slots=True)
class ReleaseClock:
    """Unlock the graphics clock, now. Outcome `ClockApplied` without a clock."""

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class RenewLeases:
    """Keeps living leases alive, of limits and clocks; never revives an ended one. No outcome, no reply."""

    owner: Name
    incarnation: Name
    gpus: Gpus
    lease_ms: Milliseconds
