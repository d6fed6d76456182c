"""One rank of a run, as its events tell it: where it is in its loop, and when its steps began. Pure."""

from collections.abc import Iterable, Sequence
from math import hypot
from typing import NamedTuple

from msgspec import Struct

from analyzers.results.rows import AllocationRow, RunRow, WindowRow
from zeus_stream.protocol.events import JobAllocation, Placed, RunStarted, StepBoundary
from zeus_stream.protocol.fields import of_host
from zeus_stream.protocol.notes import RunAdmitted


class Span(Struct, frozen=True):
    """A row of whole steps, ``first`` to ``end - 1``, without a pause between."""

    first: int
    end: int


class WaitingSteps(NamedTuple):
    """Steps in a frame that wait until somebody asks for them."""

    log_id: str
    offset: int
    t_ns: int
    """Frame time."""
    steps: Sequence[StepBoundary]


class Session:
    """One rank of a run."""

    def __init__(
        self,
        session: str,
        host: str,
        uid: int | None,
        started: RunStarted,
        *,
        steps_kept: int,
        start: int | None = None,
        barred: str | None = None,
    ) -> None:
        """``steps_kept``: so many last boundaries are remembered. ``barred``: why it may not command.

        ``start``: of the analyzer under whose settings its run goes; None: the one under way.
        """
        self.session = session
        self.host = host
        self.started = started
        self.batch_size = started.batch_size
        """Samples of its batch; None: not known."""
        self.admitted: RunAdmitted | None = None
        self.ended: tuple[int, str] | None = None
        """When and how."""
        self.step: int | None = None
        """The one under way."""
        self.measured_ns = 0
        """Frame time at which its windows were last looked at."""
        self.received_ns = started.t_ns
        """Frame time of its latest events."""
        self.waiting: list[WaitingSteps] = []
        """Its latest steps, which are not taken in; oldest first."""
        self.placed: Placed = "dispatch"
        """The way in which its latest step boundary was placed."""
        self.loop = "rest"
        """Its place in the loop: ``step`` or ``rest``."""
        self.named: dict[int, str] = {}
        """Its open windows, the innermost last."""
        self.allocated: Sequence[WindowRow] = ()
        """The window of an allocation, once it is measured."""
        self.barred, self.uid, self._start = barred, uid, start
        self._began: dict[int, int] = {}
        self._whole: dict[int, int] = {}
        self._step_ns: dict[int, int] = {}
        """From a batch until the next is asked for."""
        self._noted: list[StepBoundary] = []
        """Boundaries that are not in these yet."""
        self._keep = steps_kept

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.admitted.gpus if self.admitted else ()

    @property
    def phase(self) -> str:
        """Return what the power of its GPUs depends on: its job, innermost window and place in the loop."""
        return self.phase_in(self.loop)

    def phase_in(self, loop: str) -> str:
        inner = next(reversed(self.named.values())) if self.named else ""
        return f"{self.started.job}/{inner}/{loop}"

    def same_process(self, host: str, uid: int | None, started: RunStarted) -> bool:
        """Return True if a session of a user that starts with this event belongs to this one's process."""
        mine = self.started
        return (self.host, self.uid, mine.boot_id, mine.pid, mine.t_ns) == (
            host,
            uid,
            started.boot_id,
            started.pid,
            started.t_ns,
        )

    def note(self, boundaries: Sequence[StepBoundary]) -> None:
        self._noted += boundaries
        if len(self._noted) > self._keep:
            self._take_in()

    def _take_in(self) -> None:
        """Take in the boundaries of `note`: seldom, since few ask for them."""
        for boundary in self._noted:
            index, ended_ns, began_ns = boundary.index, boundary.ended_ns, boundary.began_ns
            if began_ns is not None:
                self._began[index] = began_ns
            if ended_ns is not None:
                # Steps in a row are measured from begin to begin; the last before a pause to its end.
                self._whole[index] = ended_ns if began_ns is None else began_ns
                if (since_ns := self._began.get(index - 1)) is not None:
                    self._step_ns[index - 1] = ended_ns - since_ns
        if self._noted:
            self._noted = []
            self._forget()

    def _forget(self) -> None:
        for kept in (self._began, self._whole, self._step_ns):
            while len(kept) > self._keep:
                del kept[next(iter(kept))]

    def began_ns(self, index: int) -> int | None:
        self._take_in()
        return self._began.get(index)

    def first_since(self, t_ns: int) -> int | None:
        """Return the first step that began at ``t_ns`` or later, if one has."""
        self._take_in()
        first = None
        for index, began_ns in reversed(self._began.items()):
            if began_ns < t_ns:
                break
            first = index
        return first

    def last_before(self, t_ns: int) -> int | None:
        """Return the last step that began before ``t_ns``, if that is remembered."""
        self._take_in()
        return next((index for index, began_ns in reversed(self._began.items()) if began_ns < t_ns), None)

    def edges(self, span: Span) -> tuple[int, int] | None:
        """Return when a span of steps began and was whole, if it is and that is remembered."""
        self._take_in()
        begin_ns, end_ns = self._began.get(span.first), self._whole.get(span.end)
        return None if begin_ns is None or end_ns is None else (begin_ns, end_ns)

    def steps_ns(self, span: Span) -> list[int]:
        """Return how long steps took, those that are known; without the wait for their batches."""
        self._take_in()
        return [self._step_ns[index] for index in range(span.first, span.end) if index in self._step_ns]

    def last_step_ns(self) -> int:
        """Return how long the last whole step took, without the wait for its batch; 0: not known."""
        self._take_in()
        return next(reversed(self._step_ns.values()), 0)

    def rows(self) -> tuple[RunRow | AllocationRow, ...]:
        if self.started.allocation is None:
            return (self._row(),)
        allocated = allocation_row(
            self.started.allocation,
            self.allocated,
            session=self.session,
            host=self.host,
            gpus=self.gpus,
            began_wall_ns=self.started.wall_ns,
            ended_wall_ns=self.wall_ns(self.ended[0]) if self.ended else None,
        )
        return (self._row(), allocated)

    def _row(self) -> RunRow:
        started, admitted = self.started, self.admitted
        pod = admitted.pod if admitted else None
        return RunRow(
            session=self.session,
            run=started.run,
            job=started.job,
            rank=started.rank,
            world_size=started.world_size,
            host=self.host,
            pid=started.pid,
            uid=self.uid,
            gpus=self.gpus,
            boundary=started.boundary,
            began_ns=started.t_ns,
            ended_ns=self.ended[0] if self.ended else None,
            began_wall_ns=started.wall_ns,
            wall_error_ns=started.wall_error_ns,
            ended_how=self.ended[1] if self.ended else None,
            may_command=admitted.may_command and self.barred is None if admitted else False,
            command_reason=self.barred
            or (admitted.reason if admitted else "the collector has not admitted the run yet"),
            batch_size=self.batch_size,
            start=self._start,
            cgroup=admitted.cgroup if admitted else None,
            namespace=pod.namespace if pod else None,
            pod=pod.name if pod else None,
            container=pod.container if pod else None,
        )

    def wall_ns(self, t_ns: int) -> int:
        """Return UTC, ns since 1970, at an instant of its host's clock."""
        return max(0, self.started.wall_ns + t_ns - self.started.t_ns)


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
