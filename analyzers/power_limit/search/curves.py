"""Prior and posterior of a curve over the power limits. Pure.

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

A clock stands for its nominal power (`levels`). It binds whatever a workload draws: there ``s`` is the
logarithm of the highest nominal power over that of the clock, and time rises by `CLOCK_TIME`. Limits and
clocks of one search are on one curve over ``s``, the power that they take away: as measured, else in
proportion to what was measured nearby. Limits are off that curve by `OFFSET`, where they bind.

Time adds what all limits have in common: noise that is not white (`noise`), and a GPU that warms up in its
first seconds. Every model of the noise is combined with every kind of curve, weighed by the evidence.

An earlier run of the workload, or an earlier round of this one, may have left a curve. Then one more kind of
curve is believed in beside those: the remembered one again, as well as it was known, give or take `ALIKE`,
and at another level by one of `AGAIN`, tight or wide, as temperature, drivers or longer sequences change it.
What is measured weighs it against the others.
"""

from collections.abc import Callable, Collection, Sequence
from math import exp, log, sqrt
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from analyzers.power_limit.search import noise, visit_blocks
from analyzers.power_limit.search.belief import Belief, Curve
from analyzers.power_limit.search.noise import Bools, Floats, Indices, Means
from analyzers.power_limit.search.visit_blocks import Visit, by_limit, log_power
from analyzers.power_limit.selectors import Goal, Trial

NOISE, NOISE_DOF = 0.02, 4
"""Standard deviation of a step before any was measured, and how many degrees of freedom that is worth."""
NOISE_UNKNOWN = 0.05
"""The same where no remembered curve bears witness to what is measured: steps are not to be taken for quiet
because a few of them happen to agree."""
LONG_STEP_NS = 2_000_000_000
"""A longer step is the mean of several, as far as noise is known before it was measured."""
CORRELATED = 1.25
"""Variance of a mean over what its blocks scatter by: steps follow each other (correlation 0.3)."""
SOFT = 0.25
"""Width of the bend where a cap begins to bind, in log(limit)."""
SLOPE = 1.45
"""Logarithm of time over the square of s."""
CLOCK_TIME = 0.25, 0.16
"""The same for clocks: over s, and over its square. The simulated workloads are like that."""
MOST = 10.0
"""More times its limit no GPU draws, whatever is read."""
LINE, PARABOLA = 0.4, 0.75
"""Standard deviations around that: by s, by its square."""
SMOOTH, SMOOTH_LENGTH, CAPPED = 0.03, 0.16, 0.05
"""A standard deviation, how far it reaches in log(limit), and from which s on it is whole."""
KINKS, KINK_LENGTH = (0.003, 0.01, 0.03, 0.08, 0.6), 0.1
"""Standard deviations, and how far they reach in log(limit). The last is for limits that have no order.

Without it noise had to explain those. Of 280 searches with absurd memories, where limits differ up to
tenfold, 7 kept a limit measured to be over 5 % worse, and none with it. With one in 10,000,000 likely or
more, steep curves are measured at every limit."""
BUSY, LIKELY, LIKELY_WAITING = 0.5, (0.4, 0.25, 0.18, 0.17, 1e-10), (0.03, 0.15, 0.46, 0.36, 1e-10)
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
OFFSET = 0.04
"""Standard deviation by which limits that bind are off the curve of clocks, all alike: a clock fluctuates
under a limit, and is steady where it is locked.

Of 216 searches, of clocks and then of limits, with offsets of up to 5 %, 6 % cost over 1 % more than the
better control alone with 0.0, and 3 % with 0.04 or 0.08."""
MEASURABLE, NOMINAL = 0.05, (0.4, 2.5)
"""``s`` from which on a measured power tells by how much it is off, and by which factors it may be."""
Clocks: TypeAlias = Collection[int]
NO_CLOCKS: Clocks = frozenset()
"""Limits, mW, that are nominal powers of clocks."""
UNLIKE = (1.0, 0.4)
"""The same standard deviations of another workload, or where nothing is remembered."""
ENERGY = Goal(1.0)
"""Of two controls with a bound on the time, what decides between them."""
NEGLIGIBLE = 0.005
"""Explanations that together are less likely are left out."""


