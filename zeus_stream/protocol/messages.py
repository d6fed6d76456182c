"""Every word that crosses a process boundary.

Times are CLOCK_MONOTONIC of the named host, ns. GPUs are UUIDs. `None` is "not known", never 0.

    training process --publish-->  collector  --feed-->     analyzer
      Batch, Ask, AskTry             Frame(Readings | Events | Notes)
            <--Ack, Answer, Advice              <--control--
                                     Hello, Fetch, SetLimit, ReleaseLimit, LockClock, ReleaseClock,
                                     RenewLeases, Answer, Advice
    anybody        --query-->      analyzer
      Query, AskStatus, ForgetJob

How these become bytes is `wire`'s business; what is out of bounds never becomes one of these values.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal

VERSION = 1
"""Of this schema. A message of another version is refused with a sentence."""


@dataclass(frozen=True, slots=True)
class Within:
    """Bound of a field: an integer's or float's range, or the length of a string, bytes or tuple."""

    least: float
    most: float


Name = Annotated[str, Within(1, 200)]
"""Job, run, window, metric, host, owner, ids."""
Text = Annotated[str, Within(0, 2000)]
"""A sentence for people."""
Gpu = Annotated[str, Within(1, 80)]
"""UUID ``GPU-...``, or a part of the host itself (`of_host`); in `RunStarted` alone also ``MIG-...``,
``index:N`` (PCI order) and ``index:all``: the collector resolves them."""
Ns = Annotated[int, Within(0, 2**62)]
WallNs = Annotated[int, Within(0, 4_102_444_800 * 10**9)]
"""Until 2100: with any `Ns` added it still is an int64."""
Count = Annotated[int, Within(0, 2**53)]
Milliwatts = Annotated[int, Within(0, 100_000_000)]
Megahertz = Annotated[int, Within(1, 100_000)]
Milliseconds = Annotated[int, Within(0, 86_400_000)]
Gpus = Annotated[tuple[Gpu, ...], Within(0, 256)]
BatchSize = Annotated[int, Within(1, 2**40)]


BUDGET = "budget:"
"""Begins the name under which an analyzer holds limits for a power budget, in place of a run's. No run may
have such a name."""


def of_host(gpu: Gpu) -> bool:
    """Tell whether it is no GPU but a part of the host, used by all who run there: a CPU or its memory."""
    return gpu.startswith(("CPU-", "DRAM-"))


# ---- events: a training process says what it does -------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First event of every session. One session is one publisher in one process: one rank of a run."""

    t_ns: Ns
    job: Name
    """What recurs: runs of one job can be compared."""
    run: Name
    """Unique; shared by all ranks of one training."""
    rank: Count
    world_size: Count
    """Ranks of the run; 0: it computes on no GPU, and only measures windows of those it names."""
    gpus: Gpus
    pid: Count
    boot_id: Name
    wall_ns: WallNs
    """UTC at ``t_ns``, ns since 1970, within ``wall_error_ns``."""
    wall_error_ns: Ns
    boundary: Name = "dispatch"
    """How step ends are placed, where that is possible; see `Placed`. Each `StepBoundary` says its own."""
    batch_size: Count | None = None
    """Samples of one rank's batch."""


@dataclass(frozen=True, slots=True)
class EpochBegan:
    t_ns: Ns
    index: Count


@dataclass(frozen=True, slots=True)
class EpochEnded:
    t_ns: Ns
    index: Count


Placed = Literal["dispatch", "device", "ready"]
"""How a boundary's instant is known: by when Python came by; by a timing event in the device's queue; by when
the step's output was ready."""


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """Between two steps: step ``index - 1`` ended (its successor was asked for), step ``index`` began.

    ``index`` counts over the whole run, from 0. At the first boundary of a loop nothing ended; at the
    last nothing began. Where neither is told, step ``index - 1`` was begun and is cancelled.
    """

    index: Count
    ended_ns: Ns | None
    began_ns: Ns | None
    placed: Placed = "dispatch"
    uncertainty_ns: Ns | None = None
    """Both stamps are at most so far off. None: not known, as by dispatch."""


