"""Readings of the archive, by GPU index and in wall time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from zeus_stream.clock import Anchor, anchor, monotonic_ns
from zeus_stream.errors import ZeusStreamError
from zeus_stream.quoting import quoted
from zeus_stream.transport.client import connect as connect_analyzer
from zeus_stream.zeus.services import MonitoredGpus, connect

T = TypeVar("T")
MAX_ROWS = 10_000_000
QUERY_S = 30.0
ARRIVES_S = 2.0
"""Longest wait for a reading past the end of an interval."""
LOOK_S = 0.05


class PowerReading(Struct, frozen=True):
    """One reading of a GPU. ``t`` is wall time, s since 1970."""

    t: float
    power_w: float | None
    energy_j: float | None
    temperature_c: int | None


class ReadingsSince:
    """The readings of GPUs since an instant."""

    def __init__(self, gpu_indices: Sequence[int] | None, max_samples_per_gpu: int | None) -> None:
        if gpu_indices is not None and not gpu_indices:
            raise ValueError("`gpu_indices` must be either `None` or non-empty")
        self.gpus: MonitoredGpus = connect(gpu_indices)
        self._max_samples = max_samples_per_gpu
        self._clock: Anchor = anchor()
        self._since_ns = self._clock.monotonic_ns

    def of(
        self, index: int, start_s: float | None = None, end_s: float | None = None
    ) -> Sequence[PowerReading]:
        """Return the readings of a GPU in order, those between two instants. None: from the begin, until now.

        Empty if no analyzer answers; one line says so.
        """
        low_ns = self._since_ns if start_s is None else self._monotonic_ns(start_s)
        end = "" if end_s is None else f" AND t_hi_ns <= {self._monotonic_ns(end_s)}"
        gpu = quoted(self.gpus.uuids.get(index, ""))
        rows = self._ask(
            "SELECT t_hi_ns, (t_lo_ns + t_hi_ns) // 2 AS t_ns, power_mw, energy_mj, temperature_c, seen"  # noqa: S608
            f" FROM readings WHERE gpu = {gpu} AND t_hi_ns >= {low_ns}{end}"
            " ORDER BY t_hi_ns"
        )
        found = [self._reading(row) for row in rows]
        return found if self._max_samples is None else found[-self._max_samples :]

    def wait_for(self, index: int, end_s: float) -> None:
        """Wait until a reading past an instant has arrived, if that is now or was before."""
        until_ns = monotonic_ns() + round(ARRIVES_S * 1e9)
        while monotonic_ns() < until_ns:
            found = self.of(index, end_s)
            if any(reading.t >= end_s for reading in found):
                return
            time.sleep(LOOK_S)

    def _ask(self, query: str) -> list[dict[str, Any]]:
        try:
            table = connect_analyzer().sql(query, max_rows=MAX_ROWS, timeout_s=QUERY_S)
        except ZeusStreamError as wrong:
            self.gpus.publisher.session_windows.warn("readings", f"readings are not known: {wrong}")
            return []
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def _reading(self, row: dict[str, Any]) -> PowerReading:
        counted = row["energy_mj"] is not None and row["seen"] != "unchanged"
        return PowerReading(
            self._wall_s(row["t_ns"] if counted else row["t_hi_ns"]),
            None if row["power_mw"] is None else row["power_mw"] / 1000,
            row["energy_mj"] / 1000 if counted else None,
            row["temperature_c"],
        )

    def _monotonic_ns(self, wall_s: float) -> int:
        return round(wall_s * 1e9) - self._clock.wall_ns + self._clock.monotonic_ns

    def _wall_s(self, t_ns: int) -> float:
        return (t_ns - self._clock.monotonic_ns + self._clock.wall_ns) / 1e9


def closest(timelines: Mapping[int, Sequence[tuple[float, T]]], at_s: float | None) -> dict[int, T] | None:
    """Return the value of each GPU that is closest to an instant; the last one, if that is None.

    None: a GPU has none yet.
    """
    if not timelines or not all(timelines.values()):
        return None
    if at_s is None:
        return {index: samples[-1][1] for index, samples in timelines.items()}
    return {
        index: min(samples, key=lambda sample: abs(sample[0] - at_s))[1]
        for index, samples in timelines.items()
    }
