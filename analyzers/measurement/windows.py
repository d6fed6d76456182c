"""Windows of one session: begins and ends in, measured windows out, one row a GPU. Pure.

    begin -> open -> end -> waits until the readings of all its GPUs have passed its end -> row
                       \\-> or until it has waited for the timeout: row, with the reason it is missing

Steps, epochs, named windows and the run itself are all windows. They may nest and overlap.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import not_
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from analyzers.measurement.energy import NO_JOULES, KnownEnergy, Meter, NoEnergy, calibrated
from analyzers.measurement.energy_fit import EVENTS_ARRIVE_NS
from analyzers.results.rows import StepColumns, WindowRow
from zeus_stream.protocol.events import StepBoundary
from zeus_stream.protocol.fields import of_host

MAX_OPEN = 1_000
"""Windows one session may have open, beside its step; one more is not measured."""
MAX_WAITING = 100_000
"""Ended windows that wait for readings; past it the oldest are measured with what there is."""

BATCH_NS = 1_000_000_000
"""Steps are measured together, at most this often: one fit of many refreshes costs a fraction of many fits.
A window, an epoch or the end of a run is measured as soon as it can be, with the steps until then."""
MANY = 8
"""Steps that are measured together are columns if they are so many, and nothing else ended."""
UNDECIDED_NS = 10_000_000_000
"""So long steps wait until the kind of a counter is known, which decides what they used."""
MOST_LATE_NS = 1_000_000_000
"""Steps wait for events that are as late as those before them, at most so late."""
LATE_FADES = 20
"""That is forgotten by this part of the time that passes."""

Kind = Literal["step", "epoch", "window", "run"]
STEP: Kind = "step"
Shared = Callable[[str, int, int], bool]
"""Whether another run used a GPU or part of the host (UUID) between two instants."""


class Owner(Struct, frozen=True):
    """Whose windows they are."""

    session: str
    run: str
    job: str
    rank: int
    host: str


class _Window(NamedTuple):
    kind: Kind
    number: int
    name: str
    begin_ns: int


class _Ended(NamedTuple):
    kind: Kind
    number: int
    name: str
    begin_ns: int
    end_ns: int
    received_ns: int
    """Frame time at which its end arrived: the timeout runs from there."""
    remark: str | None


class Windows:
    """The windows of one session."""

    def __init__(self, owner: Owner, timeout_ns: int) -> None:
        self._owner = owner
        self._timeout_ns = timeout_ns
        self._open: dict[tuple[Kind, int], _Window] = {}
        self._step: tuple[int, int] | None = None
        """Index and begin of the step under way."""
        self._ended = list[_Ended]()
        """In the order in which they ended."""
        self._urgent = False
        """Windows wait that are no steps."""
        self._measured_ns = -BATCH_NS
        """Frame time at which windows were measured last."""
        self._late = 0, 0
        """The lateness of an end that came in late, and when that was, ns."""

    def begin(self, kind: Kind, index: int, name: str, t_ns: int) -> bool:
        """Open a window. Returns False, and does not, if `MAX_OPEN` are."""
        if len(self._open) >= MAX_OPEN:
            return False
        self._open[kind, index] = _Window(kind, index, name, t_ns)
        return True

    def end(self, kind: Kind, index: int, t_ns: int, now_ns: int, remark: str | None = None) -> None:
        """End a window; one that is not open is none of ours. ``remark`` goes into its quality."""
        window = self._open.pop((kind, index), None)
        if window is not None:
            self._ended.append(_Ended(*window, t_ns, now_ns, remark))
            self._urgent = True

    def pass_steps(self, boundaries: Sequence[StepBoundary], received_ns: Sequence[int]) -> None:
        """End and open a step at each boundary, received at these frame times. One without end is lost."""
        step = self._step
        for boundary, heard_ns in zip(boundaries, received_ns, strict=True):
            index, ended_ns, began_ns = boundary.index, boundary.ended_ns, boundary.began_ns
            if ended_ns is not None and step is not None and step[0] == index - 1:
                self._ended.append(_Ended(STEP, index - 1, STEP, step[1], ended_ns, heard_ns, None))
            step = None if began_ns is None else (index, began_ns)
        self._step = step

    def cancel(self, kind: Kind, index: int) -> None:
        self._open.pop((kind, index), None)

    def end_all(self, t_ns: int, now_ns: int) -> None:
        """The session is over: end its run, and cut short what else is open."""
        cut = "cut short by the end of the run"
        for kind, index in tuple(self._open):
            self.end(kind, index, t_ns, now_ns, None if kind == "run" else cut)
        if self._step is not None:
            index, begin_ns = self._step
            self._ended.append(_Ended(STEP, index, STEP, begin_ns, t_ns, now_ns, cut))
            self._step = None

    def abandon(self, t_ns: int, reason: str) -> list[WindowRow]:
        """Return the row of the run, without energy; nothing more is measured of this session."""
        ended = [each for each in self._ended if each.kind == "run"]
        opened = [
            _Ended(*window, t_ns, t_ns, None) for (kind, _), window in self._open.items() if kind == "run"
        ]
        self._open.clear()
        self._step, self._ended = None, []
        return [self._row(each, None, NoEnergy(reason)) for each in (*ended, *opened)]

    @property
    def empty(self) -> bool:
        return not self._open and self._step is None and not self._ended

    def ready(self, now_ns: int) -> bool:
        """Return whether windows wait that may be measured now, as far as batches go."""
        return bool(self._ended) and (self._urgent or not 0 <= now_ns - self._measured_ns < BATCH_NS)

    def hasten(self) -> None:
        self._measured_ns = -BATCH_NS

    def needed_ns(self) -> list[int]:
        """Return the instants whose energy is still to be asked for."""
        opened = [window.begin_ns for window in self._open.values()]
        opened += () if self._step is None else self._step[1:]
        return [*opened, *(t_ns for each in self._ended for t_ns in (each.begin_ns, each.end_ns))]

    def measured(
        self, meters: Mapping[str, Meter] | None, now_ns: int, shared: Shared
    ) -> list[WindowRow | StepColumns]:
        """Return the rows of windows that need wait no longer, of many steps as columns.

        ``meters``: by UUID, of all GPUs of the session and parts of its host; None: they are not known yet.
        """
        heard_ns = self._heard_ns(now_ns)
        chosen = self._due(meters, now_ns, heard_ns) if self.ready(now_ns) else []
        spare = len(self._ended) - MAX_WAITING
        if spare > chosen.count(True):
            chosen = [place < spare for place in range(len(self._ended))]
        if True not in chosen:
            return []
        self._measured_ns = now_ns
        due = list(compress(self._ended, chosen))
        self._ended = list(compress(self._ended, map(not_, chosen)))
        self._urgent = any(each.kind != STEP for each in self._ended)
        if meters is None:
            return [self._row(e, None, NoEnergy("the collector has not named its GPUs")) for e in due]
        rows: list[WindowRow | StepColumns] = []
        columns = len(due) >= MANY and all(each.kind == STEP and each.remark is None for each in due)
        for gpu, meter in meters.items():
            steps = self._columns(due, gpu, meter, heard_ns, shared) if columns else None
            rows += self._measure(due, gpu, meter, heard_ns, shared) if steps is None else [steps]
        if all(map(of_host, meters)):
            rows += [self._row(ended, None, NoEnergy("the session has no GPU")) for ended in due]
        return rows

    def _heard_ns(self, now_ns: int) -> int:
        """Return the frame time less what events are later than expected: refreshes are known before them."""
        late_ns = max((each.received_ns - each.end_ns for each in self._ended), default=0)
        if late_ns >= (faded_ns := self._late[0] - max(now_ns - self._late[1], 0) // LATE_FADES):
            self._late, faded_ns = (late_ns, now_ns), late_ns
        return now_ns if self._urgent else now_ns - max(min(faded_ns, MOST_LATE_NS) - EVENTS_ARRIVE_NS, 0)

    def _due(self, meters: Mapping[str, Meter] | None, now_ns: int, heard_ns: int) -> list[bool]:
        """Return which windows have timed out, or have been passed by the readings of all GPUs."""
        ended, passed_ns = self._ended, -1
        if meters is not None and self._waits(meters, heard_ns):
            return []
        if meters is not None:
            # Readings that have passed an instant have passed all before it.
            ends_ns = sorted(each.end_ns for each in ended)
            passed = bisect_left(ends_ns, True, key=lambda t_ns: not _settled(meters, t_ns, heard_ns))  # noqa: FBT003
            passed_ns = ends_ns[passed - 1] if passed else -1
        old_ns = now_ns - self._timeout_ns
        return [each.end_ns <= passed_ns or each.received_ns <= old_ns for each in ended]

    def _waits(self, meters: Mapping[str, Meter], now_ns: int) -> bool:
        """Return whether steps wait until it is known what the counter of a GPU counts."""
        if self._urgent or now_ns - self._ended[0].received_ns >= UNDECIDED_NS:
            return False
        waits = [meter.identify(now_ns) for meter in meters.values()]
        if any(waits):
            self._measured_ns = now_ns
        return any(waits)

    def _columns(
        self, due: Sequence[_Ended], gpu: str, meter: Meter, now_ns: int, shared: Shared
    ) -> StepColumns | None:
        """Return the rows of steps as columns; None where each energy is worked out for itself."""
        timeline = meter.timeline
        if meter.mixes() or timeline.gain is not None or timeline.doubt is not None:
            return None
        begins, ends = [each.begin_ns for each in due], [each.end_ns for each in due]
        begin_ns, end_ns = np.array(begins, np.int64), np.array(ends, np.int64)
        found = meter.measure_columns(begin_ns, end_ns, now_ns)
        if meter.mixes():
            return None
        limits_mw = np.array(timeline.limits_mw(begins, ends), np.float64)  # NaN in place of None
        alone, owner = not shared(gpu, min(begins), max(ends)), self._owner
        energy_j, low_j, high_j, p2_5_j, p97_5_j = found.joules()
        return StepColumns(
            session=owner.session,
            run=owner.run,
            job=owner.job,
            rank=owner.rank,
            host=owner.host,
            gpu=gpu,
            index=np.array([each.number for each in due], np.int64),
            begin_ns=begin_ns,
            end_ns=end_ns,
            duration_s=(end_ns - begin_ns) / 1e9,
            energy_j=energy_j,
            energy_low_j=low_j,
            energy_high_j=high_j,
            energy_p2_5_j=p2_5_j,
            energy_p97_5_j=p97_5_j,
            phase_coverage=np.where(found.known, np.array(found.phase_coverage, np.float64), np.nan),
            power_limit_w=limits_mw / 1000,
            estimator=tuple(
                one if sure else None for sure, one in zip(found.known.tolist(), found.estimator, strict=True)
            ),
            quality=tuple(found.quality),
            shared=np.zeros(len(due), np.bool_)
            if alone
            else np.array([shared(gpu, begin, end) for begin, end in zip(begins, ends, strict=True)]),
        )

    def _measure(
        self, due: Sequence[_Ended], gpu: str, meter: Meter, now_ns: int, shared: Shared
    ) -> list[WindowRow]:
        begins, ends = [each.begin_ns for each in due], [each.end_ns for each in due]
        energies, limits = meter.measure(begins, ends, now_ns), meter.timeline.limits_mw(begins, ends)
        energies = calibrated(meter.timeline, energies, begins, ends)
        alone = not shared(gpu, min(begins), max(ends))
        return [
            self._row(ended, gpu, energy, limit_mw, shared=not alone and shared(gpu, begin, end))
            for ended, energy, limit_mw, begin, end in zip(due, energies, limits, begins, ends, strict=True)
        ]

    def _row(
        self,
        ended: _Ended,
        gpu: str | None,
        energy: KnownEnergy | NoEnergy,
        limit_mw: int | None = None,
        *,
        shared: bool = False,
    ) -> WindowRow:
        owner = self._owner
        if isinstance(energy, NoEnergy):
            quality, estimator, coverage, joules = energy.reason, None, None, NO_JOULES
        else:
            quality, estimator, coverage = energy.quality, energy.estimator, energy.phase_coverage
            joules = energy.joules
        energy_j, low_j, high_j, p2_5_j, p97_5_j = joules
        if ended.remark:
            quality = ended.remark if quality == "ok" else f"{ended.remark}; {quality}"
        return WindowRow(
            session=owner.session,
            run=owner.run,
            job=owner.job,
            rank=owner.rank,
            host=owner.host,
            kind=ended.kind,
            name=ended.name,
            index=ended.number,
            gpu=gpu,
            begin_ns=ended.begin_ns,
            end_ns=ended.end_ns,
            duration_s=(ended.end_ns - ended.begin_ns) / 1e9,
            energy_j=energy_j,
            energy_low_j=low_j,
            energy_high_j=high_j,
            energy_p2_5_j=p2_5_j,
            energy_p97_5_j=p97_5_j,
            phase_coverage=coverage,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            estimator=estimator,
            quality=quality,
            shared=shared,
        )


def _settled(meters: Mapping[str, Meter], t_ns: int, now_ns: int) -> bool:
    return all(meter.settled(t_ns, now_ns) for meter in meters.values())
