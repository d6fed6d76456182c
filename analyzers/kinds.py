"""What each kind of segment draws, and each change of kind costs: learned from a counter's refreshes. Pure.

Means come from a regression of the counter's steps on the time each had of each kind, deviations from their
share that the counter explains (MacKay, Neural Computation 4, 1992, 3: sum of squares over effective number),
both over the last `MEMORY_S` or so and over the past only.

How far that may be believed is tested by each refresh: what the others say of it is compared with what it
showed. The mean square of these errors, over their expected variance, scales the 95 % interval.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

MEMORY_S = 20.0
"""What is learned fades with this time constant."""
MAX_KINDS = 24
"""Of segments and changes together; the one seen longest ago goes."""
LATE_S = 0.0015
"""Power comes this much late at a change of kind, until it is known better."""
GAP_SPREAD = 0.1
"""A gap draws as much as the GPU at rest, give or take this part of its mean power, likewise."""
PSEUDO = 0.5
"""Deviations of each kind are known as if so many had been seen."""
TRUSTED = 10.0
"""The model is trusted as if so many refreshes had been as far off as expected."""
OUTLIER = 25.0
"""A refresh that is worse off than this (square, over its variance) counts as this."""
CALIBRATION = (0.25, 9.0)
"""Within these the variance is scaled."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
State = tuple[str, ...]
"""The power limit, then the phases of all who are there."""


class Role(IntEnum):
    """What a kind is."""

    WORK = 0
    GAP = 1
    REST = 2
    CHANGE = 3


