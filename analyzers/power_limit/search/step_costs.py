"""The cost of a step at each limit as the search believes it, and what the chosen limit saves. Pure.

What is stated of a choice comes from where the choice came from: visits without what was settling or odd,
the models of their noise, drift between visits, and what is known of curves. A sum over all that was measured
is another figure: of a slow start it took the first limit for twice as dear as it was.

A search ends when the visits agree, so its belief is too sure where noise is strong. What the visits of both
limits scatter by is not known to the scatter within them, and is added to the interval (`SCATTERED`). While
it searches, quiet steps are not believed to be quiet (`curves.NOISE_UNKNOWN`); what is stated afterwards is.
"""

from collections.abc import Callable, Sequence
from math import ceil, exp, expm1, hypot, log, sqrt
from statistics import fmean

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzers.power_limit.search import curves
from analyzers.power_limit.search.belief import Belief
from analyzers.power_limit.search.curves import ENERGY
from analyzers.power_limit.search.visit_blocks import Visit, by_limit, log_energy, log_time, series
from analyzers.power_limit.selectors import Goal, Trial

TIME = Goal(0.0)
NORMAL_95 = 1.96
"""Half of a 95 % interval in standard deviations."""
SCATTERED, MOST_SCATTER = 0.5, 1.5
"""Share of the variance between visits that is added to that of the belief, and how many times the standard
deviation of the belief that between visits counts at most: visits that swing are known better than that.

Chosen on seed 1 of seven kinds of noise; docs/measurements/search.md has what it holds on other seeds."""


class ShareInterval(Struct, frozen=True):
    """A change as a share, with its 95 % interval."""

    low: float
    middle: float
    high: float


def _doubted(more: ShareInterval, doubt: float) -> ShareInterval:
    return ShareInterval(
        more.middle - hypot(more.middle - more.low, NORMAL_95 * doubt * more.middle),
        more.middle,
        more.middle + hypot(more.high - more.middle, NORMAL_95 * doubt * more.middle),
    )


class StepCosts(Struct, frozen=True):
    """The cost of a step at some limits, and that at the chosen one beside that at the highest of them."""

    trials: tuple[Trial, ...]
    """One for each limit measured or, where the curve is the remembered one, remembered; descending."""
    energy: ShareInterval
    """More energy at the chosen limit than at the highest."""
    time: ShareInterval

    def doubted(self, doubt: float) -> "StepCosts":
        """Return the same with a change that is known to a part of it: its standard deviation."""
        return replace(self, energy=_doubted(self.energy, doubt), time=_doubted(self.time, doubt))


def step_costs(
    limits_mw: Sequence[int],
    gpus: int,
    measured: Sequence[Visit],
    chosen_mw: int,
    remembered: Sequence[Trial] = (),
    *,
    as_remembered: bool = False,
    clocks: curves.Clocks = curves.NO_CLOCKS,
) -> StepCosts:
    """Return what steps take at limits after some visits.

    Args:
        limits_mw: that may be chosen, descending.
        gpus: of the job.
        measured: visits of them, one or more, as `search` uses them.
        chosen_mw: one of the limits measured.
        remembered: what an earlier run or round measured.
        as_remembered: what was measured agrees with that.
        clocks: those of the limits that are nominal powers of clocks.
    """
    top_mw = limits_mw[0]
    kept = {known.limit_mw: known for known in remembered if known.limit_mw <= top_mw}
    known_mw = sorted({*limits_mw, *(kept if as_remembered else ())}, reverse=True)

    def believed(goal: Goal, *, known: bool) -> Belief:
        memory = curves.recall(known_mw, gpus, goal, remembered, measured, clocks)
        return curves.believe(known_mw, top_mw, gpus, goal, measured, memory, clocks=clocks, known=known)

    energy, time = (believed(goal, known=False) for goal in (ENERGY, TIME))
    steps = energy.steps.astype(int).tolist()
    if as_remembered:
        steps = [
            count + (kept[mw].steps if mw in kept else 0) for count, mw in zip(steps, known_mw, strict=True)
        ]
    of_energy, of_time = energy.middle, time.middle
    trials = tuple(
        Trial(
            mw,
            max(1, round(count * exp(of_energy[at]))),
            max(1, round(count * exp(of_time[at]) / (top_mw * gpus) * 1e9)),
            count,
        )
        for at, (mw, count) in enumerate(zip(known_mw, steps, strict=True))
        if count
    )
    both_mw = chosen_mw, trials[0].limit_mw
    at, against = map(known_mw.index, both_mw)
    return StepCosts(
        trials,
        *(
            _more(of, believed(goal, known=True), at, against, between_visits(measured, value, *both_mw))
            for of, goal, value in ((energy, ENERGY, log_energy), (time, TIME, log_time))
        ),
    )


def carried_over(
    remembered: Sequence[Trial], measured: Sequence[Trial], highest_mw: int
) -> tuple[Trial, ...]:
    """Return what was measured and, of other limits, what is remembered, at the level of now.

    Without a limit in common the level is not known; then what was measured is all.
    """
    whole = [trial for trial in measured if min(trial.energy_mj, trial.duration_ns) > 0]
    both = [(known, trial) for known in remembered for trial in whole if known.limit_mw == trial.limit_mw]
    if measured and not both:
        return tuple(measured)
    energy = exp(fmean([log(trial.step_mj / known.step_mj) for known, trial in both] or [0.0]))
    time = exp(fmean([log(trial.step_ns / known.step_ns) for known, trial in both] or [0.0]))
    common_mw = {trial.limit_mw for _, trial in both}
    others = [
        replace(known, energy_mj=ceil(known.energy_mj * energy), duration_ns=ceil(known.duration_ns * time))
        for known in remembered
        if known.limit_mw <= highest_mw and known.limit_mw not in common_mw
    ]
    return by_limit([*measured, *others])


def between_visits(measured: Sequence[Visit], value: Callable[[Trial], float], *limits_mw: int) -> float:
    """Return the variance of the difference of two limits' means, from how the visits of each scatter.

    0 where one of them was visited less than twice.
    """
    blocks, seen_mw = series(measured, value)
    variance = 0.0
    for limit_mw in limits_mw:
        if limit_mw not in seen_mw:
            return 0.0
        of = blocks.at == seen_mw.index(limit_mw)
        _, visit = np.unique(blocks.visit[of], return_inverse=True)
        steps = np.bincount(visit, blocks.steps[of])
        if len(steps) < 2:
            return 0.0
        means = np.bincount(visit, blocks.steps[of] * blocks.value[of]) / steps
        shares = steps / steps.sum()
        squares = float(np.sum((shares * (means - shares @ means)) ** 2))
        variance += squares * len(steps) / (len(steps) - 1)
    return variance


def _more(belief: Belief, known: Belief, at: int, against: int, between: float) -> ShareInterval:
    """Return how much more is taken at one limit than at another.

    ``known``: the same belief, where steps have shown how noisy they are: it tells how sure that is.
    ``between``: variance of the logarithm of their ratio, from the scatter between visits.
    """
    if at == against:
        return ShareInterval(0.0, 0.0, 0.0)
    middle, centre = (float(of.middle[at] - of.middle[against]) for of in (belief, known))
    low, high = known.difference(at, against)
    deviation = (high - low) / (2 * NORMAL_95)
    wider = sqrt(1 + SCATTERED * min(between / deviation**2, MOST_SCATTER**2))
    bounds = (middle + wider * (bound - centre) for bound in (low, high))
    return ShareInterval(*(expm1(each) for each in np.sort([*bounds, middle])))