class RememberedCurve(Struct, frozen=True):
    """A remembered curve, at the limits of now."""

    curve: Curve
    trials: dict[int, Trial]
    """By limit."""

    def power(self, wholes: Sequence[Trial]) -> float:
        """Return by how much the logarithm of mean power differs now, where both measured it."""
        pairs = [(whole, self.trials.get(whole.limit_mw)) for whole in wholes]
        differ = [log_power(whole) - log_power(known) for whole, known in pairs if known is not None]
        return sum(differ) / len(differ) if differ else 0.0


def recall(
    limits_mw: Sequence[int],
    gpus: int,
    goal: Goal,
    remembered: Sequence[Trial],
    measured: Sequence[Visit],
    clocks: Clocks = NO_CLOCKS,
) -> RememberedCurve | None:
    """Return what a remembered curve says of limits, among which its own need not be.

    Its steps are taken to have been as noisy as those ``measured``.
    """
    if not remembered:
        return None
    known = [Visit((trial,), 0) for trial in remembered]
    known_mw = sorted({*limits_mw, *(trial.limit_mw for trial in remembered)}, reverse=True)
    whole = believe(known_mw, limits_mw[0], gpus, goal, known, noisy=measured, clocks=clocks).as_one
    at = [known_mw.index(limit) for limit in limits_mw]
    curve = Curve(1.0, whole.mean[at], whole.covariance[np.ix_(at, at)])
    return RememberedCurve(curve, {trial.limit_mw: trial for trial in remembered})


def believe(
    limits_mw: Sequence[int],
    top_mw: int,
    gpus: int,
    goal: Goal,
    measured: Sequence[Visit],
    memory: RememberedCurve | None = None,
    noisy: Sequence[Visit] | None = None,
    clocks: Clocks = NO_CLOCKS,
    *,
    known: bool = False,
) -> Belief:
    """Return the belief after some visits, one at least.

    Args:
        limits_mw: it is about these, descending; shape (n,).
        top_mw: the highest that may be chosen.
        gpus: of the job.
        goal: what is minimized.
        measured: visits of some of the limits, in order.
        memory: of an earlier run.
        noisy: visits by whose blocks steps are noisy, where those ``measured`` are what is remembered.
        clocks: those of the limits that are nominal powers of clocks.
        known: the search is over, so steps have shown how noisy they are.
    """

    def value(trial: Trial) -> float:
        return log(goal.of(trial, top_mw, gpus))

    if noisy is None:
        means, seen_mw = measured_means(
            measured, value, _usual_noise(measured, known=known or memory is not None)
        )
    else:
        means, seen_mw = _remembered_means(measured, noisy, value)
    at = np.array([limits_mw.index(limit) for limit in seen_mw])
    wholes = [visit.whole for visit in measured]
    level = float(means.mean[np.argmax(means.log_weight), 0])
    locked = np.array([limit in clocks for limit in limits_mw])
    power_mw, s = _binding(limits_mw, gpus, by_limit(wholes), locked)
    time = np.exp(CLOCK_TIME[0] * s + CLOCK_TIME[1] * s**2) if locked.any() else np.exp(SLOPE * s**2)
    usual = np.log(goal.of_step(power_mw * time * np.exp(-s), time, top_mw))
    usual += level - usual[at[0]]
    likely = LIKELY if power_mw > BUSY * limits_mw[0] else LIKELY_WAITING
    curves = _before(limits_mw, s, locked, usual, likely, wholes, memory, int(at[0]))
    steps = np.zeros(len(limits_mw))
    for whole in wholes:
        steps[limits_mw.index(whole.limit_mw)] += whole.steps
    controls = _controls(locked)
    energy = None
    if goal.factor is not None and len(controls) > 1:
        of = limits_mw, gpus, ENERGY, tuple(memory.trials.values()) if memory else (), measured, clocks
        energy = believe(limits_mw, top_mw, gpus, ENERGY, measured, recall(*of), noisy, clocks).as_one
    return _combined(goal.factor, controls, energy, steps, curves, at, means)


