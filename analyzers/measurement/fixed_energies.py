"""Instants of one GPU whose energy has been fixed, for good. Pure."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from analyzers.measurement.knots import Floats, Ints, Knots

MAX_POINTS = 8_192
MAX_LEFT_OUT = 16
"""Stretches remembered that were not fitted; the oldest go."""
FIT_FAILED = "the energy fit failed: by the counter alone"
SHED = "the analyzer was behind: by the counter alone"
NEIGHBOURS = 16
"""Points before each whose covariance with it is kept; farther ones have none."""


class Fixed(NamedTuple):
    """Energies at instants; shape (n,) each."""

    known: npt.NDArray[np.bool_]
    energy_uj: Ints
    var: Floats
    """J^2."""
    point: Ints
    """The point at the instant, or the last before it."""


class Written(Struct, frozen=True, kw_only=True):
    """Energies to be fixed: those of m instants, the last n of them new."""

    t_ns: Ints
    """The new ones; shape (n,)."""
    energy_uj: Floats
    """Shape (m,)."""
    joint_j2: Floats
    """Covariance of their errors; shape (m, m). It is changed when they are written."""


class EnergyPoints:
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

    def write(self, fresh: Written, knots: Knots, epoch: int, *, tied: bool) -> None:
        """Fix energies for good, equation (12). They never fall, and none leaves the bounds of its knots.

        ``tied``: the counter's figure is the energy (it integrates); else they go on from the last one.
        """
        n, m = len(fresh.t_ns), len(fresh.energy_uj)
        if not n:
            return
        energy_uj, joint = fresh.energy_uj, fresh.joint_j2
        var = np.maximum(np.diagonal(joint), 0.0)
        anchored = bool(self.size) and self.epoch[-1] == epoch
        if not tied:
            energy_uj, total = self._continued(energy_uj, joint, var, m - n - 1, anchored=anchored)
            joint = (total[:, None] + total - (var[:, None] + var - 2 * joint)) / 2
            var = total
        fresh_uj = np.rint(energy_uj[m - n :]).astype(np.int64)
        if tied:
            earlier = knots.hi_ns.searchsorted(fresh.t_ns, side="right") - 1
            later = knots.lo_ns.searchsorted(fresh.t_ns)
            most = knots.energy_uj[np.minimum(later, len(knots.lo_ns) - 1)]
            fresh_uj = np.minimum(np.maximum(fresh_uj, knots.energy_uj[np.maximum(earlier, 0)]), most)
        if anchored:
            fresh_uj = np.maximum(fresh_uj, self.energy_uj[-1])
        fresh_uj = np.maximum.accumulate(fresh_uj)
        if anchored:
            self._revise(energy_uj, joint, var, m - n)
        column = np.arange(m - n, m)[:, None] - 1 - np.arange(NEIGHBOURS)
        cov = np.where(column >= 0, joint[np.arange(m - n, m)[:, None], np.maximum(column, 0)], 0.0)
        self.add(np.stack((fresh.t_ns, fresh_uj, np.full(n, epoch))), var[m - n :], cov.astype(np.float32))

    def _revise(self, energy_uj: Floats, joint: Floats, var: Floats, count: int) -> None:
        """Change a covariance so that the points fixed before stay where they were fixed.

        The refreshes of now place the first ``count`` elsewhere, with a variance of their own. An energy from
        one of them to a new point is off by that difference. The rest: see `_continued`.
        """
        before = slice(self.size - count, self.size)
        moved_j = (self.energy_uj[before] - energy_uj[:count]) / 1e6
        joint[count : count + NEIGHBOURS, :count] += (self.var[before] - var[:count] - moved_j**2) / 2

    def _continued(
        self, energy_uj: Floats, joint: Floats, var: Floats, at: int, *, anchored: bool
    ) -> tuple[Floats, Floats]:
        """Return energies that go on from the last one fixed, and their variances.

        ``energy_uj``: shape (m,); ``joint``: their covariance; ``var``: its diagonal. ``at``: which was fixed
        last; -1: none. ``anchored``: it is of the same epoch.
        """
        if not anchored or at < 0:
            return energy_uj, var
        energy_uj = energy_uj + (self.energy_uj[-1] - energy_uj[at])
        grown = np.maximum(var + var[at] - 2 * joint[at], 0.0)
        before = self.var[self.size - 1 - at :]
        return energy_uj, np.concatenate((before, self.var[-1] + grown[at + 1 :]))

    def at(self, t_ns: Ints, epoch: Ints, stray_w: float) -> Fixed:
        """Return the energies where they were fixed; ``t_ns`` and ``epoch`` (of the counter): shape (n,).

        ``stray_w``: deviation of power between two points from the straight line.
        """
        if self.size < 2:
            nothing = np.zeros(len(t_ns), np.int64)
            return Fixed(np.zeros(len(t_ns), np.bool_), nothing, np.zeros(len(t_ns)), nothing)
        left = np.clip(np.searchsorted(self.t_ns, t_ns, side="right") - 1, 0, self.size - 1)
        exact = self.t_ns[left] == t_ns
        right = np.where(exact, left, np.minimum(left + 1, self.size - 1))
        known = (self.t_ns[left] <= t_ns) & (t_ns <= self.t_ns[right])
        known &= (self.epoch[left] == epoch) & (self.epoch[right] == epoch)
        to_left, to_right = t_ns - self.t_ns[left], self.t_ns[right] - t_ns
        part = to_left / np.maximum(to_left + to_right, 1)
        grown = np.rint(part * (self.energy_uj[right] - self.energy_uj[left])).astype(np.int64)
        strayed_j = stray_w * np.minimum(to_left, to_right) / 1e9
        var = self.var[left] + part * (self.var[right] - self.var[left]) + strayed_j**2
        return Fixed(known, self.energy_uj[left] + grown, var, left)

    def variance(self, fixed: Fixed, *, tied: bool) -> Floats:
        """Return the variance of the energies of windows, J^2, fixed at begins, then ends; shape (2n,)."""
        count = len(fixed.point) // 2
        begin, end = fixed.point[:count], fixed.point[count:]
        near = (end > begin) & (end - begin <= NEIGHBOURS)
        # Where a covariance was not kept, points that are not tied differ by what came between them.
        shared = np.zeros(count) if tied else fixed.var[:count].copy()
        kept = self.cov[end[near], end[near] - begin[near] - 1]
        shared[near] = np.where(kept != 0.0, kept, shared[near])
        variance: Floats = np.maximum(fixed.var[:count] + fixed.var[count:] - 2 * shared, 0.0)
        return variance

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


FITTED = -1
"""In place of a reason: there is none."""


class LeftOut:
    """The last stretches whose energies were not fitted, with the reasons."""

    def __init__(self) -> None:
        self._stretches: list[tuple[int, int, str]] = []

    def add(self, since_ns: int, until_ns: int, why: str) -> None:
        """Remember a stretch that was not fitted."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and last[1:] == (since_ns, why):  # it goes on: as while the analyzer is behind
            self._stretches[-1] = last[0], until_ns, why
        else:
            self._stretches = [*self._stretches[1 - MAX_LEFT_OUT :], (since_ns, until_ns, why)]

    def which(self, begin_ns: Ints, end_ns: Ints) -> Ints:
        """Return, for each energy between two instants, the place of the reason in `reasons` why it was not
        fitted; `FITTED`: it was, or it is long ago."""
        which = np.full(len(begin_ns), FITTED)
        for place, (since_ns, until_ns, _) in reversed([*enumerate(self._stretches)]):
            which[(begin_ns < until_ns) & (end_ns > since_ns)] = place
        return which

    @property
    def reasons(self) -> list[str]:
        """Return the reason of each stretch."""
        return [why for *_, why in self._stretches]
