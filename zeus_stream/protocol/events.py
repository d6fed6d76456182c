"""Events and questions of a training process, and the answers to it (publish socket).

training process --publish-->  collector
  Batch, Ask, AskTry
        <--Ack, Answer, Advice
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import (
    BatchSize,
    Count,
    Finite,
    Gpu,
    Gpus,
    Milliwatts,
    Name,
    Ns,
    Text,
    Unknown,
    WallNs,
)
from zeus_stream.protocol.pipelines import IterationRan, PipelineBegan

MAX_NAMES = 250
MAX_MARKS = 20_000
MARK = struct.Struct(
    "<IB"
)  # us since the event's instant, and the phase: 0 none, else its place in ``names`` plus 1


class PhasesRan(Struct, frozen=True, tag=True):
    """Marks of the thread that trains: from each instant on, this phase was under way."""

    t_ns: Ns
    """Of the first mark, or before."""
    names: Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]
    marks: Annotated[bytes, Meta(max_length=MARK.size * MAX_MARKS)]
    """`MARK` for each, in their order."""


def pack_marks(t_ns: int, marks: Iterable[tuple[int, int]]) -> bytes:
    """Return marks, given as (instant in ns, phase), for an event at ``t_ns``."""
    return b"".join(MARK.pack((at_ns - t_ns) // 1000, phase) for at_ns, phase in marks)


def unpack_marks(ran: PhasesRan) -> Iterator[tuple[int, int]]:
    """Yield instant (ns) and phase of each mark. A mark that was cut off is left out."""
    whole = len(ran.marks) // MARK.size * MARK.size
    for since_us, phase in MARK.iter_unpack(ran.marks[:whole]):
        yield ran.t_ns + since_us * 1000, phase


class JobAllocation(Struct, frozen=True, kw_only=True):
    """The GPUs of one host that a batch system gave to a job. Only root may send it, for the job's user."""

    job_id: Name
    """As the batch system numbers it; a task of an array has one of its own."""
    uid: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    user_name: Name
    node: Name
    """The host's name in the batch system."""
    name: Name | None = None
    array_task: Name | None = None
    """Job and task of an array, JOB_TASK."""
    partition: Name | None = None
    restarts: Count = 0


class RunStarted(Struct, frozen=True, kw_only=True, tag=True):
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
    parent_pid: Count | None = None
    """The process of the same run that started this one; None: a launcher did, or a person."""
    allocation: JobAllocation | None = None
    """The session is this allocation, and no process."""


class EpochBegan(Struct, frozen=True, tag=True):
    t_ns: Ns
    index: Count


class EpochEnded(Struct, frozen=True, tag=True):
    t_ns: Ns
    index: Count


Placed = Literal["dispatch", "device", "ready"]
"""The source of a boundary's instant. Python came by; a timing event in the device's queue completed; the
step's output was ready."""


class StepBoundary(Struct, frozen=True, tag=True):
    """Between two steps: step ``index - 1`` ended (its successor was asked for), step ``index`` began.

    ``index`` counts over the whole run, from 0. At the first boundary of a loop nothing ended; at the
    last nothing began. Where neither is given, step ``index - 1`` was begun and is cancelled.
    """

    index: Count
    ended_ns: Ns | None
    began_ns: Ns | None
    placed: Placed = "dispatch"
    uncertainty_ns: Ns | None = None
    """Both stamps are at most so far off. None: not known, as by dispatch."""


class WindowBegan(Struct, frozen=True, tag=True):
    t_ns: Ns
    window: Count
    """Unique within the session."""
    name: Name


class WindowEnded(Struct, frozen=True, tag=True):
    t_ns: Ns
    window: Count


class WindowCancelled(Struct, frozen=True, tag=True):
    t_ns: Ns
    window: Count


class Metric(Struct, frozen=True, tag=True):
    t_ns: Ns
    name: Name
    value: Finite
    step: Count | None = None
    """The step that it belongs to. None: the sender does not know."""
    epoch: Count | None = None