def measured_means(
    measured: Sequence[Visit], value: Callable[[Trial], float], deviation: float
) -> tuple[Means, list[int]]:
    """Return what visits say of the means at their limits, and those limits, mW."""
    blocks, seen_mw = visit_blocks.series(measured, value)
    blocks = noise.merged(blocks)
    t = np.array([measured[visit].t_ns - measured[0].t_ns for visit in blocks.visit], dtype=float)
    drift = DRIFT**2 * np.exp(-np.abs(t[:, None] - t) / DRIFT_NS)
    drift += WARMING**2 * np.exp(-(t[:, None] + t) / WARMING_NS)
    return noise.limit_means(blocks, deviation, drift), seen_mw


def _usual_noise(measured: Sequence[Visit], *, known: bool) -> float:
    """Return the standard deviation of a step before any was measured."""
    step_ns = min(visit.whole.step_ns for visit in measured)
    return (NOISE if known else NOISE_UNKNOWN) * min(1.0, sqrt(LONG_STEP_NS / step_ns))


def _remembered_means(
    remembered: Sequence[Visit], noisy: Sequence[Visit], value: Callable[[Trial], float]
) -> tuple[Means, list[int]]:
    """Return what is remembered of the means at limits, and those limits, mW. Steps were as ``noisy``."""
    wholes = [visit.whole for visit in remembered]
    variance = step_variance([[(value(block), block.steps) for block in visit.blocks] for visit in noisy])
    y = np.array([value(whole) for whole in wholes])
    covariance = np.diag([variance / whole.steps for whole in wholes]) + DRIFT**2 * np.eye(len(wholes))
    means = Means(np.zeros(1), y[None], covariance[None], np.array([variance]))
    return means, [whole.limit_mw for whole in wholes]


def _binding(
    limits_mw: Sequence[int], gpus: int, wholes: Sequence[Trial], locked: Bools
) -> tuple[float, Floats]:
    """Return the mean power at the highest limit, mW, and ``s`` of every limit, shape (n,).

    ``wholes``: one for each limit measured. ``locked``: which limits stand for clocks, shape (n,).
    """
    high = max(wholes, key=lambda whole: whole.limit_mw)
    power_mw, limit = high.energy_mj / high.duration_ns * 1e9 / gpus, np.array(limits_mw, dtype=float)
    if locked[limits_mw.index(high.limit_mw)]:
        power_mw *= limits_mw[0] / high.limit_mw
    else:
        power_mw = _at_highest(power_mw, high.limit_mw, limits_mw[0])
    s = SOFT * np.log1p((power_mw / limit) ** (1 / SOFT))
    s = np.where(locked, np.log(limit[0] / limit), s - s[0])
    if _are_both(locked):
        less = {limits_mw.index(each.limit_mw): log_power(high) - log_power(each) for each in wholes}
        for kind in (locked, ~locked):
            seen = [i for i in sorted(less, key=lambda i: s[i]) if kind[i] and s[i] >= MEASURABLE]
            if seen and high.limit_mw == limits_mw[0]:
                times = np.interp(s, s[seen], np.clip([less[i] / s[i] for i in seen], *NOMINAL))
                s = np.where(kind, s * times, s)
    return power_mw, s


def _are_both(locked: Bools) -> bool:
    """Tell whether some limits stand for clocks and others for themselves."""
    return bool(locked.any() and not locked.all())


def _controls(locked: Bools) -> tuple[Bools, ...]:
    """Return of each control the limits that stand for it; the highest is of all."""
    highest = np.arange(len(locked)) == 0
    return (highest | locked, highest | ~locked) if _are_both(locked) else (np.ones_like(locked),)


