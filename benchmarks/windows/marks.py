"""Instants that a training tells the GPU that it loads, in a file that both map.

Imports the standard library only: trainings run in the environments of other tools.
"""

import mmap
import time
from pathlib import Path

MOST = 100_000
"""Instants that a file has room for."""
_BYTES = 8 * (MOST + 2)


class Marks:
    """Instants of CLOCK_MONOTONIC, ns, in the order in which they were added. One process adds."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            # Whether one is being added, how many there are, and these.
            self._cells = memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("q")

    def add(self) -> int:
        """Add this instant and return it."""
        cells = self._cells
        cells[0] = 1  # before the clock is read: a reader that sees 0 later has all instants before its own
        cells[2 + cells[1]] = now_ns = time.monotonic_ns()
        cells[1] += 1
        cells[0] = 0
        return now_ns

    def until_now(self) -> tuple[int, list[int]]:
        """Return an instant, and all that were added before it."""
        while True:
            now_ns = time.monotonic_ns()
            if not self._cells[0]:
                known = self._cells[2 : 2 + self._cells[1]].tolist()
                return now_ns, [each for each in known if each <= now_ns]

    def unchanged(self, count: int) -> bool:
        """Return whether there are so many, and no other is being added."""
        return not self._cells[0] and self._cells[1] == count


def wait_until(t_ns: int) -> None:
    """Sleep until an instant, on the last stretch in short naps."""
    while (left_ns := t_ns - time.monotonic_ns()) > 0:
        time.sleep(max(left_ns - 300_000, 20_000) / 1e9)