class TryWanted(Struct, frozen=True, kw_only=True, tag=True):
    """A training of a job that recurs wants to know which batch size to train with. All its ranks may say so.

    ``attempt`` counts within the session, from 0: a try that misses the target may be followed by another.
    """

    t_ns: Ns
    attempt: Count
    job: Name
    batch_sizes: Annotated[tuple[BatchSize, ...], Meta(min_length=1, max_length=100)]
    """Ascending."""
    default: BatchSize
    """One of them."""
    target: Finite
    metric: Name
    lower_is_better: bool
    max_epochs: Annotated[int, Meta(ge=1, le=1_000_000)]
    eta: Annotated[float, Meta(ge=0, le=1)]
    beta: Annotated[float, Meta(ge=1, le=1e6)]
    window: Count


class TryBegan(Struct, frozen=True, tag=True):
    """From here on the session trains with this batch size, whether or not it was the one advised."""

    t_ns: Ns
    attempt: Count
    batch_size: BatchSize


class TryEnded(Struct, frozen=True, tag=True):
    """The end of the session's try; a try whose session ends without it was lost."""

    t_ns: Ns
    attempt: Count
    how: Literal["converged", "stopped", "exhausted", "lost"]
    reason: Text


class SearchWanted(Struct, frozen=True, kw_only=True, tag=True):
    """A run chooses how its power limit is searched for. It counts before its search has begun."""

    t_ns: Ns
    select: Name
    """A selector of the registry. An analyzer that runs with ``none`` only measures all the same."""
    wait_steps: Count
    warmup_steps: Count
    profile_steps: Annotated[int, Meta(ge=1, le=1_000_000)]
    stride_mw: Annotated[int, Meta(ge=1_000, le=1_000_000)]
    only_mw: Milliwatts | None = None
    """The one limit to use. None: every limit is measured."""


class RunPlanned(Struct, frozen=True, tag=True):
    """The planned length of a run, as its script says. A later one replaces it."""

    t_ns: Ns
    epochs: Count | None
    """Of the whole run; those before a resume are among them. None, as for steps: not known."""
    steps: Count | None
    epoch_steps: Count | None = None
    """Of the first epoch, where ``steps`` is not known."""

    @property
    def all_steps(self) -> int | None:
        """Steps of the whole run if each epoch is as long as the first. None: not known."""
        if self.steps is None and self.epochs is not None and self.epoch_steps is not None:
            return self.epochs * self.epoch_steps
        return self.steps


class EventsDropped(Struct, frozen=True, tag=True):
    """The publisher's bounded buffer was full: this many events before ``t_ns`` are not in the stream."""

    t_ns: Ns
    count: Count
    reason: Text


class RunEnded(Struct, frozen=True, tag=True):
    """The session's last event, sent by a publisher that closes in order."""

    t_ns: Ns
    failure: Text | None = None
    """The exception, or the exit code of a command, by which it ended. None: none is known."""


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
    | SearchWanted
    | PipelineBegan
    | IterationRan
    | RunPlanned
    | PhasesRan
    | EventsDropped
    | RunEnded
)


class Batch(Struct, frozen=True):
    """Events ``sequence``, ``sequence + 1``, ... of a session. Sent again until acknowledged."""

    session: Name
    sequence: Count
    events: Annotated[tuple[Event | Unknown, ...], Meta(max_length=1000)]


class Ack(Struct, frozen=True):
    """The session's events below ``next_sequence`` are in the log."""

    session: Name
    next_sequence: Count
    gather_ms: Annotated[int, Meta(ge=0, le=500)] = 0
    """Events may come together for so long before they are sent: nobody waits for them."""


class Ask(Struct, frozen=True):
    """A script asks for the energy of a window it has ended; the collector passes it to its analyzer."""

    question: Name
    session: Name
    window: Count


class GpuEnergy(Struct, frozen=True):
    gpu: Gpu
    energy_j: Finite
    energy_low_j: Finite
    energy_high_j: Finite


class Answer(Struct, frozen=True):
    question: Name
    duration_s: Finite | None
    gpus: Annotated[tuple[GpuEnergy, ...], Meta(max_length=256)]
    missing: Text | None
    """Why there is no energy; then ``gpus`` is empty."""


class AskTry(Struct, frozen=True):
    """A script asks which batch size to try (``epochs`` is 0), or whether to go on after so many epochs."""

    question: Name
    session: Name
    attempt: Count
    epochs: Count


class Advice(Struct, frozen=True):
    question: Name
    batch_size: BatchSize | None
    """None: there is none, for the reason given."""
    go_on: bool
    reason: Text


class No(Struct, frozen=True):
    """Reply to a request that was understood and refused, or not understood."""

    reason: Text
