"""`ReplayZeusMonitor`: a monitor that gives the windows of a log file again, with Zeus's name."""

import csv
from pathlib import Path

from zeus_stream.zeus.monitor.energy import Measurement, ZeusMonitor


class ReplayZeusMonitor(ZeusMonitor):
    """A `ZeusMonitor` for tests: each window that ends gets the next line of a log file.

    Args:
        gpu_indices: the columns to read. None: all that the file has.
        approx_instant_energy: accepted and not used.
        log_file: as `ZeusMonitor` writes it.
        ignore_sync_execution: accepted and not needed: nothing is synchronized.
        match_window_name: a line of another window's name is an error.

    Raises:
        ValueError: ``log_file`` is None.
        OSError: it cannot be read.
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        approx_instant_energy: bool = False,
        log_file: str | Path | None = None,
        ignore_sync_execution: bool = False,
        match_window_name: bool = True,
    ) -> None:
        if log_file is None:
            raise ValueError("`log_file` cannot be `None` for `ReplayZeusMonitor`.")
        self.approx_instant_energy = approx_instant_energy
        self.ignore_sync_execution = ignore_sync_execution
        self.match_window_name = match_window_name
        with Path(log_file).open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or ()
            self._lines = iter(list(reader))
        self.gpu_indices = gpu_indices or [
            int(column.removeprefix("gpu").removesuffix("_energy")) for column in columns[3:]
        ]
        self._begun: list[str] = []

    def __repr__(self) -> str:
        return f"<ReplayZeusMonitor of GPUs {self.gpu_indices}: open windows {self._begun}>"

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Begin a window: its name is remembered, nothing is measured. Raises ValueError: it is open."""
        if key in self._begun:
            if not restart:
                raise ValueError(f"Measurement window '{key}' already exists")
            self._begun.remove(key)
        self._begun.append(key)

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """End a window, and return what the next line of the file has; ``cancel`` reads no line.

        Raises ValueError: no window of this name is open, or the file has no line left, or another's.
        """
        if key not in self._begun:
            raise ValueError(f"Measurement window '{key}' does not exist")
        self._begun.remove(key)
        if cancel:
            return Measurement(0.0, dict.fromkeys(self.gpu_indices, 0.0))
        line = next(self._lines, None)
        if line is None:
            raise ValueError("No more lines in the log file")
        if self.match_window_name and line["window_name"] != key:
            raise ValueError(f"Was expecting {line['window_name']}, not {key}")
        energies = {index: float(line[f"gpu{index}_energy"]) for index in self.gpu_indices}
        return Measurement(float(line["elapsed_time"]), energies)

    def reset_windows(self) -> None:
        """Forget all open windows."""
        self._begun.clear()