@dataclass(frozen=True, slots=True)
class WindowBegan:
    t_ns: Ns
    window: Count
    """Unique within the session."""
    name: Name


@dataclass(frozen=True, slots=True)
class WindowEnded:
    t_ns: Ns
    window: Count


@dataclass(frozen=True, slots=True)
class WindowCancelled:
    t_ns: Ns
    window: Count


@dataclass(frozen=True, slots=True)
class Metric:
    t_ns: Ns
    name: Name
    value: float


@dataclass(frozen=True, slots=True)
class TryWanted:
    """A training of a job that recurs wants to know which batch size to train with. All its ranks may say so.

    ``attempt`` counts within the session, from 0: a try that misses the target may be followed by another.
    """

    t_ns: Ns
    attempt: Count
    job: Name
    batch_sizes: Annotated[tuple[BatchSize, ...], Within(1, 100)]
    """Ascending."""
    default: BatchSize
    """One of them."""
    target: float
    metric: Name
    lower_is_better: bool
    max_epochs: Annotated[int, Within(1, 1_000_000)]
    eta: Annotated[float, Within(0, 1)]
    beta: Annotated[float, Within(1, 1e6)]
    window: Count


@dataclass(frozen=True, slots=True)
class TryBegan:
    """From here on the session trains with this batch size, whether or not it was the one advised."""

    t_ns: Ns
    attempt: Count
    batch_size: BatchSize


@dataclass(frozen=True, slots=True)
class TryEnded:
    """How the session's try ended; one whose session ends without it was lost."""

    t_ns: Ns
    attempt: Count
    how: Literal["converged", "stopped", "exhausted", "lost"]
    reason: Text


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """The publisher's bounded buffer was full: this many events before ``t_ns`` are not in the stream."""

    t_ns: Ns
    count: Count
    reason: Text


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The session's last event, sent by a publisher that closes in order."""

    t_ns: Ns


Event = (
    RunStarted
    | EpochBegan
    | EpochEnded
    | StepBoundary
    | WindowBegan
    | WindowEnded
    | WindowCancelled
    | Metric
    | TryWanted
    | TryBegan
    | TryEnded
    | EventsDropped
    | RunEnded
)


# ---- publish socket: training process <-> collector ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unknown:
    """A kind this version does not know, from a newer sender: counted, never an error."""

    kind: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Events ``sequence``, ``sequence + 1``, ... of a session. Sent again until acknowledged."""

    session: Name
    sequence: Count
    events: Annotated[tuple[Event | Unknown, ...], Within(0, 1000)]


@dataclass(frozen=True, slots=True)
class Ack:
    """The session's events below ``next_sequence`` are in the log."""

    session: Name
    next_sequence: Count


@dataclass(frozen=True, slots=True)
class Ask:
    """A script asks for the energy of a window it has ended; the collector passes it to its analyzer."""

    question: Name
    session: Name
    window: Count


@dataclass(frozen=True, slots=True)
class GpuEnergy:
    gpu: Gpu
    energy_j: float
    energy_low_j: float
    energy_high_j: float


@dataclass(frozen=True, slots=True)
class Answer:
    question: Name
    duration_s: float | None
    gpus: Annotated[tuple[GpuEnergy, ...], Within(0, 256)]
    missing: Text | None
    """Why there is no energy; then ``gpus`` is empty."""


@dataclass(frozen=True, slots=True)
class AskTry:
    """A script asks which batch size to try (``epochs`` is 0), or whether to go on after so many epochs."""

    question: Name
    session: Name
    attempt: Count
    epochs: Count


@dataclass(frozen=True, slots=True)
class Advice:
    question: Name
    batch_size: BatchSize | None
    """None: there is none, for the reason given."""
    go_on: bool
    reason: Text


# ---- log and feed: collector -> everybody who follows ----------------------------------------------


class Seen(IntEnum):
    """What a reading saw at ``t_hi_ns``."""

    FIRST = 0
    """First read since start or return: the counter's value, but not when it changed to it."""
    CHANGED = 1
    """The counter changed to this value between ``t_lo_ns`` and ``t_hi_ns``."""
    UNCHANGED = 2
    """Heartbeat: the counter was still at this value, read between the two stamps."""
    RESET = 3
    """The counter fell: a new counter epoch. The difference to the last value means nothing."""
    POWER = 4
    """A device without counter: power, read between the two stamps."""


