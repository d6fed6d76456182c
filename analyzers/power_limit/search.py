"""Which power limit to measure next, when to stop measuring it, when to stop searching. Pure.

After every block of steps the machine asks again:

    visits so far -> Measure(limit), the one in force or another
                  -> Choose(limit), with how much worse than the best one it may be

What a selector minimizes is a curve over the limits, and neighbours say something about each other: the
curve's logarithm is a Gaussian process over the limits, observed with noise.

Before anything is measured: a limit above the mean power P at the highest does nothing; below it, by
``s = SOFT * log(1 + (P / limit) ** (1 / SOFT))``, power falls with s and time rises with its square. So
limits that cap nothing differ by nothing. Around that curves stray: by a level of which nothing is known, a
line and a parabola in s, a smooth part, and kinks, whose size is one of `KINKS`, weighed by how well it
explains what was measured. Where measurements show no order, large kinks explain them, and any limit that was
not looked at may be better; where they follow a smooth curve, those between them are known. The figures are
fitted to Zeus's published V100 and A40 traces; fitted to one half of the curves they explain the other half
to 1 % of the log evidence that its own have.

Time adds what all limits have in common: a slow drift, and the warming-up of the first seconds. Therefore the
incumbent is measured again where that matters.

One rule says when to stop and where to look. The risk at a limit is how likely it is better than the best one
measured by more than `TOLERATED`; with a bound on the time, how likely it is so far on the other side of the
bound than believed. When the risks at all limits add up to less than `RISK` the search ends: it is at most so
likely that one of them is so much better. Until then the limit with the largest risk for its cost is measured
next, or the one it is compared with if that is less known. The search also ends after `most_blocks`, with
what is known by then.

An earlier run of the workload, or an earlier round of this one, may have left a curve. Then one more kind of
curve is believed in beside those: the remembered one again, as well as it was known, give or take `ALIKE`,
and at another level by one of `AGAIN`, tight or wide, as temperature, drivers or longer sequences change it.
What is measured weighs it against the others: where it holds, a visit of its best limit and one of the
highest confirm it; where it does not, its weight is gone, and the search goes on with what was measured.

Stopping when the data look good does not bias a posterior as it biases a test: it holds whatever the rule was
by which the data were collected (Berger, Wolpert, "The Likelihood Principle", 1988, 4.2). Source of measuring
where improvement by so much is likeliest: Kushner, "A New Method of Locating the Maximum Point of an
Arbitrary Multipeak Curve in the Presence of Noise", J. Basic Engineering 86, 1964.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import erf, exp, log, sqrt

import numpy as np
import numpy.typing as npt

from analyzers.power_limit.selectors import Goal, Trial

Floats = npt.NDArray[np.float64]

BLOCKS = 3
"""A visit counts from so many blocks on."""
TOLERATED, RISK = 0.03, 0.003
"""It is at most so likely that a limit is left that is better by such a share of what is minimized."""
COST = 20.0
"""A limit that is dearer than the best by a share x is visited for 1 + `COST` x times the risk."""
SETTLED, SETTLING_NS = 0.02, 5_000_000_000
"""Blocks at a visit's head that differ so much from those after them were settling; for so long at most."""
NOISE, NOISE_DOF = 0.02, 4
"""Standard deviation of a step before any was measured, and how many degrees of freedom that is worth."""
NOISE_ANEW = 0.05
"""The same where no remembered curve bears witness to what is measured: steps are not to be taken for quiet
because a few of them happen to agree."""
CORRELATED = 1.25
"""Variance of a visit's mean over what its blocks scatter by: steps follow each other (correlation 0.3)."""
SOFT = 0.25
"""Width of the bend where a cap begins to bind, in log(limit)."""
SLOPE = 1.45
"""Logarithm of time over the square of s."""
MOST = 10.0
"""More times its limit no GPU draws, whatever is read."""
LINE, PARABOLA = 0.4, 0.75
"""Standard deviations around that: by s, by its square."""
SMOOTH, SMOOTH_LENGTH, CAPPED = 0.03, 0.16, 0.05
"""A standard deviation, how far it reaches in log(limit), and from which s on it is whole."""
KINKS, KINK_LENGTH = (0.003, 0.01, 0.03, 0.08), 0.1
"""Standard deviations, and how far they reach in log(limit)."""
BUSY, LIKELY, LIKELY_WAITING = 0.5, (0.4, 0.25, 0.18, 0.17), (0.03, 0.15, 0.46, 0.36)
"""How likely kinks of each size are where a GPU draws more than this share of its highest limit, and where it
draws less: that one waits for something else, and its runs differ by that, whatever its limit is."""
DRIFT, DRIFT_NS = 0.003, 40_000_000_000
WARMING, WARMING_NS = 0.01, 15_000_000_000
"""Standard deviations, and the time in which they fade to a third."""
AGAIN = ((0.03, 0.03, 0.5), (0.3, 0.1, 0.3))
"""Standard deviations of a remembered curve's level and of the mean power at its limits, and how likely they
are before anything is measured."""
ALIKE = 0.004
"""Standard deviation of its shape, that reaches as far as `SMOOTH_LENGTH`."""
ANEW = (1.0, 0.4)
"""The same standard deviations of another workload, or where nothing is remembered."""
TRUSTED, CHECKED = 0.97, 2
"""Where a remembered curve is so likely, so many limits are enough, and one more where its level has changed:
that one agrees may be chance. The highest is among them; all is compared with it, and curves part there."""
DRAWS = 500
"""Curves drawn to tell the excess."""


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
    remembered: float | None = None
    """How likely the curve is the one remembered; None: none was."""


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


