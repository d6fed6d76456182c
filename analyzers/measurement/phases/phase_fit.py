"""Power of each phase by least squares, from a counter that is coarser than the phases. Pure.

A refresh j of the counter shows y_j joules. Of its time, each phase k had a_jk seconds, by the marks.
Over many refreshes the marks move against the counter, and

    y_j = sum_k a_jk P_k + noise                                                               (13)

tells the mean power P_k of each phase. Power follows the marks with a lag that is the same for all: it
is the one of a grid at which (13) leaves the least unexplained. With n_lk changes from phase l to k and
the lag d, the energy between the marks of k is

    E_k = T_k P_k + d sum_l n_lk (P_l - P_k)                                                   (14)

Power moves at once, or each change has a lag of its own and a ramp: it is spread over 2 ms about d. Under the
first hypothesis a load of the second kind has too much energy in its phases of little power. The estimate is
the mean of both by what they leave unexplained, and its interval includes their difference.

Before anything is known each P_k is the mean power, give or take `PRIOR` of it. What is not known of the
instants of refreshes would pull all P_k together: its variance is taken out of the normal matrix. The
covariance is that of clusters of consecutive refreshes (Liang and Zeger, Biometrika 73, 1986): noise of
neighbours hangs together.
"""

import numpy as np
from msgspec import Struct

from analyzers.measurement.knots import Floats

LAGS_S = np.arange(-1.0, 5.01, 0.5) / 1e3
"""Lags that are thought of: negative where marks come late."""
AROUND_S = np.arange(-1.5, 5.51, 0.5) / 1e3
"""These, and one more on either side."""
HYPOTHESES = 2 * len(LAGS_S)
"""Each lag with prompt changes, then each with changes that are spread."""
PRIOR = 0.6
"""Standard deviation of the power of a phase before it is known, as a part of the mean power."""
LAG_S, LAG_ERROR_S = 0.5e-3, 2e-3
"""The lag before it is known: its mean and its standard deviation."""
KNOWN = 0.5
"""A phase is identified if its energy is known better than to this part of what it was known to before."""
LEAST_NOISE = 1e-3
"""Standard deviation of a refresh beside the phases, at least, as a part of its energy."""
CLUSTER = 40
"""Refreshes of a cluster, at least."""
MAX_CLUSTERS = 64
"""Of more, neighbours are put together."""


class Shares(Struct, frozen=True, kw_only=True):
    """Refreshes of a counter by the phases in them; r refreshes, k phases."""

    lagged_s: Floats
    """Seconds of each phase under each hypothesis; shape (h, r, k)."""
    grown_j: Floats
    """The energy that the counter showed; shape (r,)."""
    open_s2: Floats
    """Variance of the shares by what is not known of the instants; shape (r, k)."""
    marked_s: Floats
    """Seconds of each phase by the marks; shape (r, k)."""
    entered: Floats
    """Changes from phase to phase; shape (r, k, k)."""


class PhaseEnergies(Struct, frozen=True, kw_only=True):
    """Energies of phases; shape (k,) each."""

    energy_j: Floats
    error_j: Floats
    """Half of the 95 % interval."""
    before_j: Floats
    """A phase is identified if its error is less: its marks moved enough against the counter to tell."""


def hypotheses(around_s: Floats) -> Floats:
    """Return the seconds of each phase under each hypothesis, from those by each lag of `AROUND_S`."""
    spread_s = (around_s[:-2] + 2 * around_s[1:-1] + around_s[2:]) / 4
    return np.concatenate((around_s[1:-1], spread_s))


class _Found(Struct, frozen=True, kw_only=True):
    """Energies of k phases under one hypothesis of how power moves."""

    energy_j: Floats
    variance_j2: Floats
    left_j2: float
    """The sum of squares that it leaves unexplained."""