READING_FIELDS = (
    ("t_lo_ns", "<i8"),
    ("t_hi_ns", "<i8"),
    ("energy_mj", "<i8"),
    ("power_mw", "<i4"),
    ("limit_mw", "<i4"),
    ("requested_mw", "<i4"),
    ("clock_mhz", "<i4"),
    ("temperature_c", "<i2"),
    ("utilization_pct", "<i2"),
    ("gpu", "<u2"),
    ("seen", "<u2"),
)
"""Columns of one row of `Readings.rows`, in order, as NumPy spells types. ``gpu`` indexes `Readings.gpus`."""
READING_STRUCT = "<qqqiiiihhHH"
"""The same row for `struct`."""
READING_BYTES = 48
ABSENT = -1
"""In a row of `Readings`: the device does not say. (Nowhere else: elsewhere it is None.)"""


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of one host's devices, in bulk. ``rows`` is READING_BYTES a reading, oldest first per GPU."""

    gpus: Gpus
    rows: Annotated[bytes, Within(0, READING_BYTES * 10_000)]


@dataclass(frozen=True, slots=True)
class Events:
    """A `Batch` as the collector logged it: what was new in it, and who the kernel says sent it."""

    session: Name
    sequence: Count
    uid: int | None
    pid: int | None
    events: Annotated[tuple[Event | Unknown, ...], Within(0, 1000)]


@dataclass(frozen=True, slots=True)
class CollectorStarted:
    t_ns: Ns
    incarnation: Name
    version: Name
    boot_id: Name
    wall_ns: WallNs
    wall_error_ns: Ns
    observe: bool


@dataclass(frozen=True, slots=True)
class ClockAnchored:
    t_ns: Ns
    wall_ns: WallNs
    wall_error_ns: Ns


@dataclass(frozen=True, slots=True)
class DeviceFound:
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
    tenants: Gpus = ()
    """UUIDs (``MIG-...``) of the instances that share the GPU."""


@dataclass(frozen=True, slots=True)
class DeviceGone:
    t_ns: Ns
    gpu: Gpu
    reason: Text


@dataclass(frozen=True, slots=True)
class RunAdmitted:
    """The collector's word on a `RunStarted`: the UUIDs it resolved, and whether it may command."""

    t_ns: Ns
    session: Name
    run: Name
    gpus: Gpus
    may_command: bool
    reason: Text


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session's process is gone, with or without `RunEnded` before it."""

    t_ns: Ns
    session: Name
    reason: Text


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of a command: read back from the device."""

    t_ns: Ns
    command: Name
    gpu: Gpu
    limit_mw: Milliwatts


@dataclass(frozen=True, slots=True)
class ClockApplied:
    """Outcome of a command: the device took it. No driver tells a lock, so this is not read back."""

    t_ns: Ns
    command: Name
    gpu: Gpu
    clock_mhz: Megahertz | None
    """Locked now. None: it is unlocked."""


Cause = Literal[
    "permission", "observe", "range", "owned", "stale", "ownership", "storage", "device", "stranger"
]
"""Why nothing changed: no privilege; observing; out of range; another owner; an old fence, incarnation or
ended lease; the run does not own the GPU; no restore record could be written; the device failed; somebody
else set another limit meanwhile."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Outcome of a command that changed nothing."""

    t_ns: Ns
    command: Name
    gpu: Gpu
    cause: Cause
    reason: Text


LeaseCause = Literal["released", "lapsed", "run", "stranger", "shutdown", "restart", "device"]
"""Why a lease ended: its owner gave it back; its owner was silent; its run ended; somebody else set the
limit; the collector stopped; a collector started after one that was killed; the device was lost."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """Ours no longer: released, run out, or taken by a stranger whose value stays.

    An owner whose lease "lapsed" or ended by "shutdown" or "restart" may ask again; after "stranger" not.
    """

    t_ns: Ns
    gpu: Gpu
    owner: Name
    cause: LeaseCause
    reason: Text
    limit_mw: Milliwatts | None
    """The limit requested now: the value found, restored, or a stranger's. None: could not be read."""


