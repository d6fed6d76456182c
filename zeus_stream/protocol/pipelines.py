"""Pipelines: what a stage runs, when it ran it, and a plan of clocks for it.

training process --publish--> collector:   PipelineBegan, IterationRan (events)
training process --position--> collector:  POSITION, where an instruction begins and where it ends
analyzer --control--> collector:           SetPlan

An instruction is one number: its *code* is ``micro_batch << 10 | chunk << 2 | kind``.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import ControlValue, Count, Gpu, Milliseconds, Name, Ns

KINDS = ("forward", "backward", "weight", "recompute")
MAX_MICRO_BATCHES = 1 << 20
MAX_CHUNKS = 1 << 8
MAX_STAGES = 10_000
MAX_ROWS = 5_000
"""Instructions of one stage in one iteration."""
ROW = struct.Struct("<III")  # code, begin and length in us; the begin counts from the iteration's
POSITION = struct.Struct(
    "<QI?"
)  # iteration, code of the instruction that begins or, if the last is true, ends


def encode_instruction(kind: str, micro_batch: int, chunk: int = 0) -> int:
    """Return the code of an instruction. Raises ValueError for an unknown kind."""
    return micro_batch << 10 | chunk << 2 | KINDS.index(kind)


def decode_instruction(code: int) -> tuple[str, int, int]:
    """Return kind, micro-batch and chunk."""
    return KINDS[code & 3], code >> 10, code >> 2 & 255


class PipelineBegan(Struct, frozen=True, kw_only=True, tag=True):
    """The session runs one stage of a pipeline from here on."""

    t_ns: Ns
    stage: Annotated[int, Meta(ge=0, le=MAX_STAGES - 1)]
    stages: Annotated[int, Meta(ge=1, le=MAX_STAGES)]
    micro_batches: Annotated[int, Meta(ge=1, le=MAX_MICRO_BATCHES)]
    chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)] = 1
    tensor_parallel: Annotated[int, Meta(ge=1, le=MAX_STAGES)] = 1
    """Ranks that run each stage of one replica together."""
    schedule: Name
    """Its name, as the script gives it."""


class IterationRan(Struct, frozen=True, kw_only=True, tag=True):
    """All instructions that the session ran in one iteration, in their order."""

    t_ns: Ns
    """Its begin."""
    ended_ns: Ns
    iteration: Count
    rows: Annotated[bytes, Meta(max_length=ROW.size * MAX_ROWS)]
    """`ROW` for each instruction."""
    by_device: bool = False
    """Stamped when the GPU reached them; else when Python dispatched them."""


def pack_rows(t_ns: int, spans: Iterable[tuple[int, int, int]]) -> bytes:
    """Return the rows of instructions given as (code, begin ns, end ns)."""
    return b"".join(
        ROW.pack(code, (begin_ns - t_ns) // 1000, min((end_ns - begin_ns) // 1000, 2**32 - 1))
        for code, begin_ns, end_ns in spans
    )


def unpack_rows(ran: IterationRan) -> Iterator[tuple[int, int, int]]:
    """Yield code, begin ns and end ns of each instruction. A row that was cut off is left out."""
    whole = len(ran.rows) // ROW.size * ROW.size
    for code, begin_us, length_us in ROW.iter_unpack(ran.rows[:whole]):
        begin_ns = ran.t_ns + begin_us * 1000
        yield code, begin_ns, begin_ns + length_us * 1000


class SetPlan(Struct, frozen=True, kw_only=True):
    """Let a device follow the instructions of a run's pipeline. Outcome: as of a `SetControl`.

    It takes the lease of the graphics clock, which is locked at the plan's highest clock until the plan is
    active. The plan ends with the lease, and when the run does not do what the plan says.
    """

    command: Name
    owner: Name
    incarnation: Name
    fence: Count
    run: Name
    gpu: Gpu
    lease_ms: Milliseconds
    plan: Name
    first_iteration: Count | None = None
    """From which on clocks follow the plan. None: it is made known only."""
    iteration_ms: Milliseconds
    """Promised duration of an iteration."""
    codes: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    """Of the stage's instructions, in their order."""
    clocks_mhz: Annotated[tuple[ControlValue, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    raise_after_us: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    """By instruction: from its begin to the instant at which the next one's clock, a higher one, is asked
    for. 0: not before it ends."""


def describe_misfit(plan: SetPlan) -> str | None:
    """Return why the lists of a plan do not fit together, or None."""
    lists: Sequence[Sequence[int]] = (plan.codes, plan.clocks_mhz, plan.raise_after_us)
    if len({len(each) for each in lists}) != 1:
        return "its lists of instructions, clocks and times differ in length"
    if len(set(plan.codes)) != len(plan.codes):
        return "an instruction is in it twice"
    return None