class PhaseFit:
    """Sums over refreshes of one session on one GPU at one power limit, and the energies that follow."""

    def __init__(self, phases: int) -> None:
        """``phases``: their number; `grow` takes in more."""
        self.refreshes = 0
        self.seconds = np.zeros(phases)
        self.entered = np.zeros((phases, phases))
        self._joules = 0.0
        self._square = 0.0
        self._open = np.zeros(phases)
        self._normal = [np.zeros((HYPOTHESES, phases, phases))]
        """Of each cluster, the last one open."""
        self._moment = [np.zeros((HYPOTHESES, phases))]
        self._count = [0]
        self._size = CLUSTER
        self._unexplained = np.zeros(HYPOTHESES)
        """The part that each hypothesis leaves unexplained, computed last, J^2."""

    def grow(self, phases: int) -> None:
        """Make room for phases that were marked for the first time."""
        more = phases - len(self.seconds)
        if more <= 0:
            return
        self.seconds, self._open = (np.pad(each, (0, more)) for each in (self.seconds, self._open))
        self.entered = np.pad(self.entered, ((0, more), (0, more)))
        self._normal = [np.pad(each, ((0, 0), (0, more), (0, more))) for each in self._normal]
        self._moment = [np.pad(each, ((0, 0), (0, more))) for each in self._moment]

    def add(self, shares: Shares) -> None:
        lagged = shares.lagged_s
        turned = lagged.transpose(0, 2, 1)
        if self._count[-1] >= self._size:
            self._open_cluster()
        self._normal[-1] += turned @ lagged
        self._moment[-1] += turned @ shares.grown_j
        self._count[-1] += len(shares.grown_j)
        self.refreshes += len(shares.grown_j)
        self._joules += float(shares.grown_j.sum())
        self._square += float(shares.grown_j @ shares.grown_j)
        self._open += shares.open_s2.sum(axis=0)
        self.seconds += shares.marked_s.sum(axis=0)
        self.entered += shares.entered.sum(axis=0)

    def _open_cluster(self) -> None:
        if len(self._count) == MAX_CLUSTERS:
            self._size *= 2
            pairs = range(0, MAX_CLUSTERS, 2)
            self._normal = [self._normal[at] + self._normal[at + 1] for at in pairs]
            self._moment = [self._moment[at] + self._moment[at + 1] for at in pairs]
            self._count = [self._count[at] + self._count[at + 1] for at in pairs]
        self._normal.append(np.zeros_like(self._normal[0]))
        self._moment.append(np.zeros_like(self._moment[0]))
        self._count.append(0)

    def energies(self) -> PhaseEnergies | None:
        """Return what the phases used; None: no refresh has been taken in."""
        if not self.refreshes or not self.seconds.sum():
            return None
        mean_w = max(self._joules / float(self.seconds.sum()), 1.0)
        # Phases that were not marked here say nothing.
        used = np.flatnonzero(self._normal_sum().diagonal(axis1=1, axis2=2)[0] > 0)
        powers_w, covariances = self._powers(used, mean_w)
        half, turn = len(LAGS_S), self._turn(used)
        prompt, spread = (
            self._at_lag(powers_w[at], covariances[at], self._unexplained[at], turn, self.seconds[used])
            for at in (slice(half), slice(half, None))
        )
        noise_j2 = float(self._unexplained.min()) / self.refreshes + self._least_j2
        share = 1 / (1 + np.exp(np.clip((spread.left_j2 - prompt.left_j2) / (2 * noise_j2), -50, 50)))
        apart_j = spread.energy_j - prompt.energy_j
        variance = (1 - share) * prompt.variance_j2 + share * spread.variance_j2
        variance += share * (1 - share) * apart_j**2
        energy_j, error_j = np.zeros(len(self.seconds)), np.zeros(len(self.seconds))
        energy_j[used] = prompt.energy_j + share * apart_j
        error_j[used] = self._quantile(len(used)) * np.sqrt(np.maximum(variance, 0.0))
        before_j = KNOWN * 1.96 * PRIOR * mean_w * self.seconds
        return PhaseEnergies(energy_j=energy_j, error_j=error_j, before_j=before_j)

    @property
    def _least_j2(self) -> float:
        """Variance of a refresh beside the phases, at least."""
        return (LEAST_NOISE * self._joules / self.refreshes) ** 2

    def _normal_sum(self) -> Floats:
        total: Floats = np.sum(self._normal, axis=0)
        return total

    def _turn(self, used: np.ndarray) -> Floats:
        """Return what E changes by for each second of lag, equation (14); shape (k, k)."""
        entered = self.entered[np.ix_(used, used)]
        turn: Floats = entered.T - np.diag(entered.sum(axis=0))
        return turn

    def _powers(self, used: np.ndarray, mean_w: float) -> tuple[Floats, Floats]:
        """Return the powers under each hypothesis, shape (h, k), and their covariances, shape (h, k, k)."""
        across = np.ix_(np.arange(HYPOTHESES), used, used)
        normals = np.array([each[across] for each in self._normal])
        moments = np.array([each[:, used] for each in self._moment])
        normal, moment = normals.sum(axis=0), moments.sum(axis=0)
        centre = np.full(len(used), mean_w)
        # Noise of the instants adds to the squares of shares, and nothing to what they show together.
        normal = _positive(normal - np.diag(self._open[used]))
        left = self._left(normal, moment, np.tile(centre, (HYPOTHESES, 1)))
        noise_j2 = float(left.min()) / self.refreshes + self._least_j2
        precision = np.eye(len(used)) / (PRIOR * mean_w) ** 2
        for _ in range(2):
            bread = np.linalg.inv(normal + noise_j2 * precision)
            power_w = (bread @ (moment + noise_j2 * precision @ centre)[..., None])[..., 0]
            left = self._left(normal, moment, power_w)
            noise_j2 = float(left.min()) / max(self.refreshes - len(used), 1) + self._least_j2
        open_ = np.array(self._count)[:, None, None] / self.refreshes * np.diag(self._open[used])
        fitted = ((normals - open_[:, None]) @ power_w[None, ..., None])[..., 0]
        scores = moments - fitted
        clusters = len(self._count)
        meat = np.einsum("blk,blm->lkm", scores, scores) * clusters / max(clusters - 1, 1)
        plain = noise_j2 * normal
        # Of few clusters the scatter is not known: then what is larger counts.
        weight = min(clusters / (4.0 * len(used)), 1.0)
        middle = meat + (1 - weight) * plain + noise_j2**2 * precision
        return power_w, bread @ middle @ bread

    def _left(self, normal: Floats, moment: Floats, power_w: Floats) -> Floats:
        """Return what each hypothesis leaves unexplained, J^2."""
        explained = 2 * (power_w * moment).sum(axis=1)
        explained -= np.einsum("lk,lkm,lm->l", power_w, normal, power_w)
        left: Floats = np.maximum(self._square - explained, 0.0)
        self._unexplained = left
        return left

    def _at_lag(
        self, power_w: Floats, covariance: Floats, unexplained: Floats, turn: Floats, seconds: Floats
    ) -> "_Found":
        """Return the energies at the best lag.

        ``power_w`` at each lag: shape (lags, k), with its covariance; ``unexplained``: J^2, shape (lags,);
        ``turn``: see `_turn`; ``seconds``: shape (k,).
        """
        noise_j2 = float(self._unexplained.min()) / self.refreshes
        left = unexplained + noise_j2 * ((LAGS_S - LAG_S) / LAG_ERROR_S) ** 2
        step_s = float(LAGS_S[1] - LAGS_S[0])
        at = min(max(int(left.argmin()), 1), len(left) - 2)
        curve = left[at - 1] - 2 * left[at] + left[at + 1]
        part = float(np.clip((left[at - 1] - left[at + 1]) / (2 * max(curve, 1e-12)), -1.0, 1.0))
        error_s = min(step_s * float((2 * noise_j2 / max(curve, 1e-12)) ** 0.5), LAG_ERROR_S)
        toward = at + (1 if part > 0 else -1)
        power = power_w[at] + abs(part) * (power_w[toward] - power_w[at])
        slope = (power_w[at + 1] - power_w[at - 1]) / (2 * step_s)
        by_power = np.diag(seconds) + (float(LAGS_S[at]) + part * step_s) * turn
        variance = (by_power @ covariance[at] @ by_power.T).diagonal()
        return _Found(
            energy_j=by_power @ power,
            variance_j2=variance + (error_s * (by_power @ slope + turn @ power)) ** 2,
            left_j2=float(left[at] - part**2 * max(curve, 0.0) / 2),
        )

    def _quantile(self, phases: int) -> float:
        """Return how many deviations hold 95 %: Student's, by the clusters that are left over."""
        free = max(len(self._count) - phases, 2)
        return 1.96 + 2.4 / free + 2.6 / free**2


def _positive(normal: Floats) -> Floats:
    """Return the nearest matrices without negative eigenvalues."""
    values, vectors = np.linalg.eigh(normal)
    nearest: Floats = (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)
    return nearest
