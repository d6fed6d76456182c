"""Notes: what a collector states about itself, its devices, runs and commands."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import (
    Control,
    ControlValue,
    Count,
    Gpu,
    Gpus,
    KubernetesName,
    Milliwatts,
    Name,
    Ns,
    Text,
    Unknown,
    WallNs,
)


class CollectorStarted(Struct, frozen=True, kw_only=True, tag=True):
    t_ns: Ns
    incarnation: Name
    version: Name
    boot_id: Name
    wall_ns: WallNs
    wall_error_ns: Ns
    observe: bool


class ClockAnchored(Struct, frozen=True, tag=True):
    t_ns: Ns
    wall_ns: WallNs
    wall_error_ns: Ns


class DeviceFound(Struct, frozen=True, kw_only=True, tag=True):
    t_ns: Ns
    gpu: Gpu
    index: Count
    name: Name
    driver: Name
    counts_energy: bool
    min_limit_mw: Milliwatts | None
    max_limit_mw: Milliwatts | None
    default_limit_mw: Milliwatts | None
    found_limit_mw: Milliwatts | None
    """The limit requested when it was found, before any change of ours: our upper bound."""
    mig: bool
    scope: Literal["gpu", "module"] = "gpu"
    """What its figures are of; a module's (Grace Hopper) include the CPU beside the GPU."""
    graphics_clocks_mhz: Annotated[tuple[ControlValue, ...], Meta(max_length=10_000)] = ()
    """At which the graphics clock can be locked, descending."""
    tenants: Gpus = ()
    """UUIDs (``MIG-...``) of the instances that share the GPU."""
    error_ppm: Count | None = None
    """Half of the 95 % interval of a meter's gain, millionths; None: not known, or no meter."""


class DeviceGone(Struct, frozen=True, tag=True):
    t_ns: Ns
    gpu: Gpu
    reason: Text


class PowerProfiles(Struct, frozen=True, tag=True):
    """The workload power profiles of a GPU that has some: at first, and whenever they are others."""

    t_ns: Ns
    gpu: Gpu
    requested: ControlValue
    """Bits of `POWER_PROFILES`."""
    enforced: ControlValue | None
    """None: not known yet."""


class GpuShared(Struct, frozen=True, tag=True):
    """Processes of no run compute on a GPU that runs use: their energy is in that of the runs."""

    t_ns: Ns
    gpu: Gpu
    since_ns: Ns
    """The look before: they may have been there since."""
    processes: Count
    """0: they are gone."""


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A process that computes on a GPU."""

    pid: Count
    user: Name | None
    """None: it cannot be seen."""
    command: Name | None
    """Its program, and the script or module that it runs: other arguments may hold secrets."""
    memory_bytes: Count | None
    """Of the GPU."""
    run: Name | None
    """The run that it works for."""


MAX_PROCESSES = 16
"""Of one GPU."""
Processes = Annotated[tuple[GpuProcess, ...], Meta(max_length=MAX_PROCESSES)]


class GpuInUse(Struct, frozen=True, kw_only=True, tag=True):
    """The memory of a GPU and the processes on it: once they are others, and seldom without that."""

    t_ns: Ns
    gpu: Gpu
    memory_bytes: Count | None
    """In use."""
    memory_total_bytes: Count | None
    processes: Processes | None
    """Those with the most memory first. None: they cannot be seen."""
    left_out: Count = 0
    """Processes past `MAX_PROCESSES`."""


class Pod(Struct, frozen=True, kw_only=True):
    """A container of Kubernetes."""

    namespace: KubernetesName
    name: KubernetesName
    """Of its pod."""
    container: KubernetesName


class RunAdmitted(Struct, frozen=True, kw_only=True, tag=True):
    """The collector's word on a `RunStarted`: the UUIDs it resolved, and whether it may command."""

    t_ns: Ns
    session: Name
    run: Name
    gpus: Gpus
    may_command: bool
    reason: Text
    cgroup: Text | None = None
    """Of its process. None: it cannot be seen."""
    pod: Pod | None = None
    """That its process is in, and that its GPUs are given to. None: none, or it is not known."""


class SessionEnded(Struct, frozen=True, tag=True):
    """The session's process is gone, with or without `RunEnded` before it."""

    t_ns: Ns
    session: Name
    reason: Text


class ControlApplied(Struct, frozen=True, tag=True):
    """Outcome of a command. A power limit was read back, and may be another than was asked: a driver rounds.
    No driver reports the lock of a clock."""

    t_ns: Ns
    command: Name
    gpu: Gpu
    control: Control
    value: ControlValue
    took_us: Count = 0
    """The driver's call that set a clock; 0: not measured."""


