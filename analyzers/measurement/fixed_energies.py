"""Instants of one GPU whose energy has been fixed, for good. Pure."""

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_POINTS = 8_192
NEIGHBOURS = 16
"""Points before each whose covariance with it is kept; farther ones have none."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Points:
    """Instants whose energy has been fixed, oldest first."""

    def __init__(self) -> None:
        self.size = 0
        self._ns = np.empty((3, 0), np.int64)
        """Instant, energy (uJ), epoch."""
        self._var = np.empty(0)
        """J^2, of the energy at the instant."""
        self._cov = np.empty((0, NEIGHBOURS), np.float32)
        """J^2; column j: with the point j + 1 before it."""

    @property
    def t_ns(self) -> Ints:
        return self._ns[0, : self.size]

    @property
    def energy_uj(self) -> Ints:
        return self._ns[1, : self.size]

    @property
    def epoch(self) -> Ints:
        return self._ns[2, : self.size]

    @property
    def var(self) -> Floats:
        return self._var[: self.size]

    @property
    def cov(self) -> npt.NDArray[np.float32]:
        return self._cov[: self.size]

    def add(self, ns: Ints, var: Floats, cov: npt.NDArray[np.float32]) -> None:
        """Append points; of more than MAX_POINTS the older half goes."""
        if self.size + len(var) > MAX_POINTS:
            self.keep(np.arange(self.size // 2, self.size))
        size = self.size + len(var)
        if size > len(self._var):
            room = max(2 * len(self._var), size, 64)
            self._ns = np.ascontiguousarray(_roomy(self._ns.T, room).T)
            self._var, self._cov = _roomy(self._var, room), _roomy(self._cov, room)
        self._ns[:, self.size : size], self._var[self.size : size], self._cov[self.size : size] = ns, var, cov
        self.size = size

    def keep(self, chosen: Ints) -> None:
        """Forget the others. With it goes what is known of the covariance with them."""
        column = np.arange(len(chosen))[:, None] - 1 - np.arange(NEIGHBOURS)
        same = chosen[:, None] - 1 - np.arange(NEIGHBOURS) == chosen[np.maximum(column, 0)]
        self._cov = np.where(same & (column >= 0), self._cov[chosen], np.float32(0))
        self._ns, self._var, self.size = self._ns[:, chosen], self._var[chosen], len(chosen)


def _roomy(rows: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """Return an array with room for so many rows."""
    made = np.empty((room, *rows.shape[1:]), rows.dtype)
    made[: len(rows)] = rows
    return made
