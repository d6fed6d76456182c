"""Windows of one session: begins and ends in, measured windows out, one row a GPU. Pure.

    begin -> open -> end -> waits until the readings of all its GPUs have passed its end -> row
                       \\-> or until it has waited for the timeout: row, with the reason it is missing

Steps, epochs, named windows and the run itself are all windows. They may nest and overlap.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from analyzers.measurement.calibration import calibrated
from analyzers.measurement.energy import NO_JOULES, Energy, Meter, Missing
from analyzers.results.rows import WindowRow
from zeus_stream.protocol.fields import of_host
from zeus_stream.records import record

MAX_OPEN = 1_000
"""Windows one session may have open; one more is not measured."""
MAX_WAITING = 100_000
"""Ended windows that wait for readings; past it the oldest are measured with what there is."""

BATCH_NS = 1_000_000_000
"""Steps are measured together, at most this often: one fit of many refreshes costs a fraction of many fits.
A window, an epoch or the end of a run is measured as soon as it can be, with the steps until then."""
UNDECIDED_NS = 10_000_000_000
"""So long steps wait until the kind of a counter is known, which decides what they used."""

Kind = Literal["step", "epoch", "window", "run"]
Shared = Callable[[str, int, int], bool]
"""Whether another run used a GPU or part of the host (UUID) between two instants."""


@record
class Owner:
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
    window: _Window
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
        self._ended: list[_Ended] = []
        self._urgent = False
        """Windows wait that are no steps."""
        self._measured_ns = -BATCH_NS
        """Frame time at which windows were measured last."""

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
            self._ended.append(_Ended(window, t_ns, now_ns, remark))
            self._urgent |= kind != "step"

    def cancel(self, kind: Kind, index: int) -> None:
        """Forget an open window."""
        self._open.pop((kind, index), None)

    def end_all(self, t_ns: int, now_ns: int) -> None:
        """The session is over: end its run, and cut short what else is open."""
        for kind, index in tuple(self._open):
            self.end(kind, index, t_ns, now_ns, None if kind == "run" else "cut short by the end of the run")

    def abandon(self, t_ns: int, reason: str) -> list[WindowRow]:
        """Return the row of the run, without energy; nothing more is measured of this session."""
        ended = [each for each in self._ended if each.window.kind == "run"]
        opened = [
            _Ended(window, t_ns, t_ns, None) for (kind, _), window in self._open.items() if kind == "run"
        ]
        self._open.clear()
        self._ended.clear()
        return [self._row(each, None, Missing(reason)) for each in (*ended, *opened)]

    @property
    def empty(self) -> bool:
        """Nothing is open or waits."""
        return not self._open and not self._ended

    def ready(self, now_ns: int) -> bool:
        """Return whether windows wait that may be measured now, as far as batches go."""
        return bool(self._ended) and (self._urgent or not 0 <= now_ns - self._measured_ns < BATCH_NS)

    def needed_ns(self) -> list[int]:
        """Return the instants whose energy is still to be asked for."""
        opened = [window.begin_ns for window in self._open.values()]
        return opened + [t for ended in self._ended for t in (ended.window.begin_ns, ended.end_ns)]

    def measured(self, meters: Mapping[str, Meter] | None, now_ns: int, shared: Shared) -> list[WindowRow]:
        """Return the rows of windows that need wait no longer.

        Args:
            meters: by UUID, of all GPUs of the session and all parts of its host. None: its GPUs are not
                known yet.
            now_ns: frame time of the session's host.
            shared: see `Shared`.
        """
        due = self._due(meters, now_ns) if self.ready(now_ns) else []
        spare = len(self._ended) - MAX_WAITING
        if spare > len(due):
            due = self._ended[:spare]
        if not due:
            return []
        self._measured_ns = now_ns
        gone = set(map(id, due))
        self._ended = [ended for ended in self._ended if id(ended) not in gone]
        self._urgent = any(ended.window.kind != "step" for ended in self._ended)
        if meters is None:
            return [self._row(e, None, Missing("the collector has not named its GPUs")) for e in due]
        rows = [
            row for gpu, meter in meters.items() for row in self._measure(due, gpu, meter, now_ns, shared)
        ]
        if all(map(of_host, meters)):
            rows += [self._row(ended, None, Missing("the session has no GPU")) for ended in due]
        return rows

    def _due(self, meters: Mapping[str, Meter] | None, now_ns: int) -> list[_Ended]:
        """Return the windows that have timed out, or that the readings of all GPUs have passed."""
        settled_ns = None
        if meters is not None and self._waits(meters, now_ns):
            return []
        if meters is not None:
            # Readings that have passed an instant have passed all before it.
            ends_ns = sorted({ended.end_ns for ended in self._ended})
            passed = bisect_left(ends_ns, True, key=lambda t_ns: not _settled(meters, t_ns, now_ns))  # noqa: FBT003
            settled_ns = ends_ns[passed - 1] if passed else None
        return [
            ended
            for ended in self._ended
            if (settled_ns is not None and ended.end_ns <= settled_ns)
            or now_ns - ended.received_ns >= self._timeout_ns
        ]

    def _waits(self, meters: Mapping[str, Meter], now_ns: int) -> bool:
        """Return whether steps wait until it is known what the counter of a GPU counts."""
        if self._urgent or now_ns - self._ended[0].received_ns >= UNDECIDED_NS:
            return False
        waits = [meter.identify(now_ns) for meter in meters.values()]
        if any(waits):
            self._measured_ns = now_ns
        return any(waits)

    def _measure(
        self, due: Sequence[_Ended], gpu: str, meter: Meter, now_ns: int, shared: Shared
    ) -> list[WindowRow]:
        begins = [ended.window.begin_ns for ended in due]
        ends = [ended.end_ns for ended in due]
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
        energy: Energy | Missing,
        limit_mw: int | None = None,
        *,
        shared: bool = False,
    ) -> WindowRow:
        owner, window = self._owner, ended.window
        if isinstance(energy, Missing):
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
            kind=window.kind,
            name=window.name,
            index=window.number,
            gpu=gpu,
            begin_ns=window.begin_ns,
            end_ns=ended.end_ns,
            duration_s=(ended.end_ns - window.begin_ns) / 1e9,
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