class Kinds:
    """What has been learned of one GPU's kinds. Memory is bounded by `MAX_KINDS`."""

    def __init__(self) -> None:
        self.known: dict[tuple[State, ...], int] = {(("None",),): 0}
        """Number of a kind of segment (one state) or change (two)."""
        self.role = np.full(MAX_KINDS, Role.REST, np.int64)
        self._used_ns = np.zeros(MAX_KINDS, np.int64)
        # all fading with MEMORY_S
        self._sums = np.zeros(2)
        """Seconds and joules."""
        self._normal = np.zeros((MAX_KINDS, MAX_KINDS))
        self._moment = np.zeros(MAX_KINDS)
        self._squares = np.zeros(MAX_KINDS + 1)
        """Of explained deviations, and (last) of explained noise over its variance at 1 W^2 s."""
        self._effective = np.zeros(MAX_KINDS + 1)
        self._tested = np.zeros(2)
        """Refreshes, and the sum of their squared errors over their variances."""

    def __len__(self) -> int:
        return len(self.known)

    def number(self, states: tuple[State, ...], t_ns: int) -> int:
        """Return the number of a kind of segment (one state) or change (two), seen at ``t_ns``."""
        number = self.known.get(states)
        if number is None:
            number = len(self.known)
            if number >= MAX_KINDS:
                oldest = min(self.known, key=lambda known: int(self._used_ns[self.known[known]]))
                number = self.known.pop(oldest)
                self._normal[number], self._normal[:, number], self._moment[number] = 0.0, 0.0, 0.0
                self._squares[number], self._effective[number] = 0.0, 0.0
            self.known[states] = number
            self.role[number] = _role(states)
        self._used_ns[number] = t_ns
        return number

    @property
    def mean_w(self) -> float:
        """Mean power of late."""
        return max(float(self._sums[1] / self._sums[0]), 1.0) if self._sums[0] else 100.0

    @property
    def calibration(self) -> float:
        """What variances are to be multiplied by: errors of late, over those expected."""
        count, squares = self._tested.tolist()
        return float(min(max((TRUSTED + squares) / (TRUSTED + count), CALIBRATION[0]), CALIBRATION[1]))

    def parameters(self) -> tuple[Floats, Floats, Floats]:
        """Return the mean of each kind, its covariance, and the variance in each and (last) of the noise.

        W and W^2 for segments, J and J^2 for changes, W^2 s for the noise. Shapes (n,), (n, n), (n + 1,).
        """
        n, mean_w = len(self.known), self.mean_w
        change = self.role[:n] == Role.CHANGE
        centre, width = self._expected(change, mean_w)
        precision = 1 / width**2
        normal = self._normal[:n, :n].copy()
        normal.reshape(-1)[:: n + 1] += precision
        unsure = np.linalg.inv(normal).astype(np.float64, copy=False)
        mean = unsure @ (self._moment[:n] + precision * centre)
        guess = np.empty(n + 1)
        guess[:n] = np.where(change, 0.3 * LATE_S * mean_w, np.maximum(0.05 * mean, 0.01 * mean_w))
        guess[n] = 0.002 * mean_w
        squares = np.append(self._squares[:n], self._squares[-1])
        effective = np.append(self._effective[:n], self._effective[-1])
        return mean, unsure, (squares + PSEUDO * guess**2) / (effective + PSEUDO)

    def _expected(self, change: npt.NDArray[np.bool_], mean_w: float) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of each kind before any of it was seen.

        A gap is taken to draw about what the GPU draws at rest, until it is known better.
        """
        role = self.role[: len(change)]
        mean = np.where(change, 0.0, mean_w)
        width = np.where(change, LATE_S * mean_w, 0.6 * mean_w)
        rest = np.flatnonzero(role == Role.REST)
        weight = self._normal[rest, rest].sum()
        if weight > 0:
            gap = role == Role.GAP
            mean[gap] = min(float(self._moment[rest].sum() / weight), mean_w)
            width[gap] = GAP_SPREAD * mean_w
        return mean, width

    def begin(self, seconds: float, joules: float) -> None:
        """Know a mean power to begin with."""
        if not self._sums[0]:
            self._sums += seconds, joules

    def regress(self, shares: Floats, took_s: Floats, grown_j: Floats, doubt_j2: Floats) -> None:
        """Learn means from refreshes; what was known of them fades by the time they took.

        Args:
            shares: of each kind in each, s (a change: how many); shape (r, n).
            took_s: shape (r,).
            grown_j: what the counter counted; shape (r,).
            doubt_j2: variance of that beside the means; shape (r,).
        """
        n, seconds = shares.shape[1], float(took_s.sum())
        fade = float(np.exp(-seconds / MEMORY_S))
        for sums in (self._sums, self._normal, self._moment, self._squares, self._effective, self._tested):
            np.multiply(sums, fade, out=sums)
        weighted = (shares / doubt_j2[:, None]).T
        self._normal[:n, :n] += weighted @ shares
        self._moment[:n] += weighted @ grown_j
        self._sums += seconds, grown_j.sum()

    def deviated(self, kind: Ints, explained: Floats, effective: Floats) -> None:
        """Learn deviations: what parts (shape (p,)) deviated, and how much of that is not a guess, 0 to 1."""
        self._squares[:-1] += np.bincount(kind, explained**2, MAX_KINDS)
        self._effective[:-1] += np.bincount(kind, effective, MAX_KINDS)

    def fluctuated(self, squares_w2s: float, effective: float) -> None:
        """Learn the noise within segments, likewise."""
        self._squares[-1] += squares_w2s
        self._effective[-1] += effective

    def tested(self, errors: Floats) -> None:
        """Learn how far off the model is: squares of the errors of refreshes, over their variances."""
        self._tested += len(errors), np.minimum(errors, OUTLIER).sum()

    def relearn(self, normal: Floats, moment: Floats) -> None:
        """Forget all deviations, and take these for the means: the counter is another one than thought."""
        self._normal[:], self._moment[:] = normal, moment
        self._squares[:], self._effective[:], self._tested[:] = 0.0, 0.0, 0.0


def _role(states: tuple[State, ...]) -> Role:
    if len(states) == 2:
        return Role.CHANGE
    phases = {phase.rsplit("/")[-1] for phase in states[0][1:]}
    if phases <= {"rest"}:
        return Role.REST
    return Role.GAP if phases <= {"rest", "gap"} else Role.WORK