Cause = Literal[
    "permission",
    "observe",
    "range",
    "owned",
    "stale",
    "ownership",
    "storage",
    "device",
    "other_program",
    "ignored",
    "lost",
]
"""Why nothing changed. In order: no privilege. Observing. Out of range. Another owner. An old fence,
incarnation or ended lease. The run does not own the GPU. No restore record could be written. The device
failed. Somebody else set another limit in the meantime. The driver accepted the limit and did not change it.
The GPU is lost, and may return."""


class ControlRefused(Struct, frozen=True, tag=True):
    """Outcome of a command that changed nothing."""

    t_ns: Ns
    command: Name
    gpu: Gpu
    cause: Cause
    reason: Text


LeaseCause = Literal["released", "lapsed", "run", "other_program", "shutdown", "restart", "device", "plan"]
"""Why a lease ended. In order: its owner gave it back. Its owner was silent. Its run ended. Somebody else
set the limit. The collector stopped. A collector started after one that was killed. The device was lost.
A plan of clocks did not fit what ran."""


class ControlLeaseEnded(Struct, frozen=True, kw_only=True, tag=True):
    """Ours no longer: released, run out, or set by another program, whose value stays.

    An owner whose lease "lapsed" or ended by "shutdown" or "restart" may ask again, but not after
    "other_program".
    """

    t_ns: Ns
    gpu: Gpu
    control: Control
    owner: Name
    cause: LeaseCause
    reason: Text
    value: ControlValue | None
    """Requested now: what was found, restored, or another program's. None: it could not be read, or not be
    restored yet, which is tried again."""


class Lost(Struct, frozen=True, tag=True):
    """The loss of a bounded buffer, a full disk or a broken log. Becomes a row in ``gaps``."""

    t_ns: Ns
    what: Name
    count: Count
    reason: Text


class Budget(Struct, frozen=True, kw_only=True):
    """The power limits of a group of GPUs together are to be no more than this."""

    group: Name
    limit_mw: Annotated[int, Meta(ge=1, le=10**12)]
    site_mw: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    """The limit of the whole budget, where `limit_mw` is the grant of one shard."""
    gpus: Annotated[tuple[Name, ...], Meta(max_length=1000)]
    """Words ``GPU-...`` (UUID), ``HOST:INDEX`` (PCI order) and ``HOST:all``; none: every GPU of the site."""
    set_ns: WallNs
    begin_ns: WallNs
    """UTC, as all times here. From then on it holds."""
    end_ns: WallNs
    ramp_ns: Ns
    """From what was to the limit, and back after the end."""
    before_mw: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    """The limit that it replaces; None: what was found on the GPUs."""
    way: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """How far the ramp is, at the time of a note."""
    targets: Annotated[
        tuple[tuple[WallNs, Annotated[int, Meta(ge=0, le=10**12)]], ...], Meta(max_length=10_000)
    ] = ()
    """A load signal: since when each value, mW. None in a note: `limit_mw` has the value of its time."""
    follows: Text = ""
    """The file of that signal."""
    ramp_mw_s: Annotated[int, Meta(ge=0, le=10**12)] = 0
    """Largest change of that value, mW/s; 0: any."""
    target_ns: WallNs | None = None
    """When a note took the value; None: the budget follows no signal."""
    first: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    """Jobs that get watts before all others, in order: names, or ``prod-*``."""


class BudgetsSet(Struct, frozen=True, tag=True):
    """The analyzer's own word, in a log of its own: from here on these budgets hold, and no others."""

    t_ns: Ns
    budgets: Annotated[tuple[Budget, ...], Meta(max_length=1000)]


class OwnUse(Struct, frozen=True, kw_only=True, tag=True):
    """The use of one of our services, since its last record or its start."""

    t_ns: Ns
    wall_ns: WallNs
    took_ns: Ns
    service: Name
    host: Name
    cpu_ns: Ns
    """Processor time of the service and its child processes."""
    host_cpu_ns: Ns | None
    """The processor time of everything on the host. None: the kernel does not say."""
    processors: Annotated[int, Meta(ge=1, le=100_000)]
    host_energy_mj: Count | None
    """Of all packages of the host and their memory. None: `reason` says why."""
    reason: Text


Note = (
    CollectorStarted
    | ClockAnchored
    | DeviceFound
    | DeviceGone
    | PowerProfiles
    | GpuShared
    | GpuInUse
    | RunAdmitted
    | SessionEnded
    | ControlApplied
    | ControlRefused
    | ControlLeaseEnded
    | Lost
    | BudgetsSet
    | OwnUse
)


class Notes(Struct, frozen=True):
    """A message of the collector itself."""

    notes: Annotated[tuple[Note | Unknown, ...], Meta(max_length=1000)]
