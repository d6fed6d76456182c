"""An exporter in one file: sums of joules by run, in a file that other programs read.

It has what an exporter of another package has: a class, and an entry of the registry.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from analyzers.results.rows import DecisionRow, Row, RunRow, WindowRow
from zeus_stream.errors import SettingsError
from zeus_stream.exporters.exporter import ExporterKind


class Sums:
    """Joules of steps, decisions and ended runs, by run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[tuple[str, int, str | None], float] = {}
        """By key: a row that comes again replaces the one before."""
        self._runs: dict[str, str] = {}
        """By session."""
        self._limits_w: dict[str, float | None] = {}
        self._ended: set[str] = set()
        self._missed: list[int | None] = []

    def export(self, rows: Sequence[Row]) -> None:
        for row in rows:
            match row:
                case WindowRow(kind="step", energy_j=float(energy_j)):
                    self._runs[row.session] = row.run
                    self._steps[row.session, row.index, row.gpu] = energy_j
                case DecisionRow():
                    self._limits_w[row.run] = row.power_limit_w
                case RunRow(ended_ns=int()):
                    self._ended.add(row.run)
                case _:
                    pass
        self._write()

    def report_missed(self, count: int | None) -> None:
        self._missed.append(count)
        self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        sums: Counter[str] = Counter()
        for (session, _, _), energy_j in self._steps.items():
            sums[self._runs[session]] += energy_j  # type: ignore[assignment]
        told = {"joules": sums, "limits_w": self._limits_w, "ended": sorted(self._ended)}
        whole = self._path.with_suffix(".part")
        whole.write_text(json.dumps({**told, "missed": self._missed}), encoding="utf-8")
        whole.replace(self._path)  # its readers find all of it


def open_sums(setting: str) -> Sums:
    if not setting:
        raise SettingsError("exporter sums: could not be opened: it needs a file. Name one: sums:FILE.")
    return Sums(Path(setting))


kind = ExporterKind("sums:FILE", "Joules by run, in a file", open_sums)
