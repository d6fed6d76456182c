"""Requests on the control socket: greetings, missing frames, controls under a lease.

collector <--control-- analyzer   Hello, Fetch, SetControl, ReleaseControl, RenewLeases,
                                  Answer, Advice
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import Control, ControlValue, Count, Gpu, Gpus, Milliseconds, Name


class Hello(Struct, frozen=True):
    """Asks who is there. ``analyzer``: pass questions of scripts to me from now on."""

    role: Literal["analyzer", "watcher"]
    name: Name
    epoch: Count | None = None
    """Of an analyzer that shares a site with others: a collector refuses a lower one of this name."""
    shard: Count | None = None
    """The part of the site's jobs that it decides on, of ``shards``. None: all jobs."""
    shards: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    lease_ms: Milliseconds | None = None
    """Length of an analyzer's leases where nothing delays them. A longer lease ends so long after the
    analyzer's connection closed, unless it comes back."""


class Welcome(Struct, frozen=True, kw_only=True):
    host: Name
    incarnation: Name
    """New at every start of the collector; a command that carries another is stale."""
    log_id: Name
    first_offset: Count
    """Oldest still in the log."""
    next_offset: Count
    observe: bool


class Fetch(Struct, frozen=True):
    log_id: Name
    first_offset: Count
    count: Annotated[int, Meta(ge=1, le=1000)]


class Fetched(Struct, frozen=True):
    """Frames follow, three parts each: from ``first_offset`` on, as many as fit."""

    log_id: Name
    first_offset: Count
    oldest_offset: Count
    next_offset: Count


class SetControl(Struct, frozen=True, kw_only=True):
    """Set a control under a lease of its own. Outcome: `ControlApplied` or `ControlRefused`."""

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    """Grows with every command of an owner on a device; at or below its last one for this control: stale."""
    run: Name
    """The lease ends with this run."""
    gpu: Gpu
    control: Control
    value: ControlValue
    """mW of a power limit; MHz of a clock, one that the device names."""
    lease_ms: Milliseconds
    """From receipt."""


class ReleaseControl(Struct, frozen=True, kw_only=True):
    """Restore the value found, now. Outcome: `ControlApplied` with that value, or `ControlRefused`."""

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    gpu: Gpu
    control: Control


class RenewLeases(Struct, frozen=True):
    """Extends all leases of these devices; never revives an ended one. No outcome, no reply."""

    owner: Name
    incarnation: Name
    gpus: Gpus
    lease_ms: Milliseconds
    epoch: Count | None = None
    """As in `Hello`."""