def _before(
    limits_mw: Sequence[int],
    s: Floats,
    locked: Bools,
    usual: Floats,
    likely: Sequence[float],
    wholes: Sequence[Trial],
    memory: RememberedCurve | None,
    at: int,
) -> list[Curve]:
    """Return the curves that are believed in before they are compared with what was measured.

    Args:
        limits_mw: as of `believe`.
        s: of every limit.
        locked: which limits stand for clocks.
        usual: what the objective's logarithm is most likely like.
        likely: of each of `KINKS`.
        wholes: what was measured.
        memory: of an earlier run.
        at: index of a limit that was measured.
    """
    both = _are_both(locked)
    x = -s if both else np.log(np.array(limits_mw, dtype=float))
    apart = np.abs(x[:, None] - x)
    alike = np.exp(-((apart / SMOOTH_LENGTH) ** 2) / 2)
    around = UNLIKE[0] ** 2 + LINE**2 * np.outer(s, s) + PARABOLA**2 * np.outer(s**2, s**2)
    capped = np.tanh(s / CAPPED)
    around += SMOOTH**2 * np.outer(capped, capped) * alike
    if both:
        around += np.outer(capped * ~locked, capped * ~locked) * (OFFSET**2 + ALIKE**2 * alike)
    weight, again = 1.0, list[Curve]()
    if memory is not None:
        of, power = memory.curve, memory.power(wholes)
        usual = usual + float(of.mean[at]) - usual[at]
        again = [
            Curve(
                share * _density(power, power_deviation),
                of.mean,
                of.covariance + ALIKE**2 * alike + deviation**2,
            )
            for deviation, power_deviation, share in AGAIN
        ]
        weight = (1 - sum(likely for *_, likely in AGAIN)) * _density(power, UNLIKE[1])
    new = [
        Curve(weight * share, usual, around + kink**2 * np.exp(-apart / KINK_LENGTH))
        for kink, share in zip(KINKS, likely, strict=True)
    ]
    return [*new, *again]


def _combined(
    factor: float | None,
    controls: tuple[Bools, ...],
    energy: Curve | None,
    steps: Floats,
    curves: Sequence[Curve],
    at: Indices,
    means: Means,
) -> Belief:
    """Return every curve given what every model of the noise says was measured, weighed by the evidence."""
    prior, usual = np.array([of.covariance for of in curves]), np.array([of.mean for of in curves])
    off = means.mean - usual[:, None, at]
    total = prior[:, None, at[:, None], at] + means.covariance
    weighed = np.linalg.solve(total, off[..., None])
    evidence = -0.5 * (np.sum(off * weighed[..., 0], axis=2) + np.linalg.slogdet(total)[1])
    likely = [log(max(curve.weight, 1e-300)) for curve in curves]
    log_weight = np.array(likely)[:, None] + means.log_weight + evidence
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    order = np.argsort(weight, axis=None)[::-1]
    enough = int(np.searchsorted(np.cumsum(weight.flat[order]), 1 - NEGLIGIBLE)) + 1
    kind, model = np.unravel_index(order[:enough], weight.shape)
    across = prior[kind][:, :, at]
    after = prior[kind] - across @ np.linalg.solve(total[kind, model], across.transpose(0, 2, 1))
    by_model = weight.sum(axis=0)
    error = np.full(len(steps), np.inf)
    error[at] = by_model @ np.diagonal(means.covariance, axis1=1, axis2=2)
    return Belief(
        factor=factor,
        controls=controls,
        energy=energy,
        steps=steps,
        weight=weight[kind, model] / weight[kind, model].sum(),
        mean=usual[kind] + (across @ weighed[kind, model])[:, :, 0],
        covariance=(after + after.transpose(0, 2, 1)) / 2,
        kind=kind,
        again=len(KINKS),
        error=error,
        models=by_model,
        variance=means.variance,
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


def step_variance(measured: Sequence[Sequence[tuple[float, int]]], before: float = NOISE) -> float:
    """Return the variance of one step, from how the blocks of a visit (value, steps) differ.

    ``before``: its standard deviation as believed before any was measured.
    """
    squares, dof = NOISE_DOF * before**2, NOISE_DOF
    for blocks in measured:
        mean = sum(value * steps for value, steps in blocks) / max(1, sum(steps for _, steps in blocks))
        squares += sum(steps * (value - mean) ** 2 for value, steps in blocks)
        dof += max(0, len(blocks) - 1)
    return CORRELATED * squares / (dof - 2)


def _density(off: float, deviation: float) -> float:
    return exp(-((off / deviation) ** 2) / 2) / deviation
