"""Which power limit to measure next, when to stop measuring it, when to stop searching. Pure.

What a selector minimizes is a curve over the limits, and neighbours say something about each other. So the
curve's logarithm is given a Gaussian process, and after every block of steps the machine asks again:

    visits so far -> Measure(limit), the one under way or another
                  -> Choose(limit), with the excess that is expected of it and its 95 % bound

Prior: down to the mean power P at the highest limit a cap does nothing; below it time rises with the square
of ``s = SOFT * log(1 + (P / limit) ** (1 / SOFT))`` and power falls with ``s``. Around that, by how much
published curves stray (V100 and A40, Zeus's traces): a constant, a line and a parabola in ``s``, a smooth
part, and a part of each limit's own, whose size is one of `ROUGH`, weighed by how well it explains what was
measured. Time brings a slow drift and the warming-up of the first seconds, common to all limits: it is what
makes measuring the incumbent again worth while.

Stopping: a limit's worth is the expected improvement over the best limit measured, under the posterior;
the search ends when none is worth more than `WORTH`. The posterior is that of all data however often it was
looked at, so looking repeatedly needs no correction (the stopping rule is in the data).

Source of expected improvement: Jones, Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box
Functions", J. Global Optimization 13, 1998.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import erf, log, sqrt

import numpy as np
import numpy.typing as npt

from analyzers.selectors import Goal, Trial

Floats = npt.NDArray[np.float64]

BLOCKS = 3
"""A visit counts from so many blocks on."""
SETTLED = 0.02
SETTLING_NS = 5_000_000_000
"""Blocks that differ so much from those after them were settling; for so long at most."""
WORTH = 0.0015
WORTH_SLOW = 0.0015
DEAR = 5.0
LEAST_LIMITS = 4
"""An expected improvement below this share of the objective is not worth a visit."""
NOISE = 0.02
NOISE_DOF = 4
"""What is believed of the noise of one step before any was measured: its standard deviation, how firmly."""
CORRELATED = 1.25
SOFT = 0.25
"""Width of the bend where a cap begins to bind."""
SLOPE = 1.45
"""Of the logarithm of time over ``s`` squared."""
CONSTANT, LINE, PARABOLA = 0.006, 0.4, 0.75
SMOOTH, LENGTH = 0.02, 0.16
"""Standard deviations of the logarithm, and the smooth part's length in log(limit)."""
ROUGH = (0.003, 0.01, 0.03, 0.08)
DRIFT, DRIFT_NS = 0.003, 40_000_000_000
WARMING, WARMING_NS = 0.01, 15_000_000_000
KINK = 0.1
DRAWS = 500
"""Of curves, to tell the excess."""


@dataclass(frozen=True, slots=True)
class Visit:
    """What was measured at one limit from a change of limit to the next."""

    blocks: tuple[Trial, ...]
    """One or more, all of the same limit."""
    t_ns: int
    """When the last of them ended."""

    @property
    def limit_mw(self) -> int:
        return self.blocks[0].limit_mw

    @property
    def whole(self) -> Trial:
        """All of it in one trial."""
        return added(self.blocks)


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure a block at this limit: one more, if it is in force."""

    limit_mw: int


@dataclass(frozen=True, slots=True)
class Confidence:
    """How much worse than the best limit the chosen one may be, as a share of what is minimized."""

    expected: float
    p95: float


@dataclass(frozen=True, slots=True)
class Choose:
    """Search no more."""

    limit_mw: int
    confidence: Confidence


def added(trials: Sequence[Trial]) -> Trial:
    """Return trials of one limit as one."""
    return Trial(
        trials[0].limit_mw,
        sum(trial.energy_mj for trial in trials),
        sum(trial.duration_ns for trial in trials),
        sum(trial.steps for trial in trials),
    )


def by_limit(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return trials with those of one limit as one, in the order in which limits first appear."""
    of: dict[int, list[Trial]] = {}
    for trial in trials:
        of.setdefault(trial.limit_mw, []).append(trial)
    return tuple(added(same) for same in of.values())


def advise(limits_mw: Sequence[int], gpus: int, goal: Goal, visits: Sequence[Visit]) -> Measure | Choose:
    """Return what to do next.

    Args:
        limits_mw: those that may be chosen, descending.
        gpus: of the job.
        goal: what is minimized.
        visits: of these limits, in order; the last may be under way.
    """
    visits = settled([visit for visit in visits if visit.limit_mw in limits_mw])
    if not visits:
        return Measure(limits_mw[0])
    if len(visits[-1].blocks) < BLOCKS:
        return Measure(visits[-1].limit_mw)
    belief = _Belief(limits_mw, gpus, goal, visits)
    best = belief.best()
    worth = belief.worth(best)
    few = np.count_nonzero(belief.steps) < min(LEAST_LIMITS, len(limits_mw))
    sure = bool(belief.steps[best] and max(worth) < belief.enough)
    if (sure and not few) or sum(len(visit.blocks) for visit in visits) >= most_blocks(len(limits_mw)):
        best = belief.best(measured=True)
        return Choose(limits_mw[best], belief.confidence(best))
    return Measure(limits_mw[belief.next(best, worth, unseen=sure)])


