"""The last minutes, as a screen remembers them from one look to the next. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Any

from zeus_stream.protocol.snapshots import Snapshot

KEPT_S = 300.0
STEP_S = 2.0
"""A chart over time moves by so much."""
MAX_SERIES = 5_000
"""GPUs and runs that are remembered."""
MAX_POINTS = 700
"""Of one of them: looks come twice a second at most."""


@dataclass(slots=True)
class Series:
    """Power of one GPU or run, by the wall clock of the service."""

    points: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    """Time, s, and watts. None: not known."""

    def last(self, now_s: float, span_s: float, slots: int) -> list[float | None]:
        """Return the mean of each of ``slots`` equal parts of the last seconds. None: it is not known."""
        sums, counts = [0.0] * slots, [0] * slots
        for at_s, watts in reversed(self.points):
            slot = slots - 1 - floor((now_s - at_s) / span_s * slots)
            if slot < 0:
                break
            if watts is not None and slot < slots:
                sums[slot] += watts
                counts[slot] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


class History:
    """Power of all GPUs and runs over the last minutes."""

    def __init__(self) -> None:
        self._gpus: dict[str, Series] = {}
        self._runs: dict[str, Series] = {}
        self.now_s = 0.0
        """Of the last snapshot."""

    def remember(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        self.now_s = snapshot.wall_ns / 1e9
        for gpu in snapshot.gpus:
            known = gpu.state == "there" and gpu.power_mw is not None
            self._add(
                self._gpus, gpu.gpu, gpu.power_mw / 1000 if known and gpu.power_mw is not None else None
            )
        for run in snapshot.runs:
            self._add(self._runs, run.run, run.watts)

    def fill(self, rows: Iterable[Mapping[str, Any]], snapshot: Snapshot) -> None:
        """Add what was before the first snapshot: ``gpu``, ``at_s``, ``watts`` of whole seconds, in order."""
        users = {gpu: run for run in snapshot.runs if run.ended_wall_ns is None for gpu in run.gpus}
        of_gpus: dict[str, list[tuple[float, float | None]]] = {}
        of_runs: dict[str, dict[float, list[float]]] = {}
        for row in rows:
            at_s, watts = row["at_s"], row["watts"]
            of_gpus.setdefault(row["gpu"], []).append((at_s, watts))
            run = users.get(row["gpu"])
            if run is not None and watts is not None and at_s * 1e9 >= (run.began_wall_ns or 0):
                of_runs.setdefault(run.run, {}).setdefault(at_s, []).append(watts)
        for gpu, points in of_gpus.items():
            _put_before(self._gpus, gpu, points)
        for run in snapshot.runs:
            summed = sorted(of_runs.get(run.run, {}).items())
            known = [(at_s, sum(each) if len(each) == len(run.gpus) else None) for at_s, each in summed]
            _put_before(self._runs, run.run, known)

    def _add(self, series: dict[str, Series], name: str, watts: float | None) -> None:
        one = series.setdefault(name, Series())
        one.points.append((self.now_s, watts))
        if len(series) > MAX_SERIES:
            del series[next(iter(series))]

    def gpu(self, gpu: str, span_s: float, slots: int) -> list[float | None]:
        """Return the power of a GPU over the last seconds, in ``slots`` parts."""
        return self._gpus[gpu].last(self.now_s, span_s, slots) if gpu in self._gpus else [None] * slots

    def span_s(self, run: str) -> float:
        """Return for how long the power of a run is remembered: whole minutes, five at most."""
        points = self._runs[run].points if run in self._runs else ()
        since_s = self.now_s - points[0][0] if points else 0.0
        return min(KEPT_S, max(60.0, 60.0 * ceil(since_s / 60)))

    def run(self, run: str, span_s: float, slots: int) -> list[float | None]:
        """Return a run's power in ``slots`` parts; the last ends at a multiple of `STEP_S`: few changes."""
        if run not in self._runs:
            return [None] * slots
        return self._runs[run].last(floor(self.now_s / STEP_S) * STEP_S, span_s, slots)


def _put_before(series: dict[str, Series], name: str, points: Iterable[tuple[float, float | None]]) -> None:
    """Put points before those that are remembered."""
    later = series.setdefault(name, Series()).points
    first_s = later[0][0] if later else inf
    earlier = [point for point in points if point[0] < first_s]
    series[name] = Series(deque([*earlier, *later], maxlen=MAX_POINTS))
