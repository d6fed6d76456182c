"""An exporter in one file: sums of joules by run, in a file that other programs read.

It has what an exporter of another package has: a class, and an entry of the registry.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from analyzers.results.rows import DecisionRow, RunRow, WindowRow
from zeus_stream.errors import SettingsError
from zeus_stream.screens.results.registry import ExporterKind


class Sums:
    """Joules of steps, decisions and ended runs, by run. A row that comes again replaces the one before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[tuple[str, str, int, str | None], float] = {}
        self._limits_w: dict[str, float | None] = {}
        self._ended: set[str] = set()
        self._missed: list[int | None] = []

    def export(self, rows: Sequence[object]) -> None:
        for row in rows:
            match row:
                case WindowRow(kind="step", energy_j=float(energy_j)):
                    self._steps[row.run, row.session, row.index, row.gpu] = energy_j
                case DecisionRow():
                    self._limits_w[row.run] = row.power_limit_w
                case RunRow(ended_ns=int()):
                    self._ended.add(row.run)
                case _:
                    pass
        self.close()

    def report_missed(self, count: int | None) -> None:
        self._missed.append(count)
        self.close()

    def close(self) -> None:
        joules: dict[str, float] = defaultdict(float)
        for (run, *_), energy_j in self._steps.items():
            joules[run] += energy_j
        sums = {"joules": joules, "limits_w": self._limits_w, "ended": sorted(self._ended)}
        whole = self._path.with_suffix(".part")
        whole.write_text(json.dumps({**sums, "missed": self._missed}), encoding="utf-8")
        whole.replace(self._path)  # its readers find all of it


def open_sums(setting: str) -> Sums:
    if not setting:
        raise SettingsError("exporter sums: could not be opened: it needs a file. Name one: sums:FILE.")
    return Sums(Path(setting))


kind = ExporterKind("sums:FILE", "Joules by run, in a file", open_sums)