def settled(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits without the blocks at their head in which power or time was still settling.

    That is: departed from the mean of the blocks after them, by more than `SETTLED` and than noise does.
    """
    for of in (_log_time, _log_power):
        deviation = sqrt(_step_variance([[(of(b), b.steps) for b in visit.blocks[1:]] for visit in visits]))
        visits = [_cut(visit, of, deviation) for visit in visits]
    return list(visits)


def _cut(visit: Visit, of: Callable[[Trial], float], deviation: float) -> Visit:
    blocks, dropped_ns = visit.blocks, 0
    while len(blocks) >= BLOCKS and dropped_ns < SETTLING_NS:
        first, later = blocks[0], added(blocks[1:])
        noise = deviation * sqrt(1 / first.steps + 1 / later.steps)
        if abs(of(first) - of(later)) <= max(SETTLED, 3 * noise):
            break
        blocks, dropped_ns = blocks[1:], dropped_ns + first.duration_ns
    return Visit(blocks, visit.t_ns)


def _log_time(trial: Trial) -> float:
    return log(trial.step_ns)


def _log_power(trial: Trial) -> float:
    return log(trial.energy_mj / trial.duration_ns)


def most_blocks(limits: int) -> int:
    """Return how many blocks a search over so many limits may take."""
    return 16 + 3 * limits


class _Belief:
    """What is known of the curve after some visits. Limits are indices."""

    def __init__(self, limits_mw: Sequence[int], gpus: int, goal: Goal, visits: Sequence[Visit]) -> None:
        self._goal = goal
        self.enough = WORTH if goal.factor is None else WORTH_SLOW
        self._limit = np.array(limits_mw, dtype=float)
        index = {limit: i for i, limit in enumerate(limits_mw)}
        self._at = np.array([index[visit.limit_mw] for visit in visits])
        self._current = int(self._at[-1])
        wholes = [visit.whole for visit in visits]
        steps = np.array([whole.steps for whole in wholes], dtype=float)
        t_ns = np.array([visit.t_ns for visit in visits], dtype=float)
        self.steps = np.bincount(self._at, steps, len(limits_mw))
        top_mw = limits_mw[0]

        def value(trial: Trial) -> float:
            return log(goal.of(trial, top_mw, gpus) / trial.steps)

        variance = _step_variance([[(value(b), b.steps) for b in visit.blocks] for visit in visits])
        energy = np.bincount(self._at, [w.energy_mj for w in wholes], len(limits_mw))
        duration = np.bincount(self._at, [w.duration_ns for w in wholes], len(limits_mw))
        self._seen = np.flatnonzero(self.steps)
        high = self._seen[0]
        power = energy[high] / duration[high] * 1e9 / gpus
        s = SOFT * np.log1p((power / self._limit) ** (1 / SOFT))
        s -= s[0]
        x = np.log(self._limit)
        time = SLOPE * s * s
        share = goal.energy_weight * power * gpus
        rest = (1 - goal.energy_weight) * top_mw * gpus
        prior = np.log((share * np.exp(time - s) + rest * np.exp(time)) / (share + rest))
        y = np.array([value(whole) for whole in wholes])
        y0 = y[0] - prior[self._at[0]]
        y = y - y0 - prior[self._at]
        apart = x[:, None] - x[None, :]
        smooth = (
            CONSTANT**2
            + LINE**2 * np.outer(s, s)
            + PARABOLA**2 * np.outer(s * s, s * s)
            + SMOOTH**2 * np.exp(-(apart**2) / 2 / LENGTH**2)
        )
        own = np.exp(-np.abs(apart) / KINK)
        since = t_ns - t_ns[0]
        noise = (
            np.diag(variance / steps)
            + DRIFT**2 * np.exp(-np.abs(since[:, None] - since[None, :]) / DRIFT_NS)
            + WARMING**2 * np.exp(-(since[:, None] + since[None, :]) / WARMING_NS)
        )
        posteriors = [_condition(smooth + rough**2 * own, self._at, noise, y) for rough in ROUGH]
        evidence = np.array([posterior[2] for posterior in posteriors])
        self._weights = np.exp(evidence - evidence.max())
        self._weights /= self._weights.sum()
        self._means = [prior + posterior[0] for posterior in posteriors]
        self._covariances = [posterior[1] for posterior in posteriors]
        self.mean = sum(w * m for w, m in zip(self._weights, self._means, strict=True))

    def best(self, *, measured: bool = False) -> int:
        """Return the best limit of those measured; of all, where a bound on the time has to be met."""
        mean, top = self.mean, int(self._seen[0])
        if self._goal.factor is None:
            return int(min(self._seen, key=lambda i: mean[i] + 1e-6 * i))
        within = np.flatnonzero(mean <= mean[top] + log(self._goal.factor)).tolist()
        return max((i for i in within if self.steps[i] or not measured), default=top)

    def against(self, best: int) -> int:
        """Return what other limits are compared with."""
        return best if self._goal.factor is None else int(self._seen[0])

    def worth(self, best: int) -> Floats:
        """Return what is expected to be gained by knowing each limit, as a share of the objective."""
        gained = np.zeros(len(self._limit))
        for weight, mean, covariance in zip(self._weights, self._means, self._covariances, strict=True):
            gained += weight * self._worth(best, mean, covariance)
        return gained

    def _worth(self, best: int, mean: Floats, covariance: Floats) -> Floats:
        variance = np.diag(covariance)
        against = self.against(best)
        deviation = np.sqrt(np.maximum(variance + variance[against] - 2 * covariance[against], 1e-14))
        if self._goal.factor is None:
            gained = _expected(mean[best] - mean, deviation)
        else:
            margin = log(self._goal.factor) - (mean - mean[against])
            i = np.arange(len(mean))
            gained = np.where(i == best, _expected(-margin, deviation), 0)
            gained = np.where(i > best, _expected(margin, deviation), gained)
        gained[against] = 0
        return gained

    def next(self, best: int, worth: Floats, *, unseen: bool) -> int:
        """Return what to measure: the most promising for what it costs, or what it is compared with.

        ``unseen``: only among limits that were not measured.
        """
        if self.steps[best] == 0:
            return best
        worth = worth / (1 + DEAR * np.expm1(np.maximum(self.mean - self.mean[best], 0)))
        if unseen:
            return int(np.argmax(np.where(self.steps == 0, worth, -1)))
        other, against = int(np.argmax(worth)), self.against(best)
        return other if self.steps[other] <= max(self.steps[against], BLOCKS) else against

    def confidence(self, best: int) -> Confidence:
        """Return the excess of a limit over the best there is, by drawing curves."""
        rng = np.random.default_rng(0)
        drawn = np.concatenate(
            [
                rng.multivariate_normal(mean, covariance, max(1, round(weight * DRAWS)), method="eigh")
                for weight, mean, covariance in zip(
                    self._weights, self._means, self._covariances, strict=True
                )
            ]
        )
        if self._goal.factor is None:
            excess = drawn[:, best] - drawn.min(axis=1)
        else:
            over = drawn - drawn[:, [self._seen[0]]] - log(self._goal.factor)
            over[:, self._seen[0]] = 0
            excess = np.maximum(over[:, best], np.max(-over[:, best + 1 :], axis=1, initial=0.0))
            excess = np.maximum(excess, 0)
        excess = np.expm1(excess)
        return Confidence(float(excess.mean()), float(np.quantile(excess, 0.95)))


def _step_variance(visits: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Return the variance of one step's logarithm, from how blocks of a visit differ."""
    squares, dof = NOISE_DOF * NOISE**2, NOISE_DOF
    for blocks in visits:
        if not blocks:
            continue
        mean = sum(value * steps for value, steps in blocks) / sum(steps for _, steps in blocks)
        squares += sum(steps * (value - mean) ** 2 for value, steps in blocks)
        dof += len(blocks) - 1
    return CORRELATED * squares / (dof - 2)


def _condition(
    prior: Floats, at: npt.NDArray[np.intp], noise: Floats, y: Floats
) -> tuple[Floats, Floats, float]:
    """Return mean and covariance of a process at every limit, and the log of its evidence."""
    total = prior[np.ix_(at, at)] + noise
    inverse = np.linalg.inv(total)
    known = prior[:, at] @ inverse
    covariance = prior - known @ prior[at]
    evidence = -0.5 * float(y @ inverse @ y) - 0.5 * float(np.linalg.slogdet(total)[1])
    return known @ y, (covariance + covariance.T) / 2, evidence


_erf = np.vectorize(erf, otypes=[float])


def _expected(gain: Floats, deviation: Floats) -> Floats:
    """Return the mean of what is above 0 of normal variables."""
    z = gain / deviation
    density = np.exp(-z * z / 2) / sqrt(2 * np.pi)
    return np.asarray(deviation * density + gain * 0.5 * (1 + _erf(z / sqrt(2))))
