"""The row of an allocation: the GPUs of one host that a batch system gave a job, and their energy. Pure."""

from collections.abc import Iterable, Sequence
from math import hypot

from analyzers.results.rows import AllocationRow, WindowRow
from zeus_stream.protocol.events import JobAllocation
from zeus_stream.protocol.fields import of_host


def allocation_row(
    allocation: JobAllocation,
    windows: Sequence[WindowRow],
    *,
    session: str,
    host: str,
    gpus: tuple[str, ...],
    began_wall_ns: int,
    ended_wall_ns: int | None,
) -> AllocationRow:
    """Return the row of an allocation. ``windows``: measured, a row a GPU or part; none: it goes on."""
    parts = [row for row in windows if row.gpu is None or not of_host(row.gpu)]
    missing = [row for row in parts if row.energy_j is None]
    energy_j = _sum(row.energy_j for row in parts)
    below_j, above_j = (
        _hypot(_difference(getattr(row, name), row.energy_j) for row in parts)
        for name in ("energy_p2_5_j", "energy_p97_5_j")
    )
    return AllocationRow(
        session=session,
        job_id=allocation.job_id,
        array_task=allocation.array_task,
        name=allocation.name,
        uid=allocation.uid,
        user_name=allocation.user_name,
        partition=allocation.partition,
        restarts=allocation.restarts,
        node=allocation.node,
        host=host,
        gpus=gpus,
        began_wall_ns=began_wall_ns,
        ended_wall_ns=ended_wall_ns,
        duration_s=parts[0].duration_s if parts else None,
        energy_j=energy_j,
        energy_low_j=_sum(row.energy_low_j for row in parts),
        energy_high_j=_sum(row.energy_high_j for row in parts),
        energy_p2_5_j=None if energy_j is None or below_j is None else max(energy_j - below_j, 0.0),
        energy_p97_5_j=None if energy_j is None or above_j is None else energy_j + above_j,
        quality="; ".join(dict.fromkeys(row.quality for row in missing or parts)),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return a sum; None: there is no part, or one is not known."""
    known = list(values)
    return sum(filter(None, known)) if known and None not in known else None


def _difference(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _hypot(values: Iterable[float | None]) -> float | None:
    """Return the width of independent errors together; None: there is no part, or one is not known."""
    known = list(values)
    return hypot(*filter(None, known)) if known and None not in known else None