@dataclass(frozen=True, slots=True)
class ClockLeaseEnded:
    """A clock is locked by us no longer. Asking again as after `LeaseEnded`; there is no "stranger"."""

    t_ns: Ns
    gpu: Gpu
    owner: Name
    cause: LeaseCause
    reason: Text
    unlocked: bool
    """False: it could not be unlocked yet, which is tried again."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What a bounded buffer, a full disk or a broken log had to drop. Becomes a row in ``gaps``."""

    t_ns: Ns
    what: Name
    count: Count
    reason: Text


@dataclass(frozen=True, slots=True)
class Budget:
    """The power limits of a group of GPUs together are to be no more than this."""

    group: Name
    limit_mw: Annotated[int, Within(1, 10**12)]
    gpus: Annotated[tuple[Name, ...], Within(0, 1000)]
    """Words ``GPU-...`` (UUID), ``HOST:INDEX`` (PCI order) and ``HOST:all``; none: every GPU of the site."""
    set_ns: WallNs
    begin_ns: WallNs
    """UTC, as all times here. From then on it holds."""
    end_ns: WallNs
    ramp_ns: Ns
    """From what was to the limit, and back after the end."""
    before_mw: Annotated[int, Within(1, 10**12)] | None = None
    """The limit that it replaces; None: what was found on the GPUs."""
    way: Annotated[float, Within(0, 1)] = 0.0
    """How far the ramp is, at the time of a note."""


@dataclass(frozen=True, slots=True)
class BudgetsSet:
    """The analyzer's own word, in a log of its own: from here on these budgets hold, and no others."""

    t_ns: Ns
    budgets: Annotated[tuple[Budget, ...], Within(0, 1000)]


Note = (
    CollectorStarted
    | ClockAnchored
    | DeviceFound
    | DeviceGone
    | RunAdmitted
    | SessionEnded
    | Applied
    | ClockApplied
    | Refused
    | LeaseEnded
    | ClockLeaseEnded
    | Lost
    | BudgetsSet
)


@dataclass(frozen=True, slots=True)
class Notes:
    """What the collector itself has to say."""

    notes: Annotated[tuple[Note | Unknown, ...], Within(0, 1000)]


Body = Readings | Events | Notes


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a collector's log. Offsets count 0, 1, 2, ... without holes within one ``log_id``.

    ``body`` stays encoded (`wire.decode` makes it a `Body`): who only archives or forwards need not look.
    """

    log_id: Name
    offset: Count
    host: Name
    t_ns: Ns
    """When it was logged."""
    topic: Name
    """``readings/<host>``, ``events/<host>/<job>`` or ``notes/<host>``."""
    body: bytes


# ---- control socket: analyzer -> collector ----------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class AskStatus:
    pass


@dataclass(frozen=True, slots=True)
class Status:
    """One process's state for people: rows of (section, name, value)."""

    rows: Annotated[tuple[tuple[Text, Text, Text], ...], Within(0, 10_000)]


@dataclass(frozen=True, slots=True)
class No:
    """Reply to a request that was understood and refused, or not understood."""

    reason: Text


# ---- query socket: anybody -> analyzer ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    sql: Annotated[str, Within(1, 100_000)]
    max_rows: Annotated[int, Within(1, 10_000_000)]
    timeout_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class ForgetJob:
    """Let a job that recurs begin anew. Its tries stay in the archive, and count no more."""

    job: Name


@dataclass(frozen=True, slots=True)
class Forgotten:
    tries: Count
    """That count no more."""


@dataclass(frozen=True, slots=True)
class QueryDone:
    """An Arrow IPC stream follows in the next message part."""

    rows: Count
    truncated: bool
    """There were more than ``max_rows``."""


Request = (
    Hello
    | Fetch
    | SetLimit
    | ReleaseLimit
    | LockClock
    | ReleaseClock
    | RenewLeases
    | AskStatus
    | Query
    | ForgetJob
    | Answer
    | Advice
)
Reply = (
    Welcome | Fetched | Applied | ClockApplied | Refused | Status | QueryDone | Forgotten | No | Ask | AskTry
)