def advise(
    limits_mw: Sequence[int],
    gpus: int,
    goal: Goal,
    visits: Sequence[Visit],
    remembered: Sequence[Trial] = (),
) -> Measure | Choose:
    """Return what to do next.

    Args:
        limits_mw: those that may be chosen, descending.
        gpus: of the job.
        goal: what is minimized.
        visits: of these limits, in order; the last may be under way.
        remembered: what an earlier run or round measured, nothing of it 0; one for each limit, of these or
            others.
    """
    visits = [visit for visit in visits if visit.limit_mw in limits_mw]
    left = most_blocks(len(limits_mw)) - sum(len(visit.blocks) for visit in visits)
    visits = settled(visits)
    memory = _recalled(limits_mw, gpus, goal, remembered, visits)
    if not visits and (memory is None or goal.factor is not None):
        return Measure(limits_mw[0])  # at whose time a bound is set
    if not visits and memory is not None:
        of = [i for i, limit in enumerate(limits_mw) if limit in memory.trials] or range(len(limits_mw))
        return Measure(limits_mw[min(of, key=lambda i: float(memory.curves.mean[i]))])
    if len(visits[-1].blocks) < BLOCKS and left > 1 - BLOCKS:
        return Measure(visits[-1].limit_mw)
    belief = _believe(limits_mw, limits_mw[0], gpus, goal, visits, memory)
    best = belief.best()
    risk = belief.risk(best)
    sure = bool(belief.steps[best]) and float(risk.sum()) < RISK
    if left <= 0 or (sure and belief.checked):
        best = belief.best(measured=True)
        return Choose(limits_mw[best], belief.confidence(best), None if memory is None else belief.remembered)
    if sure and belief.as_remembered and not belief.steps[0]:
        return Measure(limits_mw[0])
    if sure:  # where the risk would be largest, were it not as remembered
        risk = belief.risk(best, anew=True)
    return Measure(limits_mw[belief.next(best, risk, unseen=sure)])


def most_blocks(limits: int) -> int:
    """Return after how many blocks a search over so many limits ends."""
    return 16 + 3 * limits


# ---- settling ----------------------------------------------------------------------------------------


