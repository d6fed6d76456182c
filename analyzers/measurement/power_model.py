"""The power of each kind of segment and the cost of each change, learned from a counter's refreshes. Pure.

Means come from a regression of the counter's steps on the time each had of each kind. How much segments of a
kind deviate from its mean is asked of a grid of standard deviations: each refresh makes some likelier (its
errors, seen as so many independent ones as give their sum of squares the same mean and variance), and small
ones are as likely beforehand as in a half-Cauchy distribution (Gelman, Bayesian Analysis 1, 2006, 3). Both
over the last `MEMORY_S` or so and over the past only. Rest is separate: no event says what a GPU does then.

How far that may be believed is tested by each refresh: what the others say of it is compared with what it
showed. The mean square of these errors, over their expected variance, scales the 95 % interval.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from analyzers.measurement.knots import Floats, Ints

MEMORY_S = 20.0
"""What is learned fades with this time constant."""
MEANS_S = 20.0
"""The means of kinds that are seen fade with this one."""
MAX_KINDS = 24
"""Of segments and changes together; the one seen longest ago goes."""
LAG_S, LATE_S = 0.0005, 0.0015
"""Lateness of power at a change of kind until it is known better: mean and standard deviation. Times the
change of power that is an energy. Each change has a lateness of its own, a rise and a fall too."""
LATE_AGAIN_S = 0.00015
"""The same where a segment follows another of its kind."""
FLAT = 0.1
"""A change is taken to move power by at least this part of the mean power, when its lateness is judged."""
GAP_SPREAD = 0.1
"""A gap draws as much as the GPU at rest, give or take this part of its mean power, in the same judgement."""
UNSTEADY = 0.2
"""Segments of a kind may deviate by this part of its mean power, until it is known better. Too little would
give the first refreshes too much weight in the means for as long as they are remembered."""
TRUSTED = 10.0
"""The model is trusted as if so many refreshes had been as far off as expected."""
OUTLIER = 25.0
"""A refresh that is worse off than this (square, over its variance) counts as this."""
FAR, FAR_S = 2.0, 0.05
"""No segment can be farther off its mean than so many times the mean power, no change than that power for so
long: then an instant is wrong, which tells nothing of deviations. A boxcar saw a thousandth of a change, as
if it had been of 757 J. All such changes had a deviation of 8 J from then on, and steps of 100 ms a half
width of 25 % (noisy, 20/10 ms, seed 52000)."""
CALIBRATION = (1.1, 9.0)
"""Within these the variance is scaled. Refreshes test sums, not shares within them: they never narrow it. Few
deviations are Gaussian: with 1.0, 93.4 in place of 94.6 % held (mixed, 50 ms, 20 ms counter, seed 420000)."""
TAIL_LATE = 0.5
"""Behind a change, once `EDGE_NS` are over, energy has its variance again, at most that of this part of its
lateness. Without, power that rises for up to 6 ms was taken for a step that deviates: 88 % of mixed edges
held, now 96 % (20 ms, 20/10, seeds 420000 to 420002, after 200 steps)."""
STEPS = np.exp2(np.arange(-2.0, 15.0))
GRIDS, GRID_FLICKER = np.array((0.05 * STEPS, 0.0005 * STEPS)), 0.005 * STEPS
"""Standard deviations that are thought of: of segments (W) and of changes (J); of the noise (W s^0.5)."""
SHARED = 3.0
"""Refreshes that are learned from together share segments and instants with those before and after them: so
many say together what one would alone."""

State = tuple[str, ...]
"""The power limit, then the phases of all who are there."""


class Role(IntEnum):
    """A kind of segment."""

    WORK = 0
    GAP = 1
    REST = 2
    CHANGE = 3


class PowerModel:
    """The learned kinds of one GPU. Memory is bounded by `MAX_KINDS`."""

    def __init__(self) -> None:
        self.known: dict[tuple[State, ...], int] = {(("None",),): 0}
        """Number of a kind of segment (one state) or change (two)."""
        self.born = 1
        """How many there have been."""
        self.reused: list[int] = []
        """Numbers given to other kinds, until somebody takes note."""
        self.role = np.full(MAX_KINDS, Role.REST, np.int64)
        self._used_ns = np.zeros(MAX_KINDS, np.int64)
        self._rest: dict[int, int] = {}
        """By the number of a gap, that of its job at rest."""
        self._late_s = np.zeros(MAX_KINDS)
        """Of a change: how late it may be."""
        self._mean, self._unsure = np.zeros(0), np.zeros((0, 0))
        """Of each kind, as `parameters` gave them last."""
        # all fading with MEMORY_S
        self._sums = np.zeros(2)
        """Seconds and joules."""
        self._normal = np.zeros((MAX_KINDS, MAX_KINDS))
        self._moment = np.zeros(MAX_KINDS)
        self._spread = np.zeros((MAX_KINDS, len(STEPS)))
        """Log likelihood of each standard deviation from part to part."""
        self._flicker = np.zeros((2, len(STEPS)))
        """The same of the noise, at work and at rest."""
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
                self._spread[number] = 0.0
                self.reused.append(number)
                self._rest = {gap: rest for gap, rest in self._rest.items() if number not in (gap, rest)}
            self.known[states] = number
            self.born += 1
            self.role[number] = _role(states)
            self._late_s[number] = LATE_S if states[0] != states[-1] else LATE_AGAIN_S
            if self.role[number] == Role.GAP and (rest := self.known.get((_at_rest(*states),))) is not None:
                self._rest[number] = rest
        self._used_ns[number] = t_ns
        return number

    @property
    def mean_w(self) -> float:
        return max(float(self._sums[1] / self._sums[0]), 1.0) if self._sums[0] else 100.0

    @property
    def calibration(self) -> float:
        """The factor for variances: recent errors over those expected."""
        count, squares = self._tested.tolist()
        return float(min(max((TRUSTED + squares) / (TRUSTED + count), CALIBRATION[0]), CALIBRATION[1]))

    def parameters(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the mean of each kind, its covariance, the variance from part to part, and the noise.

        W, W^2 and W^2 s (noise within) for segments, J and J^2 (noise behind) for changes. Shapes (n,),
        (n, n), (n,), (n,).
        """
        n, mean_w = len(self.known), self.mean_w
        role = self.role[:n]
        change = role == Role.CHANGE
        centre, width = self.expected()
        precision = 1 / width**2
        normal = self._normal[:n, :n].copy()
        normal.reshape(-1)[:: n + 1] += precision
        unsure = np.linalg.inv(normal).astype(np.float64, copy=False)
        mean = unsure @ (self._moment[:n] + precision * centre)
        self._mean, self._unsure = mean, unsure
        guess = np.where(change, 0.3 * self._late_s[:n] * mean_w, np.maximum(UNSTEADY * mean, 0.01 * mean_w))
        spread = _variance(self._spread[:n], guess, GRIDS[change.view(np.int8)])
        tail_j2 = np.minimum(spread, (TAIL_LATE * self._late_s[:n] * mean_w) ** 2)
        noise_w2s = _variance(self._flicker, np.full(2, 0.002 * mean_w), GRID_FLICKER)
        noise = np.where(change, tail_j2, noise_w2s[(role == Role.REST).view(np.int8)])
        return mean, unsure, spread, noise

    def expected(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of each kind before any of it was seen.

        A gap is taken to draw about what the GPU draws while its job is at rest, or else while any is.
        """
        n, mean_w = len(self.known), self.mean_w
        role = self.role[:n]
        change = role == Role.CHANGE
        rise_w, unsure_w = self._rises(n)
        moved_w = np.hypot(np.hypot(rise_w, np.minimum(unsure_w, mean_w)), FLAT * mean_w)
        mean = np.where(change, -LAG_S * rise_w, mean_w)
        width = np.where(change, self._late_s[:n] * moved_w, 0.6 * mean_w)
        rests = np.flatnonzero(role == Role.REST)
        rests = rests[rests < len(self._mean)]
        for gap in np.flatnonzero(role == Role.GAP).tolist():
            rest = [self._rest[gap]] if self._rest.get(gap, MAX_KINDS) < len(self._mean) else rests
            weight = self._normal[rest, rest]
            if weight.any():
                mean[gap] = min(float(self._mean[rest] @ weight / weight.sum()), mean_w)
                width[gap] = GAP_SPREAD * mean_w
        return mean, width

    def expected_of_rivals(self) -> Floats:
        """Return mean and precision of each kind before it was seen, whatever the counter sees of it."""
        mean, deviation = self.expected()
        n = len(mean)
        change = self.role[:n] == Role.CHANGE
        mean[change] = 0.0
        deviation[change] = self._late_s[:n][change] * self.mean_w
        return np.stack((mean, 1 / deviation**2))

    def _rises(self, n: int) -> tuple[Floats, Floats]:
        """Return by how much each change of kind raises power, W, as was known at last, and its deviation."""
        rise_w, unsure_w = np.zeros(n), np.full(n, np.inf)
        for states, number in self.known.items():
            before, after = self.known.get(states[:1]), self.known.get(states[-1:])
            if len(states) == 2 and before is not None and after is not None:
                if before == after:
                    unsure_w[number] = self.mean_w
                elif max(before, after) < len(self._mean):
                    rise_w[number] = self._mean[after] - self._mean[before]
                    var = self._unsure[after, after] + self._unsure[before, before]
                    unsure_w[number] = max(var - 2 * self._unsure[after, before], 0.0) ** 0.5
        return rise_w, unsure_w

    def begin(self, seconds: float, joules: float) -> None:
        """Know a mean power to begin with."""
        if not self._sums[0]:
            self._sums += seconds, joules

    def regress(self, shares: Floats, took_s: Floats, grown_j: Floats, doubt_j2: Floats) -> None:
        """Learn the mean of each kind from r refreshes, by weighted least squares that forgets.

        The normal equations are kept and fade with `MEMORY_S` by the time that the refreshes took;
        `parameters` solves them.

        Args:
            shares: seconds of each kind in each refresh, of a change how many; shape (r, n).
            took_s: duration of each refresh, s; shape (r,).
            grown_j: energy counted in each, J; shape (r,).
            doubt_j2: covariance of ``grown_j`` about what the means explain; shape (r, r).
        """
        n, seconds = shares.shape[1], float(took_s.sum())
        fade = float(np.exp(-seconds / MEMORY_S))
        for sums in (self._sums, self._spread, self._flicker, self._tested):
            np.multiply(sums, fade, out=sums)
        self._forget((shares != 0).any(axis=0), float(np.exp(-seconds / MEANS_S)))
        weighted = (np.linalg.inv(doubt_j2) @ shares).T / SHARED
        self._normal[:n, :n] += weighted @ shares
        self._moment[:n] += weighted @ grown_j
        self._sums += seconds, grown_j.sum()

    def _forget(self, seen: npt.NDArray[np.bool_], fade: float) -> None:
        """Let what is known of the means of some kinds fade, and keep what is known of the others.

        A kind that is not seen does not change: rest that faded went back to the mean power, and took with it
        the gaps that are expected to draw as much. Steps of 50 ms were off by -6 % after 2 minutes.

        ``seen``: of each kind, shape (n,).
        """
        n = len(seen)
        mean = np.append(self._mean, np.zeros(n - len(self._mean)))
        part = np.where(seen, fade**0.5, 1.0)
        normal = self._normal[:n, :n]
        left = self._moment[:n] - normal @ mean
        normal *= np.outer(part, part)
        self._moment[:n] = normal @ mean + part**2 * left

    def deviated(self, kind: Ints, scores: Floats, gram: Floats, spread: Floats) -> None:
        """Learn the variance of each kind from part to part.

        A part's score is its estimated deviation from the mean of its kind, over the variance of that
        estimate. Scores of a kind depend on each other, so the sum of their squares is taken for a scaled
        chi-squared variable of the same mean and variance (Satterthwaite). Its degrees of freedom are how
        many independent parts these are worth. The likelihood of each standard deviation of `GRIDS` follows.

        Args:
            kind: of each part; shape (p,).
            scores: see above; shape (p,).
            gram: covariance of the scores; shape (p, p).
            spread: variance of each kind as believed so far; shape (n,).
        """
        n = len(spread)
        most = np.where(self.role[kind] == Role.CHANGE, FAR_S, FAR) * self.mean_w
        can_be = np.abs(scores) <= most * gram.diagonal()
        kind, scores, gram = kind[can_be], scores[can_be], gram[np.ix_(can_be, can_be)]
        of_kind = np.eye(n)[kind]
        # The sum of squares of each kind, its expectation, and half of its variance.
        squares, mean = scores**2 @ of_kind, gram.diagonal() @ of_kind
        variance = ((of_kind.T @ gram**2) * of_kind.T).sum(axis=1)
        seen = np.flatnonzero(mean > 0)
        count, certain = mean[seen] ** 2 / variance[seen], variance[seen] / mean[seen]
        beside = np.maximum(1 / certain - spread[seen], 1e-3 / certain)
        total = beside[:, None] + GRIDS[(self.role[seen] == Role.CHANGE).view(np.int8)] ** 2
        found = squares[seen] / count / certain**2
        self._spread[seen] -= count[:, None] / 2 * (np.log(total) + found[:, None] / total)

    def flickered(self, seconds: Floats, scores: Floats, certain: Floats, noise_w2s: Floats) -> None:
        """Learn the noise within segments, at work and at rest, from r refreshes.

        Args:
            seconds: of each kind in each refresh; shape (r, n).
            scores: the residual of each refresh over its variance, as in `deviated`; shape (r,).
            certain: variances of the scores; shape (r,).
            noise_w2s: of each kind as believed so far; shape (n,).
        """
        role = self.role[: len(noise_w2s)]
        for place, of_role in enumerate((role < Role.REST, role == Role.REST)):
            took_s = seconds @ of_role
            if not took_s.any():
                continue
            beside = np.maximum(1 / certain - seconds @ (noise_w2s * of_role), 1e-3 / certain)
            total = beside[:, None] + took_s[:, None] * GRID_FLICKER**2
            found = (scores / certain) ** 2
            likely = np.log(total) + found[:, None] / total
            self._flicker[place] -= likely[took_s > 0].sum(axis=0) / 2

    def tested(self, errors: Floats) -> None:
        """Learn how far off the model is. ``errors``: squared errors of refreshes over their variances."""
        self._tested += len(errors), np.minimum(errors, OUTLIER).sum()

    def relearn(self, normal: Floats, moment: Floats) -> None:
        """Forget all deviations, and take these for the means: the counter is another one than thought."""
        self._normal[:], self._moment[:] = normal, moment
        self._spread[:], self._flicker[:], self._tested[:] = 0.0, 0.0, 0.0


def _variance(likelihood: Floats, guess: Floats, grid: Floats) -> Floats:
    """Return the expected variances, where deviations up to ``guess`` are as likely, and greater ones less.

    ``likelihood``: log, shape (n, g), on the ``grid`` of shape (g,) or (n, g); ``guess``: shape (n,).
    """
    belief = likelihood - np.log1p((grid / guess[:, None]) ** 2)
    weight = np.exp(belief - belief.max(axis=1, keepdims=True))
    expected: Floats = (weight * grid**2).sum(axis=1) / weight.sum(axis=1)
    return expected


def _at_rest(state: State) -> State:
    """Return the state with those in a gap at rest instead."""
    limit, *phases = state
    rests = (phase.removesuffix("gap") + "rest" if phase.endswith("//gap") else phase for phase in phases)
    return (limit, *sorted(rests))


def _role(states: tuple[State, ...]) -> Role:
    if len(states) == 2:
        return Role.CHANGE
    places = {"/".join(phase.split("/")[-2:]) for phase in states[0][1:]}
    if places <= {"/rest"}:
        return Role.REST
    return Role.GAP if places <= {"/rest", "/gap"} else Role.WORK
