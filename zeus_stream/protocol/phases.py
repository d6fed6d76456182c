"""Phases of a step, as a script marks them: what is under way from which instant on."""

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta, Struct

from zeus_stream.protocol.fields import Name, Ns

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