def settled(visits: Sequence[Visit]) -> list[Visit]:
    """Return the visits without the blocks at their head in which power or time was still settling.

    That is: departed from the mean of the blocks after them, by more than `SETTLED` and than the noise of the
    later half.
    """
    for of in (_log_time, _log_power):
        halves = [visit.blocks[len(visit.blocks) // 2 :] for visit in visits]
        deviation = sqrt(step_variance([[(of(block), block.steps) for block in half] for half in halves]))
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


# ---- what is believed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Curves:
    """A normal distribution of curves: the objective's logarithm at each of n limits."""

    weight: float
    """Of this distribution among the others."""
    mean: Floats
    """Shape (n,)."""
    covariance: Floats
    """Shape (n, n)."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What a remembered curve tells."""

    curves: _Curves
    """Of the limits of now."""
    trials: dict[int, Trial]
    """By limit."""

    def power(self, wholes: Sequence[Trial]) -> float:
        """Return by how much the logarithm of mean power differs now, where both measured it."""
        pairs = [(whole, self.trials.get(whole.limit_mw)) for whole in wholes]
        differ = [_log_power(whole) - _log_power(known) for whole, known in pairs if known is not None]
        return sum(differ) / len(differ) if differ else 0.0


@dataclass(frozen=True, slots=True)
class _Belief:
    """What is known of the curve after some visits. Limits are indices, the highest is 0."""

    factor: float | None
    steps: Floats
    """Measured at each limit."""
    curves: tuple[_Curves, ...]
    remembered: float = 0.0
    """Weight of those that are the remembered one."""

    @property
    def mean(self) -> Floats:
        return np.asarray(sum(curves.weight * curves.mean for curves in self.curves))

    @property
    def as_remembered(self) -> bool:
        return self.remembered >= TRUSTED

    @property
    def checked(self) -> bool:
        """Whether so many limits were measured that they do not agree with what is remembered by chance."""
        measured, limits = np.count_nonzero(self.steps), len(self.steps)
        if not self.as_remembered:
            return True
        as_it_was = self.curves[len(KINKS)].weight >= TRUSTED  # at the tightest level
        return bool(self.steps[0] and measured >= min(CHECKED if as_it_was else CHECKED + 1, limits))

    @property
    def as_one(self) -> _Curves:
        """All of it as one distribution of the same mean and covariance."""
        mean = self.mean
        around = [c.covariance + np.outer(c.mean - mean, c.mean - mean) for c in self.curves]
        weighted = sum(c.weight * of for c, of in zip(self.curves, around, strict=True))
        return _Curves(1.0, mean, np.asarray(weighted))

    @property
    def top(self) -> int:
        """The highest limit measured, at whose time a bound is set."""
        return int(np.flatnonzero(self.steps)[0])

    def best(self, *, measured: bool = False) -> int:
        """Return the best limit measured. With a bound on the time, that may be one not ``measured`` yet."""
        mean = self.mean
        seen = np.flatnonzero(self.steps).tolist()
        if self.factor is None:
            return int(min(seen, key=lambda i: (mean[i], i)))
        within = np.flatnonzero(mean <= mean[self.top] + log(self.factor)).tolist()
        return max((i for i in within if self.steps[i] or not measured), default=self.top)

    def against(self, best: int) -> int:
        """Return what other limits are compared with."""
        return best if self.factor is None else self.top

    def risk(self, best: int, *, anew: bool = False) -> Floats:
        """Return how likely each limit is so much better that another should be chosen; shape (n,).

        ``anew``: as if nothing was remembered.
        """
        curves = self.curves
        if anew:
            curves = curves[: len(KINKS)]
        elif self.as_remembered:
            curves = curves[len(KINKS) :]
        return np.asarray(sum(of.weight * self._risk(best, of) for of in curves))

    def _risk(self, best: int, curves: _Curves) -> Floats:
        against, mean, covariance = self.against(best), curves.mean, curves.covariance
        variance = np.diag(covariance) + covariance[against, against] - 2 * covariance[against]
        better = mean[against] - mean
        if self.factor is not None:
            better += log(self.factor)
            better[best] *= -1
            better[:best] = -np.inf
        risk = _above(better - TOLERATED, np.sqrt(np.maximum(variance, 1e-14)))
        risk[against] = 0
        return risk

    def next(self, best: int, risk: Floats, *, unseen: bool) -> int:
        """Return the limit to measure. ``unseen``: one that was not measured yet."""
        if not self.steps[best]:
            return best
        dearer = np.expm1(np.maximum(self.mean - self.mean[best], 0))
        worth = risk / (1 + COST * dearer)
        if unseen:
            return int(np.argmax(np.where(self.steps == 0, worth, -1)))
        other, against = int(np.argmax(worth)), self.against(best)
        return other if self.steps[other] <= self.steps[against] else against

    def confidence(self, best: int) -> Confidence:
        """Return how much worse than the best a limit is in curves that are drawn from the belief."""
        rng = np.random.default_rng(0)
        drawn = np.concatenate(
            [
                rng.multivariate_normal(c.mean, c.covariance, round(c.weight * DRAWS), method="eigh")
                for c in self.curves
            ]
        )
        if self.factor is None:
            worse = drawn[:, best] - drawn.min(axis=1)
        else:
            over = drawn - drawn[:, [self.top]] - log(self.factor)
            worse = np.maximum(np.max(-over[:, best + 1 :], axis=1, initial=0.0), 0)
            worse = worse if best == self.top else np.maximum(worse, over[:, best])
        excess = np.expm1(worse)
        return Confidence(float(excess.mean()), float(np.quantile(excess, 0.95)))


def _recalled(
    limits_mw: Sequence[int], gpus: int, goal: Goal, remembered: Sequence[Trial], visits: Sequence[Visit]
) -> _Memory | None:
    """Return what a remembered curve tells of limits, among which its own need not be.

    Its steps are taken to have been as noisy as those of ``visits``.
    """
    if not remembered:
        return None
    known = [Visit((trial,), 0) for trial in remembered]
    known_mw = sorted({*limits_mw, *(trial.limit_mw for trial in remembered)}, reverse=True)
    whole = _believe(known_mw, limits_mw[0], gpus, goal, known, noisy=visits).as_one
    at = [known_mw.index(limit) for limit in limits_mw]
    curves = _Curves(1.0, whole.mean[at], whole.covariance[np.ix_(at, at)])
    return _Memory(curves, {trial.limit_mw: trial for trial in remembered})


def _believe(
    limits_mw: Sequence[int],
    top_mw: int,
    gpus: int,
    goal: Goal,
    visits: Sequence[Visit],
    memory: _Memory | None = None,
    noisy: Sequence[Visit] | None = None,
) -> _Belief:
    """Return the belief after some visits, one at least.

    Args:
        limits_mw: it is about these, descending; shape (n,).
        top_mw: the highest that may be chosen.
        gpus: of the job.
        goal: what is minimized.
        visits: of some of the limits.
        memory: of an earlier run.
        noisy: other visits, by whose blocks steps are noisy as well; None: these are no remembered ones.
    """
    index = {limit: i for i, limit in enumerate(limits_mw)}
    at = np.array([index[visit.limit_mw] for visit in visits])
    wholes = [visit.whole for visit in visits]
    steps = np.array([whole.steps for whole in wholes], dtype=float)

    def value(trial: Trial) -> float:
        return log(goal.of(trial, top_mw, gpus))

    y = np.array([value(whole) for whole in wholes])
    high = max(wholes, key=lambda whole: whole.limit_mw)
    power_mw = _at_highest(high.energy_mj / high.duration_ns * 1e9 / gpus, high.limit_mw, limits_mw[0])
    limit = np.array(limits_mw, dtype=float)
    s = SOFT * np.log1p((power_mw / limit) ** (1 / SOFT))
    s -= s[0]
    time = np.exp(SLOPE * s**2)
    usual = np.log(goal.of_step(power_mw * time * np.exp(-s), time, top_mw))
    x = np.log(limit)
    apart = np.abs(x[:, None] - x)
    alike = np.exp(-((apart / SMOOTH_LENGTH) ** 2) / 2)
    around = ANEW[0] ** 2 + LINE**2 * np.outer(s, s) + PARABOLA**2 * np.outer(s**2, s**2)
    capped = np.tanh(s / CAPPED)
    around += SMOOTH**2 * np.outer(capped, capped) * alike
    t = np.array([visit.t_ns - visits[0].t_ns for visit in visits], dtype=float)
    blocks = [[(value(block), block.steps) for block in visit.blocks] for visit in (*visits, *(noisy or ()))]
    before = NOISE_ANEW if memory is None and noisy is None else NOISE
    noise = np.diag(step_variance(blocks, before) / steps)
    noise += DRIFT**2 * np.exp(-np.abs(t[:, None] - t) / DRIFT_NS)
    noise += WARMING**2 * np.exp(-(t[:, None] + t) / WARMING_NS)

    level, again = y[0], []
    weight = 1.0
    if memory is not None:
        of, power = memory.curves, memory.power(wholes)
        level = of.mean[at[0]]
        again = [
            _Curves(
                likely * _density(power, power_deviation),
                of.mean,
                of.covariance + ALIKE**2 * alike + deviation**2,
            )
            for deviation, power_deviation, likely in AGAIN
        ]
        weight = (1 - sum(likely for *_, likely in AGAIN)) * _density(power, ANEW[1])
    usual = usual + level - usual[at[0]]
    likely = LIKELY if power_mw > BUSY * limits_mw[0] else LIKELY_WAITING
    anew = [
        _Curves(weight * share, usual, around + kink**2 * np.exp(-apart / KINK_LENGTH))
        for kink, share in zip(KINKS, likely, strict=True)
    ]
    curves = _observed([*anew, *again], at, noise, y)
    remembered = sum(known.weight for known in curves[len(KINKS) :])
    return _Belief(
        goal.factor, np.bincount(at, steps, len(limits_mw)).astype(float), tuple(curves), remembered
    )


def _at_highest(power_mw: float, limit_mw: int, highest_mw: int) -> float:
    """Return the mean power at the highest limit of what draws ``power_mw`` at another.

    The bend tells it, as power falls with ``s``; of one that is held back entirely, the mean of both limits.
    """
    of_limit = min(power_mw / limit_mw, MOST) ** (1 / SOFT)
    of_highest = of_limit * (limit_mw / highest_mw) ** (1 / SOFT)
    held = of_limit - 1
    root = sqrt(held**2 + 4 * of_highest)
    solved = 2 * of_highest / (root - held) if held < 0 else (root + held) / 2
    return highest_mw * float(solved**SOFT)


def _observed(curves: Sequence[_Curves], at: npt.NDArray[np.intp], noise: Floats, y: Floats) -> list[_Curves]:
    """Return distributions of curves given what was observed, weighed by how well they explain it.

    Args:
        curves: before.
        at: m of the limits.
        noise: covariance of what is added in observing them, shape (m, m).
        y: what was observed, shape (m,).
    """
    found = [_condition(known, at, noise, y) for known in curves]
    likely = np.array([log(max(known.weight, 1e-300)) for known in curves]) + [
        evidence for *_, evidence in found
    ]
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    return [
        _Curves(float(weight), mean, covariance)
        for weight, (mean, covariance, _) in zip(weights, found, strict=True)
    ]


def step_variance(visits: Sequence[Sequence[tuple[float, int]]], before: float = NOISE) -> float:
    """Return the variance of one step, from how the blocks of a visit (value, steps) differ.

    ``before``: its standard deviation as believed before any was measured.
    """
    squares, dof = NOISE_DOF * before**2, NOISE_DOF
    for blocks in visits:
        mean = sum(value * steps for value, steps in blocks) / max(1, sum(steps for _, steps in blocks))
        squares += sum(steps * (value - mean) ** 2 for value, steps in blocks)
        dof += max(0, len(blocks) - 1)
    return CORRELATED * squares / (dof - 2)


def _condition(
    curves: _Curves, at: npt.NDArray[np.intp], noise: Floats, y: Floats
) -> tuple[Floats, Floats, float]:
    """Return mean and covariance of curves given ``y`` at some limits, and the log of its evidence."""
    prior, off = curves.covariance, y - curves.mean[at]
    total = prior[np.ix_(at, at)] + noise
    known = np.linalg.solve(total, prior[at]).T
    covariance = prior - known @ prior[at]
    evidence = -0.5 * float(off @ np.linalg.solve(total, off) + np.linalg.slogdet(total)[1])
    return curves.mean + known @ off, (covariance + covariance.T) / 2, evidence


def _density(off: float, deviation: float) -> float:
    return exp(-((off / deviation) ** 2) / 2) / deviation


_erf = np.vectorize(erf, otypes=[float])


def _above(mean: Floats, deviation: Floats) -> Floats:
    """Return how likely normal values are above 0."""
    return np.asarray(0.5 * (1 + _erf(mean / deviation / sqrt(2))))
